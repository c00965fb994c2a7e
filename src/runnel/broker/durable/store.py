"""The durable part of a broker: recovers topics, positions and groups, reads in threads, closes in order.

`ChunkCache` keeps the chunks that were read last: ten subscribers that fell behind together would otherwise read, check
and parse everything ten times.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from runnel.broker.durable.cleaner import Cleaner
from runnel.broker.durable.commit_queue import CommitQueue
from runnel.broker.durable.disk_monitor import DiskMonitor
from runnel.broker.durable.holds import RetentionHolds
from runnel.broker.durable.pending_state import PendingState
from runnel.broker.durable.retention import TopicRetention
from runnel.broker.durable.scrubber import Scrubber
from runnel.broker.durable.staging import StagingArea
from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import DurableTopic
from runnel.core.clock import from_micros, micros
from runnel.core.errors import TopicDeleted, TopicHeld
from runnel.core.options import TopicOptions
from runnel.core.schema import Schema
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format.entry import Draft, WriteFailed
from runnel.journal.format.ledger import TopicState, sequence_part, topic_part, trim_part
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.read.cleaned_segment import CleanedChunk
from runnel.journal.read.journal_reader import ReadPlan
from runnel.journal.read.segment_reader import FoundBatch, ParsedChunk
from runnel.journal.write.journal import RESERVED_SEQUENCES, Journal

if TYPE_CHECKING:
    from runnel.broker.bus import Bus


CHUNK_CACHE_BYTES = 16 * 1024 * 1024  # bytes of batches that are held

# the id of a segment (to hold it would keep its file), a position, a topic, a place
ChunkKey = tuple[int, int, int, int]


class ChunkCache:
    """What the last chunks held, of topics that lie densely, up to a limit; the one used last at the end."""

    __slots__ = ("_bytes", "_limit", "_parsed")

    def __init__(self, limit: int = CHUNK_CACHE_BYTES) -> None:
        self._limit, self._bytes = limit, 0
        self._parsed: OrderedDict[ChunkKey, tuple[ParsedChunk, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parsed)

    def find(self, key: ChunkKey) -> ParsedChunk | None:
        """What somebody else found there."""
        found = self._parsed.get(key)
        if found is None:
            return None
        self._parsed.move_to_end(key)
        return found[0]

    def keep(self, key: ChunkKey, parsed: ParsedChunk) -> None:
        """Somebody read it. What is damaged is looked at anew by everybody: it may be repaired, or read at last."""
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
        """Let go of all of it."""
        self._parsed.clear()
        self._bytes = 0


# -- The store -------------------------------------------------------------------------------------------


READER_THREADS = 2  # threads that read for those who are behind
CLOSED = "the broker is closed"

logger = logging.getLogger("runnel")

T = TypeVar("T")


class Store:
    """What is durable in one broker."""

    def __init__(self, bus: Bus, journal: Journal, lock: FolderLock) -> None:
        self.journal = journal
        self.pending_state = PendingState(bus)
        self.commits = CommitQueue(bus, journal, self.pending_state)
        self.pending_state.commits = self.commits
        self._bus, self._lock = bus, lock
        self.chunk_cache = ChunkCache()
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="runnel-read")
        self._next_topic = journal.ledger.next_topic
        self.is_closed = False
        self.holding = self.pending_state.holding = RetentionHolds(bus, self)
        self.retention = TopicRetention(bus, self)
        self.holding.released = self.retention.released
        self.staging = StagingArea(bus, self)
        self.disk_monitor = DiskMonitor(bus, self, str(lock.folder))
        self.scrubber = Scrubber(journal, str(lock.folder))
        self.cleaner = Cleaner(journal, self.commits.call, self.holds, lambda: int(bus.clock.time() * 1e6))

    def __repr__(self) -> str:
        return f"<Store of {self.journal!r}, {self.commits!r}>"

    @property
    def keeps_packed(self) -> bool:
        """Whether readers want the batches that records are stored in, too."""
        return self._bus.timeline.keeps_packed

    def begin(self) -> None:
        """Bring the topics, positions and groups of the journal to life, and start writing."""
        bus, ledger = self._bus, self.journal.ledger
        bus.timeline.tail_bytes = self.journal.options.tail_bytes
        bus.timeline.go_on_from(ledger.sequence, from_micros(ledger.time))
        bus.catalog.epoch = max(bus.catalog.epoch, ledger.epoch)
        for topic in ledger.topics.values():
            revived = Log(topic.name, topic.epoch, TopicOptions.of(dict(topic.options)))
            revived.revive(topic.first, topic.end, topic.bytes)
            revived.stored = DurableTopic(topic.id, topic.end)
            self.retention.adopt(revived, topic)
            if topic.schema is not None:
                revived.schema = Schema(topic.schema["encoding"], topic.schema["schema"])
            bus.catalog.logs[topic.name] = revived
        bus.publisher.deduplicator.restore(ledger)
        self.pending_state.restore(ledger)
        stages, following = list(ledger.stages.values()), ledger.next_stage  # from now on the commit thread has them
        self.commits.start()
        self.staging.restore(stages, following)
        self.journal.rolled = self._rolled
        bus.timeline.reserve_at = ledger.reserved - RESERVED_SEQUENCES // 2
        bus.timeline.reserve = self._reserve
        self.retention.begin()
        self.cleaner.start()
        self.disk_monitor.fell = self._low
        self.disk_monitor.look()
        self.scrubber.start()

    def close(self) -> None:
        """Write the last positions, seal the journal, and let the folder go. Blocks until that is done."""
        self.is_closed = True
        self._stop()
        try:
            self._write_last()
        finally:
            self._readers.shutdown(wait=True, cancel_futures=True)
            try:
                self.journal.close()
            except OSError as error:  # what was acknowledged is safe; the next open finds its way without a seal
                logger.error("the journal could not be sealed: %s", error)
            finally:
                self._lock.release()

    def _write_last(self) -> None:
        """State that is not written yet, and how far this life came."""
        parts = [*self.commits.take_state(), *self.retention.last_trims()]
        if parts and self.journal.failed is None:
            try:
                self.journal.write([Draft(parts, self.journal.ledger.time)])
            except WriteFailed as error:
                logger.error("the last positions and acks were not stored: %s", error)
        # Sequences and epochs were given to what is not stored, too: the next life goes on behind them.
        self.journal.ledger.sequence = max(self.journal.ledger.sequence, self._bus.timeline.given)
        self.journal.ledger.epoch = max(self.journal.ledger.epoch, self._bus.catalog.epoch)

    def give_up(self) -> None:
        """What `begin` began is not wanted: stop it, and write nothing. The journal and the folder are the caller's."""
        self.commits.stopped = self.is_closed = True
        self._stop()
        self.commits.drain()
        self._readers.shutdown(wait=True, cancel_futures=True)

    def _stop(self) -> None:
        """End what goes on by itself."""
        self.scrubber.stop()
        self.cleaner.stop()
        self.retention.stop()
        self.staging.stop()
        self.disk_monitor.stop()

    def _reserve(self) -> None:
        """Half of the sequences that were set aside for records that are not stored are gone."""
        timeline = self._bus.timeline
        timeline.reserve_at = timeline.given + RESERVED_SEQUENCES // 2
        self.commits.tell(sequence_part(timeline.given + RESERVED_SEQUENCES, self._bus.catalog.epoch))

    def abandon(self) -> None:
        """Be the copy in the child of a fork: touch nothing, own nothing."""
        self.commits.stopped = True
        for log in self._bus.catalog.logs.values():
            if log.stored is not None:
                log.stored.take_back(log.end)  # or a publish would join a batch that is never written
        self._lock.release()

    # -- topics -------------------------------------------------------------------------------------------------

    def adopt(self, log: Log) -> None:
        """Make `log` a durable topic."""
        log.stored = DurableTopic(self._next_topic, log.end)
        self._next_topic += 1
        self.describe(log)
        self.holding.adopt(log)
        self.retention.adopt(log)

    def describe(self, log: Log) -> None:
        """Have what is known of a topic written: it is new, or got a type."""
        assert log.stored is not None
        known = log.codec or log.schema
        schema = None if known is None else {"encoding": known.encoding, "schema": known.schema}
        told = TopicState(log.stored.id, log.name, log.epoch, log.options.given(), schema, log.first, log.stored.next)
        self.commits.tell(topic_part(told))

    def delete(self, log: Log, why: TopicDeleted) -> None:
        """Have a topic deleted."""
        self.commits.forget(log, why)
        self.retention.forget(log)
        self.staging.forget(log)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, plan: ReadPlan, came: Callable[[ReadPlan, bytes | CleanedChunk | OSError], None]) -> None:
        """Read a chunk in a thread; `came` is called on the loop, whatever becomes of the read."""
        self.look(lambda: self.journal.history.fetch(plan), lambda found: came(plan, found))

    def look(self, look: Callable[[], T], came: Callable[[T | OSError], None]) -> None:
        """Have `look` read the journal in a thread; `came` is called on the loop, whatever becomes of it."""

        def tell(found: T | OSError) -> None:
            try:
                self.commits.loop.call_soon_threadsafe(came, found)
            except RuntimeError:
                pass  # the loop is closed: nobody wants it any more

        def looking() -> None:
            try:
                found: T | OSError = look()
            except OSError as error:
                found = error
            except Exception as error:  # a bug; whoever waits must not do so for ever
                logger.exception("reading the journal failed")
                found = OSError(str(error))
            tell(found)

        def dropped(read: Future[None]) -> None:
            if read.cancelled():
                tell(OSError(CLOSED))

        try:
            self._readers.submit(looking).add_done_callback(dropped)
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

    # -- what is kept -------------------------------------------------------------------------------------------

    def _rolled(self) -> None:
        """A segment was sealed, says the commit thread."""
        try:
            self.commits.loop.call_soon_threadsafe(self.retention.sweep)
        except RuntimeError:
            pass  # the loop is closed: the next life will see to it

    def _low(self) -> None:
        """The disk is low: give back what can be."""
        self.retention.sweep()
        self.cleaner.wake()

    def holds(self) -> dict[int, int]:
        """From which offset on each topic is held, by id; topics that nobody holds are left out. From any thread."""
        logs = list(self._bus.catalog.logs.values())
        return {log.stored.id: log.held for log in logs if log.stored is not None and log.held is not None}

    def trim(self, log: Log, before: int, *, force: bool) -> None:
        """Take what lies before an offset, because somebody asked for it; unless somebody else holds it."""
        if not force and (holds := self.holding.at(log, before)):
            raise TopicHeld(log.name, before, {hold.name: hold.floor(log) for hold in holds})
        log.begin_at(before, RemovalReason.ASKED, force=force)
        if log.stored is not None:
            self.commits.tell(trim_part(log.stored.id, log.first, 0, log.reason, micros(self._bus.timeline.now())))
