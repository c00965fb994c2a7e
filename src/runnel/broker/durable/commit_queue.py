"""Group commit: all publishes of one loop iteration share one entry and one fdatasync.

All of it runs on the broker's loop. Durable before visible: records are appended to their log in memory only after
their commit is on disk. At most two commits are under way, one being written and one behind it; publishes meanwhile
fill the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from runnel.broker.durable.commit import AtomicWrite, PendingCommit, StageShareBatch, batches_of
from runnel.broker.durable.journal_writer import JournalWriter
from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import DurableTopic, PendingBatch, PendingBytes, refuse_behind
from runnel.broker.topic.timeline import Timeline
from runnel.core.clock import from_micros, micros
from runnel.core.errors import BrokerClosed, DiskFull, NotWritten, OutcomeUnknown, TopicDeleted
from runnel.core.publishing import Append
from runnel.journal.format.entry import Draft, Part, PartKind, WriteFailed, state_part
from runnel.journal.write.journal import Journal
from runnel.runtime import waiting

if TYPE_CHECKING:
    from runnel.broker.durable.pending_state import PendingState

UNDER_WAY = 2
STAGED = 4 * 1024 * 1024  # bytes of stages being written, while there are no other writers
COMPANY = 5.0  # seconds after another write, during which stages write one batch at a time
RETRY = 0.2  # seconds until state that found no room on the disk is tried again

_FREEING = (PartKind.TOPIC_DELETED, PartKind.TRIM, PartKind.STAGE_DROPPED)

logger = logging.getLogger("runnel")


class LandingListener(Protocol):
    """Callbacks of other parts of the broker when a commit is on disk, or failed."""

    def landed(self, log: Log) -> None:
        """Records of a topic that has retention are visible."""

    def visible(self) -> None:
        """A commit is visible."""

    def failed(self, pending_batch: PendingBatch) -> None:
        """Records will not come, nor will any behind them."""

    def deleted(self, pending_batch: PendingBatch) -> None:
        """Records went with their topic before they were written."""


class CommitGate(Protocol):
    """Stands between a commit that is on disk and its acknowledgement, where standbys follow the journal."""

    def written(self) -> None:
        """The journal has grown."""

    def covers(self, end: tuple[int, int]) -> bool:
        """Whether entries up to `end` may be acknowledged; if not, `CommitQueue.confirmed` follows."""


class CommitQueue:
    """The unwritten appends and the commits under way of one broker's journal."""

    def __init__(
        self, journal: Journal, timeline: Timeline, pending_state: PendingState, listener: LandingListener
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped = False
        self.pending = PendingBytes(journal.options.max_pending_bytes, self.loop)
        self.staged = PendingBytes(STAGED, self.loop)  # a window of their own for stages: they make no publisher wait
        self._journal, self._timeline, self._pending_state, self._listener = journal, timeline, pending_state, listener
        self._writer = JournalWriter(journal, self.loop, self._landed)
        self.call = self._writer.call  # has something done on the commit thread
        self.gate: CommitGate | None = None  # of a journal that a standby follows
        self.explain_full: Callable[[DiskFull], DiskFull] = lambda full: full  # explains why the disk is full
        self._gathered: list[PendingBatch] = []
        self._units: list[AtomicWrite] = []  # whose records are gathered
        self._said: list[Part] = []  # topics, groups and deletions, in order: before the batches of the same commit
        self._under_way: deque[PendingCommit] = deque()
        self._round = 0  # how often records failed to be written; offsets given before the last time are void
        self._flushes: list[asyncio.Future[None]] = []  # completed with the next commit
        self._flushing = False  # a flush comes at the end of this turn
        self._asked = False  # one came, and too many commits were under way
        self._company = float("-inf")  # when others last wrote, beside stages
        self._failure_told = False

    def __repr__(self) -> str:
        return f"<CommitQueue, {len(self._under_way)} under way, {self.pending.bytes:,} bytes pending>"

    @property
    def has_failed(self) -> bool:
        """Whether the journal takes nothing more in this life."""
        return self._journal.failed is not None

    def start(self) -> None:
        """Begin to write."""
        self._writer.start()

    def drain(self) -> None:
        """Write the last pending commit and make it visible. Blocks until that is done."""
        try:
            self._flush(last=True)
        finally:  # whatever happens: no other thread may write when the journal is closed
            self.stopped = self.pending.over = True
            self._writer.stop()
        self._landed()
        self.abandon_unconfirmed()
        self._fail_gathered(BrokerClosed("publishing"))
        flushes, self._flushes = self._flushes, []
        _tell_all(flushes, BrokerClosed("waiting for the disk"))

    # -- handing over -------------------------------------------------------------------------------------------

    def gather(self, log: Log, size: int) -> PendingBatch | None:
        """A batch that takes a plain record of `size` bytes for `log`; None: something has to be looked at first."""
        journal, stored = self._journal, log.stored
        if (
            stored is None
            or self.stopped
            or log.deleted
            or journal.failed is not None
            or not self.pending.has_room()
            or not journal.has_room(self.pending.bytes + self.staged.bytes + size)
            or asyncio._get_running_loop() is not self.loop
        ):
            return None
        pending_batch = stored.pending_batch = PendingBatch(log, stored.next, self.pending)
        self._gathered.append(pending_batch)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        return pending_batch

    def hand_over(self, log: Log, entry: Append) -> int:
        """Take `entry` for the next commit; its first offset."""
        self._check(entry.size)
        stored = log.stored
        assert stored is not None, "only durable logs are handed over"
        if entry.packed is not None:
            return self._hand_over_packed(log, stored, entry)
        pending_batch = stored.pending_batch or (stored.numbered if entry.producer else None)
        if pending_batch is None or not pending_batch.takes(entry):
            if pending_batch is not None:
                stored.close(pending_batch)
            pending_batch = stored.pending_batch = PendingBatch(log, stored.next, self.pending)
            self._gathered.append(pending_batch)
        first = pending_batch.end
        pending_batch.add(entry)
        if entry.producer:
            stored.number(pending_batch)
        self.flush_soon()
        return first

    def _hand_over_packed(self, log: Log, stored: DurableTopic, entry: Append) -> int:
        """Take a received batch in a commit part of its own; its first offset."""
        pending_batch = PendingBatch(log, stored.next, self.pending)
        pending_batch.hold(entry)
        stored.append(pending_batch)
        self._gathered.append(pending_batch)
        self.flush_soon()
        return pending_batch.first

    def hand_over_atomic_write(self, atomic_write: AtomicWrite) -> list[int]:
        """Take all of `atomic_write` for the next commit, or raise and take nothing; the first offset of each entry."""
        self._check(atomic_write.size)
        atomic_write.pending_batches, firsts = batches_of(atomic_write, self.loop)
        for one in atomic_write.pending_batches:
            assert one.log.stored is not None
            one.log.stored.append(one)
            one.pending = self.pending
            self.pending.bytes += one.weight
        self._gathered += atomic_write.pending_batches
        self._units.append(atomic_write)
        self.flush_soon()
        return firsts

    def _check(self, size: int) -> None:
        """Raise unless `size` bytes more can be written, by the last look at the disk."""
        journal = self._journal
        if journal.failed is not None:
            raise journal.failed
        if self.stopped:
            raise BrokerClosed("publishing")
        if not journal.has_room(self.pending.bytes + self.staged.bytes + size):
            raise self.explain_full(DiskFull(journal.storage.free(), journal.needed(size)))

    def waiter(self, log: Log, offset: int) -> asyncio.Future[None] | None:
        """Done when the record at `offset` is durable and visible; None: it is."""
        if offset < log.end:
            return None
        future: asyncio.Future[None] = self.loop.create_future()
        stored = log.stored
        current = None if stored is None else stored.pending_batch or stored.numbered
        if current is not None and current.first <= offset < current.end:
            current.waiters.append(future)
            return future
        under_way = [one for commit in self._under_way for one in commit.pending_batches]
        for pending_batch in under_way + self._gathered:
            if pending_batch.log is log and pending_batch.first <= offset < pending_batch.end:
                pending_batch.waiters.append(future)
                return future
        if log.deleted:
            future.set_exception(TopicDeleted(log.name, log.epoch))
        else:  # it was handed over and failed before a caller waited
            future.set_exception(NotWritten(str(self._journal.failed or "the disk is full")))
        return future

    def forget(self, log: Log, why: TopicDeleted) -> None:
        """A topic is deleted: its pending records are dropped with it."""
        # A share of a stage stays: the sequences of the others count on it. It lands without a topic.
        gathered, self._gathered = self._gathered, []
        gone: list[PendingBatch] = []
        for one in gathered:
            goes = one.log is log and not isinstance(one, StageShareBatch)
            (gone if goes else self._gathered).append(one)
        for pending_batch in reversed(
            gone
        ):  # an atomic write continues without it, as if the topic had been deleted right after it
            pending_batch.count_out()
            self._listener.deleted(pending_batch)
            pending_batch.tell(why)
        if log.stored is not None:
            self._said.append(state_part(PartKind.TOPIC_DELETED, topic=log.stored.id))
            log.stored.take_back(log.stored.next)
        self.flush_soon()

    def tell(self, part: Part) -> None:
        """Have a piece of state written with the next commit, before its batches."""
        self._said.append(part)
        self.flush_soon()

    # -- writing ------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Schedule a commit for the end of this loop iteration."""
        if not self._flushing and not self.stopped:
            self._flushing = True
            self.loop.call_soon(self._flush)

    async def flushed(self) -> None:
        """Return when everything handed over so far is durable."""
        if self.stopped:
            raise BrokerClosed("waiting for the disk")
        waiter = self.loop.create_future()
        self._flushes.append(waiter)
        self.flush_soon()
        await waiter

    def take_state(self) -> list[Part]:
        """All state that is not written yet; for the last entry."""
        kept, _, _ = self._pending_state.take()
        parts = self._said + kept
        self._said = []
        return parts

    def _flush(self, *, last: bool = False) -> None:
        """Make one commit of all that was handed over, unless enough are under way already."""
        self._flushing = False
        if self.stopped:
            return
        if len(self._under_way) >= UNDER_WAY and not last:
            self._asked = True  # the next landing comes back here
            return
        self._asked = False
        pending_batches, self._gathered = self._gathered, []
        atomic_writes, self._units = self._units, []
        said, self._said = self._said, []
        timeline = self._timeline
        at = micros(timeline.now())
        first = sequence = timeline.hold(sum(one.count for one in pending_batches))
        batches: dict[PendingBatch, list[Part]] = {}
        refused: dict[Log, Exception] = {}
        for one in pending_batches:
            one.sequence = sequence
            sequence += one.count
            try:
                batches[one] = self._parts(one, at)
            except Exception as error:  # too large with its headers, for example; later records build on its offsets
                refused.setdefault(one.log, error)
        if refused:
            pending_batches, atomic_writes = self._refuse(pending_batches, atomic_writes, refused)
        if not pending_batches and sequence > first:
            timeline.release(first)  # nothing of it comes
        # Only now: the ack of a record whose dead letter was refused just above must not be in this commit.
        kept, landed, undo = self._pending_state.take()
        if not (pending_batches or atomic_writes or said or kept):
            self._tell_flushed()
            return
        if any(not one.in_atomic_write for one in pending_batches) or not all(
            atomic_write.stages for atomic_write in atomic_writes
        ):
            self._company = self.loop.time()
        self.staged.limit = STAGED if self.loop.time() > self._company + COMPANY else 1
        written = [part for one in pending_batches for part in batches[one]]
        parts = said + written + [part for atomic_write in atomic_writes for part in atomic_write.state()] + kept
        commit = PendingCommit(Draft(parts, at), pending_batches, first, self._round)
        if atomic_writes:
            # later transactions may build on their markers
            commit.atomic_writes, commit.holds_records = (
                atomic_writes,
                True,
            )
        commit.landed += landed
        commit.undo += undo
        if said:
            commit.frees = any(part.kind in _FREEING for part in said)
            commit.undo.append(lambda: self._say_again(said))
        if self._flushes:
            commit.flushes, self._flushes = self._flushes, []
        self._under_way.append(commit)
        self._writer.put(commit)

    @staticmethod
    def _parts(one: PendingBatch, at: int) -> list[Part]:
        """The parts of a batch; from now on it takes nothing more."""
        stored = one.log.stored
        assert stored is not None
        stored.close(one)
        return one.parts(stored.id, at)

    def _refuse(
        self, pending_batches: list[PendingBatch], atomic_writes: list[AtomicWrite], refused: dict[Log, Exception]
    ) -> tuple[list[PendingBatch], list[AtomicWrite]]:
        """Drop parts that cannot be written, parts with later offsets, and atomic writes that contain such a part."""
        broken: dict[AtomicWrite, Exception] = {}
        seen = -1
        while seen < len(broken) + len(refused):
            seen, why = len(broken) + len(refused), None
            refuse_behind(pending_batches, refused)
            for atomic_write in atomic_writes:  # those behind a broken one may build on what it said
                why = why or next(
                    (refused[one.log] for one in atomic_write.pending_batches if one.log in refused), None
                )
                if why is not None:
                    broken.setdefault(atomic_write, why)
                    for one in atomic_write.pending_batches:
                        refused.setdefault(one.log, why)
        for one in pending_batches:
            if one.log in refused:
                self._void(one, refused[one.log])
        for atomic_write, error in broken.items():
            _told(partial(atomic_write.failed, error))
        return [one for one in pending_batches if one.log not in refused], [
            atomic_write for atomic_write in atomic_writes if atomic_write not in broken
        ]

    def _say_again(self, said: list[Part]) -> None:
        """State that was not written, because the batches beside it could not be."""
        self._said = said + self._said

    def _tell_flushed(self) -> None:
        """There is nothing new to write: flushes wait for the commits under way."""
        if self._flushes:
            flushes, self._flushes = self._flushes, []
            if self._under_way:
                self._under_way[-1].flushes += flushes
            else:
                _tell_all(flushes, self._journal.failed)

    # -- landing ------------------------------------------------------------------------------------------------

    def _landed(self) -> None:
        """The commit thread is done with some commits."""
        results, gate = self._writer.results, self.gate
        failed: WriteFailed | None = None
        if gate is not None:
            gate.written()
        while results:
            if gate is not None and not gate.covers(results[0].end):
                if self._journal.failed is not None:
                    self.abandon_unconfirmed()  # a journal that failed sends nothing more to its standby
                break
            commits, failed, self._round, _ = results.popleft()
            for commit in commits[: len(commits) if failed is None else failed.done]:
                self._under_way.remove(commit)
                self._land(commit)
            if failed is not None:
                self._fail(commits, failed)
        self.pending.make_room()
        if self._asked or self._gathered or self._units or self._said or self._flushes or self._pending_state.is_urgent:
            if failed is None:
                self._flush()
            elif not self.stopped:
                self.loop.call_later(RETRY, self.flush_soon)

    def confirmed(self) -> None:
        """The gate may acknowledge more entries now."""
        if self._writer.results:
            self._landed()

    def abandon_unconfirmed(self) -> None:
        """Entries that were written and not confirmed by the standby are not acknowledged any more."""
        results = self._writer.results
        while results:
            commits, failed, self._round, _ = results.popleft()
            begun = len(commits) if failed is None else failed.begun
            why = self._journal.failed or BrokerClosed("waiting for the standby")
            self._fail(commits, WriteFailed(0, begun, why if failed is None else failed.cause))

    def _land(self, commit: PendingCommit) -> None:
        """Make a commit visible, and complete the publishes that wait for it."""
        timeline = self._timeline
        if commit.pending_batches:
            when = from_micros(commit.draft.time)
            for one in commit.pending_batches:
                one.count_out()
                if not one.log.deleted:
                    one.land(timeline, when)
            timeline.release(commit.sequence)  # only now, or half of a commit could be seen
            for one in commit.pending_batches:
                timeline.landed(one.log)
                if one.log.options.is_limited:
                    self._listener.landed(one.log)
                one.tell()
            timeline.cut_tail()
            self._listener.visible()
        for atomic_write in commit.atomic_writes:
            _told(atomic_write.landed)
        for landed in commit.landed:
            landed()
        _tell_all(commit.flushes, None)

    def _fail(self, commits: list[PendingCommit], failed: WriteFailed) -> None:
        """Commits failed, and with them all that were made since: the thread refuses those too.

        What they said of state is said again, in its order, unless the journal takes nothing more.
        """
        if isinstance(failed.cause, DiskFull):
            failed = WriteFailed(failed.done, failed.begun, self.explain_full(failed.cause))
        doomed = [(one, at < failed.begun) for at, one in enumerate(commits) if one in self._under_way]
        doomed += [(one, False) for one in self._under_way if one.round != self._round and one not in commits]
        for commit, written in doomed:
            self._under_way.remove(commit)
            self._void_records(commit, _error(failed, written=written))
        if any(commit.holds_records for commit, _ in doomed):
            self._fail_gathered(_error(failed, written=False))  # their offsets lie behind those that failed
        if self._journal.failed is not None:
            self._tell_failure([commit for commit, _ in doomed], _error(failed, written=False))
            return
        for commit, _ in reversed(doomed):
            for undo in commit.undo:
                undo()
        for at, (commit, _) in enumerate(doomed):
            if at == 0 and not commit.holds_records:
                _tell_all(commit.flushes, _error(failed, written=False))  # there is no room even for this
            else:
                self._flushes += commit.flushes  # alone, or behind the failed one, it may be written

    def _tell_failure(self, commits: list[PendingCommit], error: Exception) -> None:
        """Nothing more is written in this life."""
        for commit in commits:
            for landed in commit.landed:
                landed()
            _tell_all(commit.flushes, error)
        if not self._failure_told:
            self._failure_told = True
            logger.error("%s", self._journal.failed)

    def _void_records(self, commit: PendingCommit, error: Exception) -> None:
        if commit.pending_batches:
            pending_batches, commit.pending_batches = commit.pending_batches, []
            for one in pending_batches:
                self._void(one, error)
            self._timeline.release(commit.sequence)
        atomic_writes, commit.atomic_writes = commit.atomic_writes, []
        for atomic_write in atomic_writes:
            _told(partial(atomic_write.failed, error))

    def _void(self, one: PendingBatch, error: Exception) -> None:
        """Records that will not come: their offsets were never seen, and are given again."""
        log = one.log
        one.count_out()
        if log.stored is not None:
            log.stored.take_back(one.first)
        self._listener.failed(one)
        if not (one.waiters or one.listeners or one.in_atomic_write):  # a transaction gets the error
            logger.error("%d records for %r, which no caller awaits, were not stored: %s", one.count, log.name, error)
        one.tell(error)

    def _fail_gathered(self, error: Exception) -> None:
        gathered, self._gathered = self._gathered, []
        atomic_writes, self._units = self._units, []
        for one in gathered:
            self._void(one, error)
        for atomic_write in atomic_writes:
            _told(partial(atomic_write.failed, error))


def _error(failed: WriteFailed, *, written: bool) -> Exception:
    if isinstance(failed.cause, DiskFull):
        return failed.cause
    return OutcomeUnknown(str(failed.cause)) if written else NotWritten(str(failed.cause))


def _told(tell: Callable[[], None]) -> None:
    """Give an atomic write its outcome. A bug in its callback must not keep others from theirs."""
    try:
        tell()
    except Exception:
        logger.exception("a transaction could not be ended as it should")


def _tell_all(waiters: list[asyncio.Future[None]], error: Exception | None) -> None:
    for waiter in waiters:
        waiting.resolve_waiter(waiter, error)
