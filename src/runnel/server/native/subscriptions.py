"""Subscriptions of native clients: a reader with credit, or a member of a group with leases.

Records for which the client has no credit, or the connection no room, stay in the log: a client that stops reading
costs one position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from runnel.broker.read.cursor import SLICE
from runnel.broker.remote.cursor import RemoteCursor, WireBatch, open_remote_cursor
from runnel.broker.remote.member import LeaseGrant, RemoteMember, open_remote_member
from runnel.core.errors import BrokerClosed, InvalidOption, RunnelError
from runnel.core.options import SubscribeOptions, shared_options
from runnel.core.position import Position
from runnel.server.native.connection import NativeConnection
from runnel.server.served_broker import ServedBroker
from runnel.wire.binary_messages import ReaderCounts, deliver_head, grant_head
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

QUANTUM = 256 << 10  # bytes after which another subscription of the connection has its turn
MAX_CREDIT = 1 << 40
TAKES_PER_TURN = 64  # in one turn: not all of them give something to send
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
    ) -> None:
        self.id = id
        self.queued = False
        self._connection, self._over = connection, over
        self._credit = asked.credit or serving.options.credit
        self._asks = self._limit = 0
        self._counted = False  # whether the reader says what it took up
        self._done = False  # nobody reads any more
        self._left: deque[WireBatch] = deque()  # taken, and not sent yet
        self._topic, self._topic_bytes = "", b""
        self.unshown = 0  # dropped records that there was no room to show
        self.cursor: RemoteCursor = open_remote_cursor(
            serving.broker,
            asked.pattern,
            ready=self._ready,
            drops=self._dropped if asked.drops else None,
            **_reader_options(asked),
        )
        self._eager, self._until = self.cursor.eager, asked.until

    def enter(self) -> bytes:
        """Begin; what the reader is told first."""
        cursor = self.cursor
        cursor.enter()
        if self._until is not None and not cursor.is_pattern:
            cursor.finish_at(self._until)
        told = SubscribeReply(
            label=cursor.label,
            eager=self._eager,
            position=cursor.position,
            epoch=cursor.epoch,
            is_pattern=cursor.is_pattern,
        )
        self._ready()
        return frame(FrameKind.SUBSCRIBED, self.id, encode_message(told))

    def credit(self, given: int, place: int | None, ask: bool, counts: ReaderCounts | None = None) -> None:
        """The reader has room again, asked beyond a place, or asks for more."""
        if place is not None:
            self.cursor.confirm(place)
        if counts is not None:
            self._counted, self._limit = True, counts.limit
            self.cursor.count(counts.taken, counts.expired, counts.unreadable)
        elif not self._counted:
            self.cursor.count_all()
        self._credit = min(self._credit + given, MAX_CREDIT)
        if ask:
            self._asks = 1
        self._ready()

    def leave(self, place: int | None = None) -> None:
        """Nobody reads any more."""
        if place is not None:
            self.cursor.confirm(place)
        if not self._done:
            self._done = True
            if place is not None and not self._counted:
                self.cursor.count_all()
            self._left.clear()
            self.cursor.leave()
            del self._connection, self._over  # or the feed, which calls back, would keep them until somebody sweeps

    # -- sending ------------------------------------------------------------------------------------------------

    def pump(self, room: int) -> bool:
        """Send a little; whether there may be more now."""
        if self._done:
            return False
        sent, takes, room, before = 0, 0, min(room, QUANTUM), self.cursor.sent
        left = self._left
        while sent < room:
            if self._eager and self._credit <= 0:
                return False
            if not left:
                if not self._eager and not self._asks and not self.cursor.ended:
                    return False
                if takes == TAKES_PER_TURN or self.cursor.sent - before >= MAX_TAKE_RECORDS:
                    return True  # many may have expired, and nothing of them is to be sent: others have their turn
                takes += 1
                if not self._take():
                    return False
                continue
            piece = left.popleft()
            sent += self._send(piece)
        return True

    def _take(self) -> bool:
        taking = self.cursor.take(MAX_TAKE_RECORDS if self._eager else min(self._limit or SLICE, SLICE))
        if taking is None:
            if self.cursor.ended:
                self._end()
            return False
        if taking.pieces or taking.gap is not None:  # else all of it had expired, and the reader still waits
            self._asks = 0
        if taking.gap is not None:
            self._connection.send(frame(FrameKind.GAP, self.id, encode_message(wire_gap(taking.gap))))
        self._left.extend(taking.pieces)
        return True

    def _send(self, piece: WireBatch) -> int:
        topic, epoch, offset, sequence, time, packed = piece
        if topic != self._topic:
            self._topic, self._topic_bytes = topic, topic.encode()
        size = len(packed)
        head = deliver_head(self.id, self._topic_bytes, epoch, offset, sequence, time, size)
        self._connection.send_batch(head, packed)
        size += len(head)
        self._credit -= size
        return size

    def _ready(self) -> None:
        """There may be something to send. Called from wherever something was published: it only takes a note."""
        if not self._done:
            self._connection.wants(self)

    def _dropped(self, piece: WireBatch) -> None:
        """A policy dropped it. Shown if there is room: what a reader is too slow for is not piled up here instead."""
        if self._done or self._connection.room <= 0:
            self.unshown += 1
            return
        topic, epoch, offset, sequence, time, packed = piece
        head = deliver_head(self.id, topic.encode(), epoch, offset, sequence, time, len(packed), dropped=True)
        self._connection.send(head + packed)

    def _end(self) -> None:
        error = self.cursor.error
        if error is None and self._until is not None and self.cursor.is_cut_off:
            error = BrokerClosed("reading a range")  # an END would say that there is nothing more
        self._connection.send(frame(FrameKind.END, self.id) if error is None else error_frame(self.id, error))
        self._over(self.id)


def _reader_options(asked: Subscribe) -> dict[str, Any]:
    """What was asked for, as `open_remote_cursor` takes it."""
    start: Any = read_start(asked.start)
    resume: Position | int | None = None
    if isinstance(start, AtSequence):
        start, resume = None, start.sequence
    elif asked.resume and isinstance(start, Position):
        start, resume = None, start
    options = SubscribeOptions(start=start, policy=read_policy(asked.policy), **shared_options(asked))
    return {"resume": resume, **options.given()}


# -- Members of groups -----------------------------------------------------------------------------------
# Leases out, settlements back.


class NativeMember:
    """A member of a group, on behalf of a client. `over` is called when its last frame was sent."""

    def __init__(
        self,
        serving: ServedBroker,
        connection: NativeConnection,
        id: int,
        asked: Subscribe,
        over: Callable[[int], None],
    ) -> None:
        assert asked.group is not None
        self.id = id
        self.queued = False
        self._connection, self._over = connection, over
        self._waiting: dict[int, LeaseGrant] = {}  # leases that were granted and not sent yet, in order
        self._going: LeaseGrant | None = None  # the lease of which some is sent
        self._left: deque[tuple[int, WireBatch]] = deque()  # and what is not
        self._done = False  # it has left
        self._last: bytes | None = None  # the frame that ends it
        self.member: RemoteMember = open_remote_member(
            serving.broker,
            asked.pattern,
            asked.group,
            granted=self._granted,
            lapsed=self._lapsed,
            over=self._ended,
            **_member_options(asked),
        )

    def enter(self) -> bytes:
        """Join the group; what the member is told first."""
        self.member.enter()
        reply = SubscribeReply(label=self.member.label, eager=True, position=0)
        return frame(FrameKind.SUBSCRIBED, self.id, encode_message(reply))

    def settle(self, settlement: Settlement) -> None:
        """Do what the member says of its lease; raises when it comes too late."""
        _, lease, verb, first, end, number, reason = settlement
        self.member.settle(lease, verb, first, end, number, reason)

    def leave(self) -> None:
        """Give back what was not settled, at once."""
        if not self._done:
            self._done = True
            self._waiting.clear()
            self._left.clear()
            self.member.leave()
            del self._connection, self._over  # or the feed, which calls back, would keep them until somebody sweeps

    # -- sending ------------------------------------------------------------------------------------------------

    def pump(self, room: int) -> bool:
        """Send of one lease what there is room for; whether there may be more now."""
        if self._done:
            return False
        if self._left or self._waiting:
            if not self._left:
                self._going = self._waiting.pop(next(iter(self._waiting)))
                self._left.extend(self._going.pieces)
            self._send(room)
        elif self._last is not None:
            last, self._last = self._last, None
            self._connection.send(last)
            self._over(self.id)
        return not self._done and (bool(self._left or self._waiting) or self._last is not None)

    def _send(self, room: int) -> None:
        grant, left = self._going, self._left
        assert grant is not None
        while left and room > 0:
            place, piece = left.popleft()
            topic, epoch, offset, sequence, time, packed = piece
            head = grant_head(
                self.id,
                topic.encode(),
                epoch,
                offset,
                sequence,
                time,
                grant.lease,
                place,
                grant.attempt,
                len(packed),
                more=bool(left),
            )
            self._connection.send_batch(head, packed)
            room -= len(head) + len(packed)

    # What follows is called from wherever something was published or settled: it only takes notes.

    def _granted(self, grant: LeaseGrant) -> None:
        if not self._done:
            self._waiting[grant.lease] = grant
            self._connection.wants(self)

    def _lapsed(self, lapses: list[tuple[int, int, int]]) -> None:
        sent = [lapse for lapse in lapses if self._waiting.pop(lapse[0], None) is None]
        if self._left and self._going is not None and any(lapse[0] == self._going.lease for lapse in sent):
            self._left.clear()  # who has some of it forgets that
        if sent and not self._done:
            self._connection.send(frame(FrameKind.LAPSED, self.id, lapsed_payload(sent)))

    def _ended(self, error: RunnelError | None) -> None:
        if self._done:
            return
        self._waiting.clear()
        self._left.clear()
        self._last = frame(FrameKind.END, self.id) if error is None else error_frame(self.id, error)
        self._connection.wants(self)


def _member_options(asked: Subscribe) -> dict[str, Any]:
    """What was asked for, as `open_remote_member` takes it."""
    start = read_start(asked.start)
    if isinstance(start, AtSequence):
        raise InvalidOption("start", asked.start, "a group starts at 'latest', 'earliest', an offset or a time")
    if asked.drops:
        raise InvalidOption("drops", True, "it means nothing with group=")
    options = SubscribeOptions(start=start, policy=read_policy(asked.policy), **shared_options(asked)).given()
    del options["group"]  # a parameter of its own
    return options
