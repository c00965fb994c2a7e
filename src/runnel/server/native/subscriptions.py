"""Subscriptions of native clients: a reader with credit, or a member of a group with leases.

Records for which the client has no credit, or the connection no room, stay in the log: a client that stops reading
costs one position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from runnel.core.backend import SLICE, Member, Reader, SettleVerb
from runnel.core.batch import Slice
from runnel.core.by_reference import REASON, has_references
from runnel.core.errors import AlreadySettled, BadBatch, BrokerClosed, InvalidOption, LeaseEnded, NotSupported
from runnel.core.options import SubscribeOptions, shared_options
from runnel.core.pattern import check_pattern
from runnel.core.position import Position
from runnel.core.record import Gap, Record
from runnel.server.native.connection import NativeConnection
from runnel.server.served_broker import ServedBroker
from runnel.wire.binary_messages import (
    DELIVER_COST,
    ReaderCounts,
    deliver_head,
    grant_head,
    shared_deliver_head,
)
from runnel.wire.errors import error_frame
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import (
    AtSequence,
    Settlement,
    Subscribe,
    SubscribeReply,
    encode_message,
    lapsed_payload,
    read_policy,
    read_start,
    wire_gap,
)
from runnel.wire.wire_batch import WireBatch, whole_batch, wire_batch_of, wire_batches

QUANTUM = 256 << 10  # bytes after which another subscription of the connection is served
MAX_CREDIT = 1 << 40
MAX_DROP_BYTES = 8 << 20  # of dropped records that wait to be shown to a client
TAKES_PER_TURN = 64  # per turn: not every take gives something to send
MAX_TAKE_RECORDS = 1 << 16  # a large batch is sent as it lies on disk; split, it would be encoded again per reader


class NativeSubscription:
    """A subscription, and the credit of its client. `over` is called when its last frame was sent."""

    def __init__(
        self,
        serving: ServedBroker,
        connection: NativeConnection,
        id: int,
        asked: Subscribe,
        over: Callable[[int], None],
        shared: SharedFrames | None = None,
    ) -> None:
        self.id = id
        self.queued = False
        self._connection, self._over = connection, over
        self._shared = shared
        self._behind = (0, 0)  # `connection.writes`, and the place behind the last frame of this subscription then
        self._credit = self._full_credit = asked.credit or serving.options.credit
        self._asks = self._limit = 0
        self._counted = False  # whether the client reports what it took
        self._done = False  # the client has left
        self.is_up = False  # whether SUBSCRIBED was sent
        self._parts: deque[Slice] = deque()  # taken and not yet packed
        self._pieces: Iterator[WireBatch] = iter(())  # of the part that is being sent
        self._piece: WireBatch | None = None  # the next to be sent
        self._topic, self._topic_bytes = "", b""
        self._drops: deque[WireBatch] = deque()  # dropped records that wait to be shown
        self._drop_bytes = self._unshown = 0  # in these; records that were dropped beyond `MAX_DROP_BYTES`
        self._until = asked.until
        options, resume = _reader_options(asked, self._dropped if asked.drops else None)
        pattern = asked.pattern.split(" ") if asked.several else asked.pattern
        self.reader: Reader = serving.backend.reader(pattern, options, self._ready, resume, asked.until, far=True)
        self.reader.on_presence = connection.watch_closely

    def enter(self) -> Awaitable[None] | None:
        """Start reading. Returns an awaitable that is done when the start position is set; None: it is set."""
        return self.reader.enter()

    def stands(self) -> bytes:
        """The reader has started: the SUBSCRIBED frame."""
        reader = self.reader
        told = SubscribeReply(
            label=reader.label,
            eager=reader.is_eager,
            position=reader.position,
            epoch=reader.epoch,
            is_pattern=reader.is_pattern,
        )
        self.is_up = True
        self._ready()
        return frame(FrameKind.SUBSCRIBED, self.id, encode_message(told))

    def credit(self, given: int, place: int | None, ask: bool, counts: ReaderCounts | None = None) -> None:
        """A CREDIT frame: the client has room, has processed the records before `place`, or asks for more."""
        if place is not None:
            self.reader.confirm(place)
        if counts is not None:
            self._counted, self._limit = True, counts.limit
            self.reader.count(counts.taken, counts.expired, counts.unreadable)
        elif not self._counted:
            self.reader.count_all()
        is_stalled = self._credit <= 0
        self._credit = min(self._credit + given, MAX_CREDIT)
        if ask and not self.reader.is_eager:  # the client has no records left
            self._credit = max(self._credit, self._full_credit)
            self._asks = 1 if self._piece is None else 0  # else the last take was not all sent
            is_stalled = True
        if is_stalled:  # else the reader is parked, and wakes it when there is something to send
            self._ready()

    def finish(self, *, whole: bool = True) -> None:
        """End it after the records published before this call. Not `whole`: its client leaves."""
        self.reader.finish(whole=whole)

    def leave(self, place: int | None = None) -> None:
        """The client has left."""
        if not self._done:
            self._done = True
            if place is not None and not self._counted:
                self.reader.count_all()
            self._parts.clear()
            self._drops.clear()
            self._pieces, self._piece = iter(()), None
            self.reader.leave(place)
            self._shared = None
            self.reader.on_presence = None
            del self._connection, self._over  # both break a reference cycle with the reader's callbacks

    # -- sending ------------------------------------------------------------------------------------------------

    def pump(self, room: int) -> bool:
        """Send up to `room` bytes; return whether there may be more to send now."""
        if self._done or not self.is_up:
            return False
        reader, is_eager = self.reader, self.reader.is_eager
        room, takes, before = min(room, QUANTUM), 0, reader.sent
        sent = self._show_drops(room) if self._drops else 0
        while sent < room:
            if self._credit <= 0:
                return False
            piece = self._piece
            if piece is None:
                if not is_eager and not self._asks and not reader.ended:
                    return False
                if takes == TAKES_PER_TURN or reader.sent - before >= MAX_TAKE_RECORDS:
                    return True  # many records may have expired without anything to send: serve others first
                takes += 1
                if not self._take():
                    return False
                continue
            sent += self._send(piece)
            self._piece = self._following()
        return True

    def _take(self) -> bool:
        reader = self.reader
        taken = reader.take(MAX_TAKE_RECORDS if reader.is_eager else min(self._limit or SLICE, SLICE))
        if taken is None:
            if reader.ended:
                self._end()
            else:
                reader.park()
            return False
        slices, missed = taken
        if slices or missed is not None:  # else all of them had expired, and the client still waits
            self._asks = 0
        if missed is not None:
            gap = Gap(reader.pattern, missed.first, missed.end, missed.count, missed.reason)
            self._connection.send(frame(FrameKind.GAP, self.id, encode_message(wire_gap(gap, self._unshown))))
            self._unshown = 0
            self._behind = self._connection.writes, self._connection.gathered
        self._parts.extend(slices)
        self._piece = self._following()
        return True

    def _following(self) -> WireBatch | None:
        """The next batch of taken records. Packed only now: without credit it would only take memory."""
        while (piece := next(self._pieces, None)) is None:
            if not self._parts:
                return None
            part = self._parts.popleft()
            if (piece := whole_batch(part)) is not None:
                return piece
            self._pieces = wire_batches(part, self.reader.encoding_of(part.topic))
        return piece

    def _send(self, piece: WireBatch) -> int:
        topic, epoch, offset, sequence, time, packed = piece
        if topic != self._topic:
            self._topic, self._topic_bytes = topic, topic.encode()
        connection, size = self._connection, len(packed)
        if self._shared is not None:
            writes, behind = self._behind
            if writes != connection.writes:
                behind = 0
            behind = self._shared.send(self.id, behind, self._topic_bytes, piece)
            self._behind = connection.writes, behind
            size += DELIVER_COST + len(self._topic_bytes)  # as if it had been sent alone: the client counts it so, too
        else:
            head = deliver_head(self.id, self._topic_bytes, epoch, offset, sequence, time, size)
            connection.send_batch(head, packed)
            size += len(head)
        self._credit -= size
        return size

    def _ready(self) -> None:
        """There may be something to send. Called during publishes, so it only queues this subscription."""
        if not self._done:
            self._connection.wants(self)

    def _dropped(self, record: Record[bytes]) -> None:
        """A policy dropped a record: show it to the client, or count it where too many wait for that."""
        if self._done:
            return
        if self._drop_bytes > MAX_DROP_BYTES or has_references((record.value,)):
            self._unshown += 1
            return
        piece = wire_batch_of(record, self.reader.encoding_of(record.topic))
        self._drops.append(piece)
        self._drop_bytes += len(piece.packed)
        self._connection.wants(self)

    def _show_drops(self, room: int) -> int:
        """Send dropped records, up to `room` bytes; return how many bytes were sent. They cost no credit."""
        drops, sent = self._drops, 0
        while drops and sent < room:
            topic, epoch, offset, sequence, time, packed = drops.popleft()
            self._drop_bytes -= len(packed)
            head = deliver_head(self.id, topic.encode(), epoch, offset, sequence, time, len(packed), dropped=True)
            self._connection.send_batch(head, packed)
            sent += len(head) + len(packed)
        self._behind = self._connection.writes, self._connection.gathered
        return sent

    def _end(self) -> None:
        error = self.reader.error
        if error is None and self._until is not None and self.reader.is_cut_off:
            error = BrokerClosed("reading a range")  # an END would mean that the range is complete
        self._connection.send(frame(FrameKind.END, self.id) if error is None else error_frame(self.id, error))
        self._over(self.id)


class SharedFrames:
    """The DELIVER frames gathered on a connection: subscriptions that are sent the same batch share a frame.

    A subscription joins a frame only if that is behind its own last frame, so that its records stay in order.
    """

    __slots__ = ("_connection", "_known", "_writes")

    def __init__(self, connection: NativeConnection) -> None:
        self._connection, self._writes = connection, -1
        self._known: dict[tuple[int, int, int], tuple[int, list[int]]] = {}  # place and subscriptions, by batch

    def send(self, subscription: int, behind: int, topic: bytes, piece: WireBatch) -> int:
        """Send a batch to a subscription, at the place `behind` or later; return the place behind it."""
        connection = self._connection
        if connection.writes != self._writes:
            self._writes = connection.writes
            self._known.clear()
        _, epoch, offset, sequence, time, packed = piece
        key = id(packed), epoch, offset  # the batch lives until it is written
        found = self._known.get(key)
        if found is not None and found[0] >= behind:
            place, ids = found
            ids.append(subscription)
            connection.replace(place, shared_deliver_head(ids, topic, epoch, offset, sequence, time, len(packed)))
        else:
            place = connection.gathered
            connection.send_batch(deliver_head(subscription, topic, epoch, offset, sequence, time, len(packed)), packed)
            self._known[key] = place, [subscription]
        return place + 2


def _reader_options(
    asked: Subscribe, on_drop: Callable[[Record[bytes]], object] | None
) -> tuple[SubscribeOptions, Position | int | None]:
    """The options of a SUBSCRIBE frame, and the place of the same reader on an earlier connection."""
    start: Any = read_start(asked.start)
    resume: Position | int | None = None
    if isinstance(start, AtSequence):
        start, resume = None, start.sequence
    elif asked.resume and isinstance(start, Position):
        start, resume = None, start
    policy = read_policy(asked.policy)
    return SubscribeOptions(start=start, policy=policy, on_drop=on_drop, **shared_options(asked)), resume


# -- Members of groups -----------------------------------------------------------------------------------
# Leases out, settlements back.


MAX_REASON = 10_000  # characters
MAX_ENDED = 1024  # leases that ended: settling one of these too late is an error


class NativeMember:
    """A member of a group, on behalf of a client. `over` is called when its last frame was sent."""

    def __init__(
        self,
        serving: ServedBroker,
        connection: NativeConnection,
        id: int,
        asked: Subscribe,
        over: Callable[[int], None],
        *,
        recalls: bool,
    ) -> None:
        self.id = id
        self.queued = False
        self._connection, self._over = connection, over
        self._recalls = recalls  # whether the client answers a RECALL
        self._recalled: dict[int, int] = {}  # leases that are to be recalled, by number, and from which place on
        self._leases: dict[int, Any] = {}  # leases that were sent, by number
        self._ended: dict[int, int] = {}  # leases that ended before the client settled them, and their attempts
        self._numbers = 0
        self._going: tuple[int, int] | None = None  # number and attempt of the lease that is being sent
        self._left: deque[tuple[int, WireBatch]] = deque()  # the rest of it, with places
        self._done = False  # it has left
        self.is_up = False  # whether SUBSCRIBED was sent
        self.member: Member = serving.backend.member(check_pattern(asked.pattern), _member_options(asked), self._ready)
        self.member.on_presence = connection.watch_closely

    def enter(self) -> Awaitable[None] | None:
        """Join the group. Returns an awaitable that is done when it has joined; None: it has."""
        return self.member.enter()

    def stands(self) -> bytes:
        """The member has joined: the SUBSCRIBED frame."""
        reply = SubscribeReply(label=self.member.label, eager=True, position=0)
        self.is_up = True
        self._ready()
        return frame(FrameKind.SUBSCRIBED, self.id, encode_message(reply))

    def finish(self, *, whole: bool = True) -> None:
        """Grant no more leases. Those sent return to the group: the END frame that follows implies it."""
        for lease in self._leases.values():
            lease.on_end = None
        self.member.end()

    def leave(self, place: int | None = None) -> None:
        """Return unsettled records to the group at once."""
        if not self._done:
            self._done = True
            for lease in self._leases.values():
                lease.on_end = None  # the client disconnected: no LAPSED frame
            self._leases.clear()
            self._left.clear()
            self.member.leave()
            self.member.on_presence = None
            del self._connection, self._over  # both break a reference cycle with the member's callbacks

    # -- settling -----------------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement) -> None:
        """Apply a settlement of the client; raises if it is too late."""
        _, number, verb, first, end, seconds, reason = settlement
        member, lease = self.member, self.lease(number, first)
        if not lease.first <= first < end <= lease.end:
            raise InvalidOption("places", (first, end), f"lease {number} has [{lease.first}, {lease.end})")
        if verb == SettleVerb.BEGIN:
            if lease.handed > lease.first or member.take_up(lease):
                self._hand(lease, first, end)
        elif verb == SettleVerb.RETURN:
            if first < lease.handed:
                raise AlreadySettled(member.group, first)
            if first == lease.first:
                del self._leases[number]  # so that no LAPSED reports the client's own settlements
            member.settle(lease, verb, first, end)
        else:
            lease.handed = max(lease.handed, end)
            member.settle(lease, verb, first, end, seconds, None if reason is None else reason[:MAX_REASON])
        if not len(lease):
            self._leases.pop(number, None)

    def _hand(self, lease: Any, first: int, end: int) -> None:
        lease.handed = max(lease.handed, end)
        if self.member.hand is not None:
            self.member.hand(lease, first, end)

    def lease(self, number: int, place: int) -> Any:
        """A lease that the client holds, or `AlreadySettled`, or `LeaseEnded`."""
        found = self._leases.get(number)
        if found is not None:
            return found
        attempt = self._ended.get(number)
        if attempt is None and 0 < number <= self._numbers:
            raise AlreadySettled(self.member.group, place)
        raise LeaseEnded(self.member.group, place, attempt or 0)

    # -- sending ------------------------------------------------------------------------------------------------

    def pump(self, room: int) -> bool:
        """Send of one lease what there is room for; return whether there may be more to send now."""
        if self._done or not self.is_up:
            return False
        member = self.member
        if self._left or member.inbox:
            if not self._left:
                self._grant(member.inbox.popleft())
            self._send(room)
        elif member.ended:
            error = member.error
            self._connection.send(frame(FrameKind.END, self.id) if error is None else error_frame(self.id, error))
            self._over(self.id)
        if self._recalled and not self._left and not self._done:
            self._send_recalls()
        return not self._done and bool(self._left or member.inbox or member.ended)

    def _send_recalls(self) -> None:
        """Ask the client for what its user has not received. Between two frames of a lease it would not know it."""
        leases, recalled = self._leases, self._recalled
        ranges = [(number, place, leases[number].end) for number, place in recalled.items() if number in leases]
        recalled.clear()
        if ranges:
            self._connection.send(frame(FrameKind.RECALL, self.id, lapsed_payload(ranges)))

    def _grant(self, lease: Any) -> None:
        """Start to send a lease. It is packed only now, to save memory."""
        if lease.ended:
            return
        member = self.member
        try:
            parts = member.parts(lease)
        except BadBatch as error:
            member.settle(lease, SettleVerb.NACK, lease.first, lease.end, None, f"it could not be read: {error.why}")
            return
        if any(has_references(part.values) for _, part in parts):
            member.end(NotSupported(f"group {member.group!r} over a connection", REASON))
            return
        self._numbers += 1
        number = self._numbers
        self._leases[number] = lease
        self._going = number, lease.attempt
        lease.on_end, lease.on_recall = partial(self._lapsed, number), partial(self._recall, number)
        for place, part in parts:
            for piece in wire_batches(part, member.encoding_of(lease, part.topic)):
                self._left.append((place + piece.offset - part.start, piece))

    def _send(self, room: int) -> None:
        left = self._left
        while left and room > 0:
            assert self._going is not None
            number, attempt = self._going
            place, piece = left.popleft()
            topic, epoch, offset, sequence, time, packed = piece
            head = grant_head(
                self.id,
                topic.encode(),
                epoch,
                offset,
                sequence,
                time,
                number,
                place,
                attempt,
                len(packed),
                more=bool(left),
            )
            self._connection.send_batch(head, packed)
            room -= len(head) + len(packed)

    # The next three are called during publishes and settlements, so they only queue frames.

    def _ready(self) -> None:
        if not self._done:
            self._connection.wants(self)

    def _recall(self, number: int, place: int) -> None:
        """Another member is idle, and this one may have more records than it can begin soon."""
        if self._recalls:
            self._recalled[number] = place
            self._ready()

    def _lapsed(self, number: int) -> None:
        """A lease that was sent has returned to the group."""
        lease = self._leases.pop(number, None)
        if lease is None:
            return
        self._ended[number] = lease.attempt
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        if self._left and self._going is not None and self._going[0] == number:
            self._left.clear()  # the client discards the part that it has
        if not self._done:
            lapses = [(number, lease.first, lease.end)]
            self._connection.send(frame(FrameKind.LAPSED, self.id, lapsed_payload(lapses)))


def _member_options(asked: Subscribe) -> SubscribeOptions:
    start = read_start(asked.start)
    if isinstance(start, AtSequence):
        raise InvalidOption("start", asked.start, "a group starts at 'latest', 'earliest', an offset or a time")
    if asked.drops:
        raise InvalidOption("drops", True, "it means nothing with group=")
    return SubscribeOptions(start=start, policy=read_policy(asked.policy), **shared_options(asked))
