"""Deliveries: records of a group, held until they are acked, nacked or rejected, or their lease ends."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from runnel.core.backend import Lease, Member, SettleVerb
from runnel.core.errors import AlreadySettled, LeaseEnded
from runnel.core.position import Position
from runnel.core.record import Record

T = TypeVar("T")


class _Accepted:
    """An awaitable that is done: the call took effect already."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # makes this a generator


ACCEPTED: Awaitable[None] = _Accepted()


class Delivery(Generic[T]):
    """One record, held until it is acked, nacked or rejected, or the lease ends.

    >>> async with delivery:  # acks; nacks if the block raises
    ...     await charge(delivery.value)

    A lease ends after `ack_wait` seconds without a sign of life, and with the connection to a server: the record goes
    back to the group, and settling this delivery raises `LeaseEnded`.
    """

    __slots__ = ("_lease", "_member", "_place", "record")

    def __init__(self, member: Member, lease: Lease, place: int, record: Record[T]) -> None:
        self._member, self._lease, self._place, self.record = member, lease, place, record

    def __repr__(self) -> str:
        return f"<Delivery {self.topic!r} offset {self.offset}, attempt {self.attempt}, to {self._member.label!r}>"

    # -- settling -----------------------------------------------------------------------------------------------

    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        """Ack: the record was processed. Accepted when this returns, and on disk a few milliseconds later.

        With `durable`, awaiting the result waits until the ack is on disk.
        """
        if not durable:
            try:
                self._member.ack(self._lease, self._place)
            except AlreadySettled as error:
                raise self._named(error) from None
            return ACCEPTED
        self._member.check_durable(self._lease, self._place)
        return self._settle(SettleVerb.ACK, durable=True)

    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        """Processing failed: redeliver after `delay` seconds, or after the group's backoff."""
        return self._settle(SettleVerb.NACK, delay, reason)

    def reject(self, reason: str) -> Awaitable[None]:
        """Processing can never succeed: move the record to the dead-letter topic, with the reason."""
        return self._settle(SettleVerb.REJECT, None, reason)

    def extend(self, seconds: float) -> Awaitable[None]:
        """Processing takes longer: keep the lease for `seconds` from now."""
        return self._settle(SettleVerb.EXTEND, seconds)

    def _settle(
        self, verb: SettleVerb, number: float | None = None, reason: str | None = None, *, durable: bool = False
    ) -> Awaitable[None]:
        place = self._place
        try:
            return self._member.settle(self._lease, verb, place, place + 1, number, reason, durable=durable) or ACCEPTED
        except AlreadySettled as error:
            raise self._named(error) from None

    def _named(self, error: AlreadySettled) -> AlreadySettled:
        """The error with the topic and the offset: the group knows places alone."""
        where = f"the record of {self.topic!r} at offset {self.offset} was"
        error.args = (str(error).replace(f"the record at {error.place} was", where),)
        return error

    @property
    def lapsed(self) -> bool:
        """Whether its lease ended before it was settled: the record went back to the group, and settling it raises."""
        return self._lease.ended and self._lease.is_open(self._place)

    @property
    def settled(self) -> bool:
        """Whether it was acked, nacked or rejected, or its lease ended."""
        return self._lease.ended or not self._lease.is_open(self._place)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # If the lease has ended this raises: the record may be processed twice.
            if not self._is_promised() and self._lease.is_open(self._place):
                self.ack()
        elif not self.settled:
            # Cancelled: not an error of the record, so it is redelivered at once.
            delay = None if isinstance(error, Exception) else 0.0
            self.nack(delay, f"{type(error).__name__}: {error}")

    def _is_promised(self) -> bool:
        """Whether a transaction acks or returns it, now that its block was left without an error."""
        promised = self._lease.promised
        if not promised or self._place not in promised:
            return False
        promised[self._place] = True  # its block was left
        return True

    # -- the record ---------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """1 for the first delivery, and one more for each redelivery."""
        return self._lease.attempt

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._member.group

    @property
    def topic(self) -> str:
        """The topic of the record."""
        return self.record.topic

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return self.record.offset

    @property
    def sequence(self) -> int:
        """The sequence of the record in its broker."""
        return self.record.sequence

    @property
    def epoch(self) -> int:
        """The epoch of the record's topic."""
        return self.record.epoch

    @property
    def position(self) -> Position:
        """The epoch and offset of the record."""
        return self.record.position

    @property
    def key(self) -> bytes | None:
        """The key of the record."""
        return self.record.key

    @property
    def value(self) -> T:
        """The value of the record."""
        return self.record.value

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the record."""
        return self.record.headers

    @property
    def time(self) -> datetime:
        """When the record was published."""
        return self.record.time

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the record."""
        return self.record.traceparent

    @property
    def reply_to(self) -> str | None:
        """The topic for the reply, if the record is a request."""
        return self.record.reply_to


class LeasedRange(NamedTuple):
    """Places [first, end) of one lease, and their records if they were built already."""

    lease: Lease
    first: int
    end: int
    records: tuple[Record[Any], ...] | None = None


class DeliveryBatch(Generic[T]):
    """Several deliveries: `batch.values`, iteration over deliveries, and one `ack()` for all."""

    __slots__ = ("_member", "_parts")

    def __init__(self, member: Member, parts: list[LeasedRange]) -> None:
        self._member, self._parts = member, parts

    def __len__(self) -> int:
        return sum(part.end - part.first for part in self._parts)

    def __repr__(self) -> str:
        return f"<DeliveryBatch of {len(self)} records>"

    def __iter__(self) -> Iterator[Delivery[T]]:
        for lease, first, end, records in self._parts:
            for place, record in enumerate(records or self._member.records(lease, first, end), first):
                yield Delivery(self._member, lease, place, record)

    @property
    def values(self) -> tuple[T, ...]:
        """The values of all records."""
        found: list[Any] = []
        for lease, first, end, records in self._parts:
            if records is not None:
                found.extend(record.value for record in records)
            else:
                found.extend(self._member.values(lease, first, end))
        return tuple(found)

    def ack(self, *, durable: bool = False) -> Awaitable[None]:
        """Ack all that are not settled. Raises `LeaseEnded`, after acking the others, if a lease has ended.

        With `durable`, awaiting the result waits until the acks are on disk.
        """
        member = self._member
        if durable:
            member.check_durable(self._parts[0].lease, self._parts[0].first)
        lapsed: LeasedRange | None = None
        for part in self._parts:
            lease = part.lease
            if lease.ended:
                lapsed = lapsed or part
                continue
            for first, end in list(lease.open_ranges(part.first, part.end)):
                member.settle(lease, SettleVerb.ACK, first, end)
        if lapsed is not None:
            raise LeaseEnded(member.group, lapsed.first, lapsed.lease.attempt)
        return member.flushed() if durable else ACCEPTED

    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        """Nack all that are not settled."""
        for delivery in self:
            if not delivery.settled:
                delivery.nack(delay, reason)
        return ACCEPTED

    def reject(self, reason: str) -> Awaitable[None]:
        """Reject all that are not settled."""
        for delivery in self:
            if not delivery.settled:
                delivery.reject(reason)
        return ACCEPTED
