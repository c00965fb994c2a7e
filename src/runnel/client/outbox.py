"""What was published and is not answered yet: sent in order, sent again after a lost connection, stored once.

Topics are spread over lanes. A lane has a producer id and numbers its records, so that the server knows what it
has already; it sends in order, and at most `WINDOW` frames before the first of them is answered. The law it keeps:

- A number never names two records. After a publish was refused, what was sent behind it is refused as well (a
  gap in the numbers). The lane then stops until all that is under way was answered, and goes on from the number
  that the server asked for, with the same records in the same order.
- After a lost connection, all that is unanswered is sent again as it was. The server may still be busy with what
  came on the old one: a lane that would have to use a number again takes a new producer id instead.
- A server may know nobody: it is new, or was started again. It takes any number of one whom it does not know, so
  on every connection a lane waits for the answer to its first frame before it sends the next.

It owns no socket, no loop and no clock. Below: parcel, wire. Above: publishing, link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter

from runnel.client.parcel import LANES, Parcel, Route
from runnel.core.errors import RunnelError
from runnel.core.network_errors import LimitExceeded
from runnel.core.packing import renumbered
from runnel.wire.frame import Kind, frame
from runnel.wire.layouts import publish_frame

WINDOW = 64  # as many publishes as a server remembers of each producer
BATCH_BYTES = 1024 * 1024  # what is gathered into one frame
MAX_TRIES = 4  # how often a server may refuse a number that it asked for

_SPLIT = frozenset({"too_large", "validation_failed"})  # may be the fault of some records, and not of the others
_order = attrgetter("order")
_LOST_COUNT = frozenset({"sequence_overlap", "sequence_forgotten"})


class Lane:
    """The way of some topics: what waits, and how it is numbered."""

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
        self.queue: deque[Parcel] = deque()
        self.open: dict[str, Parcel] = {}  # parcels in the queue that take more, by topic
        self.under_way = 0
        self.stopped = False  # until all that is under way was answered
        self.again: list[Parcel] = []  # refused because of what came before, or in halves
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
        self.refusals: list[tuple[Parcel, RunnelError]] = []  # of parcels that cannot even be sent
        self.is_full = False  # whether the last parcel was begun because the one before it took no more
        self._count = 0  # of parcels, ever
        self._new_producer = new_producer
        self._lanes: list[Lane | None] = [None] * LANES
        self._ready: dict[Lane, None] = {}  # lanes that may have something to send, in order
        self._sent: dict[int, Parcel] = {}

    def __repr__(self) -> str:
        return f"<Outbox, {self.bytes:,} bytes of {self.limit:,}, {len(self._sent)} frames under way>"

    @property
    def is_empty(self) -> bool:
        """Whether all that was published is answered."""
        return not self._sent and self.is_sent

    @property
    def is_sent(self) -> bool:
        """Whether all that was published is under way at least."""
        return not any(lane is not None and (lane.queue or lane.again) for lane in self._lanes)

    @property
    def has_ready(self) -> bool:
        """Whether there may be something to send."""
        return bool(self._ready)

    def parcels(self) -> list[Parcel]:
        """All that is not answered."""
        waiting = [parcel for lane in self._lanes if lane is not None for parcel in (*lane.again, *lane.queue)]
        return [*self._sent.values(), *waiting]

    # -- in -----------------------------------------------------------------------------------------------------

    def gathering(self, route: Route, size: int = 0) -> tuple[Parcel, bool]:
        """The parcel that takes a record of `size` that is published by `route` now, and whether it is new."""
        lane = self._lane(route.lane)
        found = lane.open.get(route.topic)
        if (
            found is not None
            and found.size < found.cap
            and found.size + size <= self.max_frame // 4 * 3  # what fits alone may not fit together
            and (found.route is route or found.route == route)
        ):
            return found, False
        self.is_full = found is not None and found.size >= found.cap > 0
        parcel = Parcel(route, [], cap=min(BATCH_BYTES, self.max_frame // 2))
        self._append(lane, parcel)
        lane.open[route.topic] = parcel
        return parcel, True

    def add(self, parcel: Parcel) -> None:
        """A whole parcel, behind all that was published to its topic before."""
        self.bytes += parcel.size
        self._append(self._lane(parcel.route.lane), parcel)

    def seal(self) -> None:
        """Let nothing more be put into what is gathered."""
        for lane in self._lanes:
            if lane is not None:
                for parcel in lane.open.values():
                    parcel.cap = 0
                lane.open.clear()

    def _append(self, lane: Lane, parcel: Parcel) -> None:
        if (before := lane.open.pop(parcel.route.topic, None)) is not None:
            before.cap = 0
        self._count += 1
        parcel.lane, parcel.order = lane, self._count
        lane.queue.append(parcel)
        self._ready[lane] = None

    def _lane(self, number: int) -> Lane:
        lane = self._lanes[number]
        if lane is None:
            lane = self._lanes[number] = Lane(self._new_producer())
        return lane

    def give_up(self, parcel: Parcel, waiter: object) -> int:
        """`waiter`, which is done, does not wait any more; the id of a frame that may be cancelled now, or 0."""
        if parcel.lane is None:
            return 0  # answered in the meantime
        if not parcel.sent:
            self.bytes -= parcel.withdraw(waiter)
            if parcel.whole:
                parcel.lane.queue.remove(parcel)
                parcel.lane = None
        elif not parcel.is_awaited():
            parcel.abandoned = True
            return parcel.id
        return 0

    # -- out ----------------------------------------------------------------------------------------------------

    def take(self, new_id: Callable[[], int]) -> list[bytes]:
        """All that may be sent now, in pieces to be written one after the other."""
        pieces: list[bytes] = []
        for lane in list(self._ready):
            while lane.queue and not lane.stopped and lane.under_way < WINDOW and not self._must_wait(lane):
                parcel = lane.queue.popleft()
                if parcel.cap:
                    parcel.cap = 0
                    lane.open.pop(parcel.route.topic, None)
                if parcel.batch is None and not parcel.values:
                    self._let_go(parcel)  # all were withdrawn
                else:
                    self._send(lane, parcel, new_id(), pieces)
            if lane.stopped or not lane.queue:
                del self._ready[lane]
        return pieces

    def _must_wait(self, lane: Lane) -> bool:
        """Whether the next of a lane has to wait for the answer to its first number.

        Whoever is not known yet could leave numbers out unnoticed. What has no number of the lane waits for nobody,
        and nobody for it.
        """
        if not (lane.fresh and lane.under_way and lane.queue[0].numbered):
            return False
        return any(parcel.numbered for parcel in self._sent.values() if parcel.lane is lane)

    def _send(self, lane: Lane, parcel: Parcel, id: int, pieces: list[bytes]) -> None:
        is_new = parcel.batch is None
        try:
            batch = parcel.pack(lane.producer, lane.next)
        except RunnelError as error:
            self._refuse(parcel, error)
            return
        parts = publish_frame(id, parcel.route.name, batch, parcel.said)
        if (size := len(parts[0]) + len(batch)) > self.max_frame:
            self._refuse(parcel, LimitExceeded("max_frame", size, self.max_frame))
            return
        if is_new and parcel.numbered:
            lane.next += parcel.count
        parcel.id, parcel.sent = id, True
        lane.under_way += 1
        self._sent[id] = parcel
        pieces += parts
        if parcel.abandoned:  # what was sent once is sent again: nobody knows whether its number is taken
            pieces.append(frame(Kind.CANCEL, id))

    def _refuse(self, parcel: Parcel, error: RunnelError) -> None:
        self._let_go(parcel)
        self.refusals.append((parcel, error))

    # -- answers ------------------------------------------------------------------------------------------------

    def published(self, id: int, epoch: int, first: int) -> Parcel | None:
        """The server stored the parcel of frame `id`; None: nobody asked."""
        parcel = self._answered(id)
        if parcel is not None:
            lane: Lane = parcel.lane
            parcel.epoch, parcel.first = epoch, first
            if parcel.numbered and parcel.producer == lane.producer:
                lane.fresh = False
                lane.stored = max(lane.stored, parcel.number + parcel.count)
            self._let_go(parcel)
            self._go_on(lane)
        return parcel

    def refused(self, id: int, error: RunnelError) -> Parcel | None:
        """The server refused the parcel of frame `id`; None: it will be sent again, or nobody asked."""
        parcel = self._answered(id)
        if parcel is None:
            return None
        lane: Lane = parcel.lane
        kept = self._to_send_again(lane, parcel, error)
        if kept:
            lane.again += kept
            lane.stopped = True
        else:
            self._let_go(parcel)
            if error.code in _LOST_COUNT:
                lane.tainted = lane.stopped = True
        self._go_on(lane)
        return None if kept else parcel

    def _to_send_again(self, lane: Lane, parcel: Parcel, error: RunnelError) -> list[Parcel]:
        """What of a refused parcel has to be sent again: nothing, all of it, or its halves."""
        if parcel.abandoned:
            return []
        if error.code == "sequence_gap" and parcel.numbered:
            lane.asked = getattr(error, "expected", parcel.number)
            parcel.tries += lane.asked == parcel.number  # it got what it asks for
            return [parcel] if parcel.tries <= MAX_TRIES else []
        if error.code in _SPLIT and not parcel.whole and parcel.count > 1:
            return list(parcel.halves())
        return []

    def _answered(self, id: int) -> Parcel | None:
        parcel = self._sent.pop(id, None)
        if parcel is not None:
            parcel.id = 0
            parcel.lane.under_way -= 1
        return parcel

    def _go_on(self, lane: Lane) -> None:
        """After an answer: the lane has room for another frame, or has nothing under way any more."""
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
        for parcel in lane.queue:
            if not (parcel.sent and parcel.numbered):
                continue
            if (parcel.producer, parcel.number) != (lane.producer, lane.next):
                assert parcel.batch is not None
                parcel.batch = renumbered(parcel.batch, lane.producer, lane.next)
                parcel.producer, parcel.number = lane.producer, lane.next
            lane.next += parcel.count

    def _let_go(self, parcel: Parcel) -> None:
        self.bytes -= parcel.size
        parcel.size, parcel.batch, parcel.lane = 0, None, None

    # -- the connection -----------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The connection is gone: all that is unanswered is sent again, as it was, before anything else."""
        back: dict[Lane, list[Parcel]] = {}
        for parcel in self._sent.values():
            parcel.id = 0
            back.setdefault(parcel.lane, []).append(parcel)
        self._sent.clear()
        for lane in self._lanes:
            if lane is None:
                continue
            unanswered = back.get(lane, [])
            if unanswered or lane.again:
                lane.tainted = True
                # What was refused behind something else lies between what was not answered.
                merged = sorted([*unanswered, *lane.again], key=_order)
                lane.queue.extendleft(reversed(merged))
            lane.under_way, lane.again, lane.stopped, lane.asked = 0, [], False, None
            lane.fresh = True  # it may be another server, or one that was started again and knows nobody
            if lane.queue:
                self._ready[lane] = None

    def abandon(self) -> list[Parcel]:
        """Nothing will be sent any more: all that is left, let go."""
        left = self.parcels()
        for parcel in left:
            parcel.cap = parcel.id = 0
            self._let_go(parcel)
        self.seal()
        for lane in self._lanes:
            if lane is not None:
                lane.queue.clear()
                lane.again, lane.under_way, lane.stopped = [], 0, False
        self._sent.clear()
        self._ready.clear()
        return left
