"""The durable part of a broker: recovers topics and positions, starts and stops background work, closes in order."""

from __future__ import annotations

import logging

from runnel.broker.durable.cleaner import Cleaner
from runnel.broker.durable.commit_queue import CommitQueue, LandingListener
from runnel.broker.durable.disk_monitor import DiskMonitor
from runnel.broker.durable.holds import RetentionHolds
from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.durable.pending_state import PendingState
from runnel.broker.durable.replication import PrimaryReplication
from runnel.broker.durable.retention import TopicRetention
from runnel.broker.durable.scrubber import Scrubber
from runnel.broker.durable.staging import StagingArea
from runnel.broker.topic.catalog import TopicCatalog
from runnel.broker.topic.log import Log
from runnel.broker.topic.named_positions import NamedPositions
from runnel.broker.topic.pending_batch import DurableTopic
from runnel.broker.topic.timeline import Timeline
from runnel.core.clock import Clock, from_micros, micros
from runnel.core.errors import FolderUnusable, RunnelError, TopicDeleted, TopicHeld
from runnel.core.options import TopicOptions
from runnel.core.schema import SchemaValidator
from runnel.journal.folder_lock import FolderLock, FolderLost
from runnel.journal.format.entry import Draft, WriteFailed
from runnel.journal.format.ledger import TopicState, sequence_part, topic_part, trim_part
from runnel.journal.format.removed_offsets import RemovalReason, count_skipped, trimmed_below
from runnel.journal.write.journal import RESERVED_SEQUENCES, Journal

logger = logging.getLogger("runnel")


class Store:
    """The durable state of one broker."""

    def __init__(
        self,
        journal: Journal,
        lock: FolderLock,
        timeline: Timeline,
        catalog: TopicCatalog,
        positions: NamedPositions,
        listener: LandingListener,
        clock: Clock,
    ) -> None:
        self.journal = journal
        self.pending_state = PendingState(positions)
        self.commits = CommitQueue(journal, timeline, self.pending_state, listener)
        self.pending_state.commits = self.commits
        self.reads = JournalReads(journal, timeline, self.commits.loop)
        self._timeline, self._catalog, self._lock = timeline, catalog, lock
        self._next_topic = journal.ledger.next_topic
        self.holding = self.pending_state.holding = RetentionHolds(self.reads, catalog.logs)
        self.retention = TopicRetention(self.reads, self.commits, timeline, clock)
        self.holding.released = self.retention.released
        self.commits.explain_full = self.holding.explained
        self.staging = StagingArea(self.reads, self.commits, timeline, catalog.logs, clock)
        folder = str(lock.folder)
        self.disk_monitor = DiskMonitor(self.reads, self.holding, catalog.logs, self.commits.loop, clock, folder)
        self.scrubber = Scrubber(journal, folder)
        self.cleaner = Cleaner(journal, self.commits.call, self.holds, lambda: int(clock.time() * 1e6))
        self.replication = PrimaryReplication(journal, self.commits, lambda: timeline.sequence)
        self.cleaner.offer = self.replication.offer

    def __repr__(self) -> str:
        return f"<Store of {self.journal!r}, {self.commits!r}>"

    def restore(self) -> None:
        """Bring the topics and positions of the journal to life. Nothing is written yet."""
        ledger, catalog = self.journal.ledger, self._catalog
        self._timeline.tail_bytes = self.journal.options.tail_bytes
        self._timeline.go_on_from(ledger.sequence, from_micros(ledger.time))
        catalog.epoch = max(catalog.epoch, ledger.epoch)
        for topic in ledger.topics.values():
            options, schema = self._declared(topic)
            revived = catalog.new_log(topic.name, topic.epoch, options)
            skipped = count_skipped(topic.gone, 0, topic.end)
            revived.revive(topic.first, topic.end, topic.bytes, trimmed_below(topic.gone), topic.confirmed, skipped)
            revived.stored = DurableTopic(topic.id, topic.end)
            revived.configured = frozenset(topic.configured)
            self.holding.adopt(revived)
            self.retention.adopt(revived, topic)
            revived.type = schema
            catalog.logs[topic.name] = revived
        self.pending_state.restore(ledger)

    def _declared(self, topic: TopicState) -> tuple[TopicOptions, SchemaValidator | None]:
        """The options and the schema that a topic was stored with."""
        try:
            options = TopicOptions.of(dict(topic.options))
            match topic.schema:
                case None:
                    return options, None
                case {"encoding": "json" | "msgpack" as encoding, "schema": dict() as schema}:
                    return options, SchemaValidator(encoding, schema)
            why = "a schema without encoding or fields"
        except (RunnelError, TypeError, ValueError) as error:
            why = f"options that are not valid ({error})"
        advice = "open the folder with the version of runnel that wrote it, or restore it from a snapshot"
        raise FolderUnusable(str(self._lock.folder), f"topic {topic.name!r} is stored with {why}; {advice}")

    def begin(self) -> None:
        """Start the writer and the background tasks."""
        ledger = self.journal.ledger
        stages, following = list(ledger.stages.values()), ledger.next_stage  # from now on the commit thread has them
        self.commits.start()
        self.staging.restore(stages, following)
        self.journal.rolled = self._rolled
        self._timeline.reserve_at = ledger.reserved - RESERVED_SEQUENCES // 2
        self._timeline.reserve = self._reserve
        self.retention.begin()
        self.cleaner.start()
        self.disk_monitor.looked = lambda: self.commits.call(self._check_owner)
        self.disk_monitor.fell = self._low
        self.disk_monitor.look()
        self.scrubber.start()

    def close(self) -> None:
        """Write the last positions, seal the journal, and let the folder go. Blocks until that is done."""
        self.reads.is_closed = True
        self._stop()
        try:
            self._write_last()
        finally:
            self.reads.close()
            try:
                self.journal.close()
            except OSError as error:  # acknowledged records are safe; the next open works without a seal
                logger.error("the journal could not be sealed: %s", error)
            finally:
                self._lock.release()

    def _write_last(self) -> None:
        """Unwritten state, and the last offsets, sequences and epochs."""
        parts = [*self.commits.take_state(), *self.retention.last_trims()]
        if parts and self.journal.failed is None:
            try:
                self.journal.write([Draft(parts, self.journal.ledger.time)])
            except WriteFailed as error:
                logger.error("the last positions and acks were not stored: %s", error)
        # Unstored records got sequences and epochs, too: the next start continues behind them.
        self.journal.ledger.sequence = max(self.journal.ledger.sequence, self._timeline.given)
        self.journal.ledger.epoch = max(self.journal.ledger.epoch, self._catalog.epoch)

    def give_up(self) -> None:
        """Undo `begin` without a write. The journal and the folder are the caller's."""
        self.commits.stopped = self.reads.is_closed = True
        self._stop()
        self.commits.drain()
        self.reads.close()

    def _stop(self) -> None:
        """Stop the background tasks."""
        self.replication.close()
        self.scrubber.stop()
        self.cleaner.stop()
        self.retention.stop()
        self.staging.stop()
        self.disk_monitor.stop()

    def _reserve(self) -> None:
        """Half of the reserved sequences were used by records that are not stored."""
        timeline = self._timeline
        timeline.reserve_at = timeline.given + RESERVED_SEQUENCES // 2
        self.commits.tell(sequence_part(timeline.given + RESERVED_SEQUENCES, self._catalog.epoch))

    def abandon(self) -> None:
        """Be the copy in the child of a fork: touch nothing, own nothing."""
        self.commits.stopped = True
        for log in self._catalog.logs.values():
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
        """Schedule a write of a topic's state: it is new, or got a type."""
        assert log.stored is not None
        schema = None if log.type is None else {"encoding": log.type.encoding, "schema": log.type.schema}
        told = TopicState(log.stored.id, log.name, log.epoch, log.options.given(), schema, log.first, log.stored.next)
        told.configured = tuple(sorted(log.configured))
        self.commits.tell(topic_part(told))

    def configured(self, log: Log) -> None:
        """Have the new options of a topic written, and what they keep looked at again."""
        self.describe(log)
        self.holding.configured(log)
        self.retention.configured(log)
        if log.options.compact:
            self.cleaner.wake()

    def delete(self, log: Log, why: TopicDeleted) -> None:
        """Have a topic deleted."""
        self.commits.forget(log, why)
        self.retention.forget(log)
        self.holding.forget(log)
        self.staging.forget(log)

    # -- kept ranges --------------------------------------------------------------------------------------------

    def _rolled(self) -> None:
        """A segment was sealed, says the commit thread."""
        try:
            self.commits.loop.call_soon_threadsafe(self.retention.sweep)
        except RuntimeError:
            pass  # the loop is closed: the next life will see to it

    def _check_owner(self) -> None:
        """Notice that the folder was lost although nothing is written. On the commit thread."""
        if self.journal.failed is None:
            try:
                self.journal.check_owner()
            except FolderLost:
                logger.error("%s", self.journal.failed)
            except OSError as error:
                logger.warning("%s: its manifest could not be read: %s", self._lock.folder, error)

    def _low(self) -> None:
        """The disk is low: free space where possible."""
        self.retention.sweep()
        self.cleaner.wake()

    def holds(self) -> dict[int, int]:
        """From which offset on each topic is held, by id; topics without a hold are left out. From any thread."""
        logs = list(self._catalog.logs.values())
        return {log.stored.id: log.held for log in logs if log.stored is not None and log.held is not None}

    def confirmed(self, log: Log, before: int) -> None:
        """No longer keep records before an offset for the archive: it confirmed them, durably."""
        self.holding.confirmed(log, before)
        if log.options.compact:
            self.cleaner.wake()

    def trim(self, log: Log, before: int, *, force: bool) -> None:
        """Remove the records before an offset, as a user requested; records under a hold stay."""
        if not force and (holds := self.holding.at(log, before)):
            raise TopicHeld(log.name, before, {hold.name: hold.floor(log) for hold in holds})
        # Unconfirmed records are removed too: a trim erases records, from the archive as well.
        log.begin_at(before, RemovalReason.ASKED, force=True)
        self.holding.adopt(log)
        if log.stored is not None:
            now = micros(self._timeline.now())
            self.commits.tell(trim_part(log.stored.id, before, 0, RemovalReason.ASKED, now))
