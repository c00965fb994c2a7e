"""The parts of a broker in this process: topics, publishing, reading, groups and, with a folder, the store.

Builds every part once and gives each the ports that it needs; no part holds this object. `LocalBackend` adds what
handles and listeners ask for. All of it is used on one event loop, the one that `loop_owner` knows.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

from runnel.broker.cancellations import Cancellations
from runnel.broker.durable.folder import BrokerFolder
from runnel.broker.durable.retention import TopicRetention
from runnel.broker.durable.store import Store
from runnel.broker.group.logic.group import GroupOptions
from runnel.broker.group.member import LocalMember
from runnel.broker.group.reader import GroupReader
from runnel.broker.group.registry import GroupRegistry
from runnel.broker.group.turns import GroupTurns
from runnel.broker.inboxes import GivenUpRequests, Inboxes
from runnel.broker.latency_probe import LatencyProbe
from runnel.broker.markers import Markers
from runnel.broker.read.attachment import Attachment, Cursors
from runnel.broker.read.history_reads import HistoryReads
from runnel.broker.read.reader import LocalReader
from runnel.broker.topic.catalog import TopicCatalog
from runnel.broker.topic.log import Log
from runnel.broker.topic.named_positions import NamedPositions
from runnel.broker.topic.pending_batch import PendingBatch
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.readers import AttachedReaders
from runnel.broker.topic.timeline import Timeline
from runnel.broker.totals import Totals
from runnel.core.clock import Clock
from runnel.core.errors import BrokerClosed, NotSupported, TopicDeleted, UnknownTopic
from runnel.core.history import HistorySource
from runnel.core.options import SubscribeOptions
from runnel.core.position import Position, Start
from runnel.core.replication import Replication
from runnel.core.statistics import HandlerReports, PipelineReports, RelayReports
from runnel.journal.folder_lock import FolderLock
from runnel.journal.write.journal import Journal
from runnel.runtime.clock import SystemClock
from runnel.runtime.loop_owner import LoopOwner

logger = logging.getLogger("runnel")


class Events:
    """Events of one part that concern others: see `CatalogEvents`, `LandingListener`."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self.publisher: Publisher
        self.groups: GroupRegistry
        self.retention: TopicRetention

    # -- of the catalog -----------------------------------------------------------------------------------------

    def topic_removed(self, log: Log) -> None:
        """A topic leaves the catalog: its counts go into the totals, unless it is internal."""
        if log.name[0] != "$":
            self._totals.published += log.published
            self._totals.published_bytes += log.count_bytes()

    def publishes_refused(self, log: Log, why: TopicDeleted) -> None:
        """Publishers that wait for room in a deleted topic are refused."""
        self.publisher.refuse_blocked(log, why)

    def memory_only(self, topic: str) -> None:
        """A topic that groups have joined turns out not to be durable."""
        self.groups.unkeep(topic)

    # -- of commits ---------------------------------------------------------------------------------------------

    def landed(self, log: Log) -> None:
        """Records of a topic that has retention are visible."""
        self.retention.landed(log)

    def visible(self) -> None:
        """A commit is visible: there may be room for blocked publishers."""
        if self.publisher.blocked:
            self.publisher.release()

    def failed(self, pending_batch: PendingBatch) -> None:
        """Records were not written, nor will those after them be."""
        self.publisher.deduplicator.failed(pending_batch)

    def deleted(self, pending_batch: PendingBatch) -> None:
        """Records were deleted with their topic before they were written."""
        self.publisher.deduplicator.deleted(pending_batch)


class BrokerParts:
    """The parts of one broker, from opening to closing."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        clock: Clock | None = None,
        folder: BrokerFolder | None = None,
        history: Sequence[HistorySource] = (),
        measures: bool = False,
    ) -> None:
        clock = clock or SystemClock()
        self.clock, self.folder = clock, folder
        self._id = secrets.token_hex(16)  # of a broker in memory
        self._numbers = 0
        self.readers, self.positions, self.totals, self.markers = (
            AttachedReaders(),
            NamedPositions(),
            Totals(),
            Markers(),
        )
        self.cancellations = Cancellations(self.markers)
        self.timeline = Timeline(clock)
        self.loop_owner = LoopOwner(self.timeline.move_in, self._forked, entered=folder is None)
        self.relay_reports = RelayReports()
        self.pipeline_reports = PipelineReports()
        self.handler_reports = HandlerReports()
        events = self._events = Events(self.totals)
        check = self.loop_owner.check_usable
        self.catalog = TopicCatalog(
            self.timeline, self.readers, clock, check, events, is_durable=self.is_durable, auto_create=auto_create
        )
        self.publisher = Publisher(self.timeline, clock, self.catalog.logs, check)
        self.cursors = Cursors(self.timeline)
        self.history_reads = HistoryReads(history, self.timeline, clock) if history else None
        self._group_turns = GroupTurns(self.loop_owner)
        self.groups = GroupRegistry(self.catalog, self.publisher, check, self._group_reader)
        events.publisher, events.groups = self.publisher, self.groups
        self.store: Store | None = None
        self.inboxes = Inboxes()
        self._given_up = GivenUpRequests(self.inboxes, self.timeline, self.publisher, self.catalog)
        self.replaying: set[str] = set()  # topics whose dead letters are being replayed
        self._sampled: WeakKeyDictionary[LocalReader, int] = WeakKeyDictionary()
        self._measures = measures  # how long records take to be delivered and acked

    @property
    def is_durable(self) -> bool:
        """Whether its topics are durable unless they are declared otherwise."""
        return self.folder is not None

    @property
    def id(self) -> str:
        """Identifies the broker to which its sequences and epochs belong."""
        return self._id if self.store is None else self.store.journal.manifest.journal

    @property
    def origin(self) -> str:
        """The id of the first journal of this history."""
        return self._id if self.store is None else self.store.replication.origin

    @property
    def replication(self) -> Replication | None:
        """The primary's side of a warm standby; None: there is no journal."""
        return None if self.store is None else self.store.replication

    def next_number(self) -> int:
        """A unique number."""
        self._numbers += 1
        return self._numbers

    def sample_id(self, subscription: LocalReader) -> int:
        """The number of an open subscription, the same in every sample."""
        found = self._sampled.get(subscription)
        if found is None:
            found = self._sampled[subscription] = self.next_number()
        return found

    async def flushed(self) -> None:
        """Return when all earlier changes are durable, if there is a folder."""
        if self.store is not None:
            await self.store.commits.flushed()

    async def synced(self) -> None:
        """Return when all earlier changes are synced to disk, whatever `fsync` is; raise if the journal failed."""
        await self.flushed()
        if self.store is None:
            return
        journal = self.store.journal
        on_disk = asyncio.wrap_future(self.store.commits.call(journal.sync))
        try:
            await asyncio.shield(on_disk)  # the commit thread sets its result, also if no task waits any more
        except asyncio.CancelledError:
            if on_disk.cancelled():
                raise BrokerClosed("syncing") from None
            raise
        except OSError:
            pass  # the journal has failed with it
        if journal.failed is not None:
            raise journal.failed

    # -- readers ----------------------------------------------------------------------------------------------

    def attachment(self, pattern: str | Sequence[str], start: Start) -> Attachment:
        """The attachment of a new reader to its topics."""
        return Attachment(self.catalog, self.readers, self.cursors, pattern, start)

    def reader(
        self,
        pattern: str | Sequence[str],
        options: SubscribeOptions,
        wake: Callable[[], None],
        resume: Position | int | None = None,
        until: int | None = None,
        *,
        far: bool = False,
    ) -> LocalReader:
        """Create a reader. It does nothing before `enter`. See `Backend.reader`."""
        attachment = self.attachment(pattern, options.start)
        label = options.name or f"{attachment.pattern}#{self.next_number()}"
        reader = LocalReader(
            attachment,
            self.positions,
            self.publisher,
            self.loop_owner.check_usable,
            self.totals.add,
            self.clock,
            options,
            label,
            wake,
            resume,
            until,
            far=far,
        )
        if options.hold and not self.is_durable:
            raise NotSupported("hold=True", "this broker lives in memory only")
        reader.count_letter = self.totals.count_letter
        if self._measures and reader.pattern[0] != "$":
            reader.measure_with(LatencyProbe(self.totals.latency_of(reader), self.clock.time()))
        return reader

    def member(self, pattern: str, options: SubscribeOptions, wake: Callable[[], None]) -> LocalMember:
        """Create a member of a group. It joins with `enter`."""
        group = options.group
        assert group is not None, "a member is of a group"
        label = options.name or f"{group}#{self.next_number()}"

        def join() -> GroupReader:
            return self.groups.join(group, pattern, options)

        return LocalMember(
            join, label, group, options.prefetch, options.prefetch_bytes, self.clock, self, wake, options.presence
        )

    def _group_reader(
        self,
        name: str,
        pattern: str,
        options: GroupOptions,
        start: Start,
        buffer: int | None,
        buffer_bytes: int | None,
    ) -> GroupReader:
        progress = None if self.store is None else self.store.pending_state
        attachment = self.attachment(pattern, start)
        reader = GroupReader(
            attachment,
            self.publisher,
            progress,
            self.loop_owner,
            self._group_turns,
            self.clock,
            name,
            options,
            start,
            buffer,
            buffer_bytes,
        )
        if self.cancellations.any:
            reader.group.is_cancelled = self.cancellations.covers
        reader.dead_letters.tell_requester = self._given_up.tell
        reader.dead_letters.count = partial(self.totals.count_letter, pattern, name)
        if self._measures and pattern[0] != "$":
            reader.measure_with(LatencyProbe.new(self.clock.time()), LatencyProbe.new(self.clock.time()))
        return reader

    # -- opening and closing ----------------------------------------------------------------------------------

    async def open_folder(self) -> None:
        """Lock the folder, recover its journal and restore its state. Does nothing in memory."""
        if self.folder is None or self.loop_owner.entered:
            return
        journal, lock = await self.folder.open(self.clock.time())
        self.loop_owner.entered = True
        try:
            self.loop_owner.check_usable("opening the folder")  # it may have been closed before, or meanwhile
            self.folder.report(journal)
            self._attach(journal, lock)
        except BaseException:
            try:
                self._give_up()
            finally:
                self.store, self.loop_owner.entered = None, False
                try:
                    journal.close()
                finally:
                    lock.release()
            raise

    def _attach(self, journal: Journal, lock: FolderLock) -> None:
        """Connect the parts to the store, restore the state of the journal, and start writing."""
        ledger = journal.ledger
        store = self.store = Store(journal, lock, self.timeline, self.catalog, self.positions, self._events, self.clock)
        self._events.retention = store.retention
        store.retention.unsettled = self.groups.unsettled
        self.catalog.durable, self.publisher.commits = store, store.commits
        self.positions.store, self.cursors.reads = store.pending_state, store.reads
        if (history := self.history_reads) is not None:
            history.reads, self.cursors.history = store.reads, history
        store.restore()
        if history is not None:
            for name in self.catalog.logs:
                history.source_of(name)  # raises if there are two
        self.publisher.deduplicator.restore(ledger)
        self.markers.values.update(ledger.marks)
        self.cancellations.recall()
        for group in ledger.groups.values():
            try:
                self.groups.revive(group)
            except UnknownTopic:  # with auto_create off; it is still there when the topic is declared and joined
                logger.warning("group %r waits for its topic %r, which is not there", group.name, group.pattern)
        store.begin()

    def _give_up(self) -> None:
        """Opening failed: the parts hold half of the state, and must not be used any more."""
        if self.store is not None:
            store, self.store = self.store, None  # closing without it writes nothing
            store.give_up()
            self.close()

    def close(self) -> None:
        """End every reader after the published records, and refuse all other calls. Closing twice is harmless."""
        if self.loop_owner.state == "open":
            self.loop_owner.take_posted()
        if not self.loop_owner.close():
            return
        if self.loop_owner.loop is not None and self.loop_owner.loop.is_closed():
            self._move_out()
        if self.history_reads is not None:
            self.history_reads.close()
        try:
            self._end()
        finally:
            if self.store is not None:
                self.store.close()  # also after an error, or the folder could not be opened again

    def _end(self) -> None:
        self.timeline.cool()
        for log in list(self.publisher.blocked):
            self.publisher.refuse_blocked(log, BrokerClosed("publishing"))
        if self.store is not None:
            with self._heard_or_not():
                self.store.commits.drain()  # records handed over count as published: readers get them
        for reader in list(self.readers):
            with self._heard_or_not():
                reader.end()
        self.inboxes.close_all()

    def _move_out(self) -> None:
        """The event loop is closed: drop every reference to it."""
        self.loop_owner.loop = self.timeline.call_soon = None
        for log in self.publisher.blocked:
            if log.topic_readers is not None:
                log.topic_readers.blocked = None  # and no append of theirs is made later
        self.publisher.blocked.clear()

    @contextmanager
    def _heard_or_not(self) -> Iterator[None]:
        """Ignore errors of waking tasks on a closed loop."""
        try:
            yield
        except RuntimeError:
            if self.loop_owner.loop is not None:
                raise

    def _forked(self) -> None:
        """In the child of a fork: give up the folder."""
        self.timeline.cool()
        if self.store is not None:
            self.store.abandon()
