"""A record of a group on a server, and the duty to settle it.

Whether that is still possible is known here, at once; what is said travels with all else of the same turn of the loop.
Below: lease. Above: the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from runnel.client.lease import RemoteLease
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded
from runnel.core.record import Record
from runnel.surface.delivery import ACCEPTED, BaseDelivery
from runnel.wire.messages import Verb

if TYPE_CHECKING:
    from runnel.client.group_subscription import RemoteGroupSubscription

T = TypeVar("T")


class RemoteDelivery(BaseDelivery[T], Generic[T]):
    """One record, held until it is acked, nacked or rejected, or the lease ends.

    >>> async with delivery:  # acks; nacks if the block raises
    ...     await charge(delivery.value)

    A lost connection ends the lease: the server gave the record back to the group.
    """

    __slots__ = ("_lease", "_place", "record")

    def __init__(self, lease: RemoteLease, place: int, record: Record[T]) -> None:
        self._lease, self._place, self.record = lease, place, record

    def __repr__(self) -> str:
        where = f"{self.topic!r} offset {self.offset}"
        return f"<Delivery {where}, attempt {self.attempt}, to {self._lease.member.label!r}>"

    # -- settling -----------------------------------------------------------------------------------------------

    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        """The work is done. Accepted when it returns, and on the server's disk a few milliseconds later.

        With `durable`, awaiting it takes until it is on disk.
        """
        member = self._lease.member
        if durable:
            member.check_durable()
        self._check()
        if durable:
            member.check_reached(self._lease, self._place)
        return member.settle(self._lease, Verb.ACK, self._place, self._place + 1, durable=durable)

    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        """The work failed: try again after `delay` seconds, or after the group's backoff."""
        if delay is not None and not 0 <= delay < float("inf"):
            raise InvalidOption("delay", delay, "expected seconds, 0 or more")
        self._check()
        return self._lease.member.settle(self._lease, Verb.NACK, self._place, self._place + 1, delay, reason)

    def reject(self, reason: str) -> Awaitable[None]:
        """The work can never succeed: to the dead-letter topic, with the reason."""
        self._check()
        return self._lease.member.settle(self._lease, Verb.REJECT, self._place, self._place + 1, None, reason)

    def extend(self, seconds: float) -> Awaitable[None]:
        """The work takes longer: keep the lease for so many seconds from now."""
        if not 0 < seconds < float("inf"):
            raise InvalidOption("seconds", seconds, "expected a number above 0")
        self._check()
        return self._lease.member.extend(self._lease, self._place, seconds)

    @property
    def lapsed(self) -> bool:
        """Whether its lease ended: the record went back to the group, and settling this delivery raises."""
        return self._lease.ended

    @property
    def settled(self) -> bool:
        """Whether it was acked, nacked or rejected, or its lease ended."""
        return self._lease.ended or not self._lease.is_open(self._place)

    def _check(self) -> None:
        lease = self._lease
        lease.member.check_here()
        if lease.ended:
            raise LeaseEnded(lease.member.group, self._place, lease.attempt)
        if not lease.is_open(self._place):
            raise AlreadySettled(lease.member.group, self._place)

    def _is_promised(self) -> bool:
        promised = self._lease.promised
        if not promised or self._place not in promised:
            return False
        promised[self._place] = True  # a transaction acks it, or gives it back
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
        return self._lease.member.group


class Part(NamedTuple):
    """Places [first, end) of one lease, and their records if they were built already."""

    lease: RemoteLease
    first: int
    end: int
    records: tuple[Record[Any], ...] | None = None


class RemoteDeliveryBatch(Generic[T]):
    """Deliveries taken together: `batch.values`, iteration over deliveries, and one `ack()` for all."""

    __slots__ = ("_member", "_parts")

    def __init__(self, member: RemoteGroupSubscription[T], parts: list[Part]) -> None:
        self._member, self._parts = member, parts

    def __len__(self) -> int:
        return sum(part.end - part.first for part in self._parts)

    def __repr__(self) -> str:
        return f"<DeliveryBatch of {len(self)} records>"

    def __iter__(self) -> Iterator[RemoteDelivery[T]]:
        for part in self._parts:
            records = part.records or part.lease.records(part.first, part.end)
            for place, record in enumerate(records, part.first):
                yield RemoteDelivery(part.lease, place, record)

    @property
    def values(self) -> tuple[T, ...]:
        """The values alone."""
        found: list[Any] = []
        for part in self._parts:
            if part.records is not None:
                found.extend(record.value for record in part.records)
            else:
                found.extend(part.lease.values(part.first, part.end))
        return tuple(found)

    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        """All of them are done, except those already settled. `LeaseEnded`, after the rest, if some came too late.

        With `durable`, awaiting it takes until that is on disk.
        """
        member = self._member
        if durable:
            member.check_durable()
        member.check_here()
        if durable:
            member.check_reached(self._parts[0].lease, self._parts[0].first)
        lapsed: Part | None = None
        for part in self._parts:
            if part.lease.ended:
                lapsed = lapsed or part
            else:
                for first, end in part.lease.open_ranges(part.first, part.end):
                    member.settle(part.lease, Verb.ACK, first, end)
        if lapsed is not None:
            raise LeaseEnded(member.group, lapsed.first, lapsed.lease.attempt)
        return member.sent_durably() if durable else ACCEPTED

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
