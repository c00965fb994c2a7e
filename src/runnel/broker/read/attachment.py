"""Which topics a reader covers, where it starts, and how it is woken.

A pattern covers topics that are created later, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.read.cursor import RETENTION, Cursor, LogCursor
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.catalog import TopicCatalog
from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import AttachedReaders, TopicReader, TopicReaders
from runnel.broker.topic.timeline import Timeline
from runnel.core.errors import OffsetOutOfRange
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.position import Position, Start, check_start
from runnel.core.record import MissedRange


def open_cursor(
    timeline: Timeline, logs: set[Log], start: Start, *, is_pattern: bool, reads: JournalReads | None = None
) -> tuple[Cursor, MissedRange | None]:
    """A cursor at `start`, and what it has already missed. Of a pattern, a number is a sequence."""
    if is_pattern:
        if isinstance(start, datetime):
            time = start.astimezone(UTC)
            sequence = timeline.sequence_at(time)
            if reads is not None and (on_disk := reads.sequence_at(time)) is not None:
                sequence = min(sequence, on_disk)
        else:
            sequence = start if isinstance(start, int) else timeline.sequence if start == "latest" else 0
        cursor = PatternCursor(timeline, logs, sequence, reads)
        if start != sequence:  # not a place that it had come to: what is gone was never its own
            cursor.forget_gone()
            return cursor, None
        # In memory, not even the place of what is gone is kept for ever: that something was there is all that is known.
        forgotten = max((log.forgotten for log in logs if log.stored is None), default=0)
        return cursor, MissedRange(sequence, forgotten, 0, RETENTION) if forgotten > sequence else None
    (log,) = logs
    oldest = timeline.first(log)
    missed = None
    if isinstance(start, Position):
        if start.epoch == log.epoch:
            start = start.offset
        else:
            reason = f"the topic was deleted and made again since epoch {start.epoch}"
            # Who had read nothing of the other life lost nothing with it, and is owed all of this one.
            missed = MissedRange(oldest, oldest, 0, reason) if start.offset else None
            start = "earliest" if start.offset else 0
    if isinstance(start, datetime):
        time = start.astimezone(UTC)
        start = log.offset_at(time) if reads is None or log.stored is None else reads.offset_at(log, time)
    offset = start if isinstance(start, int) else log.end if start == "latest" else oldest
    if offset > log.end:
        raise OffsetOutOfRange(log.name, offset, oldest, log.end)
    return LogCursor(timeline, log, offset, reads), missed


class Cursors:
    """Opens cursors on the logs of a broker."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.reads: JournalReads | None = None  # set when the folder is open

    def open(self, logs: set[Log], start: Start, *, is_pattern: bool) -> tuple[Cursor, MissedRange | None]:
        """A cursor at `start`, and what it has already missed. Of a pattern, a number is a sequence."""
        return open_cursor(self.timeline, logs, start, is_pattern=is_pattern, reads=self.reads)


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
        self.logs: set[Log] = set()
        self.changes = 0  # how often topics came or went
        self.catalog, self.cursors, self.timeline = catalog, cursors, cursors.timeline
        self._readers = readers

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Find the logs there are; what was made for it goes again if the reader comes to nothing."""
        self.cover()
        try:
            yield
        except BaseException:
            self._let_go()
            raise

    def cover(self) -> None:
        """Find the logs there are."""
        if self.is_pattern:
            logs = self.catalog.logs
            self.logs = {logs[name] for name in self.patterns if name in logs}
            if wild := [one for one in self.patterns if is_pattern(one)]:
                self.logs |= {log for log in logs.values() if any(matches(one, log.name) for one in wild)}
        else:
            self.logs = {self.catalog.find(self.pattern)}

    def cursor(self, start: Start) -> tuple[Cursor, MissedRange | None]:
        """A cursor on the logs, at `start`."""
        return self.cursors.open(self.logs, start, is_pattern=self.is_pattern)

    def encoding_of(self, topic: str) -> str | None:
        """How the values of a typed topic are written; None for an untyped topic."""
        log = self.catalog.logs.get(topic)
        known = None if log is None else log.codec or log.schema
        return None if known is None else known.encoding

    def attach(self, reader: TopicReader) -> None:
        """Have `reader` told of what is published from now on."""
        if self.is_pattern:
            for one in self.patterns:
                self.catalog.patterns.add(one, reader)
        for log in self.logs:
            self.join(log, reader)
        self._readers.add(reader)

    def join(self, log: Log, reader: TopicReader) -> None:
        """Read `log` too."""
        self.logs.add(log)
        self.changes += 1
        if log.topic_readers is None:
            log.topic_readers = TopicReaders()
        log.topic_readers.attach(reader, pattern=self.is_pattern)
        self.timeline.cool()

    def is_attached(self, reader: TopicReader) -> bool:
        """Whether `reader` is told of what is published."""
        return reader in self._readers

    def part(self, log: Log) -> None:
        """`log` was deleted."""
        self.logs.discard(log)
        self.changes += 1

    def detach(self, reader: TopicReader) -> bool:
        """Have `reader` told of nothing more; whether it was attached at all."""
        if reader not in self._readers:
            return False
        self._readers.remove(reader)
        if self.is_pattern:
            for one in self.patterns:
                self.catalog.patterns.remove(one, reader)
        for log in self.logs:
            if log.topic_readers is not None:
                log.topic_readers.detach(reader)
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
            timeline.cool()  # the gates of a pattern wake its readers always
            return
        for log in self.logs:
            if log.topic_readers is not None:
                log.topic_readers.parked[reader] = None
            if timeline.hot is log:
                timeline.cool()
