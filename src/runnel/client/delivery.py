"""Deliveries of a group on a server: leased records, and how they are acked, nacked, rejected or extended.

The server decides about leases. The client keeps enough state to raise `LeaseEnded` or `AlreadySettled` without a
round trip. Settlements made in one iteration of the event loop share a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from runnel.api.delivery_base import ACCEPTED, DeliveryBase
from runnel.client.receive_buffer import unpack_frame
from runnel.core.batch import Slice
from runnel.core.errors import (
    AlreadySettled,
    BrokerClosed,
    ConnectionLost,
    InvalidOption,
    LeaseEnded,
    NoAnswer,
    RunnelError,
)
from runnel.core.record import Record
from runnel.runtime.waiting import resolve_waiter
from runnel.wire.binary_messages import GrantPayload
from runnel.wire.errors import read_error
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import Settlement, SettleVerb, settle_payload

if TYPE_CHECKING:
    from runnel.client.group import RemoteGroupSubscription
    from runnel.client.server_link import ServerLink


class RemoteLease:
    """Places [first, end) at one member. `low` is the first that is not settled, `handed` the first not yet seen."""

    __slots__ = (
        "_grants",
        "_parts",
        "_settled",
        "attempt",
        "begun",
        "encoding",
        "end",
        "ended",
        "first",
        "handed",
        "low",
        "member",
        "number",
        "promised",
    )

    def __init__(self, member: RemoteGroupSubscription[Any], grants: list[GrantPayload], end: int) -> None:
        self.member, self.number, self.attempt = member, grants[0].lease, grants[0].attempt
        self.first = self.low = self.handed = grants[0].place
        self.end = end
        self.ended = False  # it lapsed, or its connection was lost: what is said of it comes too late
        self.begun = False  # whether the server was told that somebody works on it
        self.promised: dict[int, bool] | None = None  # to be acked by a transaction; True: nobody else looks after it
        self.encoding: str | None = None  # how its values are written, once it was opened
        self._grants = grants
        self._parts: list[tuple[int, Slice]] | None = None  # the place of the first record of each slice
        self._settled: set[int] | None = None  # above `low`, for acks out of order

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{len(self)} open"
        return f"<RemoteLease {self.number} [{self.first}, {self.end}), attempt {self.attempt}, {state}>"

    def __len__(self) -> int:
        """How many places are not settled."""
        return self.end - self.low - (len(self._settled) if self._settled else 0)

    # -- records ------------------------------------------------------------------------------------------------

    def open(self, *, verify: bool) -> list[Slice]:
        """Its records, unpacked once; or `BadBatch`."""
        if self._parts is None:
            parts: list[tuple[int, Slice]] = []
            for grant in self._grants:
                found, self.encoding = unpack_frame(grant, verify=verify)
                parts.append((grant.place, found))
            self._parts, self._grants = parts, []
        return [part for _, part in self._parts]

    def records(self, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end)."""
        return tuple(record for part in self._between(first, end) for record in part.records)

    def values(self, first: int, end: int) -> tuple[bytes, ...]:
        """The values at places [first, end)."""
        parts = list(self._between(first, end))
        return parts[0].values if len(parts) == 1 else tuple(value for part in parts for value in part.values)

    def _between(self, first: int, end: int) -> Iterator[Slice]:
        assert self._parts is not None, "it was opened when it was begun"
        for place, part in self._parts:
            low, high = max(first, place), min(end, place + len(part))
            if low < high:
                shift = part.start - place
                yield part if high - low == len(part) else part.cut(low + shift, high + shift)

    # -- settling -----------------------------------------------------------------------------------------------

    def is_open(self, place: int) -> bool:
        """Whether `place` is still to be settled."""
        return self.low <= place < self.end and not (self._settled and place in self._settled)

    def open_ranges(self, first: int, end: int) -> list[tuple[int, int]]:
        """The places still to be settled in [first, end), as ranges."""
        first, end = max(first, self.low), min(end, self.end)
        if not self._settled:
            return [(first, end)] if first < end else []
        found: list[tuple[int, int]] = []
        for place in range(first, end):
            if place not in self._settled:
                if found and found[-1][1] == place:
                    found[-1] = (found[-1][0], place + 1)
                else:
                    found.append((place, place + 1))
        return found

    def settle(self, first: int, end: int) -> None:
        """The places [first, end), all of them open, are done with."""
        if first == self.low:
            self.low = end
            if self._settled:
                while self.low in self._settled:
                    self._settled.remove(self.low)
                    self.low += 1
            return
        if self._settled is None:
            self._settled = set()
        self._settled.update(range(first, end))

    def reopen(self, first: int, end: int) -> None:
        """Places [first, end), which were settled, are not after all."""
        if first < self.low:
            done = set(range(min(end, self.low), self.low))
            self._settled = done if self._settled is None else self._settled | done
            self.low = first
        if self._settled:
            self._settled.difference_update(range(first, end))


# -- Deliveries ------------------------------------------------------------------------------------------


T = TypeVar("T")


class RemoteDelivery(DeliveryBase[T], Generic[T]):
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
        return member.settle(self._lease, SettleVerb.ACK, self._place, self._place + 1, durable=durable)

    def nack(self, delay: float | None = None, reason: str = "nacked") -> Awaitable[None]:
        """The work failed: try again after `delay` seconds, or after the group's backoff."""
        if delay is not None and not 0 <= delay < float("inf"):
            raise InvalidOption("delay", delay, "expected seconds, 0 or more")
        self._check()
        return self._lease.member.settle(self._lease, SettleVerb.NACK, self._place, self._place + 1, delay, reason)

    def reject(self, reason: str) -> Awaitable[None]:
        """The work can never succeed: to the dead-letter topic, with the reason."""
        self._check()
        return self._lease.member.settle(self._lease, SettleVerb.REJECT, self._place, self._place + 1, None, reason)

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


class RemoteLeaseRange(NamedTuple):
    """Places [first, end) of one lease, and their records if they were built already."""

    lease: RemoteLease
    first: int
    end: int
    records: tuple[Record[Any], ...] | None = None


class RemoteDeliveryBatch(Generic[T]):
    """Deliveries taken together: `batch.values`, iteration over deliveries, and one `ack()` for all."""

    __slots__ = ("_member", "_parts")

    def __init__(self, member: RemoteGroupSubscription[T], parts: list[RemoteLeaseRange]) -> None:
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
        lapsed: RemoteLeaseRange | None = None
        for part in self._parts:
            if part.lease.ended:
                lapsed = lapsed or part
            else:
                for first, end in part.lease.open_ranges(part.first, part.end):
                    member.settle(part.lease, SettleVerb.ACK, first, end)
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


# -- Settlements for the next frame ----------------------------------------------------------------------
# Adjacent acks become one range. No I/O.


_MERGED_VERBS = (SettleVerb.ACK, SettleVerb.REJECT, SettleVerb.NACK)


class PendingSettlements:
    """What was said and not sent yet, in order."""

    __slots__ = ("_begun", "_said")

    def __init__(self) -> None:
        self._begun: dict[RemoteLease, tuple[int, int]] = {}
        self._said: list[Settlement] = []

    def __bool__(self) -> bool:
        return bool(self._said or self._begun)

    def begin(self, lease: RemoteLease, first: int, end: int) -> None:
        """The user has the records at [first, end). What one lease hands out is in order."""
        known = self._begun.get(lease)
        self._begun[lease] = (first if known is None else known[0], end)

    def say(
        self,
        lease: RemoteLease,
        verb: SettleVerb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Something about the places [first, end) of a lease."""
        said = self._said
        if said and verb in _MERGED_VERBS:
            _, other, before, start, last, *rest = said[-1]
            if other == lease.number and before == verb and last == first and rest == [number, reason]:
                said[-1] = Settlement(0, lease.number, verb, start, end, number, reason)
                return
        said.append(Settlement(0, lease.number, verb, first, end, number, reason))

    def taken(self, subscription: int) -> list[Settlement]:
        """All of it, to be sent for the subscription of that id. What is begun comes first.

        Where all that was begun is settled by now there is no need to say so, except for the first of a lease.
        """
        found: list[Settlement] = []
        for lease, (first, end) in self._begun.items():
            if not lease.ended and (not lease.begun or lease.open_ranges(first, end)):
                lease.begun = True
                found.append(Settlement(subscription, lease.number, SettleVerb.BEGIN, first, end))
        found += [one._replace(subscription=subscription) for one in self._said]
        self.clear()
        return found

    def clear(self) -> None:
        """None of it counts any more."""
        self._begun.clear()
        self._said.clear()


# -- Durable acks ----------------------------------------------------------------------------------------
# The settlement is sent at once; its future is done when the server has it on disk.


class DurableAck:
    """One SETTLE that is answered, on the connection that it was sent on or never, and in time.

    Whoever makes one has looked whether the link is usable: what is settled here is sent here, or nowhere.
    """

    task: asyncio.Task[Any] | None = None

    def __init__(self, link: ServerLink, settled: Sequence[Settlement]) -> None:
        self.id = 0
        self._link, self._settled, self._is_sent = link, settled, False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve_error)
        timeout = link.options.timeout
        self._timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, self._late, timeout)
        link.attach(self)
        if not self._is_sent:
            self.lost()

    def __repr__(self) -> str:
        return f"<DurableAck {self.id} for {len(self._settled)}>"

    def connected(self) -> None:
        """Send it."""
        self._link.send(frame(FrameKind.SETTLE, self.id, settle_payload(self._settled)))
        self._is_sent = True

    def frame(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """The answer."""
        self._answered(read_error(payload) if kind == FrameKind.ERROR else None)

    def flush(self) -> None:
        """It was sent at once."""

    def lost(self) -> None:
        """Nobody knows whether it was done. The leases are void either way."""
        self._answered(ConnectionLost(self._link.address, "an ack was not answered, and its record may come again"))

    def closed(self, error: RunnelError | None) -> None:
        """Nobody will know."""
        self._answered(error or BrokerClosed("acking"))

    def _late(self, timeout: float) -> None:
        self._answered(NoAnswer("a durable ack", timeout, self._link.state))

    def _answered(self, error: RunnelError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._link.detach(self)
        resolve_waiter(self.done, error)


def _retrieve_error(done: asyncio.Future[None]) -> None:
    """Whoever does not await it does not want to hear what became of it."""
    if not done.cancelled():
        done.exception()
