"""A member of a consumer group on a server: its leases, and how records are acked, nacked, rejected or extended.

The server decides about leases. The client keeps enough state to raise `LeaseEnded` or `AlreadySettled` without a
round trip. Settlements made in one iteration of the event loop share a frame. A lost connection ends every lease.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from runnel.client.receive_buffer import record_count, unpack_frame
from runnel.client.subscription_session import RemoteSession
from runnel.core.batch import Slice
from runnel.core.clock import Clock
from runnel.core.errors import (
    AlreadySettled,
    BadBatch,
    BrokerClosed,
    ConnectionLost,
    InvalidOption,
    LeaseEnded,
    NoAnswer,
    NotSupported,
    RunnelError,
)
from runnel.core.record import Record
from runnel.runtime.dead_letter_log import DeadLetterLog
from runnel.runtime.waiting import resolve_waiter
from runnel.wire.binary_messages import GrantPayload, read_grant
from runnel.wire.errors import read_error
from runnel.wire.frames import MORE, FrameKind, frame
from runnel.wire.msgpack_messages import (
    Settlement,
    SettleVerb,
    Subscribe,
    SubscribeReply,
    read_lapsed,
    settle_payload,
)

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink


PREFETCH = 64
PORTION = 128  # settlements in a frame
MAX_REASON = 10_000  # characters of why a record failed that are worth sending


class RemoteLease:
    """Places [first, end) of one member. `low` is the first unsettled one, `handed` the first not yet received."""

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
        "guard",
        "handed",
        "low",
        "member",
        "number",
        "on_end",
        "on_recall",
        "promised",
    )

    def __init__(self, member: RemoteMember, grants: list[GrantPayload], end: int) -> None:
        self.member, self.number, self.attempt = member, grants[0].lease, grants[0].attempt
        self.first = self.low = self.handed = grants[0].place
        self.end = end
        self.ended = False  # it lapsed, or its connection was lost: it cannot be settled
        self.begun = False  # whether the server knows that the user has started it
        self.promised: dict[int, bool] | None = None  # places a transaction acks; True: it alone settles them
        self.guard: AbstractContextManager[Any] | None = None
        self.on_end: Callable[[], None] | None = None  # called when it ends with unsettled places
        self.on_recall: Callable[[int], None] | None = None  # asks the holder for what the user has not received
        self.encoding: str | None = None  # of its values, once unpacked
        self._grants = grants
        self._parts: list[tuple[int, Slice]] | None = None  # the place of the first record of each slice
        self._settled: set[int] | None = None  # above `low`, for acks out of order

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{len(self)} open"
        return f"<RemoteLease {self.number} [{self.first}, {self.end}), attempt {self.attempt}, {state}>"

    def __len__(self) -> int:
        """The number of unsettled places."""
        return self.end - self.low - (len(self._settled) if self._settled else 0)

    def lapse(self) -> None:
        """End the lease: its unsettled records no longer belong to the member."""
        self.ended = True
        if self.on_end is not None:
            self.on_end()

    # -- records ------------------------------------------------------------------------------------------------

    def open(self, *, verify: bool) -> list[tuple[int, Slice]]:
        """Its records, unpacked once, each slice with the place of its first record; or `BadBatch`."""
        if self._parts is None:
            parts: list[tuple[int, Slice]] = []
            for grant in self._grants:
                found, self.encoding = unpack_frame(grant, verify=verify)
                parts.append((grant.place, found))
            self._parts, self._grants = parts, []
        return self._parts

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

    @property
    def has_gaps(self) -> bool:
        """Whether places above `low` are settled."""
        return bool(self._settled)

    def is_open(self, place: int) -> bool:
        """Whether `place` is unsettled."""
        return self.low <= place < self.end and not (self._settled and place in self._settled)

    def open_ranges(self, first: int, end: int) -> list[tuple[int, int]]:
        """The unsettled places in [first, end), as ranges."""
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
        """Mark the places [first, end), all of them unsettled, as settled."""
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

    def give_back(self, place: int) -> None:
        """The places from `place` on, which the user has not received, no longer belong to the member."""
        self.end = place
        self.ended = place == self.first

    def reopen(self, first: int, end: int) -> None:
        """Undo the settlement of the places [first, end)."""
        if first < self.low:
            done = set(range(min(end, self.low), self.low))
            self._settled = done if self._settled is None else self._settled | done
            self.low = first
        if self._settled:
            self._settled.difference_update(range(first, end))


# -- The member ------------------------------------------------------------------------------------------


_members: WeakKeyDictionary[ServerLink, WeakSet[RemoteMember]] = WeakKeyDictionary()
_dead_letter_logs: WeakKeyDictionary[ServerLink, dict[str, DeadLetterLog]] = WeakKeyDictionary()  # by group


def forget_leases(link: ServerLink, group: str, pattern: str) -> None:
    """The group was reset: end the leases of its members in this process."""
    for member in list(_members.get(link, ())):
        if (member.group, member.pattern) == (group, pattern):
            member.forget()


class RemoteMember(RemoteSession):
    """One member of a group on a server. See `core.backend.Member`."""

    def __init__(
        self,
        link: ServerLink,
        asked: Subscribe,
        label: str,
        prefetch: int | None,
        prefetch_bytes: int | None,
        backend: object,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(link)
        self._asked, self.label, self.backend, self._wake = asked, label, backend, wake
        self.group, self.pattern = asked.group or "", asked.pattern
        self.prefetch = PREFETCH if prefetch is None else prefetch
        self.prefetch_bytes = prefetch_bytes
        self.ended = False
        self.error: RunnelError | None = None
        self.inbox: deque[RemoteLease] = deque()
        self._leases: dict[int, RemoteLease] = {}  # those with unsettled places, by number
        self._coming: list[GrantPayload] = []  # of a lease that arrives in several frames
        self._settlements = PendingSettlements()
        self._soon: asyncio.Handle | None = None
        logs = _dead_letter_logs.setdefault(link, {})
        self._dead_letter_log = logs.setdefault(self.group, DeadLetterLog(link.clock, self.group))

    def __repr__(self) -> str:
        return f"<RemoteMember {self.label!r} of {self.group!r}, {len(self._leases)} leases>"

    @property
    def clock(self) -> Clock:
        """The clock of this client."""
        return self._link.clock

    @property
    def blocks(self) -> object | None:
        """Itself: the server knows whether the group has other members."""
        return self

    # -- coming and going ---------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Join the group."""
        if self.ended:
            raise BrokerClosed("subscribing")  # it was left before this began
        await self.subscribe()
        self._link.blockers.add(self)  # publishers wait for what a group has not settled
        _members.setdefault(self._link, WeakSet()).add(self)

    def leave(self) -> None:
        """Leave the group; unsettled records return to it."""
        self.end()

    def end(self, error: RunnelError | None = None) -> None:
        """Accept no more leases; unsettled records return to the group."""
        if not self.ended:
            self.ended, self.error = True, error
            self._link.blockers.discard(self)
            self.flush()
            self.unsubscribe(None)
            self.forget()
            self._dead_letter_log.close()
            self._wake()

    # -- what the member does -----------------------------------------------------------------------------------

    def take_up(self, lease: RemoteLease) -> bool:
        """Start a lease; False: it has no unsettled places left."""
        if lease.ended:
            return False
        try:
            parts = lease.open(verify=self._link.verify)
        except BadBatch as error:
            self.hand(lease, lease.first, lease.end)
            self.settle(lease, SettleVerb.NACK, lease.first, lease.end, None, f"it could not be read: {error.why}")
            return False
        if lease.end - lease.first == 1 and (metas := parts[0][1].metas):  # only such a one can have an end of its time
            now = self._link.server_time()
            if any(meta.expires is not None and meta.expires <= now for meta in metas.values()):
                self.hand(lease, lease.first, lease.end)  # the server finds it expired, too, and counts it
                self._leases.pop(lease.number, None)
                return False
        return True

    def hand(self, lease: RemoteLease, first: int, end: int) -> None:
        """The user receives the places [first, end): report it, so that their time starts."""
        lease.handed = end
        self._settlements.begin(lease, first, end)
        if self._soon is None:
            self._in_a_moment()

    def records(self, lease: RemoteLease, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end) of a started lease."""
        return lease.records(first, end)

    def values(self, lease: RemoteLease, first: int, end: int) -> tuple[bytes, ...]:
        """Only the values of these records."""
        return lease.values(first, end)

    def parts(self, lease: RemoteLease) -> Sequence[tuple[int, Slice]]:
        """All records of a lease as slices, each with the place of its first record."""
        parts: list[tuple[int, Slice]] = []
        for place, part in lease.open(verify=self._link.verify):
            if (left := lease.end - place) > 0:  # else it was given back
                parts.append((place, part if left >= len(part) else part.cut(part.start, part.start + left)))
        return parts

    def encoding_of(self, lease: RemoteLease, topic: str) -> str | None:
        """The encoding of the values of a lease."""
        return lease.encoding

    # -- settling -----------------------------------------------------------------------------------------------

    def ack(self, lease: RemoteLease, place: int) -> None:
        """Ack one record."""
        if place != lease.low or lease.ended or lease.has_gaps or not self._link.is_here():
            self.settle(lease, SettleVerb.ACK, place, place + 1)
            return
        lease.low = place + 1  # in order, as most are
        if lease.low == lease.end:
            self._leases.pop(lease.number, None)
        self._settlements.ack(lease.number, place)
        if self._soon is None:
            self._in_a_moment()

    def settle(
        self,
        lease: RemoteLease,
        verb: SettleVerb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
        *,
        durable: bool = False,
    ) -> Awaitable[None] | None:
        """Settle the unsettled places [first, end)."""
        _check_number(verb, number)
        if not self._link.is_here():
            raise NotSupported("settling from another thread", "use runnel.blocking.attach, or settle on the loop")
        if lease.ended:
            raise LeaseEnded(self.group, first, lease.attempt)
        if not lease.is_open(first):
            raise AlreadySettled(self.group, first)
        if verb in (SettleVerb.EXTEND, SettleVerb.RETURN):
            if verb == SettleVerb.RETURN:
                lease.give_back(first)
                self.let_go(lease)
            self._settlements.say(lease, verb, first, end, number)
            self._in_a_moment()
            return None
        if verb == SettleVerb.REJECT:
            record = lease.records(first, first + 1)[0]
            self._dead_letter_log.note(record.topic, record.offset, reason or "", self._asked.dead_letter, end - first)
        lease.settle(first, end)
        self.let_go(lease)
        if durable:
            self.flush()  # so that the answer is for this settlement
        if reason is not None:
            reason = reason[:MAX_REASON].encode(errors="backslashreplace").decode()  # it has to be valid UTF-8
        self._settlements.say(lease, verb, first, end, number, reason)
        if durable:
            return self.flushed()
        self._in_a_moment()
        return None

    def let_go(self, lease: RemoteLease) -> None:
        """Forget a lease without unsettled places: it cannot lapse any more."""
        if not len(lease):
            self._leases.pop(lease.number, None)

    def flushed(self) -> Awaitable[None]:
        """Send the gathered settlements; done when all of them are on disk."""
        return DurableAck(self._link, self._gathered()).done

    def check_durable(self, lease: RemoteLease, place: int) -> None:
        """Raise unless an ack can be made durable and the server can answer."""
        if not self._link.welcome.durable:
            raise NotSupported("a durable ack", f"group {self.group} on {self.pattern} lives in memory only")
        try:
            self._link.check_usable("a durable ack")
        except BrokerClosed:
            raise LeaseEnded(self.group, place, lease.attempt) from None  # the error that a local broker raises

    def _in_a_moment(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.flush)

    def _gathered(self) -> list[Settlement]:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        return self._settlements.taken(self.id)

    def flush(self) -> None:
        """Send the gathered settlements: one frame for those of this event loop iteration."""
        if (settled := self._gathered()) and self.is_up:
            for at in range(0, len(settled), PORTION):
                self._link.send(frame(FrameKind.SETTLE, 0, settle_payload(settled[at : at + PORTION])))

    # -- what the server says -----------------------------------------------------------------------------------

    def asks(self) -> Subscribe:
        """The same request each time: the group knows its own progress."""
        return self._asked

    def stands(self, said: SubscribeReply) -> None:
        """The server has confirmed the membership, for the first time or again."""
        self.label = said.label

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """A lease was granted to this member, or has lapsed."""
        if kind == FrameKind.GRANT:
            grant = read_grant(extra, payload)
            self._coming.append(grant)
            if flags & MORE:
                return
            grants, self._coming = self._coming, []
            lease = RemoteLease(self, grants, grant.place + record_count(grant.batch))
            self._leases[lease.number] = lease
            self.inbox.append(lease)
            self._wake()
        elif kind == FrameKind.LAPSED:
            for number, *_ in read_lapsed(payload):
                if self._coming and self._coming[0].lease == number:
                    self._coming = []  # the rest of it is not sent
                if (lapsed := self._leases.pop(number, None)) is not None:
                    lapsed.lapse()
        elif kind == FrameKind.RECALL:
            for number, place, _ in read_lapsed(payload):
                if (recalled := self._leases.get(number)) is not None:
                    self._recall(recalled, place)

    def _recall(self, lease: RemoteLease, place: int) -> None:
        """Another member is idle: return the records that the user has not received, from `place` on."""
        if lease.on_recall is not None:
            lease.on_recall(place)
        elif (place := max(place, lease.handed)) < lease.end:
            self.settle(lease, SettleVerb.RETURN, place, lease.end)

    def broken(self) -> None:
        """The connection was lost: the server returned its leases to the group."""
        self.forget()

    def over(self, error: RunnelError | None) -> None:
        """No more deliveries; unsettled records returned to the group."""
        if not self.ended:
            self.ended, self.error = True, error
            self._link.blockers.discard(self)
            self.forget()
            self._wake()

    def forget(self) -> None:
        """End all leases."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.lapse()
        self.inbox.clear()
        self._coming.clear()
        self._settlements.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None


def _check_number(verb: SettleVerb, number: float | None) -> None:
    if verb == SettleVerb.NACK and number is not None and not 0 <= number < float("inf"):
        raise InvalidOption("delay", number, "expected seconds, 0 or more")
    if verb == SettleVerb.EXTEND and not (number is not None and 0 < number < float("inf")):
        raise InvalidOption("seconds", number, "expected a number above 0")


# -- Settlements for the next frame ----------------------------------------------------------------------
# Adjacent acks become one range. No I/O.


_MERGED_VERBS = (SettleVerb.ACK, SettleVerb.REJECT, SettleVerb.NACK)


class PendingSettlements:
    """Settlements that are not sent yet, in order."""

    __slots__ = ("_acked", "_acked_end", "_acked_first", "_begun", "_said")

    def __init__(self) -> None:
        self._begun: dict[RemoteLease, list[int]] = {}
        self._said: list[Settlement] = []
        self._acked: int | None = None  # the lease of which [_acked_first, _acked_end) was acked after all in `_said`
        self._acked_first = self._acked_end = 0

    def __bool__(self) -> bool:
        return bool(self._said or self._begun or self._acked is not None)

    def begin(self, lease: RemoteLease, first: int, end: int) -> None:
        """The user received the records at [first, end), in order within one lease."""
        known = self._begun.get(lease)
        if known is None:
            self._begun[lease] = [first, end]
        else:
            known[1] = end

    def ack(self, lease: int, place: int) -> None:
        """Add the ack of one place of a lease."""
        if self._acked == lease and self._acked_end == place:
            self._acked_end = place + 1
            return
        self._end_acks()
        self._acked, self._acked_first, self._acked_end = lease, place, place + 1

    def _end_acks(self) -> None:
        """Put the acks that were counted behind the other settlements."""
        lease, self._acked = self._acked, None
        if lease is not None:
            self._add(lease, SettleVerb.ACK, self._acked_first, self._acked_end, None, None)

    def say(
        self,
        lease: RemoteLease,
        verb: SettleVerb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Add a settlement of the places [first, end) of a lease."""
        self._end_acks()
        self._add(lease.number, verb, first, end, number, reason)

    def _add(
        self, lease: int, verb: SettleVerb, first: int, end: int, number: float | None, reason: str | None
    ) -> None:
        said = self._said
        if said and verb in _MERGED_VERBS:
            _, other, before, start, last, *rest = said[-1]
            if other == lease and before == verb and last == first and rest == [number, reason]:
                said[-1] = Settlement(0, lease, verb, start, end, number, reason)
                return
        said.append(Settlement(0, lease, verb, first, end, number, reason))

    def taken(self, subscription: int) -> list[Settlement]:
        """All settlements as messages for the subscription `id`, BEGIN first.

        Where all that was begun is settled by now there is no need to say so, except for the first of a lease.
        """
        found: list[Settlement] = []
        self._end_acks()
        for lease, (first, end) in self._begun.items():
            if not lease.ended and (not lease.begun or lease.open_ranges(first, end)):
                lease.begun = True
                found.append(Settlement(subscription, lease.number, SettleVerb.BEGIN, first, end))
        found += [one._replace(subscription=subscription) for one in self._said]
        self.clear()
        return found

    def clear(self) -> None:
        """Discard all of them."""
        self._begun.clear()
        self._said.clear()
        self._acked = None


# -- Durable acks ----------------------------------------------------------------------------------------
# The settlement is sent at once; its future is done when the server has it on disk.


class DurableAck:
    """One SETTLE with an answer, which comes on the same connection and in time, or never.

    The caller has checked that the link is usable: a settlement is sent on this connection, or not at all.
    """

    task: asyncio.Task[Any] | None = None
    is_left = False  # the answer is waited for

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
        """Whether it was done is unknown. The leases have ended either way."""
        self._answered(ConnectionLost(self._link.address, "an ack was not answered, and its record may come again"))

    def closed(self, error: RunnelError | None) -> None:
        """No answer can come any more."""
        self._answered(error or BrokerClosed("acking"))

    def _late(self, timeout: float) -> None:
        self._answered(NoAnswer("a durable ack", timeout, self._link.state))

    def _answered(self, error: RunnelError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._link.detach(self)
        resolve_waiter(self.done, error)


def _retrieve_error(done: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved, for a caller that does not await the result."""
    if not done.cancelled():
        done.exception()
