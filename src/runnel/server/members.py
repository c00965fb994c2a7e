"""One far member of a group: leases out, settlements back.

Below: broker.group_feed, connection. Above: native.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from runnel.broker.group_feed import Grant, GroupFeed, open_member
from runnel.broker.piece import Piece
from runnel.core.errors import InvalidOption, RunnelError
from runnel.server.connection import Connection
from runnel.server.serving import Serving
from runnel.wire.frame import Kind, frame
from runnel.wire.layouts import grant_head
from runnel.wire.messages import AtSequence, Settlement, Subscribe, Subscribed, encode, lapsed_payload, read_start
from runnel.wire.trouble import error_frame


class Member:
    """A member of a group, at the other end of a connection. `over` is called when its last frame was sent."""

    def __init__(
        self, serving: Serving, connection: Connection, id: int, asked: Subscribe, over: Callable[[int], None]
    ) -> None:
        assert asked.group is not None
        self.id = id
        self.queued = False
        self._connection, self._over = connection, over
        self._waiting: dict[int, Grant] = {}  # leases that were granted and not sent yet, in order
        self._going: Grant | None = None  # the lease of which some is sent
        self._left: deque[tuple[int, Piece]] = deque()  # and what is not
        self._done = False  # it has left
        self._last: bytes | None = None  # the frame that ends it
        self.feed: GroupFeed = open_member(
            serving.broker,
            asked.pattern,
            asked.group,
            granted=self._granted,
            lapsed=self._lapsed,
            over=self._ended,
            **_options(asked),
        )

    def enter(self) -> bytes:
        """Join the group; what the member is told first."""
        self.feed.enter()
        return frame(Kind.SUBSCRIBED, self.id, encode(Subscribed(label=self.feed.label, eager=True, position=0)))

    def settle(self, settlement: Settlement) -> None:
        """Do what the member says of its lease; raises when it comes too late."""
        _, lease, verb, first, end, number, reason = settlement
        self.feed.settle(lease, verb, first, end, number, reason)

    def leave(self) -> None:
        """Give back what was not settled, at once."""
        if not self._done:
            self._done = True
            self._waiting.clear()
            self._left.clear()
            self.feed.leave()
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

    def _granted(self, grant: Grant) -> None:
        if not self._done:
            self._waiting[grant.lease] = grant
            self._connection.wants(self)

    def _lapsed(self, lapses: list[tuple[int, int, int]]) -> None:
        sent = [lapse for lapse in lapses if self._waiting.pop(lapse[0], None) is None]
        if self._left and self._going is not None and any(lapse[0] == self._going.lease for lapse in sent):
            self._left.clear()  # who has some of it forgets that
        if sent and not self._done:
            self._connection.send(frame(Kind.LAPSED, self.id, lapsed_payload(sent)))

    def _ended(self, error: RunnelError | None) -> None:
        if self._done:
            return
        self._waiting.clear()
        self._left.clear()
        self._last = frame(Kind.END, self.id) if error is None else error_frame(self.id, error)
        self._connection.wants(self)


def _options(asked: Subscribe) -> dict[str, Any]:
    """What was asked for, as `open_member` takes it."""
    start = read_start(asked.start)
    if isinstance(start, AtSequence):
        raise InvalidOption("start", asked.start, "a group starts at 'latest', 'earliest', an offset or a time")
    alone = {"policy": asked.policy, "strict": asked.strict or None, "hold": asked.hold, "drops": asked.drops or None}
    for option, value in alone.items():
        if value is not None:
            raise InvalidOption(option, value, "it means nothing with group=")
    return {
        "start": start,
        "name": asked.name,
        "buffer": asked.buffer,
        "buffer_bytes": asked.buffer_bytes,
        "prefetch": asked.prefetch,
        "prefetch_bytes": asked.prefetch_bytes,
        "dead_letter": asked.dead_letter,
        "ack_wait": asked.ack_wait,
        "max_ack_pending": asked.max_ack_pending,
        "max_deliver": asked.max_deliver,
        "backoff": asked.backoff,
        "jitter": asked.jitter,
    }
