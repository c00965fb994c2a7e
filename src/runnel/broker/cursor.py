"""Positions that read: on one log by offset, or on the timeline by sequence.

A cursor holds no records, only where it stands. It never waits and knows no policy.
Below: log, timeline. Above: flow, which bounds how far a cursor may lag.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

import msgspec

from runnel.broker.log import Log, Run
from runnel.broker.timeline import Timeline
from runnel.core.batch import Slice

SLICE = 4096  # records taken at a time; readers side by side meet on multiples of it

RETENTION = "no longer kept (retention)"
DELETED = "the topic was deleted"


class Missed(msgspec.Struct, frozen=True, gc=False):
    """Records passed over: [first, end) as offsets or sequences, and how many of the reader's lay there."""

    first: int
    end: int
    count: int
    reason: str


class Taken(NamedTuple):
    """What was read, and what was missed right before it."""

    slices: list[Slice]
    missed: Missed | None


class Cursor(Protocol):
    """A place in the order of records, and the records from there on."""

    position: int

    def pending(self) -> int:
        """How many records lie ahead."""

    def pending_bytes(self) -> int:
        """How many bytes of values lie ahead."""

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records from here, and move behind them; None at the end."""

    def skip(self, count: int, reason: str) -> Missed | None:
        """Move over `count` records without reading them."""

    def pass_gone(self) -> Missed | None:
        """Move over what lies right ahead and is no longer there."""

    def next_bytes(self) -> int:
        """The size of the next record; 0 at the end."""

    def excess_bytes(self, limit: int) -> int:
        """How many records have to go so that at most `limit` bytes (or one record) lie ahead."""


class LogCursor:
    """A position on one log, by offset."""

    __slots__ = ("log", "position", "timeline")

    def __init__(self, timeline: Timeline, log: Log, position: int) -> None:
        self.timeline, self.log, self.position = timeline, log, position

    def pending(self) -> int:
        """How many records lie ahead."""
        return self.log.end - self.position

    def pending_bytes(self) -> int:
        """How many bytes of values lie ahead."""
        return self.log.count_bytes() - self.log.bytes_before(max(self.position, self.log.base))

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records from here, and move behind them; None at the end."""
        log, start, end = self.log, self.position, self.log.end
        if start >= end:
            return None
        missed = self.pass_gone()
        if missed is not None:
            start = self.position
            if start == end:
                return Taken([], missed)
        stop = min(end, start + limit)
        if end - start > SLICE:  # far behind: meet the others on a multiple
            stop = min(stop, (start // SLICE + 1) * SLICE)
        self.position = stop
        return Taken([self.timeline.slice(log, start, stop)], missed)

    def skip(self, count: int, reason: str) -> Missed | None:
        """Move over `count` records without reading them."""
        if count <= 0:
            return None
        start = self.position
        self.position = start + count
        return Missed(start, start + count, count, reason)

    def pass_gone(self) -> Missed | None:
        """Move over what lies right ahead and is no longer there."""
        first = self.timeline.first(self.log)
        return self.skip(first - self.position, DELETED if self.log.deleted else RETENTION)

    def next_bytes(self) -> int:
        """The size of the next record; 0 at the end."""
        at = max(self.position, self.log.base) - self.log.base
        return len(self.log.values[at]) if at < len(self.log.values) else 0

    def excess_bytes(self, limit: int) -> int:
        """How many records have to go so that at most `limit` bytes (or one record) lie ahead."""
        log = self.log
        first = max(self.position, log.base)
        if log.live_bytes <= limit or first >= log.end or log.bytes_from(first) <= limit:
            return 0
        return log.offset_leaving(limit, first) - self.position


class PatternCursor:
    """A position on the timeline, by sequence, over the logs that a pattern covers."""

    __slots__ = ("_ahead", "_bytes", "_collected", "_count", "logs", "position", "timeline")

    def __init__(self, timeline: Timeline, logs: set[Log], position: int) -> None:
        self.timeline, self.logs, self.position = timeline, logs, position
        self._ahead: deque[tuple[Run, int]] = deque()  # runs of our logs, and the offset to read them from
        self._count = 0
        self._bytes = 0  # of the runs ahead, each counted whole until it is passed: never too little
        self._collected = position  # runs before this sequence were looked at

    def collect(self) -> None:
        """Note the runs of our logs that came since the last time."""
        if self._collected == (end := self.timeline.sequence):
            return
        for run in self.timeline.runs_from(self._collected):
            if run.log in self.logs:
                start = run.offset + max(0, self._collected - run.sequence)
                if start < run.end:
                    self._ahead.append((run, start))
                    self._count += run.end - start
                    self._bytes += run.size
        self._collected = end

    def pass_gone(self) -> Missed | None:
        """Move over what lies right ahead and is no longer there."""
        self.collect()
        missed: Missed | None = None
        while self._ahead:
            run, start = self._ahead[0]
            first = min(run.end, self.timeline.first(run.log))
            if first <= start:
                break
            missed = joined(missed, self._advance(first - start, DELETED if run.log.deleted else RETENTION))
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

    def pending(self) -> int:
        """How many records lie ahead."""
        self.collect()
        return self._count

    def pending_bytes(self) -> int:
        """How many bytes of values lie ahead."""
        self.collect()
        return sum(_bytes_of(run, start) for run, start in self._ahead)

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records from here, and move behind them; None at the end."""
        missed = self.pass_gone()
        slices: list[Slice] = []
        room = min(limit, SLICE)
        while self._ahead and room:
            run, start = self._ahead[0]
            if start < self.timeline.first(run.log):
                break  # a gap is told before what follows it
            stop = min(run.end, start + room)
            slices.append(self.timeline.slice(run.log, start, stop))
            room -= stop - start
            self._advance(stop - start, "")
        return Taken(slices, missed) if slices or missed else None

    def skip(self, count: int, reason: str) -> Missed | None:
        """Move over `count` records without reading them."""
        self.collect()
        missed: Missed | None = None
        while count > 0 and self._ahead:
            run, start = self._ahead[0]
            step = min(count, run.end - start)
            missed = joined(missed, self._advance(step, reason))
            count -= step
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

    def _advance(self, count: int, reason: str) -> Missed:
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
        return Missed(first, first + count, count, reason)


def _bytes_of(run: Run, start: int) -> int:
    """The bytes of what is left of a closed run from `start` on."""
    first = max(start, run.log.base)
    return 0 if first >= run.end else run.log.bytes_before(run.end) - run.log.bytes_before(first)


def joined(one: Missed | None, two: Missed | None) -> Missed | None:
    """Two stretches that were missed one after the other, told as one."""
    if one is None or two is None:
        return one or two
    reason = one.reason if two.reason in one.reason else f"{one.reason}; {two.reason}"
    return Missed(min(one.first, two.first), max(one.end, two.end), one.count + two.count, reason)
