"""Read the journal for lagging readers: in threads, with a cache of the last chunks.

Ten subscribers that fell behind together would otherwise read, check and parse everything ten times. Readers of history
wait for their turn where others publish: see `history_pace`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from runnel.broker.durable.history_pace import HistoryPace, LiveTraffic
from runnel.broker.topic.log import Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.clock import micros
from runnel.journal.read.cleaned_segment import CleanedChunk
from runnel.journal.read.journal_reader import ReadPlan
from runnel.journal.read.segment_reader import FoundBatch, ParsedChunk
from runnel.journal.write.journal import Journal

CHUNK_CACHE_BYTES = 16 * 1024 * 1024  # bytes of batches that are held

# the id of a segment (to hold it would keep its file), a position, a topic, a place
ChunkKey = tuple[int, int, int, int]


class ChunkCache:
    """Records of the last chunks, of dense topics, up to a limit; least recently used first."""

    __slots__ = ("_bytes", "_limit", "_parsed")

    def __init__(self, limit: int = CHUNK_CACHE_BYTES) -> None:
        self._limit, self._bytes = limit, 0
        self._parsed: OrderedDict[ChunkKey, tuple[ParsedChunk, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parsed)

    def find(self, key: ChunkKey) -> ParsedChunk | None:
        """The records that another reader read there."""
        found = self._parsed.get(key)
        if found is None:
            return None
        self._parsed.move_to_end(key)
        return found[0]

    def keep(self, key: ChunkKey, parsed: ParsedChunk) -> None:
        """A reader read it. Damaged chunks are not shared: each reader tries them again, since they may be repaired."""
        items = list(parsed.items)
        if key in self._parsed or not items or not all(type(item) is FoundBatch for item in items):
            return
        size = sum(len(item.body) for item in items if isinstance(item, FoundBatch))
        self._parsed[key] = (ParsedChunk(items, parsed.position, parsed.place), size)
        self._bytes += size
        while self._bytes > self._limit and len(self._parsed) > 1:
            _, (_, gone) = self._parsed.popitem(last=False)
            self._bytes -= gone

    def clear(self) -> None:
        """Drop all of it."""
        self._parsed.clear()
        self._bytes = 0


READER_THREADS = 2
CLOSED = "the broker is closed"

logger = logging.getLogger("runnel")

ChunkListener = Callable[[ReadPlan, bytes | CleanedChunk | OSError], None]
"""Called with what a chunk holds, or why it could not be read."""

T = TypeVar("T")


class JournalReads:
    """Reads for cursors, groups and background work of one broker."""

    def __init__(self, journal: Journal, timeline: Timeline, loop: asyncio.AbstractEventLoop) -> None:
        self.journal, self._timeline, self._loop = journal, timeline, loop
        self.chunk_cache = ChunkCache()
        self.is_closed = False
        self._threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="runnel-read")
        self.pace = HistoryPace(journal.options.history_share, self._traffic(), loop.time())
        self._waiting: deque[tuple[ReadPlan, ChunkListener]] = deque()  # reads of history, held back
        self._timer: asyncio.TimerHandle | None = None  # while any are

    @property
    def keeps_packed(self) -> bool:
        """Whether readers want the batches that records are stored in, too."""
        return self._timeline.keeps_packed

    def close(self) -> None:
        """Cancel waiting reads, and return when no thread reads any more."""
        self.is_closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self.read(*self._waiting.popleft())  # which says that the broker is closed

    def read(self, plan: ReadPlan, came: ChunkListener) -> None:
        """Read a chunk in a thread; `came` is called on the loop, whatever becomes of the read."""
        self.look(lambda: self.journal.history.fetch(plan), lambda found: came(plan, found))

    # -- history ------------------------------------------------------------------------------------------------

    def read_history(self, plan: ReadPlan, came: ChunkListener) -> None:
        """The same for a reader of history: in turn, and not before live traffic leaves it room."""
        self._waiting.append((plan, came))
        if self._timer is None:
            self._let_history_read()

    def count_history(self, plan: ReadPlan) -> None:
        """A reader of history found a chunk in the cache: it costs live traffic as much to hand that on."""
        self.pace.read(plan.size, self._loop.time())

    def _let_history_read(self) -> None:
        self._timer, waiting, pace, now = None, self._waiting, self.pace, self._loop.time()
        while waiting:
            if wait := pace.wait(self._traffic(), now):
                self._timer = self._loop.call_later(wait, self._let_history_read)
                return
            plan, came = waiting.popleft()
            pace.read(plan.size, now)
            self.read(plan, came)

    def _traffic(self) -> LiveTraffic:
        return LiveTraffic(self._timeline.sequence, self.journal.batches, self.journal.appended_batches)

    # -- looking ------------------------------------------------------------------------------------------------

    def look(self, look: Callable[[], T], came: Callable[[T | OSError], None]) -> None:
        """Have `look` read the journal in a thread; `came` is called on the loop, whatever becomes of it."""

        def tell(found: T | OSError) -> None:
            try:
                self._loop.call_soon_threadsafe(came, found)
            except RuntimeError:
                pass  # the loop is closed: no reader waits any more

        def looking() -> None:
            try:
                found: T | OSError = look()
            except OSError as error:
                found = error
            except Exception as error:  # a bug; the waiting reader must not wait for ever
                logger.exception("reading the journal failed")
                found = OSError(str(error))
            tell(found)

        def dropped(read: Future[None]) -> None:
            if read.cancelled():
                tell(OSError(CLOSED))

        try:
            self._threads.submit(looking).add_done_callback(dropped)
        except RuntimeError:  # the store is closed, and so are its readers
            tell(OSError(CLOSED))

    def offset_at(self, log: Log, time: datetime) -> int:
        """The offset of the first record of `log` that is not older than `time`."""
        if log.runs and log.runs[0].time < time:
            return log.offset_at(time)
        assert log.stored is not None
        found = self.journal.history.offset_at(log.stored.id, micros(time))
        return max(log.first, log.base if found is None else found)

    def sequence_at(self, time: datetime) -> int | None:
        """The sequence of the first stored record that is not older than `time`; None: there is none on disk."""
        return self.journal.history.sequence_at(micros(time), self.journal.ledger.topics)
