"""A member of a group, and the deliveries that it settles.

Leaving the block gives back at once what was not settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from runnel.api.delivery_base import ACCEPTED, DeliveryBase
from runnel.api.subscription_base import SubscriptionBase, decoded
from runnel.broker.group.logic.leases import Lease
from runnel.core.errors import LeaseEnded, RunnelError, ValidationFailed
from runnel.core.options import not_negative, positive
from runnel.core.record import Record
from runnel.core.schema import Codec

if TYPE_CHECKING:
    from runnel.broker.group.reader import GroupReader


T = TypeVar("T")


class Delivery(DeliveryBase[T]):
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


class LeasedRange(NamedTuple):
    """Places [first, end) of one lease, and their records if they were built already."""

    lease: Lease
    first: int
    end: int
    records: tuple[Record[Any], ...] | None = None


class DeliveryBatch(Generic[T]):
    """Deliveries taken together: `batch.values`, iteration over deliveries, and one `ack()` for all."""

    __slots__ = ("_parts", "_reader")

    def __init__(self, reader: GroupReader, parts: list[LeasedRange]) -> None:
        self._reader, self._parts = reader, parts

    def __len__(self) -> int:
        return sum(part.end - part.first for part in self._parts)

    def __repr__(self) -> str:
        return f"<DeliveryBatch of {len(self)} records>"

    def __iter__(self) -> Iterator[Delivery[T]]:
        for part in self._parts:
            for place, record in enumerate(self._records(part), part.first):
                yield Delivery(self._reader, part.lease, place, record)

    def _records(self, part: LeasedRange) -> tuple[Record[Any], ...]:
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
        lapsed: LeasedRange | None = None
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


# -- The subscription ------------------------------------------------------------------------------------


PREFETCH = 64


class GroupMember(Protocol):
    """A member, as its group needs it: here, or far away."""

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The one that reads, if it is of this process."""

    @property
    def label(self) -> str:
        """Its name."""

    @property
    def prefetch(self) -> int:
        """How many records it may hold."""

    @property
    def prefetch_bytes(self) -> int | None:
        """How many bytes it may hold."""

    def receive(self, lease: Lease) -> None:
        """Records were granted to it."""

    def forget(self) -> None:
        """What was granted is void."""

    def end(self, error: RunnelError | None = None) -> None:
        """No more deliveries."""


class GroupSubscription(SubscriptionBase, Generic[T]):
    """One member of a group.

    >>> async with broker.subscribe("orders", group="billing") as deliveries:
    ...     async for delivery in deliveries:
    ...         async with delivery:
    ...             await charge(delivery.value)
    """

    def __init__(
        self,
        open_reader: Callable[[], GroupReader],
        label: str,
        codec: Codec[T] | None,
        prefetch: int | None,
        prefetch_bytes: int | None,
    ) -> None:
        super().__init__()
        self._label = label
        self.prefetch = PREFETCH if prefetch is None else positive("prefetch", prefetch)
        self.prefetch_bytes = None if prefetch_bytes is None else positive("prefetch_bytes", prefetch_bytes)
        self._open_reader = open_reader
        self._codec = codec
        self._reader: GroupReader | None = None
        self._inbox: deque[Lease] = deque()

    def __repr__(self) -> str:
        return f"<GroupSubscription {self.label!r} {self._state}>"

    @property
    def label(self) -> str:
        """The member's name: the one it was given, or its group's and a number."""
        return self._label

    @property
    def reader(self) -> GroupReader:
        """The group it belongs to, once the block is entered."""
        self._check_entered()
        assert self._reader is not None, "entering opened it"
        return self._reader

    async def __aenter__(self) -> GroupSubscription[T]:
        self._check_not_entered()
        self._reader = self._open_reader()
        self._reader.admit(self)
        self._entered = True
        return self

    def __aiter__(self) -> AsyncIterator[Delivery[T]]:
        return self._iterate(self._deliveries, None, None)

    def __anext__(self) -> Any:
        return self.__aiter__().__anext__()

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> AsyncIterator[DeliveryBatch[T]]:
        """Read in batches, up to `max_records` (and never more than `prefetch`), to ack with one call.

        With `max_wait`, a batch that is not full waits so many seconds for more.
        """
        limit = self.prefetch if max_records is None else positive("max_records", max_records)
        if max_wait is not None:
            not_negative("max_wait", max_wait)
        return self._iterate(self._batches, min(limit, self.prefetch), max_wait)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _deliveries(self, *_: None) -> AsyncIterator[Delivery[T]]:
        reader, codec, inbox = self.reader, self._codec, self._inbox
        while True:
            if not inbox:
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return
                await self._parked()
                continue
            lease = inbox.popleft()
            if not reader.take_up(lease):
                continue
            self.task = asyncio.current_task()
            for place, record in enumerate(reader.records(lease, lease.first, lease.end), lease.first):
                if lease.ended:
                    break  # it expired, or the group was reset: somebody else's business now
                lease.handed = place + 1
                if codec is None:
                    yield Delivery(reader, lease, place, record)  # type: ignore[arg-type]
                elif (decoded := self._decoded(codec, lease, place, record)) is not None:
                    yield Delivery(reader, lease, place, decoded)

    async def _batches(self, limit: int, max_wait: float | None) -> AsyncIterator[DeliveryBatch[T]]:
        reader = self.reader
        while True:
            if max_wait is not None:
                await self._gather(self._granted, limit, max_wait, reader.clock)
            parts = self._take(limit)
            if parts:
                yield DeliveryBatch(reader, parts)
            elif self._error is not None:
                raise self._error
            elif self._ended:
                return
            else:
                await self._parked()

    def _take(self, limit: int) -> list[LeasedRange]:
        parts: list[LeasedRange] = []
        self.task = asyncio.current_task()
        while self._inbox and limit > 0:
            lease = self._inbox[0]
            first, end = lease.handed, min(lease.end, lease.handed + limit)
            goes_on = self.reader.take_up(lease)
            if end == lease.end or not goes_on:
                self._inbox.popleft()
            if not goes_on:
                continue
            lease.handed = end
            limit -= end - first
            parts += [LeasedRange(lease, first, end)] if self._codec is None else self._decoded_parts(lease, first, end)
        return parts

    def _decoded_parts(self, lease: Lease, first: int, end: int) -> list[LeasedRange]:
        """Parts with decoded records, around those that cannot be decoded."""
        parts: list[LeasedRange] = []
        codec = self._codec
        assert codec is not None
        for place, record in enumerate(self.reader.records(lease, first, end), first):
            decoded = self._decoded(codec, lease, place, record)
            if decoded is not None:
                parts.append(LeasedRange(lease, place, place + 1, (decoded,)))
        return parts

    def _decoded(self, codec: Codec[T], lease: Lease, place: int, record: Record[bytes]) -> Record[T] | None:
        """The record with a value of its own; what cannot be decoded is rejected with the reason."""
        try:
            encoding = self.reader.attachment.encoding_of(record.topic)
            return decoded(codec, encoding, record)
        except ValidationFailed as error:
            self.reader.reject(lease, place, f"not a {codec.name}: at {error.field}: {error.why}")
            return None

    def _granted(self) -> int:
        """Records granted to this member that it has not taken."""
        return sum(len(lease) for lease in self._inbox if not lease.ended)

    # -- what the group does with it ----------------------------------------------------------------------------

    def receive(self, lease: Lease) -> None:
        """Records were granted to this member."""
        self._inbox.append(lease)
        self.wake()

    def forget(self) -> None:
        """What was granted is void."""
        self._inbox.clear()

    def end(self, error: RunnelError | None = None) -> None:
        """No more deliveries; what was not settled goes back."""
        if not self._ended:
            self._ended, self._error = True, error
            self._inbox.clear()
            if self._reader is not None:
                self._reader.dismiss(self)
            self.wake()
