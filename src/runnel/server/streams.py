"""One subscription of a far reader: a feed, and how much of it may be on its way.

What the reader has no credit for, or the connection no room, stays where it is: a frozen reader waits as a cursor.
Below: broker.feed, connection. Above: native.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from runnel.broker.cursor import SLICE
from runnel.broker.feed import Feed, open_feed
from runnel.broker.piece import Piece
from runnel.core.errors import BrokerClosed
from runnel.core.position import Position
from runnel.server.connection import Connection
from runnel.server.serving import Serving
from runnel.wire.frame import Kind, frame
from runnel.wire.layouts import Counts, deliver_head
from runnel.wire.messages import AtSequence, Subscribe, Subscribed, encode, gap_note, read_policy, read_start
from runnel.wire.trouble import error_frame

QUANTUM = 256 << 10  # bytes after which another subscription of the connection has its turn
MAX_CREDIT = 1 << 40
TAKES = 64  # in one turn: not all of them give something to send
WHOLE = 1 << 16  # records: a large batch from disk leaves as it lies there; cut, it would be packed again for each


class Stream:
    """A feed, and the credit of its reader. `over` is called when its last frame was sent."""

    def __init__(
        self, serving: Serving, connection: Connection, id: int, asked: Subscribe, over: Callable[[int], None]
    ) -> None:
        self.id = id
        self.queued = False
        self._connection, self._over = connection, over
        self._credit = asked.credit or serving.options.credit
        self._asks = self._limit = 0
        self._counted = False  # whether the reader says what it took up
        self._done = False  # nobody reads any more
        self._left: deque[Piece] = deque()  # taken, and not sent yet
        self._topic, self._topic_bytes = "", b""
        self.unshown = 0  # dropped records that there was no room to show
        self.feed: Feed = open_feed(
            serving.broker,
            asked.pattern,
            ready=self._ready,
            drops=self._dropped if asked.drops else None,
            **_options(asked),
        )
        self._eager, self._until = self.feed.eager, asked.until

    def enter(self) -> bytes:
        """Begin; what the reader is told first."""
        feed = self.feed
        feed.enter()
        if self._until is not None and not feed.is_pattern:
            feed.finish_at(self._until)
        told = Subscribed(
            label=feed.label,
            eager=self._eager,
            position=feed.position,
            epoch=feed.epoch,
            is_pattern=feed.is_pattern,
        )
        self._ready()
        return frame(Kind.SUBSCRIBED, self.id, encode(told))

    def credit(self, given: int, place: int | None, ask: bool, counts: Counts | None = None) -> None:
        """The reader has room again, asked beyond a place, or asks for more."""
        if place is not None:
            self.feed.confirm(place)
        if counts is not None:
            self._counted, self._limit = True, counts.limit
            self.feed.count(counts.taken, counts.expired, counts.unreadable)
        elif not self._counted:
            self.feed.count_all()
        self._credit = min(self._credit + given, MAX_CREDIT)
        if ask:
            self._asks = 1
        self._ready()

    def leave(self, place: int | None = None) -> None:
        """Nobody reads any more."""
        if place is not None:
            self.feed.confirm(place)
        if not self._done:
            self._done = True
            if place is not None and not self._counted:
                self.feed.count_all()
            self._left.clear()
            self.feed.leave()
            del self._connection, self._over  # or the feed, which calls back, would keep them until somebody sweeps

    # -- sending ------------------------------------------------------------------------------------------------

    def pump(self, room: int) -> bool:
        """Send a little; whether there may be more now."""
        if self._done:
            return False
        sent, takes, room, before = 0, 0, min(room, QUANTUM), self.feed.sent
        left = self._left
        while sent < room:
            if self._eager and self._credit <= 0:
                return False
            if not left:
                if not self._eager and not self._asks and not self.feed.ended:
                    return False
                if takes == TAKES or self.feed.sent - before >= WHOLE:
                    return True  # many may have expired, and nothing of them is to be sent: others have their turn
                takes += 1
                if not self._take():
                    return False
                continue
            piece = left.popleft()
            sent += self._send(piece)
        return True

    def _take(self) -> bool:
        taking = self.feed.take(WHOLE if self._eager else min(self._limit or SLICE, SLICE))
        if taking is None:
            if self.feed.ended:
                self._end()
            return False
        if taking.pieces or taking.gap is not None:  # else all of it had expired, and the reader still waits
            self._asks = 0
        if taking.gap is not None:
            self._connection.send(frame(Kind.GAP, self.id, encode(gap_note(taking.gap))))
        self._left.extend(taking.pieces)
        return True

    def _send(self, piece: Piece) -> int:
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

    def _dropped(self, piece: Piece) -> None:
        """A policy dropped it. Shown if there is room: what a reader is too slow for is not piled up here instead."""
        if self._done or self._connection.room <= 0:
            self.unshown += 1
            return
        topic, epoch, offset, sequence, time, packed = piece
        head = deliver_head(self.id, topic.encode(), epoch, offset, sequence, time, len(packed), dropped=True)
        self._connection.send(head + packed)

    def _end(self) -> None:
        error = self.feed.error
        if error is None and self._until is not None and self.feed.is_cut_off:
            error = BrokerClosed("reading a range")  # an END would say that there is nothing more
        self._connection.send(frame(Kind.END, self.id) if error is None else error_frame(self.id, error))
        self._over(self.id)


def _options(asked: Subscribe) -> dict[str, Any]:
    """What was asked for, as `open_feed` takes it."""
    start: Any = read_start(asked.start)
    resume: Position | int | None = None
    if isinstance(start, AtSequence):
        start, resume = None, start.sequence
    elif asked.resume and isinstance(start, Position):
        start, resume = None, start
    said = {
        "prefetch": asked.prefetch,
        "prefetch_bytes": asked.prefetch_bytes,
        "ack_wait": asked.ack_wait,
        "max_ack_pending": asked.max_ack_pending,
        "max_deliver": asked.max_deliver,
        "backoff": asked.backoff,
        "jitter": asked.jitter,
    }
    return {
        "start": start,
        "resume": resume,
        "name": asked.name,
        "policy": read_policy(asked.policy),
        "buffer": asked.buffer,
        "buffer_bytes": asked.buffer_bytes,
        "strict": asked.strict,
        "dead_letter": asked.dead_letter,
        "hold": asked.hold,
        **said,
    }
