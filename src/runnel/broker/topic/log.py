"""The log of one topic in memory: an append-only list of values, bounded, read by offset.

Publishing appends a value and compares the list's length with one number, `trip`. Everything else (append time, order
between topics, waking readers, bounds) happens only when the length reaches `trip`: at most once for every `CHUNK`
records and every turn of the event loop. Of a durable topic, the log is the tail of what is on disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from runnel.core.batch import Slice, SliceRun
from runnel.core.columns import Columns
from runnel.core.options import KEEP_BYTES, KEEP_COUNT, TopicOptions
from runnel.core.position import Position
from runnel.journal.format.removed_offsets import RemovalReason

if TYPE_CHECKING:
    from runnel.broker.topic.pending_batch import DurableTopic
    from runnel.broker.topic.readers import PatternReaders, TopicReaders
    from runnel.core.deduplication import MessageIdWindow
    from runnel.core.schema import Codec, SchemaValidator

CHUNK = 1024  # records between two looks at the bounds
FEW = 64  # records that are counted one by one
SMALL = 16 * 1024  # values below this may take the short way; larger ones are weighed one by one


class LogRun:
    """Records of one log appended in one go: their offsets, sequences and time are one stretch."""

    __slots__ = ("bytes_before", "end", "log", "offset", "packed", "sequence", "size", "time")

    def __init__(self, log: Log, offset: int, sequence: int, time: datetime, bytes_before: int) -> None:
        self.log, self.offset, self.sequence, self.time, self.bytes_before = log, offset, sequence, time, bytes_before
        self.end = -1  # until the run closes
        self.size = 0  # bytes, once it is closed
        self.packed: bytes | None = None  # all of it as a batch, if it arrived as one, to be sent unchanged

    def close(self) -> None:
        """Nothing more is appended to this run."""
        self.end = self.log.end
        self.size = self.log.count_bytes() - self.bytes_before

    def __repr__(self) -> str:
        return (
            f"<LogRun {self.log.name!r} [{self.offset}, {'open' if self.end < 0 else self.end}) from {self.sequence}>"
        )


class Log:
    """The records of one topic, and the state of its readers."""

    __slots__ = (
        "_bytes_below",
        "_counted",
        "_floor",
        "_look_at",
        "_look_at_bytes",
        "_patterns",
        "base",
        "bytes_out",
        "columns",
        "coming",
        "coming_bytes",
        "configured",
        "confirmed",
        "deleted",
        "epoch",
        "forgotten",
        "held",
        "ids",
        "looked_up",
        "name",
        "options",
        "readers",
        "room",
        "runs",
        "skipped",
        "stored",
        "total_bytes",
        "trimmed",
        "trip",
        "type",
        "values",
        "why",
    )

    def __init__(self, name: str, epoch: int, options: TopicOptions, patterns: PatternReaders | None = None) -> None:
        self.name, self.epoch, self.options = name, epoch, options
        self.configured: frozenset[str] = frozenset()  # options that an operator set: what publishers name is ignored
        self._patterns = patterns  # where to look up the readers whose patterns cover this topic
        self.looked_up = 0  # its version when that was last done
        self.values: list[bytes] = []  # never replaced: the short way of publishing holds on to it
        self.base = 0  # the offset of values[0]
        self.trip = 0  # the length at which a publish must take the long way
        self.room = 0  # the same for a value that was checked against the topic's type; without a type it is `trip`
        self.runs: list[LogRun] = []
        self.columns: Columns | None = None  # what the values carry besides, from the first on; None: nothing
        self.total_bytes = 0  # of the values ever appended, up to `_counted`
        self.bytes_out = 0  # of the values trimmed
        self._counted = 0
        self._floor = 0  # the oldest offset that may be read; values below it go a little later
        self.why = RemovalReason.UNKNOWN  # it moved there
        self.trimmed = 0  # a user trimmed below this offset: no source of history restores it
        self.confirmed = 0  # its source of history has all records below this offset
        self.skipped = 0  # offsets below `end` that no record ever had: a crash or a restore skipped them
        self.held: int | None = None  # of a durable topic: a subscription, or the archive, needs records from here on
        self._bytes_below = 0  # the bytes ever appended below it
        self._look_at = KEEP_COUNT + CHUNK  # records, or bytes, at which to ask the readers what they want kept
        self._look_at_bytes = KEEP_BYTES + KEEP_BYTES // 2
        self.type: Codec[Any] | SchemaValidator | None = None  # what values are checked against; None: they are bytes
        self.ids: MessageIdWindow | None = None
        self.readers: TopicReaders | None = None  # created for the first; `topic_readers` is up to date
        self.deleted = False
        self.forgotten = 0  # the sequence behind the last run that the timeline removed from memory
        self.stored: DurableTopic | None = None  # of a durable topic: memory holds only the tail of the records on disk
        self.coming = self.coming_bytes = 0  # records being written to disk, not visible yet

    def __repr__(self) -> str:
        return f"<Log {self.name!r} [{self.first}, {self.end})>"

    # -- its readers --------------------------------------------------------------------------------------------

    @property
    def topic_readers(self) -> TopicReaders | None:
        """Its readers, also those of patterns; None if it never had any."""
        if self._patterns is not None and self.looked_up != self._patterns.version and not self.deleted:
            self._patterns.cover(self)
        return self.readers

    def look_again(self) -> None:
        """The reader that needed most records left: check soon whether they are still needed."""
        self._look_at, self._look_at_bytes = KEEP_COUNT + CHUNK, KEEP_BYTES + KEEP_BYTES // 2

    # -- where it begins and ends -------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return self.base + len(self.values)

    @property
    def published(self) -> int:
        """How many records were ever published to it."""
        return self.base + len(self.values) - self.skipped

    @property
    def next(self) -> int:
        """The offset that the next publish gets: for a durable topic, behind the pending ones."""
        return self.base + len(self.values) if self.stored is None else self.stored.next

    @property
    def first(self) -> int:
        """The oldest offset that can be read."""
        kept = self.options.retention_count
        if kept is None:
            return self._floor
        first = self.end - kept
        if self.held is not None and first > self.held:
            first = self.held
        return first if first > self._floor else self._floor

    @property
    def reason(self) -> RemovalReason:
        """Why it begins where it does."""
        return RemovalReason.COUNT if self.first > self._floor else self.why

    @property
    def unconfirmed(self) -> int | None:
        """From which offset on its records must stay until they are archived; None: they need not."""
        return None if self.options.retention_until is None else max(self.confirmed, self._floor)

    @property
    def live_bytes(self) -> int:
        """The bytes of the values that can be read."""
        return self.count_bytes() - self._bytes_below

    def on_the_way(self) -> tuple[int, int]:
        """How many records, and bytes, were handed over and are not visible yet."""
        if self.stored is None or (pending_batch := self.stored.pending_batch) is None:
            return self.coming, self.coming_bytes
        return self.coming + len(pending_batch.values), self.coming_bytes + pending_batch.size

    def count_bytes(self) -> int:
        """All bytes ever appended; a call adds the bytes since the last one."""
        end = self.base + len(self.values)
        if self._counted < end:
            self.total_bytes += sum(map(len, self.values[self._counted - self.base :]))
            self._counted = end
        return self.total_bytes

    def bytes_before(self, offset: int) -> int:
        """The bytes ever appended before `offset`, which must not be trimmed."""
        if offset >= self.end:
            return self.count_bytes()
        run = self.runs[self._run_at(offset)]
        first = max(run.offset, self.base)
        before = max(run.bytes_before, self.bytes_out)
        return before + sum(map(len, self.values[first - self.base : offset - self.base]))

    def bytes_from(self, offset: int) -> int:
        """At most how many bytes lie from `offset` on; cheap, and too much by less than a run."""
        run = self.runs[self._run_at(offset)]
        return self.count_bytes() - max(run.bytes_before, self.bytes_out)

    def offset_leaving(self, limit: int, start: int) -> int:
        """The least offset from `start` on from which at most `limit` bytes (or one record) remain."""
        over = self.count_bytes() - limit
        at = bisect_left(self.runs, over, key=_run_bytes) - 1
        if at < 0:
            return start
        run = self.runs[at]
        offset, before = max(run.offset, self.base), max(run.bytes_before, self.bytes_out)
        last = self.end - 1
        while before < over and offset < last:
            before += len(self.values[offset - self.base])
            offset += 1
        return max(offset, start)

    # -- reading ------------------------------------------------------------------------------------------------

    def slice(self, start: int, end: int) -> Slice:
        """The records [start, end), all of which must be in memory."""
        runs = self.runs[-1:]
        if runs[0].offset > start:  # it is not at the end
            runs = self.runs[self._run_at(start) : self._run_at(end - 1) + 1]
        stretches = [SliceRun(run.offset, run.sequence, run.time) for run in runs]
        columns = None if self.columns is None else self.columns.part(start - self.base, end - self.base)
        packs: list[bytes | None] | None = None
        if runs[0].packed is not None or runs[-1].packed is not None:
            packs = [run.packed if start <= run.offset and run.end <= end else None for run in runs]
        values = tuple(self.values[start - self.base : end - self.base])
        return Slice(self.name, self.epoch, start, values, stretches, columns, packs)

    def whole_runs(self, start: int, stop: int) -> int:
        """Where to stop before `stop` so that no run is cut that could be sent as a whole; or `stop`."""
        run = self.runs[self._run_at(stop - 1)]
        return run.offset if run.end > stop and run.offset > start else stop

    def within(self, start: int, stop: int, limit: int) -> int:
        """Where to stop up to `stop` so that the records from `start` on have at most `limit` bytes, or are only one.

        What arrived as one batch and can be sent as a whole is not cut, and counts as one.
        """
        end = self.runs[-1]
        if end.offset <= start and end.end >= 0 and end.size <= limit:
            return stop
        at, last = self._run_at(start), self._run_at(stop - 1)
        end = self.runs[last]
        if (self.count_bytes() if end.end < 0 else end.bytes_before + end.size) - self.runs[at].bytes_before <= limit:
            return stop
        size, offset = 0, start
        for run in self.runs[at : last + 1]:
            if run.packed is not None and start <= run.offset and run.end <= stop:
                size += run.size
                if size > limit and run.offset > start:
                    return run.offset
                offset = run.end
                continue
            for value in self.values[offset - self.base : min(stop, run.end if run.end >= 0 else stop) - self.base]:
                size += len(value)
                if size > limit and offset > start:
                    return offset
                offset += 1
        return stop

    def offset_at(self, time: datetime) -> int:
        """The offset of the first record in memory that is not older than `time`."""
        at = bisect_left(self.runs, time, key=_run_time)
        return max(self.runs[at].offset, self.first) if at < len(self.runs) else self.end

    def sequence_of(self, offset: int) -> int:
        """The broker-wide sequence of a record in memory."""
        run = self.runs[self._run_at(offset)]
        return run.sequence + offset - run.offset

    def offset_behind(self, sequence: int) -> int:
        """The first offset in memory that does not lie before `sequence`; the end, if all do."""
        at = bisect_right(self.runs, sequence, key=_run_sequence) - 1
        if at < 0:
            return self.base
        run = self.runs[at]
        return max(self.base, min(run.end, run.offset + sequence - run.sequence))

    def position(self, offset: int) -> Position:
        """`offset` as a position in this life of the topic."""
        return Position(self.epoch, offset)

    def time_of(self, offset: int) -> datetime:
        """When a record in memory was published."""
        return self.runs[self._run_at(offset)].time

    def _run_at(self, offset: int) -> int:
        return bisect_right(self.runs, offset, key=_run_offset) - 1

    # -- writing (the timeline calls these) ---------------------------------------------------------------------

    def append(self, values: Sequence[bytes], columns: Columns | None, size: int) -> int:
        """Append values of `size` bytes in all to the open run; the first offset."""
        first = self.base + len(self.values)
        if self._counted < first:
            self.count_bytes()
        if columns is not None:
            if self.columns is None:
                self.columns = Columns()
            self.columns.extend(len(self.values), columns)
        self.values.extend(values)
        self.total_bytes += size
        self._counted = first + len(values)
        return first

    def trim(self, now: datetime) -> int:
        """Move the first offset as retention and the readers allow; how many runs were removed.

        Retention of the topic applies at once. Records kept without retention may be half as many again: checking the
        readers, and cutting a list, have a cost.
        """
        options, end = self.options, self.base + len(self.values)
        if self.stored is not None:
            self._trim_stored(now)
            return 0
        floor, live = self.first, self.count_bytes() - self._bytes_below
        if options.retention_count is None and end - floor > self._look_at:
            kept = max(KEEP_COUNT, self.readers.needed() if self.readers is not None else 0)
            floor = max(floor, end - kept)
            self._look_at = kept + max(CHUNK, kept // 2)
        if options.retention_bytes is not None:
            if live > options.retention_bytes:
                floor = self.offset_leaving(options.retention_bytes, floor)
        elif live > self._look_at_bytes:
            kept = max(KEEP_BYTES, self.readers.needed_bytes() if self.readers is not None else 0)
            floor = self.offset_leaving(kept, floor)
            self._look_at_bytes = kept + kept // 2
        if options.retention_age is not None:
            oldest = now - timedelta(seconds=options.retention_age)
            floor = max(floor, self.offset_at(oldest))
        if floor > self._floor:
            if (
                self.base <= self._floor and floor - self._floor < FEW
            ):  # it moves with every publish: do not add up a run
                self._bytes_below += sum(map(len, self.values[self._floor - self.base : floor - self.base]))
            else:
                self._bytes_below = self.bytes_before(floor)
            self._floor = floor
        dead = floor - self.base
        if dead * 4 >= end - self.base and (dead >= CHUNK or self._bytes_below - self.bytes_out >= 64 * SMALL):
            return self.cut(floor)
        return 0

    def _trim_stored(self, now: datetime) -> None:
        """Move the first offset of a durable topic, as far as memory shows. The store does the rest."""
        options, floor, why = self.options, self.first, RemovalReason.COUNT
        if options.retention_bytes is not None and self.count_bytes() - self._bytes_below > options.retention_bytes:
            leaving = self.offset_leaving(options.retention_bytes, floor)
            if leaving > floor:
                floor, why = leaving, RemovalReason.BYTES
        if options.retention_age is not None and self.runs:
            oldest = now - timedelta(seconds=options.retention_age)
            if self.runs[0].time < oldest and (young := self.offset_at(oldest)) > floor:
                floor, why = young, RemovalReason.AGE
        self.begin_at(floor, why)

    def begin_at(self, first: int, why: RemovalReason = RemovalReason.UNKNOWN, *, force: bool = False) -> None:
        """Nothing before `first` can be read any more. Held records stay, unless by `force`."""
        if self.held is not None and first > self.held and not force:
            first = self.held
        if why is RemovalReason.ASKED and first > self.trimmed:
            self.trimmed = first
        if first > self._floor:
            self._floor, self.why = first, why
            if first >= self.base:
                self._bytes_below = self.bytes_before(first)

    def revive(self, first: int, end: int, size: int, trimmed: int = 0, confirmed: int = 0, skipped: int = 0) -> None:
        """Be the tail, still empty, of a topic that has the records [first, end) of `size` bytes on disk."""
        self.confirmed, self.skipped = confirmed, skipped
        self._floor, self.base, self._counted, self.trimmed = first, end, end, trimmed
        self.total_bytes = self.bytes_out = size

    def pass_by(self, count: int, size: int) -> int:
        """The next `count` records, of `size` bytes, are on disk only: be empty behind them; how many runs went.

        What is in memory is one stretch up to the end, so all that lies before them leaves it as well.
        """
        dead = self.cut(self.end)
        self.base += count
        self._counted = self.base
        self.total_bytes += size
        self.bytes_out = self.total_bytes
        return dead

    def clear(self) -> None:
        """Drop everything: the topic was deleted."""
        self.deleted, self.trip, self.room = True, 0, 0
        self._floor, self._bytes_below = self.end, self.count_bytes()
        self.trimmed = self.end
        self.cut(self.end)

    def cut(self, first: int) -> int:
        """Drop the values before `first`; how many runs were removed."""
        gone = first - self.base
        if gone <= 0:
            return 0
        self.bytes_out = self.bytes_before(first)
        del self.values[:gone]
        self.base = first
        dead = 0
        if self.runs and 0 <= self.runs[-1].end <= first:
            dead = len(self.runs)
        while dead < len(self.runs) and 0 <= self.runs[dead].end <= first:
            self.runs[dead].packed = None  # readers of patterns may hold the run, to count what they missed
            dead += 1
        del self.runs[:dead]
        if self.columns is not None:
            self.columns.remove(0, gone)
            self.columns = self.columns or None
        return dead


_run_offset = attrgetter("offset")
_run_sequence = attrgetter("sequence")
_run_bytes = attrgetter("bytes_before")
_run_time = attrgetter("time")
