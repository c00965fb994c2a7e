"""Records of a durable topic that wait to be written: batches that fill up until the next commit.

`DurableTopic` gives out the next offset, `PendingBatch` collects the records published meanwhile, and `PendingBytes`
bounds the total that may wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime

from runnel.broker.topic.log import Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.batch_format import BYTES, JSON, MSGPACK, pack
from runnel.core.columns import Columns
from runnel.core.lone_record import pack_lone
from runnel.core.publishing import Append
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.ledger import ids_part
from runnel.runtime.waiting import resolve_waiter

BATCH_BYTES = 4 * 1024 * 1024  # a batch that has this much takes no more publishes

_CONTENT = {"json": JSON, "msgpack": MSGPACK}


class PendingBytes:
    """How much is on its way, and how much may be; the waiters for room, and where futures come from."""

    __slots__ = ("_loop", "_waiting", "bytes", "create_future", "limit", "over")

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes, self.limit = 0, limit
        self.create_future: Callable[[], asyncio.Future[None]] = loop.create_future
        self.over = False  # nothing is written any more: no publisher need wait
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    def has_room(self) -> bool:
        """Whether more may be handed over."""
        return self.bytes < self.limit and not self._waiting

    async def room(self) -> None:
        """Return when more may be handed over, first come first served."""
        waiter = self.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            # It kept its place until now, so no publish came between its wake-up and its turn. It hands over its
            # records before the next one checks, so that the bound holds.
            self._waiting.remove(waiter)
            self._loop.call_soon(self.make_room)

    def make_room(self) -> None:
        """Wake the publisher that has waited longest, if there is room and it was not woken yet."""
        if self._waiting and (self.bytes < self.limit or self.over) and not self._waiting[0].done():
            resolve_waiter(self._waiting[0])


class PendingBatch:
    """Records of one topic that become one batch: published in one go, or while the journal was busy."""

    __slots__ = (
        "columns",
        "counted",
        "first",
        "ids",
        "in_atomic_write",
        "is_told",
        "listeners",
        "log",
        "packed",
        "pending",
        "producer",
        "producer_sequence",
        "sequence",
        "size",
        "values",
        "waiters",
        "weight",
    )

    def __init__(self, log: Log, first: int, pending: PendingBytes) -> None:
        self.log, self.first, self.pending = log, first, pending
        self.values: list[bytes] = []
        self.columns: Columns | None = None  # what they carry besides
        self.size = 0  # of the values
        self.weight = 0  # of the values, and of what they carry
        self.sequence = 0
        self.waiters: list[asyncio.Future[None]] = []
        self.listeners: list[Callable[[Exception | None], None]] = []  # called at once, not with call_soon
        self.ids: list[tuple[str, int]] | None = None  # message ids, and the offsets of their records
        self.producer = self.producer_sequence = 0
        self.is_told = False  # whether it landed or failed
        self.counted = False  # whether its log counts it; until it is closed it counts separately
        self.packed: bytes | None = None  # its bytes, where it was packed before its time came
        self.in_atomic_write = False  # whether a transaction gets the outcome

    def hold(self, entry: Append) -> None:
        """Hold the batch of one remote publish, in the bytes in which it arrived."""
        self.values, self.columns = entry.values, entry.columns  # type: ignore[assignment]  # nothing joins it
        self.packed = entry.packed
        self.producer, self.producer_sequence = entry.producer, entry.producer_sequence
        if entry.message_id is not None:
            self.ids = [(entry.message_id, self.first)]
        self.size, self.weight = entry.size, entry.size + entry.extra
        self.pending.bytes += self.weight
        entry.pending_batch = self

    def add(self, entry: Append) -> None:
        """Take in what one publish appends."""
        entry.pending_batch = self
        if entry.message_id is not None:
            self.ids = self.ids or []
            self.ids.append((entry.message_id, self.end))
        if entry.producer and not self.producer:
            self.producer, self.producer_sequence = entry.producer, entry.producer_sequence
        if self.counted:
            self.log.coming += len(entry.values)
            self.log.coming_bytes += entry.size
        if entry.columns is not None:
            if self.columns is None:
                self.columns = Columns()
            self.columns.extend(len(self.values), entry.columns)
        self.values.extend(entry.values)
        self.size += entry.size
        self.weight += entry.size + entry.extra
        self.pending.bytes += entry.size + entry.extra

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return self.first + len(self.values)

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self.values)

    def takes(self, entry: Append) -> bool:
        """Whether `entry` may go into the same batch."""
        if self.weight >= BATCH_BYTES or entry.producer != self.producer or self.packed is not None:
            return False
        return not entry.producer or entry.producer_sequence == self.producer_sequence + self.count

    def pack(self) -> bytes:
        """Its bytes."""
        if self.packed is not None:
            return self.packed
        kind, compression = self.log.type, self.log.options.compression
        content_type = BYTES if kind is None else _CONTENT[kind.encoding]
        if len(self.values) == 1 and self.columns is None and compression is None:
            return pack_lone(self.values[0], content_type, self.producer, self.producer_sequence)
        return pack(
            self.values,
            self.columns,
            compression=compression,
            content_type=content_type,
            producer=self.producer,
            producer_sequence=self.producer_sequence,
        )

    def parts(self, topic: int, at: int) -> list[Part]:
        """Its entry parts: the batch, and the state to remember with it."""
        body = self.packed = self.pack()
        last = self.first + len(self.values) - 1
        crc = int.from_bytes(body[:4], "little")
        parts = [Part(PartKind.BATCH, body, crc, topic, self.first, last, self.sequence, at)]
        if self.ids is not None:
            parts.append(ids_part(topic, [name for name, _ in self.ids], [offset for _, offset in self.ids], at))
        return parts

    def land(self, timeline: Timeline, when: datetime) -> None:
        """It is durable: append it to its log in memory."""
        packed = self.packed if timeline.keeps_packed else None
        timeline.land(self.log, self.sequence, when, self.values, self.columns, self.size, packed)

    def count_in(self) -> None:
        """It is on its way, and open to its producer only."""
        self.counted = True
        self.log.coming += self.count
        self.log.coming_bytes += self.size

    def count_out(self) -> None:
        """It landed, or will not."""
        self.pending.bytes -= self.weight
        if self.counted:
            self.counted = False
            self.log.coming -= self.count
            self.log.coming_bytes -= self.size

    def waiter(self) -> asyncio.Future[None]:
        """Done when it is durable and visible; fails as it does."""
        waiter = self.pending.create_future()
        self.waiters.append(waiter)
        return waiter

    def tell(self, error: Exception | None = None) -> None:
        """It is durable and visible, or it failed. Each waiter has a future of its own: none can cancel another."""
        self.is_told = True
        # Forgotten first: a failed publish holds the error, whose traceback holds the publish, which holds this batch.
        listeners, self.listeners = self.listeners, []
        waiters, self.waiters = self.waiters, []
        for listener in listeners:
            listener(error)
        for waiter in waiters:
            resolve_waiter(waiter, error)


class DurableTopic:
    """The state of a topic on disk, as kept by its log in memory."""

    __slots__ = ("_next", "_numbered", "id", "pending_batch", "tail_cost")

    def __init__(self, id: int, next: int) -> None:
        self.id, self._next = id, next
        self.tail_cost = 0  # bytes of memory that its newest records take
        self.pending_batch: PendingBatch | None = None  # takes the next publish
        self._numbered: PendingBatch | None = None  # takes what its producer numbers next

    @property
    def next(self) -> int:
        """The offset that the next record gets; `log.end` is the visible end."""
        return self._next if self.pending_batch is None else self.pending_batch.end

    def close(self, pending_batch: PendingBatch) -> None:
        """The next publish does not go into `pending_batch` any more."""
        if self.pending_batch is pending_batch:
            self._next, self.pending_batch = pending_batch.end, None
            pending_batch.count_in()
        elif self._numbered is pending_batch:
            self._numbered = None

    @property
    def numbered(self) -> PendingBatch | None:
        """The batch of a producer that is the last one, and may take what it publishes next."""
        one = self._numbered
        return one if one is not None and self.pending_batch is None and one.end == self._next else None

    def number(self, pending_batch: PendingBatch) -> None:
        """A producer numbers `pending_batch`: only its records go into it."""
        self.close(pending_batch)
        self._next, self._numbered = pending_batch.end, pending_batch

    def append(self, pending_batch: PendingBatch) -> None:
        """`pending_batch` has the next offsets, and takes nothing more."""
        if self.pending_batch is not None:
            self.close(self.pending_batch)
        self._next = pending_batch.end
        pending_batch.count_in()

    def take_back(self, offset: int) -> None:
        """The records from `offset` on were never seen, and will not come."""
        self._next, self.pending_batch, self._numbered = min(self.next, offset), None, None


def refuse_behind(pending_batches: Iterable[PendingBatch], refused: dict[Log, Exception]) -> None:
    """Refuse, too, what a producer numbered behind records that are refused: it left out no number."""
    lost: dict[int, Exception] = {}
    for one in pending_batches:
        if one.producer and one.log in refused:
            lost.setdefault(one.producer, refused[one.log])
        elif one.producer in lost:
            refused[one.log] = lost[one.producer]
