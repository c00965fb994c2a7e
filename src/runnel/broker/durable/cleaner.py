"""The cleaner thread: rewrites segments without dead records, and compacts topics by key, in small steps.

It works in short slices with long pauses, and without pauses when the disk is low. Cleaning and the search for
superseded keys alternate; the findings are stored for the next start. The commit thread puts finished segments in
place, between two commits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from threading import Event, Thread
from time import thread_time
from typing import Protocol, TypeVar

from runnel.core.errors import JournalDamaged, RunnelError
from runnel.core.statistics import CleanerStatistics
from runnel.journal.clean import key_compaction, planning
from runnel.journal.clean.cleaning_job import CleaningJob
from runnel.journal.clean.key_compaction import Compaction, KeyPass
from runnel.journal.clean.live_records import LiveSnapshot
from runnel.journal.clean.planning import LiveShares
from runnel.journal.format.entry import Draft, Part, WriteFailed
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.write.journal import Journal

T = TypeVar("T")

PAUSE = 60.0  # seconds between two looks without a request
SETTLE = 0.2  # shortest time between two looks, however many requests there are
REST = 5.0  # times as long as it worked
HURRY = 0.5
TURN = 64 * 1024 * 1024  # bytes that are looked through for keys before segments are cleaned again
PASSES = 1000  # and topics
NOTED = 192 * 1024 * 1024  # bytes after which findings are stored: a restart repeats at most so much work
LOW_BOUND = 0.1  # the dead share from which on a segment is worth it when the disk is low

logger = logging.getLogger("runnel")


class CommitThreadCall(Protocol):
    """Has something done on the commit thread."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]:
        """The result of `work`."""


class _Stopped(Exception):
    pass


class Cleaner:
    """One thread that keeps a journal small. `holds` says, by topic, from which offset on nothing may be taken."""

    def __init__(
        self, journal: Journal, call: CommitThreadCall, holds: Callable[[], Mapping[int, int]], now: Callable[[], int]
    ) -> None:
        self._journal, self._call, self._holds, self._now = journal, call, holds, now
        self._shares = LiveShares()
        self._compaction = Compaction(journal.history, journal.options.tombstone_age)
        self._stopping, self._woken = Event(), Event()
        self.offer: Callable[[Sequence[SegmentInfo], Event], None] = lambda made, stopping: None  # to standbys
        self._thread = Thread(target=self._run, name="runnel-clean", daemon=True)
        self._low = False
        self._pass: KeyPass | None = None  # the look for keys that is under way
        self._looked: set[int] = set()  # topics that had their turn
        self._recalled = self._is_noted = False  # whether it was looked for a note, and there is one
        self._unnoted = 0  # bytes read by passes since the last note
        self._read = self._written = self._given_back = self._segments = 0
        self._error: str | None = None

    def __repr__(self) -> str:
        return f"<Cleaner, {self._segments} segments cleaned>"

    def start(self) -> None:
        """Begin."""
        self._journal.freed = self.wake
        self._thread.start()

    def wake(self) -> None:
        """Look soon: something may be wanted no more. From any thread."""
        self._woken.set()

    def stop(self) -> None:
        """Stop the running job, and wait until it has ended."""
        self._stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join()

    def statistics(self) -> CleanerStatistics:
        """Counters since the broker was opened."""
        journal, shares = self._journal, self._shares
        published = journal.appended_batches
        return CleanerStatistics(
            self._read,
            self._written,
            self._given_back,
            self._segments,
            shares.live,
            shares.total,
            (journal.appended + self._written) / published if published else 0.0,
            self._error,
        )

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.wait(SETTLE):
                self._woken.clear()
                before = self._journal.history.sources
                try:
                    more = self._journal.failed is None and self._round()
                except FileNotFoundError as error:
                    more = before is not self._journal.history.sources  # it was given back meanwhile
                    if not more:
                        self._tell(error)
                except (RunnelError, OSError) as error:
                    more = False
                    self._tell(error)
                del before  # while it waits, it keeps no segment open that went
                if not more and not self._stopping.is_set():
                    self._woken.wait(PAUSE)
        except _Stopped:
            pass
        except Exception as error:  # a bug: the journal grows, and that is all
            logger.exception("the cleaner failed")
            self._error = str(error)
            return
        if self._unnoted and self._journal.failed is None:
            self._note()

    def _tell(self, error: Exception | str) -> None:
        if str(error) != self._error:  # once, and not every minute
            logger.error("cleaning failed: %s", error)
        self._error = str(error)

    def _round(self) -> bool:
        """Clean the segment with most to gain, and search for keys for a while; whether there may be more.

        In turns: segments freed by retention do not wait until all keys are searched, nor the search for them.
        """
        living = self._on_commit_thread(self._journal.living)
        if not self._recalled:
            self._recalled = True
            self._recall(living)
        living.taken = self._compaction.taken(self._holds())
        cleaned = self._clean(living)
        looked = self._look_through(living)
        return cleaned or looked

    def _clean(self, living: LiveSnapshot) -> bool:
        """Write segments again, if some are worth it."""
        journal, shares = self._journal, self._shares
        sources = tuple(journal.history.sources)
        looking = shares.look(sources, living, self._now())
        while self._paced(lambda: next(looking, self), lambda: 0) is not self:
            pass
        for error in (self._compaction.error, shares.error):
            if error is not None and sources == tuple(journal.history.sources):  # or it was given back meanwhile
                self._tell(error)
        self._compaction.error = None
        free = journal.storage.free()
        self._low = free < 2 * journal.options.min_free
        bound = LOW_BOUND if self._low else planning.DEAD_BOUND
        safe = journal.safe_through()  # what an archive waits for stays
        free_to_go = [one if one is not None and one.source.info.number <= safe else None for one in shares.now]
        chosen = planning.choose_segments(
            free_to_go, journal.options.segment_bytes, bound, free - journal.options.reserve
        )
        if not chosen:
            return False
        placing = planning.stages_to_place(free_to_go, chosen, bound)
        try:
            job = self._on_commit_thread(lambda: journal.clean(chosen, living, placing))
        except LookupError:
            return True  # they went meanwhile: look again
        try:
            if self._work(job):
                self._note(job)
                self.offer(job.made, self._stopping)
                if self._on_commit_thread(lambda: self._put(job)):
                    self._segments += len(job.sources)
                    self._given_back += job.size - sum(info.end for info in job.made)
                    self._error = None
                    shares.made(job.made, living)
            return True
        finally:
            self._read, self._written = self._read + job.read, self._written + job.written
            job.abandon()
            journal.let_go(job)

    # -- keys ---------------------------------------------------------------------------------------------------

    def _look_through(self, living: LiveSnapshot) -> bool:
        """Look through topics that are due, for so many bytes; whether there was one."""
        left, passes = TURN, 0
        while left > 0 and passes < PASSES:
            if self._pass is None:
                self._pass = self._compaction.due(living, self._holds(), self._now(), self._looked)
                if self._pass is None:
                    self._looked.clear()  # each had its turn
                    break
                self._looked.add(self._pass.topic)
            passes += 1
            left -= self._look_on(self._pass, left)
        if not passes and self._unnoted:
            self._note()  # it rests now
        return passes > 0

    def _look_on(self, found: KeyPass, most: int) -> int:
        """Continue a pass, for so many bytes; the bytes read."""
        before, began = self._journal.history.sources, found.read
        try:
            while not found.done and found.read - began < most:
                self._paced(found.step, lambda: found.read)
        except (OSError, RunnelError) as error:  # other topics are not to wait for it, nor what died otherwise
            self._pass = None
            if isinstance(error, FileNotFoundError) and before is not self._journal.history.sources:
                raise  # it was given back meanwhile
            self._compaction.failed(found, self._now())
            self._tell(error)
            return found.read - began
        finally:
            self._read += found.read - began
            self._unnoted += max(1, found.read - began)
        if found.done:
            self._pass = None
            part = self._compaction.over(found, self._now())
            if part is not None:
                self._on_commit_thread(lambda: self._write([part]))
        if self._unnoted >= NOTED:
            self._note()
        return found.read - began

    def _recall(self, living: LiveSnapshot) -> None:
        """Know again what an earlier life found."""
        if (note := key_compaction.load_state(self._journal.storage, self._journal.manifest.journal)) is not None:
            self._is_noted = True
            recalling = self._compaction.recall(note, living)
            while self._paced(lambda: next(recalling, self), lambda: 0) is not self:
                pass
            self._pass = self._compaction.under_way

    def _note(self, job: CleaningJob | None = None) -> None:
        """Store the findings, and what the job removes when it is put in place; a restart continues from there."""
        journal = self._journal
        note = self._compaction.note(journal.manifest.journal, job, self._pass)
        if not note.topics and not self._is_noted:
            return
        try:
            self._written += key_compaction.save_state(journal.storage, note)
        except OSError as error:  # nothing is lost by it: a restart looks again
            logger.warning("what is known of keys could not be noted: %s", error)
            return
        self._is_noted, self._unnoted = True, 0

    def _work(self, job: CleaningJob) -> bool:
        """Work a job off. False: it cannot be, and what it cannot read is left alone."""
        try:
            while not job.done:
                self._paced(job.step, lambda: job.read + job.written)
            return True
        except RunnelError as error:  # damage, a later version, or a compression that is not installed here
            if job.following is not None:
                self._shares.refuse_stage(job.following)
            else:
                named = [
                    one for one in job.sources if isinstance(error, JournalDamaged) and one.info.name == error.file
                ]
                self._shares.refuse(named or job.sources)
            self._tell(error)
        except OSError as error:
            if job.following is not None and not isinstance(error, FileNotFoundError):
                self._shares.refuse_stage(job.following)
                self._tell(f"stage {job.following} cannot be read: {error}")
                return False
            if job.reading is None or job.reading not in self._journal.history.sources:
                raise  # it could not write, or what it read was given back meanwhile
            self._shares.refuse([job.reading], self._now() + planning.RETRY_AFTER)
            self._tell(f"{job.reading.info.name} cannot be read: {error}")
        return False

    def _put(self, job: CleaningJob) -> bool:
        """Put a job in place, and return its effect; on the commit thread. False: look again.

        A hold that begins after this look at the holds does not cover the removed records.
        """
        if self._compaction.is_held(job, self._holds()) or not self._journal.replace(job):
            return False
        self._write(self._compaction.replaced(job, self._now()))
        if job.placed:  # records that were kept only for those stages may be removed
            before = self._journal.manifest.segments
            self._journal.retain(self._journal.ledger.time)
            now = {info.id for info in self._journal.manifest.segments}
            self._given_back += sum(info.end for info in before if info.id not in now)
        return True

    def _write(self, parts: list[Part]) -> None:
        if parts:
            try:
                self._journal.write([Draft(parts, self._journal.ledger.time)])
            except WriteFailed as failed:
                # Harmless: the reason of some missing offsets is not stored, and a restart searches again.
                logger.warning("what was compacted could not be noted: %s", failed.cause)

    def _on_commit_thread(self, work: Callable[[], T]) -> T:
        try:
            return self._call(work).result()
        except CancelledError:
            raise _Stopped from None  # the broker is closing

    def _paced(self, step: Callable[[], T], moved: Callable[[], int]) -> T:
        """Make a step, and rest: so long that both the processor and the disk stay free for others."""
        before, began = moved(), thread_time()
        result = step()
        worked = thread_time() - began
        rest = worked * HURRY if self._low else worked * REST
        limit = self._journal.options.clean_bytes_per_second * (4 if self._low else 1)
        if self._stopping.wait(max(rest, (moved() - before) / limit)):
            raise _Stopped
        return result
