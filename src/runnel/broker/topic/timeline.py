"""The order of all records of a broker: runs of records, by sequence.

At most one log is hot: its run is open, and publishing to it takes the fast path. A run closes when another log is
published to, when a reader parks (so that the next publish wakes it) and at the end of the loop's turn (so that its
append time stays true). So sequences are given per run, not per record.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import inf
from operator import attrgetter

from runnel.broker.topic.log import CHUNK, Log, LogRun
from runnel.broker.topic.readers import TopicReader, TopicReaders
from runnel.core.batch import Slice
from runnel.core.clock import Clock
from runnel.core.columns import Columns

RECORD_COST = 64  # bytes that a record in memory costs besides its value
CACHED_SLICES = 16  # readers side by side ask for the same ranges; more would only hold memory


class Timeline:
    """Runs in sequence order, the clock they are stamped with, and the one that is open."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.runs: list[LogRun] = []
        self.hot: Log | None = None
        self.call_soon: Callable[[Callable[[], None]], object] | None = None  # set once a loop is known
        self.forgotten = 0  # the sequence behind the last run of an in-memory topic that was removed
        self._early: dict[TopicReader, None] = {}  # readers of patterns that noted runs which are not visible yet
        self._next = 0
        self._ticking = False
        self._tick_began = 0  # the sequence at which this turn of the loop began
        self.turn: datetime | None = None  # its time, once it was looked at; `now` says it
        self._latest = datetime.min.replace(tzinfo=UTC)
        self._dead = 0
        self._held: deque[int] = deque()  # sequences given to records that are not visible yet, in order
        self._tail: deque[LogRun] = deque()  # the runs of durable topics, which may be cut: they are on disk
        self._tail_cost = 0  # of those that are in memory
        self._tail_dead = 0  # how many are not: their topic was deleted, or restarted
        self._elsewhere = 0  # the sequence behind the last records that became visible without being in memory
        self.reserve_at: float = inf  # the sequence at which `reserve` is called, in a broker that must not reuse any
        self.reserve: Callable[[], None] = lambda: None
        self.tail_bytes = 0  # how much of those to keep; set by the store
        self.keeps_packed = False  # whether there is a server, which sends batches as stored
        self._slices: dict[tuple[Log, int, int], Slice] = {}
        self.touched: dict[Log, LogRun] | None = None  # of each log its first run since telemetry took the last sample

    def move_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop is known whose turns give runs their time."""
        self.call_soon = loop.call_soon

    # -- time and sequence --------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The visible end: all records before it are visible, and none from it on is seen in this order."""
        self.cool()
        return self._held[0] if self._held else self._next

    @property
    def closed(self) -> int:
        """The same, up to the open run, which stays open: all that is visible besides is in that."""
        return self._held[0] if self._held else self._next

    @property
    def open_run(self) -> LogRun | None:
        """The open run, if its records are visible."""
        return None if self.hot is None or self._held else self.runs[-1]

    @property
    def given(self) -> int:
        """The sequence that the next record gets."""
        self.cool()
        return self._next

    @property
    def head(self) -> int:
        """The same, without closing the open run."""
        return self._next + (0 if self.hot is None else self.hot.end - self.runs[-1].offset)

    @property
    def in_memory_from(self) -> int:
        """The sequence from which on every visible record of a durable topic is in memory."""
        first = self._tail[0].sequence if self._tail else self.closed
        return max(first, self._elsewhere)

    def go_on_from(self, sequence: int, time: datetime) -> None:
        """Sequences and times begin behind those of an earlier life."""
        self._next = self._tick_began = sequence
        self._latest = max(self._latest, time)

    def now(self) -> datetime:
        """The time of this turn of the loop; it never goes back."""
        if self.turn is None:
            self.turn = self._latest = max(self._latest, datetime.fromtimestamp(self.clock.time(), UTC))
            if not self._ticking and self.call_soon is not None:
                self._ticking = True
                self.call_soon(self._tick)
        return self.turn

    def cool(self) -> None:
        """Close the open run: the next publish, to any log, takes the long way."""
        log, self.hot = self.hot, None
        if log is not None:
            log.trip = log.room = 0
            run = self.runs[-1]
            run.close()
            self._next = run.sequence + run.end - run.offset

    def _tick(self) -> None:
        self._ticking, self.turn = False, None
        self.cool()
        self._tick_began = self._next

    def take_touched(self) -> dict[Log, LogRun]:
        """The logs that were appended to since the last call, each with its first run since then."""
        self.cool()  # the open run belongs to this call, later records to the next one
        touched, self.touched = self.touched, {}
        return touched or {}

    def published_in_turn(self) -> int:
        """How many records were appended in this turn of the loop."""
        return self.head - self._tick_began

    # -- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        log: Log,
        values: Sequence[bytes],
        columns: Columns | None,
        size: int,
    ) -> int:
        """Append to `log`, wake its readers, apply its bounds; the first offset."""
        if self.hot is log and log.end - self.runs[-1].offset >= CHUNK:
            self.cool()
            self.turn = None  # a long turn: look at the clock again
        if self.hot is not log:
            self._begin(log)
        run = self.runs[-1]
        first = log.append(values, columns, size)
        room = CHUNK
        if (topic_readers := log.readers) is not None:
            topic_readers.appended()
            # less what a transaction has room for already
            room = max(0, topic_readers.room(log, run.sequence + log.end - run.offset) - log.coming)
        self._bury(log.trim(self.now()))
        if self.hot is log:
            log.room = len(log.values) + room
            if log.type is None:
                log.trip = log.room
        return first

    def append_packed(
        self, log: Log, values: Sequence[bytes], columns: Columns | None, size: int, packed: bytes
    ) -> int:
        """Append a batch in the bytes in which it came: the same, as a run of its own that is closed at once."""
        run = self._begin(log)
        first = log.append(values, columns, size)
        run.end, run.size, run.packed = first + len(values), size, packed
        self.hot = None
        self._next = run.sequence + len(values)
        if (topic_readers := log.readers) is not None:
            topic_readers.appended()
        if dead := log.trim(run.time):
            self._bury(dead)
        return first

    def _begin(self, log: Log) -> LogRun:
        if self.hot is not None:
            self.cool()
        if self._next >= self.reserve_at:
            self.reserve()
        run = LogRun(log, log.end, self._next, self.now(), log.count_bytes())
        self.runs.append(run)
        log.runs.append(run)
        if (touched := self.touched) is not None and log not in touched:
            touched[log] = run
        self.hot = log
        if (topic_readers := log.topic_readers) is not None:
            if topic_readers.patterns:
                self._note(run, topic_readers)
            topic_readers.wake()
        return run

    def _note(self, run: LogRun, topic_readers: TopicReaders) -> None:
        """Have the readers of patterns note a run, and wake them again when it is visible, if it is not yet."""
        topic_readers.note(run)
        if self._held:
            self._early.update(dict.fromkeys(topic_readers.patterns))

    # -- records that become durable first ----------------------------------------------------------------------

    def hold(self, count: int) -> int:
        """Give `count` sequences to records that become visible later; no reader passes them before."""
        self.cool()
        first = self._next
        if count:
            self._held.append(first)
            self._next += count
            if self._next >= self.reserve_at:
                self.reserve()
        return first

    def release(self, first: int) -> None:
        """The records of a `hold` are visible, or will never be; so are others that were quicker."""
        self._held.remove(first)
        self.cool()
        early = self._early
        if not self._held:
            self._early = {}
        for reader in early:
            reader.wake()

    def land(
        self,
        log: Log,
        sequence: int,
        time: datetime,
        values: Sequence[bytes],
        columns: Columns | None,
        size: int,
        packed: bytes | None = None,
    ) -> None:
        """Records are durable: append them to `log` with the sequence they were given. `landed` wakes its readers."""
        run = LogRun(log, log.end, sequence, time, log.count_bytes())
        run.end, run.size, run.packed = run.offset + len(values), size, packed
        log.runs.append(run)
        self._put(run)
        log.append(values, columns, size)
        self._tail.append(run)  # before readers look: it shows them the records in memory
        cost = _cost(run)
        self._tail_cost += cost
        if log.stored is not None:
            log.stored.tail_cost += cost

    def land_elsewhere(
        self, log: Log, sequence: int, time: datetime, count: int, size: int, behind: int | None = None
    ) -> None:
        """Records that lie on disk, and were never in memory, became part of `log`: readers read them there.

        `behind`: where their sequences end, if those of other topics lie between them.
        """
        run = LogRun(log, log.end, sequence, time, log.count_bytes())
        run.end, run.size = log.end + count, size
        self._leave_tail(log)
        # Readers of patterns see by the run that something came. It is as good as dead, but must not be buried
        # before it was visible: so it is only counted here.
        self._dead += log.pass_by(count, size) + 1
        self._elsewhere = sequence + count if behind is None else behind
        self._put(run)

    def _put(self, run: LogRun) -> None:
        if (touched := self.touched) is not None and run.log not in touched:
            touched[run.log] = run
        if self.runs and self.runs[-1].sequence > run.sequence:
            insort(self.runs, run, key=_sequence)  # others, which are not durable, were quicker
        else:
            self.runs.append(run)
        if (topic_readers := run.log.topic_readers) is not None and topic_readers.patterns:
            self._note(run, topic_readers)

    @staticmethod
    def landed(log: Log) -> None:
        """All that became durable at once has landed: wake the readers of `log`."""
        if (topic_readers := log.topic_readers) is not None:
            topic_readers.wake()
            topic_readers.appended()

    def cut_tail(self) -> None:
        """Drop the oldest durable records, if there are too many; readers that still need them read from disk."""
        if self._tail_cost <= self.tail_bytes + self.tail_bytes // 4:
            return
        ends: dict[Log, int] = {}
        while self._tail and self._tail_cost > self.tail_bytes:
            run = self._tail.popleft()
            log = run.log
            if run.end <= log.base:
                self._tail_dead -= 1
                continue
            cost = _cost(run)
            self._tail_cost -= cost
            if log.stored is not None:
                log.stored.tail_cost -= cost
            ends[log] = run.end
        self._bury(sum(log.cut(end) for log, end in ends.items()))

    def _leave_tail(self, log: Log) -> None:
        """The runs of `log` are about to leave memory. They go from the tail a little later, many at once."""
        if log.stored is not None:
            self._tail_dead += len(log.runs)
            self._tail_cost -= log.stored.tail_cost
            log.stored.tail_cost = 0
        if self.keeps_packed:
            for run in log.runs:
                run.packed = None

    def first(self, log: Log) -> int:
        """The oldest offset of `log` that can be read: retention is looked at now, not only at every `CHUNK`."""
        if log.options.is_limited:
            self._bury(log.trim(self.now()))
        return log.first

    # -- reading ------------------------------------------------------------------------------------------------

    def slice(self, log: Log, start: int, end: int) -> Slice:
        """The records [start, end) of `log`; readers that ask for the same share one slice."""
        key = (log, start, end)
        found = self._slices.get(key)
        if found is None:
            found = self._slices[key] = log.slice(start, end)
            if len(self._slices) > CACHED_SLICES:
                del self._slices[next(iter(self._slices))]
        return found

    def sequence_of(self, log: Log, offset: int) -> int:
        """The sequence of a record of `log`; of one that has left memory, some sequence that is not before it."""
        return log.sequence_of(offset) if offset >= log.base and log.runs else self.in_memory_from - 1

    def runs_from(self, sequence: int) -> list[LogRun]:
        """The closed runs that hold `sequence` or anything later."""
        self.cool()
        at = max(0, bisect_right(self.runs, sequence, key=_sequence) - 1)
        if at < len(self.runs) and self.runs[at].sequence + self.runs[at].end - self.runs[at].offset <= sequence:
            at += 1
        return self.runs[at:]

    def run_at(self, sequence: int) -> LogRun | None:
        """The run that holds `sequence`, if it is still known."""
        self.cool()
        at = bisect_right(self.runs, sequence, key=_sequence) - 1
        if at < 0 or sequence >= self.runs[at].sequence + self.runs[at].end - self.runs[at].offset:
            return None
        return self.runs[at]

    def sequence_at(self, time: datetime) -> int:
        """The sequence of the first record that is not older than `time`."""
        return next((run.sequence for run in self.runs if run.time >= time), self.sequence)

    def forget(self, log: Log) -> None:
        """Remove the runs of a log."""
        self._slices = {key: found for key, found in self._slices.items() if key[0] is not log}
        dead = len(log.runs)
        self._leave_tail(log)
        log.clear()
        if self._tail_dead > CHUNK and self._tail_dead * 2 > len(self._tail):
            self._tail, self._tail_dead = deque(run for run in self._tail if run.end > run.log.base), 0
        self._bury(dead)

    def _bury(self, dead: int) -> None:
        self._dead += dead
        if self._dead > CHUNK and self._dead * 2 > len(self.runs):
            hot = self.runs[-1] if self.hot is not None else None
            kept = []
            for run in self.runs:
                if run is hot or (run.end > run.log.base and not run.log.deleted):
                    kept.append(run)
                else:
                    run.log.forgotten = behind = run.sequence + run.end - run.offset
                    if run.log.stored is None:
                        self.forgotten = max(self.forgotten, behind)
            self.runs, self._dead = kept, 0


_sequence = attrgetter("sequence")


def _cost(run: LogRun) -> int:
    """About how many bytes of memory a closed run takes."""
    packed = 0 if run.packed is None else len(run.packed)
    return run.size + RECORD_COST * (run.end - run.offset) + packed
