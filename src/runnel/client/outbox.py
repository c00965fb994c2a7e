"""Published batches that the server has not answered: sent in order, resent after a lost connection, stored once.

Topics are hashed onto lanes. A lane has a producer id and numbers its records, so the server can detect duplicates. It
sends in order, with at most `WINDOW` unanswered frames. The rules it keeps:

- A number never names two records. When the server refuses a batch, it also refuses the batches sent after it (their
  numbers leave a gap). The lane then stops until everything in flight is answered, and continues from the number that
  the server expects, with the same records in the same order.
- After a lost connection every unanswered batch is resent unchanged. The server may still be processing frames of the
  old connection, so a lane that would have to reuse a number takes a new producer id instead.
- A new or restarted server knows no producers and accepts any first number. So on every connection a lane waits for the
  answer to its first frame before it sends the next.
- A batch that is resent says when it was sent first, in the server's time. A server that may have forgotten it since
  answers `OutcomeUnknown`, and stores nothing.

No socket, no event loop; time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from runnel.core.batch_format import BYTES, pack, unpack, with_producer_sequence
from runnel.core.checksum import crc_of
from runnel.core.columns import Columns
from runnel.core.errors import LimitExceeded, RunnelError
from runnel.core.lone_record import pack_lone
from runnel.core.publishing import PublishDetails
from runnel.wire.binary_messages import publish_frame, small_publish_frame
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import decode_message

LANES = 64
UNSAID = -1.0  # of a timeout: as in the options
OVERHEAD = 48  # what a record costs beside its bytes, about: an empty one is not free


class Route(NamedTuple):
    """The common part of all batches of one handle: their topic, and how they are packed."""

    topic: str
    name: bytes  # the topic, as it travels
    lane: int
    said: bytes | None = None  # an About, encoded: the options and the type of the handle
    content_type: int = BYTES
    compression: str | None = None

    @classmethod
    def to(
        cls, topic: str, said: bytes | None = None, content_type: int = BYTES, compression: str | None = None
    ) -> Route:
        """The way to `topic`."""
        name = topic.encode()
        return cls(topic, name, crc_of(name) % LANES, said, content_type, compression)


class OutgoingBatch:
    """Records that are sent together. It takes more while its `size` is below its `cap`; sealed, that is 0.

    A `whole` one was published by one call and is answered as one; others gather what many calls published.
    `waiters` are pairs of an index and the future of the publish of that record.
    """

    __slots__ = (
        "abandoned",
        "answered",
        "batch",
        "born",
        "cap",
        "columns",
        "count",
        "epoch",
        "first",
        "id",
        "lane",
        "number",
        "numbered",
        "once",
        "order",
        "patience",
        "producer",
        "route",
        "said",
        "sent",
        "sent_at",
        "size",
        "tries",
        "values",
        "waiters",
        "whole",
    )

    def __init__(
        self,
        route: Route,
        values: list[bytes],
        columns: Columns | None = None,
        *,
        size: int = 0,
        cap: int = 0,
        whole: bool = False,
        numbered: bool = True,
        said: bytes | None = None,
        batch: bytes | None = None,
    ) -> None:
        self.route, self.values, self.columns = route, values, columns
        self.size, self.cap, self.whole, self.numbered = size, cap, whole, numbered
        self.said = said or route.said
        self.waiters: list[list[Any]] = []
        self.answered: Any = None  # called with the outcome, instead of waiters
        self.count = len(values)
        self.batch = batch  # once it was sent; the values are dropped then
        self.producer = self.number = 0
        self.id = 0  # of its frame; 0: it is not under way
        self.sent = False  # at least once
        self.sent_at: float | None = None  # when it was sent first, in the server's time, if it may be stored since
        self.lane: Any = None  # that it waits in, or is under way in; None: it is answered
        self.order = 0  # among all that was ever published by this client
        self.epoch = self.first = 0  # where it is, once that is known
        self.once = False  # whether it may not be sent twice
        self.tries = 0  # how often its numbers did not fit
        self.abandoned = False  # no caller waits for it, and it is not to be stored
        self.born = 0.0
        self.patience: float | None = UNSAID  # seconds that its waiters wait

    def __repr__(self) -> str:
        state = f"under way as {self.id}" if self.id else "waiting to be sent"
        return f"<OutgoingBatch of {self.count or len(self.values)} records for {self.route.topic!r}, {state}>"

    def add(self, value: bytes, columns: Columns | None, size: int) -> int:
        """Take in one more record; its index. One that carries nothing may be appended to `values` as well."""
        index = len(self.values)
        if columns is not None:
            if self.columns is None:
                self.columns = Columns()
            self.columns.extend(index, columns)
        self.values.append(value)
        self.size += size
        return index

    def pack(self, producer: int, number: int) -> bytes:
        """The batch, with its numbers; packed now if it was not before. Nothing can be added or taken out any more."""
        if self.batch is None:
            self.producer, self.number = producer, number
            if not self.numbered:
                producer = number = 0
            self.count, route = len(self.values), self.route
            if self.count == 1 and self.columns is None and route.compression is None:
                self.batch = pack_lone(self.values[0], route.content_type, producer, number)
            else:
                self.batch = pack(
                    self.values,
                    self.columns,
                    compression=route.compression,
                    content_type=route.content_type,
                    producer=producer,
                    producer_sequence=number,
                )
            self.values, self.columns = [], None
        return self.batch

    def withdraw(self, waiter: Any) -> int:
        """Take out the record that `waiter` waits for, of a batch that was never sent; the bytes that are free now."""
        place = next((place for place, (_, other) in enumerate(self.waiters) if other is waiter), None)
        if place is None:
            return 0
        index, _ = self.waiters.pop(place)
        if self.whole:
            freed, self.size = self.size, 0
            self.values, self.columns, self.batch = [], None, None
            return freed
        columns = self.columns
        freed = batch_cost([self.values[index]], None if columns is None else columns.part(index, index + 1))
        del self.values[index]
        if columns is not None:
            columns.remove(index, index + 1)
        for pair in self.waiters[place:]:
            pair[0] -= 1
        self.size -= freed
        return freed

    def is_awaited(self) -> bool:
        """Whether it is still to be sent: a caller waits, or none ever did."""
        if any(not waiter.done() for _, waiter in self.waiters):
            return True
        return not self.waiters if self.whole else len(self.waiters) < (self.count or len(self.values))

    def halves(self) -> tuple[OutgoingBatch, OutgoingBatch]:
        """The same records in two batches, with the same numbers. It was packed, and has two records at least."""
        assert self.batch is not None, "what was refused was packed"
        unpacked = unpack(self.batch, verify=False)
        columns = unpacked.columns
        middle = self.count // 2
        made = []
        for start, end in ((0, middle), (middle, self.count)):
            found = None if columns is None else columns.part(start, end)
            values = list(unpacked.values[start:end])
            half = OutgoingBatch(self.route, values, found, size=batch_cost(values, found), said=self.said)
            half.waiters = [[index - start, waiter] for index, waiter in self.waiters if start <= index < end]
            half.born, half.patience, half.lane, half.order = self.born, self.patience, self.lane, self.order
            half.pack(self.producer, self.number + start)
            half.sent = True
            made.append(half)
        return made[0], made[1]


def batch_cost(values: Sequence[bytes], columns: Columns | None) -> int:
    """The bound on pending records counts these."""
    size = sum(map(len, values)) + OVERHEAD * len(values)
    return size if columns is None else size + columns.weight


# -- Lanes and the outbox --------------------------------------------------------------------------------
# The rules are in the module docstring.


WINDOW = 64  # as many publishes as a server remembers of each producer
JOINED = 4096  # bytes of a batch that is sent in one piece with its frame: copying it costs less than a second piece
BATCH_BYTES = 1024 * 1024  # records collected into one frame
MAX_TRIES = 4  # how often a server may refuse a number that it asked for

_SPLIT = frozenset({"too_large", "validation_failed"})  # may be the fault of some records, and not of the others
_order = attrgetter("order")
_LOST_COUNT = frozenset({"sequence_overlap", "sequence_forgotten"})


class Lane:
    """The pending publishes of some topics, and their numbers."""

    __slots__ = (
        "again",
        "asked",
        "fresh",
        "next",
        "open",
        "producer",
        "queue",
        "stopped",
        "stored",
        "tainted",
        "under_way",
    )

    def __init__(self, producer: int) -> None:
        self.queue: deque[OutgoingBatch] = deque()
        self.open: dict[str, OutgoingBatch] = {}  # batches in the queue that take more, by topic
        self.under_way = 0
        self.stopped = False  # until all that is under way was answered
        self.again: list[OutgoingBatch] = []  # refused because of an earlier one, or in halves
        self.begin(producer)

    def begin(self, producer: int) -> None:
        """Number anew, under another id."""
        self.producer, self.next = producer, 0
        self.fresh = True  # this connection's server has not taken anything from this producer yet
        self.stored = 0  # the number behind the last that is known to be stored
        self.asked: int | None = None  # the number that the server asked for
        self.tainted = False  # an old connection may still carry frames with its numbers

    def __repr__(self) -> str:
        return f"<Lane {self.producer:#x}, {len(self.queue)} waiting, {self.under_way} under way>"


class Outbox:
    """All lanes of a client, and the bound on what is in them: `bytes` of at most `limit`."""

    def __init__(self, limit: int, new_producer: Callable[[], int]) -> None:
        self.bytes, self.limit = 0, limit
        self.max_frame = 2**32 - 1  # of the server
        self.refusals: list[tuple[OutgoingBatch, RunnelError]] = []  # of batches that cannot even be sent
        self.is_full = False  # whether the last batch was begun because the one before it took no more
        self._count = 0  # of batches, ever
        self._new_producer = new_producer
        self._lanes: dict[int, Lane] = {}  # those of topics have the numbers below LANES
        self._ready: dict[Lane, None] = {}  # lanes that may have something to send, in order
        self._sent: dict[int, OutgoingBatch] = {}

    def __repr__(self) -> str:
        return f"<Outbox, {self.bytes:,} bytes of {self.limit:,}, {len(self._sent)} frames under way>"

    @property
    def is_empty(self) -> bool:
        """Whether all that was published is answered."""
        return not self._sent and self.is_sent

    @property
    def is_sent(self) -> bool:
        """Whether all that was published is under way at least."""
        return not any(lane.queue or lane.again for lane in self._lanes.values())

    @property
    def has_ready(self) -> bool:
        """Whether there may be something to send."""
        return bool(self._ready)

    def unanswered(self) -> list[OutgoingBatch]:
        """All that is not answered."""
        waiting = [outgoing for lane in self._lanes.values() for outgoing in (*lane.again, *lane.queue)]
        return [*self._sent.values(), *waiting]

    # -- in -----------------------------------------------------------------------------------------------------

    def gathering(self, route: Route, size: int = 0) -> tuple[OutgoingBatch, bool]:
        """The batch that takes a record of `size` that is published by `route` now, and whether it is new."""
        lane = self._lanes.get(route.lane) or self._lane(route.lane)
        found = lane.open.get(route.topic)
        if (
            found is not None
            and found.size < found.cap
            and found.size + size <= self.max_frame // 4 * 3  # what fits alone may not fit together
            and (found.route is route or found.route == route)
        ):
            return found, False
        self.is_full = found is not None and found.size >= found.cap > 0
        outgoing = OutgoingBatch(route, [], cap=min(BATCH_BYTES, self.max_frame // 2))
        self._append(lane, outgoing)
        lane.open[route.topic] = outgoing
        return outgoing, True

    def add(self, outgoing: OutgoingBatch) -> None:
        """A whole batch, behind all that was published to its topic before."""
        self.bytes += outgoing.size
        self._append(self._lane(outgoing.route.lane), outgoing)

    def seal(self) -> None:
        """Seal the frame being collected."""
        for lane in self._lanes.values():
            for outgoing in lane.open.values():
                outgoing.cap = 0
            lane.open.clear()

    def _append(self, lane: Lane, outgoing: OutgoingBatch) -> None:
        if (before := lane.open.pop(outgoing.route.topic, None)) is not None:
            before.cap = 0
        self._count += 1
        outgoing.lane, outgoing.order = lane, self._count
        lane.queue.append(outgoing)
        self._ready[lane] = None

    def _lane(self, number: int) -> Lane:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane(self._new_producer())
        return lane

    def give_up(self, outgoing: OutgoingBatch, waiter: object) -> int:
        """`waiter`, which is done, does not wait any more; the id of a frame that may be cancelled now, or 0."""
        if outgoing.lane is None:
            return 0  # answered in the meantime
        if not outgoing.sent:
            self.bytes -= outgoing.withdraw(waiter)
            if outgoing.whole:
                outgoing.lane.queue.remove(outgoing)
                outgoing.lane = None
        elif not outgoing.is_awaited():
            outgoing.abandoned = True
            return outgoing.id
        return 0

    def take_back(self, outgoing: OutgoingBatch) -> bool:
        """Have a whole batch not sent; False: it was, or is answered already."""
        if outgoing.lane is None:
            return False
        if outgoing.sent:
            outgoing.abandoned = True
            return False
        outgoing.lane.queue.remove(outgoing)
        self._let_go(outgoing)
        return True

    # -- out ----------------------------------------------------------------------------------------------------

    def take(self, new_id: Callable[[], int], now: float) -> list[bytes]:
        """All that may be sent now, in pieces to be written one after the other. `now`: the server's time."""
        pieces: list[bytes] = []
        for lane in list(self._ready):
            while lane.queue and not lane.stopped and lane.under_way < WINDOW:
                if lane.fresh and self._must_wait(lane):
                    break
                outgoing = lane.queue.popleft()
                if outgoing.cap:
                    outgoing.cap = 0
                    lane.open.pop(outgoing.route.topic, None)
                if outgoing.batch is None and not outgoing.values:
                    self._let_go(outgoing)  # all were withdrawn
                else:
                    self._send(lane, outgoing, new_id(), now, pieces)
            if lane.stopped or not lane.queue:
                del self._ready[lane]
        return pieces

    def _must_wait(self, lane: Lane) -> bool:
        """Whether the next of a fresh lane has to wait for the answer to its first number.

        A producer that the server does not know yet could skip numbers unnoticed. A batch without a number of the lane
        neither waits nor is waited for.
        """
        if not (lane.under_way and lane.queue[0].numbered):
            return False
        return any(outgoing.numbered for outgoing in self._sent.values() if outgoing.lane is lane)

    def _send(self, lane: Lane, outgoing: OutgoingBatch, id: int, now: float, pieces: list[bytes]) -> None:
        is_new = outgoing.batch is None
        try:
            batch = outgoing.pack(lane.producer, lane.next)
        except RunnelError as error:
            self._refuse(outgoing, error)
            return
        said: PublishDetails | bytes | None = outgoing.said
        if outgoing.sent_at is not None:
            details = PublishDetails() if outgoing.said is None else decode_message(PublishDetails, outgoing.said)
            said = replace(details, sent=outgoing.sent_at)
        if said is None and len(batch) <= JOINED:
            parts = [small_publish_frame(id, outgoing.route.name, batch)]
        else:
            parts = publish_frame(id, outgoing.route.name, batch, said)
        if (size := sum(map(len, parts))) > self.max_frame:
            self._refuse(outgoing, LimitExceeded("max_frame", size, self.max_frame))
            return
        if is_new and outgoing.numbered:
            lane.next += outgoing.count
        outgoing.id, outgoing.sent = id, True
        if outgoing.sent_at is None:
            outgoing.sent_at = now
        lane.under_way += 1
        self._sent[id] = outgoing
        pieces += parts
        if outgoing.abandoned:  # an unanswered record is sent again: it is unknown whether its number was stored
            pieces.append(frame(FrameKind.CANCEL, id))

    def _refuse(self, outgoing: OutgoingBatch, error: RunnelError) -> None:
        self._let_go(outgoing)
        self.refusals.append((outgoing, error))

    # -- answers ------------------------------------------------------------------------------------------------

    def published(self, id: int, epoch: int, first: int) -> OutgoingBatch | None:
        """The server stored the batch of frame `id`; None: no caller waits."""
        outgoing = self._answered(id)
        if outgoing is not None:
            lane: Lane = outgoing.lane
            outgoing.epoch, outgoing.first = epoch, first
            if outgoing.numbered and outgoing.producer == lane.producer:
                lane.fresh = False
                lane.stored = max(lane.stored, outgoing.number + outgoing.count)
            self._let_go(outgoing)
            if lane.queue or lane.stopped:
                self._go_on(lane)
        return outgoing

    def refused(self, id: int, error: RunnelError) -> OutgoingBatch | None:
        """The server refused the batch of frame `id`; None: it will be sent again, or no caller waits."""
        outgoing = self._answered(id)
        if outgoing is None:
            return None
        lane: Lane = outgoing.lane
        kept = self._to_send_again(lane, outgoing, error)
        if kept:
            lane.again += kept
            lane.stopped = True
        else:
            self._let_go(outgoing)
            if error.code in _LOST_COUNT:
                lane.tainted = lane.stopped = True
        self._go_on(lane)
        return None if kept else outgoing

    def _to_send_again(self, lane: Lane, outgoing: OutgoingBatch, error: RunnelError) -> list[OutgoingBatch]:
        """The parts of a refused batch to send again: none, all of it, or its halves."""
        outgoing.sent_at = None  # it is certain that it is not stored
        if outgoing.abandoned:
            return []
        if error.code == "sequence_gap" and outgoing.numbered:
            lane.asked = getattr(error, "expected", outgoing.number)
            outgoing.tries += lane.asked == outgoing.number  # it got what it asks for
            return [outgoing] if outgoing.tries <= MAX_TRIES else []
        if error.code in _SPLIT and not outgoing.whole and outgoing.count > 1:
            return list(outgoing.halves())
        return []

    def _answered(self, id: int) -> OutgoingBatch | None:
        outgoing = self._sent.pop(id, None)
        if outgoing is not None:
            outgoing.id = 0
            outgoing.lane.under_way -= 1
        return outgoing

    def _go_on(self, lane: Lane) -> None:
        """After an answer: the lane has room for another frame, or has no frames under way."""
        if lane.stopped and not lane.under_way:
            again, lane.again = sorted(lane.again, key=_order), []
            lane.queue.extendleft(reversed(again))
            if lane.tainted:
                lane.begin(self._new_producer())
                self._number(lane)
            elif again:
                lane.next = max(again[0].number if lane.asked is None else lane.asked, lane.stored)
                self._number(lane)
            lane.stopped, lane.asked = False, None
        if lane.queue and not lane.stopped:
            self._ready[lane] = None

    @staticmethod
    def _number(lane: Lane) -> None:
        """Give the next numbers of the lane to all that waits and has been numbered before."""
        for outgoing in lane.queue:
            if not (outgoing.sent and outgoing.numbered):
                continue
            if (outgoing.producer, outgoing.number) != (lane.producer, lane.next):
                assert outgoing.batch is not None
                outgoing.batch = with_producer_sequence(outgoing.batch, lane.producer, lane.next)
                outgoing.producer, outgoing.number = lane.producer, lane.next
            lane.next += outgoing.count

    def _let_go(self, outgoing: OutgoingBatch) -> None:
        self.bytes -= outgoing.size
        outgoing.size, outgoing.batch, outgoing.lane = 0, None, None

    # -- the connection -----------------------------------------------------------------------------------------

    def lost(self) -> list[OutgoingBatch]:
        """The connection was lost: all unanswered frames are sent again, unchanged, before anything else.

        Returns records that may not be sent twice, since the server cannot detect the duplicate.
        """
        back: dict[Lane, list[OutgoingBatch]] = {}
        given_up: list[OutgoingBatch] = []
        for outgoing in self._sent.values():
            outgoing.id = 0
            if outgoing.once:
                given_up.append(outgoing)
            else:
                back.setdefault(outgoing.lane, []).append(outgoing)
        self._sent.clear()
        for outgoing in given_up:
            self._let_go(outgoing)
        for lane in self._lanes.values():
            unanswered = back.get(lane, [])
            if unanswered or lane.again:
                lane.tainted = True
                # Records refused because of an earlier one lie between unanswered ones.
                merged = sorted([*unanswered, *lane.again], key=_order)
                lane.queue.extendleft(reversed(merged))
            lane.under_way, lane.again, lane.stopped, lane.asked = 0, [], False, None
            lane.fresh = True  # it may be another server, or one that was started again and knows no client
            if lane.queue:
                self._ready[lane] = None
        return given_up

    def abandon(self) -> list[OutgoingBatch]:
        """The client closes: drop and return all unsent records."""
        left = self.unanswered()
        for outgoing in left:
            outgoing.cap = outgoing.id = 0
            self._let_go(outgoing)
        self.seal()
        for lane in self._lanes.values():
            lane.queue.clear()
            lane.again, lane.under_way, lane.stopped = [], 0, False
        self._sent.clear()
        self._ready.clear()
        return left
