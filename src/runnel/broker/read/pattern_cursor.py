"""A cursor over all topics of a pattern, by sequence, in one order.

A sequence does not say how many records of the pattern's own topics lie before it; offsets do. So `UnreadOnDisk` counts
what is unread on disk per topic, by offset, and tells how much of it retention took.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from runnel.broker.read.catch_up import END, CatchUp
from runnel.broker.read.cursor import DELETED, RETENTION, wake_nobody, why_gone
from runnel.broker.topic.log import Log, LogRun
from runnel.broker.topic.timeline import Timeline
from runnel.core.backend import SLICE, Taken
from runnel.core.batch import Slice
from runnel.core.record import MissedRange, joined_missed
from runnel.journal.read.segment_reader import LostRange

if TYPE_CHECKING:
    from runnel.broker.durable.journal_reads import JournalReads


logger = logging.getLogger("runnel")

MANY_TOPICS = 256  # topics whose offsets are looked up one by one; of more, only a bound is known


class UnreadOnDisk:
    """The next offset due in each topic, and how many records are. Only what is on disk counts."""

    __slots__ = ("_due", "_timeline", "count")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._due: dict[Log, int] = {}
        self.count = 0

    def begin(self, logs: Iterable[Log], sequence: int, reads: JournalReads) -> None:
        """Everything from `sequence` on that is not in memory is due."""
        self._due, self.count = {}, 0
        until = self._timeline.in_memory_from
        edges = {log: log.offset_behind(until) for log in logs if log.stored is not None}
        stored = {log.stored.id: log for log, edge in edges.items() if log.stored is not None and log.first < edge}
        due = {log: log.first for log in stored.values()}
        is_bound = len(stored) > MANY_TOPICS
        if sequence > 0 and not is_bound:
            try:
                found = reads.journal.history.offsets_at(sequence, stored)
                due = {stored[topic]: max(offset, stored[topic].first) for topic, offset in found.items()}
            except OSError as error:  # of one old segment: no reason not to open. Reading it reports a gap
                logger.warning("how much lies ahead of sequence %d is not known exactly: %s", sequence, error)
                is_bound = True
        for log, offset in due.items():
            if offset < edges[log]:
                self._due[log] = offset
                self.count += edges[log] - offset
        if is_bound:
            self.count = min(self.count, max(0, until - sequence))

    def add(self, runs: Iterable[tuple[LogRun, int]]) -> None:
        """Runs that were ahead in memory, and are on disk only."""
        for run, start in runs:
            self._due.setdefault(run.log, start)
            self.count += run.end - start

    def read(self, log: Log, found: Slice, skipped: int = 0) -> int:
        """`found` is next of its topic; how many records before it, or in it, retention took.

        Of its records `skipped` were not due any more: see `skip`.
        """
        due = self._due.get(log)
        if due is None:
            return 0
        self._due[log] = found.end
        self.count = max(0, self.count - (found.end - due - skipped))
        return max(0, min(self._timeline.first(log), found.end) - due)

    def skip(self, count: int) -> int:
        """Some of what is due will not be read; how many."""
        skipped = min(count, self.count)
        self.count -= skipped
        return skipped

    def close(self, until: int) -> tuple[int, int]:
        """Nothing more is to be read before `until`; how many of those still due retention took, or a deletion."""
        gone = deleted = 0
        for log, due in self._due.items():
            if log.deleted:
                deleted += max(0, log.end - due)
            else:
                gone += max(0, min(self._timeline.first(log), log.offset_behind(until)) - due)
        self._due, self.count = {}, 0
        return gone, deleted


# -- The cursor ------------------------------------------------------------------------------------------


class PatternCursor:
    """A position on the timeline, by sequence, over the logs that a pattern covers."""

    __slots__ = (
        "_ahead",
        "_behind",
        "_behind_until",
        "_bytes",
        "_collected",
        "_count",
        "_looked_at",
        "_named",
        "_reads",
        "_skipped",
        "_unread",
        "logs",
        "position",
        "timeline",
        "wake",
    )

    def __init__(self, timeline: Timeline, logs: set[Log], position: int, reads: JournalReads | None = None) -> None:
        self.timeline, self.logs, self.position = timeline, logs, position
        self.wake: Callable[[], None] = wake_nobody
        self._reads = reads
        self._behind: CatchUp | None = None
        self._behind_until = 0  # durable records before this sequence are read from disk
        self._looked_at = 0  # where memory began when that was last looked at
        self._unread = UnreadOnDisk(timeline)  # what is due before that
        self._skipped = 0  # records from disk that were told as missed, and are not to be handed out
        self._begin_behind()
        self._ahead: deque[tuple[LogRun, int]] = deque()  # runs of our logs, and the offset to read them from
        self._count = 0
        self._bytes = 0  # of the runs ahead, each counted whole until it is passed: never too little
        self._collected = position  # runs before this sequence were looked at
        self._named: dict[str, Log] = {}  # our logs, as far as they were asked for

    @property
    def is_behind(self) -> bool:
        """Whether what comes next may be on disk only."""
        self.collect()
        return self.position < self._behind_until

    @property
    def is_clear(self) -> bool:
        """Whether its place is all there is to it. What was noted may be gone since, and has to be told here alone."""
        return not self._ahead and self.position >= self._behind_until

    def _begin_behind(self) -> None:
        """What is not in memory from here on is read from disk."""
        if self._reads is not None and self.position < (until := self.timeline.in_memory_from):
            self._behind_until = until
            self._unread.begin(self.logs, self.position, self._reads)

    def collect(self) -> None:
        """Note the runs of our logs that came since the last time."""
        if self._collected != (end := self.timeline.sequence):
            for run in self.timeline.runs_from(self._collected):
                if run.sequence >= end:
                    break  # not visible in this order yet
                if run.log in self.logs and (run.log.stored is None or run.sequence >= self._behind_until):
                    start = run.offset + max(0, self._collected - run.sequence)
                    if start < run.end:
                        self._ahead.append((run, start))
                        self._count += run.end - start
                        self._bytes += run.size
            self._collected = end
        if self._reads is not None:
            self._fall_behind()  # last: what has just been noted may be gone from memory already

    def pass_gone(self) -> MissedRange | None:
        """Move over what lies right ahead and is no longer there."""
        self.collect()
        missed: MissedRange | None = None
        while self._ahead and self.position >= self._behind_until:  # else something on disk may lie in between
            run, start = self._ahead[0]
            first = min(run.end, self.timeline.first(run.log))
            if first <= start:
                break
            missed = joined_missed(missed, self._advance(first - start, why_gone(run.log)))
        return missed

    def forget_gone(self) -> None:
        """Move on, without a word, over all that is no longer there."""
        self.collect()
        ahead, self._ahead = self._ahead, deque()
        self._count = self._bytes = 0
        for run, start in ahead:
            if (first := max(start, self.timeline.first(run.log))) < run.end:
                self._ahead.append((run, first))
                self._count += run.end - first
                self._bytes += run.size

    def go_to(self, place: int) -> None:
        """Stand somewhere further on."""
        self.position = self._collected = place
        self._ahead.clear()
        self._count = self._bytes = 0
        self._behind, self._behind_until, self._skipped = None, 0, 0
        self._unread = UnreadOnDisk(self.timeline)
        self._begin_behind()

    def follow(self, place: int, *, is_last: bool) -> None:
        """Go where another went in this very moment that stood here."""
        if not is_last:
            self.go_to(place)
            return
        self.position, self._collected = place, self.timeline.sequence  # there is nothing of ours in between

    def pending(self) -> int:
        """How many records lie ahead; of very many topics on disk, at most how many."""
        known = self.known()
        return max(1, known) if self.position < self._behind_until else known  # at the least it has to look

    def known(self) -> int:
        """How many records are known to lie ahead."""
        self.collect()
        return self._count + (self._unread.count if self.position < self._behind_until else 0)

    def pending_bytes(self) -> int:
        """How many bytes of values lie ahead in memory."""
        self.collect()
        return sum(_bytes_of(run, start) for run, start in self._ahead)

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records from here, and move behind them; None at the end."""
        self.collect()
        if self.position < self._behind_until:
            return self._take_behind(limit)
        self._behind = None
        missed = self.pass_gone()
        slices: list[Slice] = []
        room = min(limit, SLICE)
        while self._ahead and room:
            run, start = self._ahead[0]
            if start < max(run.log.base, self.timeline.first(run.log)):
                break  # a gap is told before what follows it, and what is on disk is read from there
            stop = min(run.end, start + room)
            slices.append(self.timeline.slice(run.log, start, stop))
            room -= stop - start
            self._advance(stop - start, "")
        return Taken(slices, missed) if slices or missed else None

    def _fall_behind(self) -> None:
        """Forget what was noted and is not in memory any more: it is read from disk. So a slow reader holds little."""
        until = self.timeline.in_memory_from
        if until == self._looked_at or until <= self._behind_until:
            return
        self._looked_at = until
        kept = [one for one in self._ahead if not _is_on_disk(one[0]) or one[0].sequence >= until]
        if len(kept) == len(self._ahead):
            return
        self._behind_until = until
        self._unread.add(one for one in self._ahead if _is_on_disk(one[0]) and one[0].sequence < until)
        self._ahead = deque(kept)
        self._count = sum(run.end - start for run, start in kept)
        self._bytes = sum(run.size for run, _ in kept)

    def _take_behind(self, limit: int) -> Taken | None:
        """The next records, of which those of durable topics are on disk only."""
        assert self._reads is not None, "only a durable broker has records that are not in memory"
        while True:
            if self._behind is None:
                self._behind = CatchUp(self._reads, self._stored_logs, self._woken, sequence=True)
            is_stored = any(log.stored is not None for log in self.logs)
            found = self._behind.take(self.position, min(limit, SLICE)) if is_stored else END
            if found is None:
                return None
            place = self._behind_until
            if found is not END:
                place = found.first if isinstance(found, LostRange) else found.sequence
            if self._ahead and self._ahead[0][0].sequence + self._ahead[0][1] - self._ahead[0][0].offset < place:
                if found is not END:
                    self._behind.put_back(found)
                return self._take_one(limit)  # of a topic that lives in memory only, published before
            if found is END or place >= self._behind_until:
                return self._caught_up(limit)
            if isinstance(found, LostRange):
                self.position = min(found.end, self._behind_until)
                return Taken([], MissedRange(place, self.position, self.position - place, found.reason))
            if place + len(found) > self._behind_until:  # the rest is in memory, for now
                end = found.start + self._behind_until - place
                self._behind.put_back(found.cut(end, found.end))
                found = found.cut(found.start, end)
            before, self.position = self.position, place + len(found)
            if (log := self._log_of(found)) is None:
                continue  # deleted meanwhile: told when this is caught up
            told = self._skipped
            kept = self._kept(log, found)
            gone = self._unread.read(log, found, told - self._skipped)
            missed = MissedRange(before, place, gone, RETENTION) if gone else None
            if kept is not None or missed is not None:
                return Taken([] if kept is None else [kept], missed)

    def _caught_up(self, limit: int) -> Taken | None:
        """Nothing more is to be read from disk. What was due and did not come is gone."""
        before, self.position = self.position, max(self.position, self._behind_until)
        self._behind, self._skipped = None, 0
        gone, deleted = self._unread.close(self._behind_until)
        missed = MissedRange(before, self.position, gone, RETENTION) if gone else None
        if deleted:
            missed = joined_missed(missed, MissedRange(before, self.position, deleted, DELETED))
        return self.take(limit) if missed is None else Taken([], missed)

    def _log_of(self, found: Slice) -> Log | None:
        """The log that `found` belongs to, if it is one of ours, and still lives."""
        log = self._named.get(found.topic)
        if log not in self.logs:
            self._named = {one.name: one for one in self.logs}
            log = self._named.get(found.topic)
        return log if log is not None and log.epoch == found.epoch else None

    def _kept(self, log: Log, found: Slice) -> Slice | None:
        """What is to be handed out of `found`: retention may have come before this cursor did, or it was skipped."""
        start = max(found.start, self.timeline.first(log))
        skipped = min(self._skipped, max(0, found.end - start))
        self._skipped -= skipped
        start += skipped
        if start >= found.end:
            return None
        return found if start == found.start else found.cut(start, found.end)

    def _take_one(self, limit: int) -> Taken | None:
        """Records of the run at the head, which is in memory, or was. No further: the next ones may be on disk."""
        run, start = self._ahead[0]
        if (first := min(run.end, self.timeline.first(run.log))) > start:
            return Taken([], self._advance(first - start, why_gone(run.log)))
        stop = min(run.end, start + min(limit, SLICE))
        part = self.timeline.slice(run.log, start, stop)
        self._advance(stop - start, "")
        return Taken([part], None)

    def _stored_logs(self) -> dict[int, Log]:
        return {log.stored.id: log for log in self.logs if log.stored is not None}

    def _woken(self) -> None:
        self.wake()

    def skip(self, count: int, reason: str) -> MissedRange | None:
        """Move over `count` records without reading them."""
        self.collect()
        missed: MissedRange | None = None
        if self.position < self._behind_until and (behind := self._unread.skip(count)):
            missed = MissedRange(self.position, self.position + behind, behind, reason)
            self._skipped += behind
            count -= behind
        while count > 0 and self._ahead:
            run, start = self._ahead[0]
            step = min(count, run.end - start)
            missed = joined_missed(missed, self._advance(step, reason))
            count -= step
        if self._skipped and self.position >= self._behind_until:
            # All that was on disk is passed, and told: it must not be held against what comes to lie there later.
            self._behind, self._skipped = None, 0
            self._unread.close(self._behind_until)
        return missed

    def next_bytes(self) -> int:
        """The size of the next record; 0 at the end."""
        self.collect()
        for run, start in self._ahead:
            at = max(start, run.log.base)
            if at < run.end:
                return len(run.log.values[at - run.log.base])
        return 0

    def excess_bytes(self, limit: int) -> int:
        """How many records have to go so that at most `limit` bytes (or one record) lie ahead."""
        self.collect()
        if self._bytes <= limit:
            return 0
        over = self.pending_bytes() - limit
        gone = 0
        for run, start in self._ahead:
            if over <= 0:
                break
            size = _bytes_of(run, start)
            if size <= over:
                gone += run.end - start
            else:
                first = max(start, run.log.base)
                gone += first - start
                for value in run.log.values[first - run.log.base : run.end - run.log.base]:
                    if over <= 0:
                        break
                    over -= len(value)
                    gone += 1
                break
            over -= size
        return min(gone, max(0, self._count - 1))

    def _advance(self, count: int, reason: str) -> MissedRange:
        """Move `count` records on within the run at the head."""
        run, start = self._ahead[0]
        first = run.sequence + start - run.offset
        self.position = first + count
        self._count -= count
        if start + count == run.end:
            self._ahead.popleft()
            self._bytes -= run.size
        else:
            self._ahead[0] = (run, start + count)
        return MissedRange(first, first + count, count, reason)


def _is_on_disk(run: LogRun) -> bool:
    """Whether what is in a run can be read from disk. Of a deleted topic it is told that it cannot."""
    return run.log.stored is not None and not run.log.deleted


def _bytes_of(run: LogRun, start: int) -> int:
    """The bytes of what is left of a closed run from `start` on."""
    first = max(start, run.log.base)
    return 0 if first >= run.end else run.log.bytes_before(run.end) - run.log.bytes_before(first)
