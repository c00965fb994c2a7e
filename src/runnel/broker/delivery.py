"""A record and the duty to settle it: what a member of a group receives.

Below: group, surface.delivery. Above: the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from runnel.broker.group.lease import Lease
from runnel.core.errors import LeaseEnded
from runnel.core.record import Record
from runnel.surface.delivery import ACCEPTED, BaseDelivery

if TYPE_CHECKING:
    from runnel.broker.group_reader import GroupReader

T = TypeVar("T")


class Delivery(BaseDelivery[T]):
    """One record, held until it is acked, nacked or rejected, or the lease ends.

    >>> async with delivery:  # acks; nacks if the block raises
    ...     await charge(delivery.value)
    """

    __slots__ = ("_lease", "_place", "_reader")

    def __init__(self, reader: GroupReader, lease: Lease, place: int, record: Record[T]) -> None:
        self._reader, self._lease, self._place, self.record = reader, lease, place, record

    def __repr__(self) -> str:
        return f"<Delivery {self.topic!r} offset {self.offset}, attempt {self.attempt}, to {self._lease.member.name!r}>"

    # -- settling -----------------------------------------------------------------------------------------------

    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        """The work is done. Accepted when it returns, and on disk a few milliseconds later.

        With `durable`, awaiting it takes until it is on disk.
        """
        if durable:
            self._reader.check_durable()
        self._reader.ack(self._lease, self._place)
        return self._reader.flushed() if durable else ACCEPTED

    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        """The work failed: try again after `delay` seconds, or after the group's backoff."""
        self._reader.nack(self._lease, self._place, delay, reason)
        return ACCEPTED

    def reject(self, reason: str) -> Awaitable[None]:
        """The work can never succeed: to the dead-letter topic, with the reason."""
        self._reader.reject(self._lease, self._place, reason)
        return ACCEPTED

    def extend(self, seconds: float) -> Awaitable[None]:
        """The work takes longer: keep the lease for so many seconds from now."""
        self._reader.extend(self._lease, self._place, seconds)
        return ACCEPTED

    @property
    def lapsed(self) -> bool:
        """Whether its lease ended: the record went back to the group, and settling this delivery raises."""
        return self._lease.ended

    @property
    def settled(self) -> bool:
        """Whether it was acked, nacked or rejected, or its lease ended."""
        return self._lease.ended or not self._lease.is_open(self._place)

    def _is_promised(self) -> bool:
        promised = self._lease.promised
        if not promised or self._place not in promised:
            return False
        promised[self._place] = True  # that its block was left
        return True

    def _is_open(self) -> bool:
        return self._lease.is_open(self._place)

    # -- the record ---------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """1 the first time, and one more each time it is handed out again."""
        return self._lease.attempt

    @property
    def group(self) -> str:
        """The group that it was delivered in."""
        return self._reader.name


class Part(NamedTuple):
    """Places [first, end) of one lease, and their records if they were built already."""

    lease: Lease
    first: int
    end: int
    records: tuple[Record[Any], ...] | None = None


class DeliveryBatch(Generic[T]):
    """Deliveries taken together: `batch.values`, iteration over deliveries, and one `ack()` for all."""

    __slots__ = ("_parts", "_reader")

    def __init__(self, reader: GroupReader, parts: list[Part]) -> None:
        self._reader, self._parts = reader, parts

    def __len__(self) -> int:
        return sum(part.end - part.first for part in self._parts)

    def __repr__(self) -> str:
        return f"<DeliveryBatch of {len(self)} records>"

    def __iter__(self) -> Iterator[Delivery[T]]:
        for part in self._parts:
            for place, record in enumerate(self._records(part), part.first):
                yield Delivery(self._reader, part.lease, place, record)

    def _records(self, part: Part) -> tuple[Record[Any], ...]:
        return part.records or self._reader.records(part.lease, part.first, part.end)

    @property
    def values(self) -> tuple[T, ...]:
        """The values alone."""
        found: list[Any] = []
        for part in self._parts:
            if part.records is not None:
                found.extend(record.value for record in part.records)
            else:
                found.extend(self._reader.values(part.lease, part.first, part.end))
        return tuple(found)

    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        """All of them are done, except those already settled. `LeaseEnded`, after the rest, if some came too late.

        With `durable`, awaiting it takes until that is on disk.
        """
        if durable:
            self._reader.check_durable()
        lapsed: Part | None = None
        for part in self._parts:
            if part.lease.ended:
                lapsed = lapsed or part
            else:
                self._reader.ack_range(part.lease, part.first, part.end)
        if lapsed is not None:
            raise LeaseEnded(self._reader.name, lapsed.first, lapsed.lease.attempt)
        return self._reader.flushed() if durable else ACCEPTED

    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        """Try again what is not settled."""
        for delivery in self:
            if not delivery.settled:
                delivery.nack(delay, reason)
        return ACCEPTED

    def reject(self, reason: str) -> Awaitable[None]:
        """What is not settled can never succeed."""
        for delivery in self:
            if not delivery.settled:
                delivery.reject(reason)
        return ACCEPTED
