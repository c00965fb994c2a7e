"""A cursor: a position that reads. Here on one log, by offset; `pattern_cursor` reads several, by sequence.

A cursor holds no records. It never waits, and knows no overflow policy. Records of a durable topic that have left
memory are read from disk, and those that have left the disk from a source of history, if there is one: `take` then
returns None, and the cursor calls `wake` when they are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from runnel.broker.read.catch_up import END, CatchUp
from runnel.broker.topic.log import CHUNK, SMALL, Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.backend import SLICE, Taken
from runnel.core.record import MissedRange, joined_missed
from runnel.journal.format.ledger import TopicState
from runnel.journal.format.removed_offsets import RemovalReason, count_skipped
from runnel.journal.read.segment_reader import LostRange

if TYPE_CHECKING:
    from runnel.broker.durable.journal_reads import JournalReads
    from runnel.broker.read.history_reads import HistoryReader, TopicHistory

RETENTION = "no longer kept (retention)"
TRIMMED = "no longer kept (trimmed)"
DELETED = "the topic was deleted"


class Cursor(Protocol):
    """A place in the order of records, and the records from there on."""

    position: int
    wake: Callable[[], None]
    max_bytes: int | None  # of what one `take` gets from memory; a single record may have more

    @property
    def is_behind(self) -> bool:
        """Whether the next records are on disk only: None from `take` means not yet, then."""

    @property
    def is_clear(self) -> bool:
        """Whether its place is all there is to it: it may go where another goes that stands there."""

    def go_to(self, place: int) -> None:
        """Stand somewhere further on."""

    def pending(self) -> int:
        """How many records lie ahead."""

    def known(self) -> int:
        """The number of records ahead, without holes that indexes know. For statistics, not for hot paths."""

    def volatile(self) -> int:
        """How many records lie ahead that are in memory only."""

    def pending_bytes(self) -> int:
        """How many bytes of values lie ahead."""

    def most_bytes(self) -> int:
        """At most how many bytes of values lie ahead; cheap."""

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records from here, and move behind them; None at the end, or if they are still to be read."""

    def skip(self, count: int, reason: str) -> MissedRange | None:
        """Move over `count` records without reading them."""

    def pass_gone(self) -> MissedRange | None:
        """Move over missing records right ahead."""

    def stop(self) -> None:
        """Ask no source of history any more: its reader has left."""

    @property
    def failure(self) -> Exception | None:
        """Why the source of history that it waits for failed; None: it did not, or it waits for none."""

    def next_bytes(self) -> int:
        """The size of the next record; 0 at the end."""

    def excess_bytes(self, limit: int) -> int:
        """How many records have to go so that at most `limit` bytes (or one record) lie ahead."""


class LogCursor:
    """A position on one log, by offset."""

    __slots__ = (
        "_behind",
        "_bytes_before",
        "_from_disk",
        "_history",
        "_is_history",
        "_old",
        "_reads",
        "_weighed",
        "log",
        "max_bytes",
        "position",
        "timeline",
        "until",
        "wake",
    )

    def __init__(
        self,
        timeline: Timeline,
        log: Log,
        position: int,
        reads: JournalReads | None = None,
        history: TopicHistory | None = None,
    ) -> None:
        self.timeline, self.log, self.position = timeline, log, position
        self._history = history  # where old records of the topic are
        self._old: HistoryReader | None = None  # while it reads them
        self.wake: Callable[[], None] = wake_nobody
        self.max_bytes: int | None = None
        self.until: int | None = None  # its reader takes the range up to there, as fast as it comes
        self._reads = reads
        self._from_disk = False
        self._behind: CatchUp | None = None  # while it is
        self._is_history = True  # it has not reached the records in memory yet
        self._weighed, self._bytes_before = -1, 0  # a place, and the bytes before it: of a reader that counts them

    def read_from_disk(self) -> None:
        """Read what the journal holds, also where memory still has records that compaction took from there."""
        self._from_disk = self._reads is not None and self.log.stored is not None

    @property
    def _edge(self) -> int:
        """The first offset that is not read from disk."""
        return self.log.end if self._from_disk else self.log.base

    @property
    def is_behind(self) -> bool:
        """Whether the next records are read from disk."""
        return self._reads is not None and self.position < self._edge

    @property
    def is_clear(self) -> bool:
        """Whether its place is all there is to it."""
        return self._reads is None or self.position >= self._edge

    def go_to(self, place: int) -> None:
        """Stand somewhere further on."""
        self.position, self._behind = place, None

    def pending(self) -> int:
        """How many records lie ahead."""
        return self.log.end - self.position

    def known(self) -> int:
        """The number of records ahead, less the holes that indexes know."""
        log, reads = self.log, self._reads
        if reads is None or log.stored is None or self.position >= log.base:
            return self.pending()
        known = reads.journal.ledger.topics.get(log.stored.id)
        if known is None:
            return self.pending()
        count = self.pending() - count_skipped(known.gone, self.position, log.base)
        if known.compacted > self.position:
            count -= self._compacted(known)
        return max(0, count)

    def volatile(self) -> int:
        """How many records lie ahead that are in memory only."""
        return self.pending() if self.log.stored is None else 0

    def _compacted(self, known: TopicState) -> int:
        """About how many records that lie ahead the cleaner took for their keys."""
        assert self._reads is not None, "only what is stored is compacted"
        try:
            ranges = self._reads.journal.history.ranges(known.id)
        except OSError:
            return 0
        holes = 0
        for source, found in ranges:
            span = found.end - max(found.first, self.position)
            if source.is_cleaned and span > 0:
                whole = found.end - found.first
                gone = whole - found.records - count_skipped(known.gone, found.first, found.end)
                holes += max(0, gone) * span // whole
        return holes

    def pending_bytes(self) -> int:
        """How many bytes of values lie ahead."""
        if self._weighed != self.position:
            self._weighed = self.position
            self._bytes_before = self.log.bytes_before(max(self.position, self.log.base))
        return self.log.count_bytes() - self._bytes_before

    def most_bytes(self) -> int:
        """At most how many bytes of values lie ahead."""
        log = self.log
        first, live = max(self.position, log.base), log.live_bytes
        if first >= log.end:
            return 0
        return live if live <= CHUNK * SMALL else min(live, log.bytes_from(first))

    def take(self, limit: int) -> Taken | None:
        """Up to `limit` records from here, and move behind them; None at the end."""
        log, start, end = self.log, self.position, self.log.end
        if start >= end:
            return None
        missed = None
        if (first := self.timeline.first(log)) > start:
            missed = self.pass_gone()
            start = self.position
            if start == end:
                return Taken([], missed)
            if start < first and start < log.base:  # else it is still in memory
                return self._take_old(limit, min(first, log.base), missed)
        if start < log.base or self._from_disk:
            return self._take_behind(limit, missed)
        self._behind, self._is_history = None, False
        stop = min(end, start + limit)
        if end - start > SLICE:  # far behind: align with other readers on a multiple
            stop = min(stop, (start // SLICE + 1) * SLICE)
            if self.timeline.keeps_packed:
                stop = log.whole_runs(start, stop)
        if self.max_bytes is not None:
            stop = log.within(start, stop, self.max_bytes)
        self.position = stop
        found = self.timeline.slice(log, start, stop)
        if self._weighed == start:
            self._weighed = stop
            self._bytes_before += found.size  # summed once for all readers that take the same
        return Taken([found], missed)

    def _take_behind(self, limit: int, missed: MissedRange | None) -> Taken | None:
        """Records that are read from disk."""
        log, reads, edge = self.log, self._reads, self._edge
        assert reads is not None, "only a durable topic has records before its base"
        assert log.stored is not None, "only a durable topic has records before its base"
        if self._behind is None:
            topics = {log.stored.id: log}
            self._behind = CatchUp(
                reads,
                lambda: topics,
                self._woken,
                sequence=False,
                is_history=self._is_history,
                until=self.until,
            )
        found = self._behind.take(self.position, min(limit, edge - self.position))
        if found is None:
            return None if missed is None else Taken([], missed)
        if found is END or (isinstance(found, LostRange) and found.first >= edge):
            if found is END and reads.journal.history.suspect:
                told = self.skip(edge - self.position, "perhaps damaged on disk, and so is an index")
                return Taken([], joined_missed(missed, told))
            self.position = edge  # a hole: nothing was ever visible there
            return self.take(limit) if missed is None else Taken([], missed)
        if isinstance(found, LostRange):
            end = min(found.end, edge)
            lost = MissedRange(found.first, end, end - found.first, found.reason)
            self.position = end
            return Taken([], joined_missed(missed, lost))
        self.position = found.end
        return Taken([found], missed)

    def _take_old(self, limit: int, until: int, missed: MissedRange | None) -> Taken | None:
        """Records before the offset `until`, which are in a source of history only."""
        history = self._history
        assert history is not None, "else they are passed as gone"
        if self._old is None:
            self._behind, self._old = None, history.reader(self._woken)
        found = self._old.find(self.position, until)
        if found is None:
            return None if missed is None else Taken([], missed)
        end = until if found is END else found.start
        if lost := history.unexplained(self.position, end):
            missed = joined_missed(missed, MissedRange(self.position, end, lost, RETENTION))
        if found is END:
            self.position = until
            self.stop()
            return self.take(limit) if missed is None else Taken([], missed)
        if len(found) > min(limit, SLICE):
            found = found.cut(found.start, found.start + min(limit, SLICE))
        self.position = found.end
        history.served(len(found))
        return Taken([found], missed)

    def stop(self) -> None:
        """Ask no source of history any more."""
        if self._old is not None:
            self._old.stop()
            self._old = None

    @property
    def failure(self) -> Exception | None:
        """Why the source of history that it waits for failed."""
        return None if self._old is None else self._old.failure

    def _woken(self) -> None:
        self.wake()

    def skip(self, count: int, reason: str) -> MissedRange | None:
        """Move over `count` records without reading them."""
        if count <= 0:
            return None
        start = self.position
        self.position = start + count
        return MissedRange(start, start + count, count, reason)

    def pass_gone(self) -> MissedRange | None:
        """Move over missing records right ahead."""
        log = self.log
        if self._history is not None and log.stored is not None:  # what retention took is not gone
            return self.skip(log.trimmed - self.position, DELETED if log.deleted else TRIMMED)
        return self.skip(self.timeline.first(log) - self.position, why_gone(log))

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


def wake_nobody() -> None:
    """The reader to wake, before there is one."""


def why_gone(log: Log) -> str:
    """The reason why records before the first offset of a log are missing, for the gap of a reader that missed them."""
    if log.deleted:
        return DELETED
    return TRIMMED if log.reason is RemovalReason.ASKED else RETENTION


def is_gone(missed: MissedRange) -> bool:
    """Whether all of it is lost for good. Unreadable records may return with the disk."""
    return all(reason in (RETENTION, TRIMMED, DELETED) for reason in missed.reason.split("; "))
