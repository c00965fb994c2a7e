"""A cursor over all topics of a pattern, by sequence, in one order.

Topics push the runs that begin to the readers of patterns that cover them; the cursor notes them until it has read
them. So a publish to a topic costs a reader of other topics nothing.

A sequence does not say how many records of the pattern's own topics lie before it; offsets do. So `UnreadOnDisk` counts
what is unread on disk per topic, by offset, and knows how much of it retention removed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from runnel.broker.read.catch_up import END, CatchUp
from runnel.broker.read.cursor import DELETED, RETENTION, TRIMMED, wake_nobody, why_gone
from runnel.broker.read.history_reads import HistoryCatchUp, weight
from runnel.broker.topic.log import CHUNK, Log, LogRun
from runnel.broker.topic.timeline import Timeline
from runnel.core.backend import SLICE, Taken
from runnel.core.batch import Slice
from runnel.core.record import MissedRange, joined_missed
from runnel.journal.read.segment_reader import LostRange

if TYPE_CHECKING:
    from runnel.broker.durable.journal_reads import JournalReads
    from runnel.broker.read.history_reads import PatternHistory


logger = logging.getLogger("runnel")

TAKEN_BYTES = 1 << 20  # of records from disk that are taken together; one slice may be larger
TAKEN_SLICES = 512  # and at most so many: each is decoded on the loop, and others wait meanwhile
MANY_TOPICS = 256  # topics whose offsets are looked up one by one; of more, only a bound is known


class Coverage(Protocol):
    """Which topics a cursor reads."""

    @property
    def logs(self) -> set[Log]:
        """All of them. Of a pattern, finding them costs a look at every topic there is."""

    def covers(self, log: Log) -> bool:
        """Whether `log` is one of them."""


class UnreadOnDisk:
    """The next due offset of each topic, and the number of due records. Only records on disk count."""

    __slots__ = ("_due", "_history", "_timeline", "count")

    def __init__(self, timeline: Timeline, history: PatternHistory | None = None) -> None:
        self._timeline, self._history = timeline, history
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
        if due is None or found.end <= due:  # it was not on disk when this began, or gone by then
            return 0
        gone = self.gone(log, found)
        self._due[log] = found.end
        self.count = max(0, self.count - (found.end - due - skipped))
        return gone

    def gone(self, log: Log, found: Slice) -> int:
        """The same, before it is read."""
        due = self._due.get(log)
        if due is None or found.end <= due:
            return 0
        first = self._timeline.first(log)
        return 0 if first <= due else max(0, min(first, found.end) - due)

    def due(self, log: Log) -> int | None:
        """The next offset of a topic that is due; None: it is not known."""
        return self._due.get(log)

    def known_places(self) -> dict[Log, int]:
        """By topic, the offset up to which all was read; topics of which that is not known are left out."""
        return {log: due for log, due in self._due.items() if due != log.first}

    def skip(self, count: int) -> int:
        """Skip some due records; how many."""
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
                end = min(self._timeline.first(log), log.offset_behind(until))
                if end > due:
                    gone += end - due if self._history is None else self._history.unexplained(log, due, end)
        self._due, self.count = {}, 0
        return gone, deleted


# -- The cursor ------------------------------------------------------------------------------------------


class PatternCursor:
    """A position on the timeline, by sequence, over the logs that a pattern covers."""

    __slots__ = (
        "_ahead",
        "_began",
        "_behind",
        "_behind_until",
        "_bytes",
        "_count",
        "_coverage",
        "_first",
        "_head",
        "_head_bytes",
        "_history",
        "_is_history",
        "_looked_at",
        "_named",
        "_noted",
        "_parted",
        "_reads",
        "_skipped",
        "_unread",
        "_volatile",
        "max_bytes",
        "position",
        "timeline",
        "wake",
    )

    def __init__(
        self,
        timeline: Timeline,
        coverage: Coverage,
        position: int,
        reads: JournalReads | None = None,
        history: PatternHistory | None = None,
    ) -> None:
        self.timeline, self.position, self._coverage = timeline, position, coverage
        self._history = history
        self._first = timeline.first if history is None else history.first  # the oldest offset that is handed out
        self.wake: Callable[[], None] = wake_nobody
        self.max_bytes: int | None = None
        self._reads = reads
        self._behind: CatchUp | HistoryCatchUp | None = None
        self._is_history = True  # it has not reached the records in memory yet
        self._behind_until = 0  # durable records before this sequence are read from disk
        self._looked_at = 0  # where memory began when that was last looked at
        self._unread = UnreadOnDisk(timeline, history)  # due records before that
        self._skipped = 0  # records from disk that were reported as missed, and are not to be handed out
        self._begin_behind()
        # Runs of our logs, the offset to read each from, and the bytes from there on.
        self._ahead: deque[tuple[LogRun, int, int]] = deque()
        self._count = 0
        self._volatile = 0  # how many of these are in memory only
        self._bytes = 0  # of the runs ahead, each counted whole until it is passed: never too little
        self._began = position  # it reads nothing before
        self._parted = False  # whether records ahead may be of a deleted topic
        self._head, self._head_bytes = 0, 0  # of the first of these, the bytes before this offset are passed
        self._named: dict[str, Log] = {}  # our logs, looked up on access
        # Runs of our logs that are not visible yet, or were not looked at since they are.
        self._noted = [run for run in timeline.runs_from(position) if coverage.covers(run.log)]

    @property
    def is_behind(self) -> bool:
        """Whether the next records may be on disk only."""
        self.collect()
        return self.position < self._behind_until

    @property
    def is_clear(self) -> bool:
        """Whether its place is its whole state. Noted runs may be missing since, which has to be reported here."""
        return not self._ahead and self.position >= self._behind_until

    def _begin_behind(self) -> None:
        """From here on, records that are not in memory are read from disk."""
        if self._reads is not None and self.position < (until := self.timeline.in_memory_from):
            self._behind_until = until
            self._unread.begin(self._coverage.logs, self.position, self._reads)

    def note(self, run: LogRun) -> bool:
        """A run of our logs begins; whether many have been noted since they were last looked at."""
        noted = self._noted
        if noted and noted[-1].sequence > run.sequence:
            insort(noted, run, key=_sequence)  # others, which are not durable, were quicker
        else:
            noted.append(run)
        return len(noted) > CHUNK

    def collect(self) -> None:
        """Look at the runs that closed and became visible since the last time."""
        if self._noted:
            noted, end = self._noted, self.timeline.closed
            visible = len(noted) if noted[-1].sequence < end else bisect_left(noted, end, key=_sequence)
            for run in noted[:visible]:
                if run.log.stored is None or run.sequence >= self._behind_until:
                    start = run.offset + max(0, self._began - run.sequence)
                    if start < run.end:
                        self._put(run, start, run.size if start == run.offset else _bytes_of(run, start))
            del noted[:visible]
        if self._reads is not None:
            self._fall_behind()  # last: a run just noted may have left memory already

    def _collect_all(self) -> None:
        """The noted runs and the open run, which is closed: for moves, not for counts, which are too frequent."""
        self.timeline.cool()
        self.collect()

    def _open_run(self) -> LogRun | None:
        """The open run, if it is visible and of our logs: it comes last, and its records and bytes still grow."""
        run = self.timeline.open_run
        return run if run is not None and self._noted and self._noted[-1] is run else None

    def _put(self, run: LogRun, start: int, size: int) -> None:
        if not self._ahead:
            self._head, self._head_bytes = start, 0
        self._ahead.append((run, start, size))
        self._count += run.end - start
        self._bytes += size
        if run.log.stored is None:
            self._volatile += run.end - start

    def _clear(self) -> deque[tuple[LogRun, int, int]]:
        ahead, self._ahead = self._ahead, deque()
        self._count = self._volatile = self._bytes = 0
        return ahead

    def recount(self) -> None:
        """Count the bytes ahead again: some records were removed."""
        self._collect_all()
        self._parted = False
        ahead = self._clear()
        if ahead:
            run, start, _ = ahead.popleft()  # it may have been read in part
            self._put(run, start, _bytes_of(run, start))
        for run, start, size in ahead:
            self._put(run, start, size if run.log.base <= start else _bytes_of(run, start))

    def part(self, log: Log) -> None:
        """A topic was deleted: count the bytes ahead again on the next access."""
        self._parted = self._parted or log.end > 0

    def pass_gone(self) -> MissedRange | None:
        """Move over missing records right ahead."""
        self._collect_all()
        missed: MissedRange | None = None
        while self._ahead and self.position >= self._behind_until:  # else something on disk may lie in between
            run, start, _ = self._ahead[0]
            first = min(run.end, self._first(run.log))
            if first <= start:
                break
            missed = joined_missed(missed, self._advance(first - start, self._why_gone(run.log)))
        return missed

    def forget_gone(self) -> None:
        """Move on, without a word, over all that is no longer there."""
        self._collect_all()
        for run, start, _ in self._clear():
            if (first := max(start, self._first(run.log))) < run.end:
                self._put(run, first, _bytes_of(run, first))

    def go_to(self, place: int) -> None:
        """Stand somewhere further on."""
        self.collect()
        self.position = self._began = place
        if self._reads is not None:
            self.stop()
            self._behind, self._behind_until, self._skipped = None, 0, 0
            self._unread = UnreadOnDisk(self.timeline, self._history)
            self._begin_behind()
        for run, start, size in self._clear():
            first = max(start, run.offset + place - run.sequence)
            if first < run.end and (run.log.stored is None or run.sequence >= self._behind_until):
                self._put(run, first, size if first == start else _bytes_of(run, first))

    def pending(self) -> int:
        """How many records lie ahead; of very many topics on disk, at most how many."""
        known = self.known()
        return max(1, known) if self.position < self._behind_until else known  # at the least it has to look

    def known(self) -> int:
        """How many records are known to lie ahead."""
        self.collect()
        count = self._count + (self._unread.count if self.position < self._behind_until else 0)
        return count if (run := self._open_run()) is None else count + run.log.end - run.offset

    def volatile(self) -> int:
        """How many records lie ahead that are in memory only."""
        self.collect()
        return self._volatile if (run := self._open_run()) is None else self._volatile + run.log.end - run.offset

    def pending_bytes(self) -> int:
        """How many bytes of values lie ahead in memory, or did when they were noted."""
        if self._parted:
            self.recount()
        most = self.most_bytes()
        if not self._ahead:
            return most
        run, start, _ = self._ahead[0]
        if self._head < start:
            values, base = run.log.values, run.log.base
            self._head_bytes += sum(map(len, values[max(0, self._head - base) : max(0, start - base)]))
            self._head = start
        return most - self._head_bytes

    def most_bytes(self) -> int:
        """At most how many bytes of values lie ahead in memory."""
        self.collect()
        if (run := self._open_run()) is None:
            return self._bytes
        return self._bytes + run.log.count_bytes() - run.bytes_before

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records from here, and move behind them; None at the end."""
        self._collect_all()
        if self.position < self._behind_until:
            return self._take_behind(limit)
        if self._behind is not None:
            return self._caught_up(limit)
        self._is_history = False
        missed = self.pass_gone()
        slices: list[Slice] = []
        room, bytes_left = min(limit, SLICE), self.max_bytes
        while self._ahead and room and (bytes_left is None or bytes_left > 0):
            run, start, _ = self._ahead[0]
            if start < max(run.log.base, self._first(run.log)):
                break  # a gap is reported before the records behind it, which are read from disk
            stop = min(run.end, start + room)
            if bytes_left is not None:
                stop = run.log.within(start, stop, bytes_left)
                size = sum(map(len, run.log.values[start - run.log.base : stop - run.log.base]))
                if slices and size > bytes_left:
                    break
                bytes_left -= size
            slices.append(self.timeline.slice(run.log, start, stop))
            room -= stop - start
            self._advance(stop - start, "")
        return Taken(slices, missed) if slices or missed else None

    def _fall_behind(self) -> None:
        """Forget noted runs that left memory: they are read from disk. So a slow reader holds little."""
        until = self.timeline.in_memory_from
        if until == self._looked_at or until <= self._behind_until:
            return
        self._looked_at = until
        kept = [one for one in self._ahead if not _is_on_disk(one[0]) or one[0].sequence >= until]
        if len(kept) == len(self._ahead):
            return
        self._behind_until = until
        self._unread.add(one[:2] for one in self._ahead if _is_on_disk(one[0]) and one[0].sequence < until)
        self._clear()
        for one in kept:
            self._put(*one)

    def _take_behind(self, limit: int) -> Taken | None:
        """The next records, of which those of durable topics are on disk only.

        Where topics alternate, a slice is one record, so several are taken together. Records behind a gap are the first
        of a take, or they wait for the next one.
        """
        assert self._reads is not None, "only a durable broker has records that are not in memory"
        if self._behind is None:
            self._behind = self._begin_catching_up()
        behind, is_stored = self._behind, any(log.stored is not None for log in self._coverage.logs)
        slices: list[Slice] = []
        limit = min(limit, SLICE)
        room, bytes_left = limit, TAKEN_BYTES if self.max_bytes is None else min(self.max_bytes, TAKEN_BYTES)
        while True:
            found = behind.take(self.position, limit) if is_stored else END
            if found is None:
                break
            place = self._behind_until
            if found is not END:
                place = found.first if isinstance(found, LostRange) else found.sequence
            is_memory = bool(self._ahead) and self._place_ahead() < place
            if slices and (is_memory or isinstance(found, LostRange) or place >= self._behind_until):
                if found is not END:
                    behind.put_back(found)
                break
            if is_memory:
                if found is not END:
                    behind.put_back(found)
                return self._take_one(limit)  # of an in-memory topic, published before
            if found is END or place >= self._behind_until:
                return self._caught_up(limit)
            if isinstance(found, LostRange):
                self.position = min(found.end, self._behind_until)
                return Taken([], MissedRange(place, self.position, self.position - place, found.reason))
            if place + len(found) > self._behind_until:  # the rest is in memory, for now
                end = found.start + self._behind_until - place
                behind.put_back(found.cut(end, found.end))
                found = found.cut(found.start, end)
            log, count, size = self._log_of(found), len(found), weight(found)
            if slices and (count > room or size > bytes_left or not self._follows(log, found)):
                behind.put_back(found)
                break
            before, self.position = self.position, place + count
            if log is None:
                continue  # deleted meanwhile: reported when this is caught up
            told = self._skipped
            kept = self._kept(log, found)
            due = self._unread.due(log)
            gone = self._unread.read(log, found, told - self._skipped)
            if isinstance(behind, HistoryCatchUp) and behind.adds_to(log):
                gone = behind.missing(log, found, due)
            if gone:
                assert not slices, "what is missing is reported before the records behind it"
                return Taken([] if kept is None else [kept], MissedRange(before, place, gone, RETENTION))
            if kept is not None:
                slices.append(kept)
                room, bytes_left = room - count, bytes_left - size
                is_full = room <= 0 or bytes_left <= 0 or len(slices) >= TAKEN_SLICES
                if is_full or self.position >= self._behind_until:
                    break
        return Taken(slices, None) if slices else None

    def _place_ahead(self) -> int:
        """The sequence of the first record that is ahead in memory."""
        run, start, _ = self._ahead[0]
        return run.sequence + start - run.offset

    def _follows(self, log: Log | None, found: Slice) -> bool:
        """Whether nothing is missing before `found`, or in it, of its topic."""
        if log is None:
            return True
        if isinstance(self._behind, HistoryCatchUp) and self._behind.adds_to(log):
            return self._behind.follows(log, found, self._unread.due(log))
        return not self._unread.gone(log, found)

    def _caught_up(self, limit: int) -> Taken | None:
        """The disk is read to its end. Due records that were not found are missing."""
        before, self.position = self.position, max(self.position, self._behind_until)
        self.stop()
        self._behind, self._skipped = None, 0
        gone, deleted = self._unread.close(self._behind_until)
        missed = MissedRange(before, self.position, gone, RETENTION) if gone else None
        if deleted:
            missed = joined_missed(missed, MissedRange(before, self.position, deleted, DELETED))
        return self.take(limit) if missed is None else Taken([], missed)

    def _begin_catching_up(self) -> CatchUp | HistoryCatchUp:
        assert self._reads is not None, "only a durable broker has records that are not in memory"
        journal = CatchUp(self._reads, self._stored_logs, self._woken, sequence=True, is_history=self._is_history)
        if self._history is None:
            return journal
        return HistoryCatchUp(
            journal,
            self._history,
            self.timeline,
            lambda: self._coverage.logs,
            self._log_of,
            self._unread.known_places(),
            lambda: self._behind_until,
            self._woken,
        )

    def stop(self) -> None:
        """Ask no source of history any more."""
        if self._history is not None:
            self._history.stop()

    @property
    def failure(self) -> Exception | None:
        """Why a source of history that it waits for failed."""
        readers = () if self._history is None else self._history.readers.values()
        return next((reader.failure for reader in readers if reader.failure is not None), None)

    def _why_gone(self, log: Log) -> str:
        if self._first(log) < self.timeline.first(log):
            return TRIMMED  # what retention took is not gone
        return why_gone(log)

    def _log_of(self, found: Slice) -> Log | None:
        """The log that `found` belongs to, if it is one of ours, and was not deleted."""
        log = self._named.get(found.topic)
        if log not in self._coverage.logs:
            self._named = {one.name: one for one in self._coverage.logs}
            log = self._named.get(found.topic)
        return log if log is not None and log.epoch == found.epoch else None

    def _kept(self, log: Log, found: Slice) -> Slice | None:
        """The part of `found` to hand out: retention may have removed some, or the cursor skipped them."""
        start = max(found.start, self._first(log))
        skipped = min(self._skipped, max(0, found.end - start))
        self._skipped -= skipped
        start += skipped
        if start >= found.end:
            return None
        return found if start == found.start else found.cut(start, found.end)

    def _take_one(self, limit: int) -> Taken | None:
        """Records of the run at the head, which is in memory, or was. No further: the next ones may be on disk."""
        run, start, _ = self._ahead[0]
        if (first := min(run.end, self._first(run.log))) > start:
            return Taken([], self._advance(first - start, self._why_gone(run.log)))
        stop = min(run.end, start + min(limit, SLICE))
        if self.max_bytes is not None:
            stop = run.log.within(start, stop, self.max_bytes)
        part = self.timeline.slice(run.log, start, stop)
        self._advance(stop - start, "")
        return Taken([part], None)

    def _stored_logs(self) -> dict[int, Log]:
        return {log.stored.id: log for log in self._coverage.logs if log.stored is not None}

    def _woken(self) -> None:
        self.wake()

    def skip(self, count: int, reason: str) -> MissedRange | None:
        """Move over `count` records without reading them."""
        self._collect_all()
        missed: MissedRange | None = None
        if count > 0 and isinstance(self._behind, HistoryCatchUp):
            self._behind.drop_history()  # the oldest go first
        if self.position < self._behind_until and (behind := self._unread.skip(count)):
            missed = MissedRange(self.position, self.position + behind, behind, reason)
            self._skipped += behind
            count -= behind
        while count > 0 and self._ahead:
            run, start, _ = self._ahead[0]
            step = min(count, run.end - start)
            missed = joined_missed(missed, self._advance(step, reason))
            count -= step
        if self._skipped and self.position >= self._behind_until:
            # All records on disk were passed and reported: they must not count against later ones.
            self._behind, self._skipped = None, 0
            self._unread.close(self._behind_until)
        return missed

    def next_bytes(self) -> int:
        """The size of the next record; 0 at the end."""
        self._collect_all()
        for run, start, _ in self._ahead:
            at = max(start, run.log.base)
            if at < run.end:
                return len(run.log.values[at - run.log.base])
        return 0

    def excess_bytes(self, limit: int) -> int:
        """How many records have to go so that at most `limit` bytes (or one record) lie ahead."""
        if self.most_bytes() <= limit or self.pending_bytes() <= limit:
            return 0
        self.recount()  # missing records do not count
        over, gone = self._bytes - limit, 0
        for run, start, size in self._ahead:
            if over <= 0:
                break
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
        run, start, size = self._ahead[0]
        first = run.sequence + start - run.offset
        self.position = first + count
        self._count -= count
        if run.log.stored is None:
            self._volatile -= count
        if start + count == run.end:
            self._ahead.popleft()
            self._bytes -= size
            if self._ahead:
                self._head, self._head_bytes = self._ahead[0][1], 0
        else:
            self._ahead[0] = (run, start + count, size)
        return MissedRange(first, first + count, count, reason)


def _is_on_disk(run: LogRun) -> bool:
    """Whether the records of a run can be read from disk. Those of a deleted topic cannot."""
    return run.log.stored is not None and not run.log.deleted


def _bytes_of(run: LogRun, start: int) -> int:
    """The bytes of a closed run from `start` on."""
    first = max(start, run.log.base)
    return 0 if first >= run.end else run.log.bytes_before(run.end) - run.log.bytes_before(first)


_sequence = attrgetter("sequence")
