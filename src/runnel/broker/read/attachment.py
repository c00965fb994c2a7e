"""Which topics a reader covers, where it starts, and how it is woken.

A pattern covers topics that are created later, too.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.read.cursor import RETENTION, Cursor, LogCursor
from runnel.broker.read.history_reads import HistoryReads, PatternHistory, TopicHistory
from runnel.broker.read.pattern_cursor import Coverage, PatternCursor
from runnel.broker.topic.catalog import TopicCatalog
from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import AttachedReaders, TopicReader, TopicReaders
from runnel.broker.topic.timeline import Timeline
from runnel.core.errors import OffsetOutOfRange
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.position import Position, Start, check_start
from runnel.core.record import MissedRange


def open_pattern_cursor(
    timeline: Timeline,
    coverage: Coverage,
    start: Start,
    reads: JournalReads | None = None,
    history: PatternHistory | None = None,
    place: int | None = None,
) -> tuple[PatternCursor, MissedRange | None]:
    """A cursor over several topics at `start`, where a number is a sequence; and what it has already missed.

    `place` is where a source of history says that is.
    """
    if isinstance(start, datetime):
        sequence = _sequence_at(timeline, start, reads) if place is None else place
    else:
        sequence = start if isinstance(start, int) else timeline.sequence if start == "latest" else 0
    cursor = PatternCursor(timeline, coverage, sequence, reads, history)
    if start != sequence:  # not a position that it had reached: it never owned the missing records
        cursor.forget_gone()
        return cursor, None
    if timeline.forgotten <= sequence:
        return cursor, None
    # In memory, positions of removed records are not kept for ever: only their existence is known.
    forgotten = max((log.forgotten for log in coverage.logs if log.stored is None), default=0)
    return cursor, MissedRange(sequence, forgotten, 0, RETENTION) if forgotten > sequence else None


def _sequence_at(timeline: Timeline, start: datetime, reads: JournalReads | None) -> int:
    time = start.astimezone(UTC)
    sequence = timeline.sequence_at(time)
    if reads is not None and (on_disk := reads.sequence_at(time)) is not None:
        sequence = min(sequence, on_disk)
    return sequence


def open_log_cursor(
    timeline: Timeline,
    log: Log,
    start: Start,
    reads: JournalReads | None = None,
    history: TopicHistory | None = None,
    place: int | None = None,
) -> tuple[LogCursor, MissedRange | None]:
    """A cursor on one topic at `start`, and what it has already missed.

    `place` is where a source of history says that the topic begins or, of a time, where that is.
    """
    oldest = timeline.first(log) if place is None else place
    missed = None
    if isinstance(start, Position):
        if start.epoch == log.epoch:
            start = start.offset
        else:
            reason = f"the topic was deleted and made again since epoch {start.epoch}"
            # A reader that had read nothing of the earlier epoch lost nothing, and is owed all of this one.
            missed = MissedRange(oldest, oldest, 0, reason) if start.offset else None
            start = "earliest" if start.offset else 0
    if isinstance(start, datetime):
        start = _offset_at(log, start, reads) if place is None else place
    offset = start if isinstance(start, int) else log.end if start == "latest" else oldest
    if offset > log.end:
        raise OffsetOutOfRange(log.name, offset, oldest, log.end)
    return LogCursor(timeline, log, offset, reads, history), missed


def _offset_at(log: Log, start: datetime, reads: JournalReads | None) -> int:
    time = start.astimezone(UTC)
    return log.offset_at(time) if reads is None or log.stored is None else reads.offset_at(log, time)


class Cursors:
    """Opens cursors on the logs of a broker. Those `with_history` also read below the journal from a source."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.reads: JournalReads | None = None  # set when the folder is open
        self.history: HistoryReads | None = None  # the same, if there are sources of history

    def on_log(
        self, log: Log, start: Start, *, with_history: bool = False, place: int | None = None
    ) -> tuple[LogCursor, MissedRange | None]:
        """A cursor on one topic at `start`, and what it has already missed."""
        history = None if self.history is None or not with_history else self.history.of_topic(log)
        return open_log_cursor(self.timeline, log, start, self.reads, history, place)

    def on_pattern(
        self, coverage: Coverage, start: Start, old: PatternHistory | None = None, place: int | None = None
    ) -> tuple[PatternCursor, MissedRange | None]:
        """A cursor over several topics at `start`, where a number is a sequence; and what it has already missed."""
        return open_pattern_cursor(self.timeline, coverage, start, self.reads, old, place)

    def old_place(self, log: Log, start: Start, *, once: bool = False) -> Coroutine[Any, Any, int] | None:
        """Ask the source of `log` where `start` is; None: the journal knows."""
        history = None if self.history is None else self.history.of_topic(log)
        if history is None or not history.is_needed:
            return None
        if isinstance(start, datetime):
            if _offset_at(log, start, self.reads) > self.timeline.first(log):
                return None  # the first record of the journal is older
            return history.offset_at(start.astimezone(UTC), once=once)
        is_other_life = isinstance(start, Position) and start.epoch != log.epoch and start.offset
        return history.first(once=once) if start == "earliest" or is_other_life else None


class Attachment:
    """Which logs a reader reads, where it starts, and how it is woken."""

    def __init__(
        self,
        catalog: TopicCatalog,
        readers: AttachedReaders,
        cursors: Cursors,
        pattern: str | Sequence[str],
        start: Start,
    ) -> None:
        several = isinstance(pattern, list | tuple)  # then it is read by sequence, whatever they are
        self.patterns = tuple(map(check_pattern, dict.fromkeys(pattern) if several else (pattern,)))
        self.pattern = " ".join(self.patterns)
        self.is_pattern = several or is_pattern(self.pattern)
        check_start(start, self.pattern, is_pattern=self.is_pattern)
        self._logs: set[Log] | None = None  # of a pattern, looked up on access: there may be very many
        self._wild = [one for one in self.patterns if is_pattern(one)]
        self.excluded: str | None = None  # a topic that the pattern matches, and the reader does not read
        self.changes = 0  # how often topics came or went
        self.catalog, self.cursors, self.timeline = catalog, cursors, cursors.timeline
        self._readers = readers

    @property
    def logs(self) -> set[Log]:
        """The logs that it covers."""
        if self._logs is None:
            logs = self.catalog.logs
            found = [logs[name] for name in self.patterns if name in logs]
            if self._wild:
                found += [log for log in logs.values() if any(matches(one, log.name) for one in self._wild)]
            self._logs = {log for log in found if log.name != self.excluded}
        return self._logs

    def exclude(self, topic: str) -> None:
        """Do not read `topic`, whatever the pattern matches."""
        if topic != self.excluded:
            self.excluded = topic
            if self.is_pattern:
                self._logs = None
                self._readers.patterns.changed()

    def covers(self, log: Log) -> bool:
        """Whether it reads `log`."""
        if self._logs is not None:
            return log in self._logs
        name = log.name
        if name == self.excluded or self.catalog.logs.get(name) is not log:
            return False
        return name in self.patterns or any(matches(one, name) for one in self._wild)

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Find or create the topic; a created one is removed if the reader is not opened."""
        if not self.is_pattern:
            self._logs = {self.catalog.find(self.pattern)}
        try:
            yield
        except BaseException:
            self._let_go()
            raise

    def cursor(
        self, start: Start, *, with_history: bool = False, place: int | None = None
    ) -> tuple[Cursor, MissedRange | None]:
        """A cursor on the logs, at `start`, or at the `place` where a source of history says that is."""
        if self.is_pattern:
            return self.cursors.on_pattern(self, start, self._old() if with_history else None, place)
        (log,) = self.logs
        return self.cursors.on_log(log, start, with_history=with_history, place=place)

    def old_place(self, start: Start) -> Coroutine[Any, Any, int] | None:
        """Ask the sources of history where `start` is; None: that is known."""
        if self.cursors.history is None:
            return None
        if not self.is_pattern:
            log = self.catalog.logs.get(self.pattern)
            return None if log is None else self.cursors.old_place(log, start)
        old = self._old()
        if not isinstance(start, datetime) or old is None or not any(map(old.is_needed, self.logs)):
            return None
        time = start.astimezone(UTC)
        return old.sequence_at(self.logs, time, _sequence_at(self.timeline, time, self.cursors.reads))

    def _old(self) -> PatternHistory | None:
        history = self.cursors.history
        return None if history is None else history.of_patterns(self.patterns)

    def encoding_of(self, topic: str) -> str | None:
        """How the values of a typed topic are written; None for an untyped topic."""
        log = self.catalog.logs.get(topic)
        return None if log is None or log.type is None else log.type.encoding

    def attach(self, reader: TopicReader) -> bool:
        """Have `reader` notified of publishes from now on; whether so many came that others should run."""
        if self.is_pattern:
            self._readers.patterns.add(self.patterns, reader)
        else:
            (log,) = self.logs
            log.readers = log.readers or TopicReaders()
            log.readers.attach(reader)
        self.timeline.cool()
        return self._readers.add(reader)

    def join(self, log: Log) -> None:
        """A topic was made that the pattern covers."""
        if self._logs is not None:
            self._logs.add(log)
        self.changes += 1

    def part(self, log: Log) -> None:
        """`log` was deleted."""
        if self._logs is not None:
            self._logs.discard(log)
        self.changes += 1

    def is_attached(self, reader: TopicReader) -> bool:
        """Whether `reader` is notified of publishes."""
        return reader in self._readers

    def detach(self, reader: TopicReader) -> bool:
        """Stop notifying `reader`; whether it was attached at all."""
        if reader not in self._readers:
            return False
        self._readers.remove(reader)
        if self.is_pattern:
            self._readers.patterns.remove(self.patterns, reader)
            return True
        (log,) = self.logs
        if log.readers is not None and log.readers.detach(reader):
            log.look_again()
        self._let_go()
        return True

    def _let_go(self) -> None:
        """A topic that was only made to be read need not stay. It is still known here: where its reader stood."""
        if not self.is_pattern:
            for log in self.logs:
                self.catalog.forget_unused(log)

    def park(self, reader: TopicReader) -> None:
        """`reader` sleeps: the next publish must take the long way, and wake it."""
        timeline = self.timeline
        if self.is_pattern:
            reader.overflow.caught_up()
            timeline.cool()  # topics wake the readers of patterns always
            return
        (log,) = self.logs
        if log.readers is not None:
            log.readers.park(reader)
        if timeline.hot is log:
            timeline.cool()

    def limit(self, reader: TopicReader, *, limited: bool) -> None:
        """Add `reader` to those that publishers check before a publish, or remove it."""
        if not self.is_pattern:
            (log,) = self.logs
            if log.readers is not None:
                log.readers.limit(reader.overflow, limited=limited)
        if limited:
            self.timeline.cool()
