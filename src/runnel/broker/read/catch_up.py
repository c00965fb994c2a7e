"""Reading from disk for a cursor that is behind memory: one chunk in hand, one on its way.

Bytes are read in a thread and decoded on the loop in short pieces: a batch is decoded when the first of its records is
read, so a block of many topics is never decoded at once. Batches that cannot be decoded, and ranges that cannot be
read, are reported as lost and never delivered. A slice has no holes: its offsets rise by one, and so do its sequences
where the reader reads by sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Literal, NamedTuple

from runnel.broker.durable.journal_reads import ChunkKey, JournalReads
from runnel.broker.topic.log import Log
from runnel.core.batch import PackedSlice, Slice, SliceRun
from runnel.core.batch_format import VALUES, UnpackedBatch, read_batch_header, unpack
from runnel.core.columns import Columns
from runnel.core.errors import BadBatch
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.read.cleaned_segment import CleanedChunk
from runnel.journal.read.journal_reader import CHUNK, ReadPlan, StagePlacement, stage_topic_of
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    FoundItem,
    LostRange,
    ParsedChunk,
    StageCommit,
)
from runnel.journal.read.staged_blocks import read_committed_blocks

SLICE = 4096

RANGE_CHUNK = 1 << 20
"""Bytes that are read at a time for a reader of a range where batches are large: to hand a chunk from thread to loop
costs 80 µs of CPU, however large it is."""

FEW_BATCHES = 16
"""Of a chunk of the usual size, at most. Where there are more of them, a larger chunk would hold up the loop."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _SliceBuilder:
    """The slice that is being put together."""

    __slots__ = (
        "_columns",
        "_count",
        "_end",
        "_is_packed",
        "_packs",
        "_sequence",
        "_start",
        "_stretches",
        "_topic",
        "_values",
        "by_sequence",
    )

    def __init__(self, *, by_sequence: bool) -> None:
        self.by_sequence = by_sequence
        self._topic = self._start = self._end = self._sequence = self._count = 0
        self._is_packed = False  # whether its batches stay packed until their values are read
        self._values: list[bytes] = []
        self._stretches: list[SliceRun] = []
        self._packs: list[bytes | None] = []
        self._columns = Columns()

    def goes_on(self, topic: int, offset: int, sequence: int, packed: int = 0) -> bool:
        """Whether records from there on belong to it; `packed`: so many, of a batch that is to stay packed."""
        if not self._count:
            self._topic, self._start, self._end, self._sequence = topic, offset, offset, sequence
            self._is_packed = packed > 0
            return True
        return (
            topic == self._topic
            and offset == self._end
            # A packed one is never cut: that would have it unpacked, and packed again, for every reader.
            and (self._count + packed <= SLICE if packed else self._count < SLICE)
            and self._is_packed == (packed > 0)
            and (sequence == self._sequence or not self.by_sequence)
        )

    def add(
        self,
        offset: int,
        sequence: int,
        time: int,
        values: Sequence[bytes],
        columns: Columns | None,
        packed: bytes | None = None,
    ) -> None:
        """Append adjacent records; `packed` is the batch that holds all of them."""
        if columns is not None:
            self._columns.extend(len(self._values), columns)
        self._values.extend(values)
        self._grow(offset, sequence, time, len(values), packed)

    def add_packed(self, offset: int, sequence: int, time: int, count: int, packed: bytes) -> None:
        """Append an adjacent whole batch, which stays packed."""
        self._grow(offset, sequence, time, count, packed)

    def _grow(self, offset: int, sequence: int, time: int, count: int, packed: bytes | None) -> None:
        self._packs.append(packed)
        self._stretches.append(SliceRun(offset, sequence, _EPOCH + timedelta(microseconds=time)))
        self._end, self._sequence = offset + count, sequence + count
        self._count += count

    def close(self, topics: Mapping[int, Log]) -> Iterator[Slice]:
        """The collected records, if there are any; the collector is empty then."""
        if self._count:
            log = topics[self._topic]
            if self._is_packed:
                yield PackedSlice(log.name, log.epoch, self._start, self._count, self._stretches, self._packs)
            else:
                packs = self._packs if any(self._packs) else None
                values, columns = tuple(self._values), self._columns or None
                yield Slice(log.name, log.epoch, self._start, values, self._stretches, columns, packs)
            self._values, self._stretches, self._packs, self._columns = [], [], [], Columns()
            self._count = 0


def slices(
    items: Iterable[FoundItem],
    topics: Mapping[int, Log],
    *,
    by_sequence: bool,
    packed: bool = False,
) -> Iterator[Slice | StageCommit | BlocksCommit | LostRange]:
    """The found records as slices, in the same order. Staged records are left to the caller.

    With `packed`, slices also hold the batches that they are made of, to be sent unchanged. Those that are values only
    stay packed until they are read.
    """
    growing = _SliceBuilder(by_sequence=by_sequence)
    decoded: dict[int, tuple[bytes, UnpackedBatch]] = {}  # by topic, the merged batch that it is in the middle of
    for item in items:
        if not isinstance(item, FoundBatch):
            yield from growing.close(topics)
            yield item
            continue
        known = decoded.pop(item.topic, None) if decoded else None
        try:  # the crc was checked when it was found
            if packed and (count := _values_alone(item)):
                if not growing.goes_on(item.topic, item.base, item.sequence, count):
                    yield from growing.close(topics)
                    growing.goes_on(item.topic, item.base, item.sequence, count)
                growing.add_packed(item.base, item.sequence, item.time, count, item.body)
                continue
            batch = known[1] if known is not None and known[0] is item.body else unpack(item.body, verify=False)
        except BadBatch as error:
            yield from growing.close(topics)
            yield from _undecoded(item, f"cannot be decoded: {error.why}", by_sequence=by_sequence)
            continue
        runs = item.runs
        if runs is None and batch.deltas is not None:
            runs = _runs_of_deltas(item, batch.deltas)
        if runs is None:
            if not growing.goes_on(item.topic, item.base, item.sequence):
                yield from growing.close(topics)
                growing.goes_on(item.topic, item.base, item.sequence)
            body = item.body if packed else None
            growing.add(item.base, item.sequence, item.time, batch.values, batch.columns, body)
            continue
        first = item.at
        for run in runs:
            yield from _of_run(growing, item.topic, run, batch, first, topics)
            first += run.count
        if first < len(batch):
            decoded[item.topic] = (item.body, batch)
    yield from growing.close(topics)


def _values_alone(item: FoundBatch) -> int:
    """How many records a batch has that holds nothing but their values, side by side; 0: it has to be looked into."""
    if item.runs is not None:
        return 0
    header = read_batch_header(item.body)
    is_plain = header.columns == VALUES and header.count == item.last - item.base + 1
    return header.count if is_plain else 0


def _of_run(
    growing: _SliceBuilder, topic: int, run: RecordRun, batch: UnpackedBatch, first: int, topics: Mapping[int, Log]
) -> Iterator[Slice]:
    """Put the records of a run, the first of which is number `first` in its batch, behind what there is."""
    offset, sequence, end = run.offset, run.sequence, first + run.count
    columns = batch.columns
    while first < end:
        if not growing.goes_on(topic, offset, sequence):
            yield from growing.close(topics)
            growing.goes_on(topic, offset, sequence)
        count = min(end - first, SLICE)
        carried = None if columns is None else columns.part(first, first + count)
        growing.add(offset, sequence, run.time, batch.values[first : first + count], carried)
        first, offset, sequence = first + count, offset + count, sequence + count


def _runs_of_deltas(item: FoundBatch, deltas: Sequence[int]) -> list[RecordRun]:
    """The runs of a batch that a publisher left holes in."""
    runs: list[RecordRun] = []
    for delta in deltas:
        if runs and runs[-1].offset + runs[-1].count == item.base + delta:
            runs[-1] = runs[-1]._replace(count=runs[-1].count + 1)
        else:
            runs.append(RecordRun(item.base + delta, item.sequence + delta, item.time, 1))
    return runs


def _undecoded(item: FoundBatch, why: str, *, by_sequence: bool) -> Iterator[LostRange]:
    if item.runs is None:
        first = item.sequence if by_sequence else item.base
        yield LostRange(first, first + item.last - item.base + 1, why)
        return
    for run in item.runs:
        first = run.sequence if by_sequence else run.offset
        yield LostRange(first, first + run.count, why)


# -- Chunks ----------------------------------------------------------------------------------------------
# Bytes are read in a thread; the reader is woken when they are here.


class EndOfJournal(Enum):
    """There is nothing more on disk."""

    END = 0


END: Final = EndOfJournal.END


class ChunkReader:
    """One way through the journal, from a place on: an offset of one topic, or a sequence of several."""

    __slots__ = (
        "_chunk",
        "_data",
        "_is_history",
        "_last",
        "_next",
        "_on_demand",
        "_plan",
        "_position",
        "_reads",
        "_sequence",
        "_topics",
        "_until",
        "_wake",
    )

    def __init__(
        self,
        reads: JournalReads,
        topics: Callable[[], Collection[int]],
        wake: Callable[[], None],
        *,
        sequence: bool,
        on_demand: bool = False,
        start: int = 0,
        is_history: bool = False,
        until: int | None = None,
    ) -> None:
        self._reads, self._topics, self._wake, self._sequence = reads, topics, wake, sequence
        self._is_history = is_history  # leave live traffic its room
        self._until, self._chunk = until, CHUNK  # bytes of the next chunk
        self._on_demand = on_demand  # read no chunk before its records are requested
        self._next = start  # the first place of the next chunk
        self._last: ReadPlan | None = None  # the chunk that was parsed last, up to `_position`
        self._position = 0
        self._plan: ReadPlan | None = None  # the chunk that is on its way, or here
        self._data: bytes | CleanedChunk | ParsedChunk | OSError | None = None

    @property
    def reach(self) -> int:
        """Up to which place it has read."""
        return self._next

    def take(self, place: int) -> Iterable[FoundItem] | Literal[EndOfJournal.END] | None:
        """The contents of the next chunk, from `place` on. None: not yet, the reader will be woken."""
        if self._plan is None:
            self._next = max(self._next, place)
            if not self._ask():
                return END
        return None if self._data is None else self._parse()

    def _ask(self) -> bool:
        """Have the next chunk read; False: there is none."""
        history = self._reads.journal.history
        if self._sequence:
            plan = history.plan_sequence(self._next, self._last, self._position)
        else:
            (topic,) = self._topics()
            plan = history.plan(topic, self._next, self._last, self._position, self._chunk)
        if plan is None:
            return False
        key = self._key(plan)
        reads = self._reads
        self._plan, self._data = plan, None if key is None else reads.chunk_cache.find(key)
        if self._data is None:
            (reads.read_history if self._is_history else reads.read)(plan, self._came)
        elif self._is_history:
            reads.count_history(plan)
        return True

    def _key(self, plan: ReadPlan) -> ChunkKey | None:
        """By what others know the same chunk; None: no other reader reads it like that."""
        if self._sequence or self._on_demand or plan.suspect or plan.source.is_cleaned:
            return None
        (topic,) = self._topics()
        return plan.source.info.id, plan.position, topic, plan.place

    def _came(self, plan: ReadPlan, data: bytes | CleanedChunk | OSError) -> None:
        """A chunk was read, or will not be: then the broker closed, and nothing is lost but the chance to read on."""
        if plan is self._plan:
            if not isinstance(data, OSError) or not self._reads.is_closed:
                self._data = data
            self._wake()

    def _parse(self) -> Iterable[FoundItem]:
        """Find the batches in the chunk that came, and ask for the next one while they are worked on."""
        plan, data = self._plan, self._data
        assert plan is not None
        self._plan = self._data = None
        topics = self._topics()
        self._last = plan
        if isinstance(data, OSError) or data is None:
            return self._give_up(plan, topics, data)
        try:
            parsed = data if isinstance(data, ParsedChunk) else self._parsed(plan, data, topics)
        except OSError as error:  # it searched for records behind damage
            return self._give_up(plan, topics, error)
        self._next, self._position = max(self._next, parsed.place), parsed.position
        if self._until is not None and isinstance(parsed.items, list):
            self._chunk = RANGE_CHUNK if len(parsed.items) * CHUNK <= FEW_BATCHES * plan.size else CHUNK
        if parsed.position <= plan.position and plan.size:  # without a size, the index was ahead of the readable end
            return [*parsed.items, *self._give_up(plan, topics, OSError("the file is shorter than it was"))]
        is_block = self._sequence and isinstance(data, CleanedChunk)  # large: a slow reader holds one at a time
        if not self._on_demand and not is_block and (self._until is None or self._next < self._until):
            self._ask()
        return parsed.items

    def _parsed(self, plan: ReadPlan, data: bytes | CleanedChunk, topics: Collection[int]) -> ParsedChunk:
        parsed = self._reads.journal.history.parse(plan, data, topics, by_sequence=self._sequence, until=self._until)
        if (key := self._key(plan)) is not None:
            self._reads.chunk_cache.keep(key, parsed)
        return parsed

    def _give_up(self, plan: ReadPlan, topics: Collection[int], error: OSError | None) -> list[LostRange]:
        """The rest of this segment cannot be read: report it, and continue behind it."""
        source = plan.source
        if self._sequence:
            end = source.end_sequence
        else:
            ranges = [found for topic in topics if (found := source.index.range_of(topic)) is not None]
            end = max((found.end for found in ranges), default=0)
        first = max(self._next, plan.place)
        self._next, self._position = max(self._next, end), source.written
        return [LostRange(first, end, f"{source.info.name} cannot be read: {error}")] if end > first else []


# -- Staged records --------------------------------------------------------------------------------------
# Follows a commit of staged records to where they lie. The cleaner may move them into their topic meanwhile:
# then the rest is read there.


class StagedReader:
    """The way through one committed stage, from a place of its reader on."""

    __slots__ = (
        "_chunks",
        "_is_history",
        "_items",
        "_log",
        "_moved",
        "_on_demand",
        "_placing",
        "_reads",
        "_sequence",
        "_staged",
        "_wake",
    )

    def __init__(
        self,
        reads: JournalReads,
        staged: StageCommit,
        log: Log,
        place: int,
        wake: Callable[[], None],
        *,
        sequence: bool,
        on_demand: bool,
        is_history: bool = False,
    ) -> None:
        self._reads, self._wake, self._on_demand, self._is_history = reads, wake, on_demand, is_history
        self._staged, self._log, self._sequence = staged, log, sequence
        self._placing = StagePlacement(staged, place, by_sequence=sequence)
        self._items: Iterator[Slice | StageCommit | BlocksCommit | LostRange] = iter(())
        self._chunks = self._chunks_of(stage_topic_of(staged))
        self._moved: int | None = None  # the offset from which on it is read in its topic

    def _chunks_of(self, topic: int) -> ChunkReader:
        return ChunkReader(
            self._reads,
            lambda: (topic,),
            self._wake,
            sequence=False,
            on_demand=self._on_demand,
            is_history=self._is_history,
        )

    @property
    def _is_gone(self) -> bool:
        """Whether retention took all of it meanwhile: then the topic reports it to the reader."""
        return self._log.first > self._staged.last

    @property
    def _is_placed(self) -> bool:
        """Whether the cleaner put it into its topic meanwhile."""
        return self._staged.stage not in self._reads.journal.ledger.committed

    def take(self) -> Slice | LostRange | Literal[EndOfJournal.END] | None:
        """Its next records. None: not yet, the reader will be woken."""
        while True:
            for item in self._items:
                if isinstance(item, Slice):
                    return item
                if isinstance(item, LostRange) and not self._is_gone:
                    if self._moved is not None or not self._is_placed:
                        return item
                    self._move_on(item.first)
                    break
            if self._is_gone and self._moved is not None:
                return END
            came = self._next()
            if came is None or came is END:
                return came
            self._items = slices(came, {self._staged.topic: self._log}, by_sequence=self._sequence)

    def _next(self) -> Iterable[FoundBatch | LostRange] | Literal[EndOfJournal.END] | None:
        if self._moved is not None:
            if max(self._moved, self._chunks.reach) > self._staged.last:
                return END
            found = self._chunks.take(self._moved)
            return found if found is None or found is END else self._of_stage(found)
        if self._placing.done:
            return END
        came = self._chunks.take(self._placing.ordinal)
        if came is None:
            return None
        return self._placing.rest() if came is END else self._placing.placed(came)

    # -- where the cleaner put it -------------------------------------------------------------------------------

    def _move_on(self, place: int) -> None:
        """Read the rest of it, from `place` on, in its topic."""
        staged = self._staged
        self._moved = place - staged.sequence + staged.base if self._sequence else place
        self._items = iter(())
        self._chunks = self._chunks_of(staged.topic)

    def _of_stage(self, items: Iterable[FoundItem]) -> Iterator[FoundBatch | LostRange]:
        """The staged ones of the records found in the topic."""
        staged, end = self._staged, self._staged.last + 1
        for item in items:
            if isinstance(item, LostRange):
                if item.first < end:
                    ahead = staged.sequence - staged.base if self._sequence else 0
                    yield LostRange(item.first + ahead, min(item.end, end) + ahead, item.reason)
            elif isinstance(item, FoundBatch) and item.base < end:
                yield item if item.last < end else _cut_before(item, end)


def _cut_before(item: FoundBatch, end: int) -> FoundBatch:
    """The records of a merged batch below an offset."""
    runs = [run._replace(count=min(run.count, end - run.offset)) for run in item.runs or () if run.offset < end]
    return item._replace(runs=runs, last=end - 1) if runs else item


# -- Staged records of many topics -----------------------------------------------------------------------


class Moved(NamedTuple):
    """The cleaner moved the records from `place` on."""

    place: int


class BlocksReader:
    """The way through one committed stage of many topics, from a place of its reader on: block by block."""

    __slots__ = (
        "_asked",
        "_came",
        "_commit",
        "_end",
        "_items",
        "_logs",
        "_place",
        "_reads",
        "_sequence",
        "_steps",
        "_wake",
    )

    def __init__(
        self,
        reads: JournalReads,
        commit: BlocksCommit,
        logs: Mapping[int, Log],
        place: int,
        wake: Callable[[], None],
        *,
        sequence: bool,
    ) -> None:
        self._reads, self._commit, self._logs, self._wake, self._sequence = reads, commit, logs, wake, sequence
        self._place = place  # up to which it has read
        self._end = commit.end_sequence if sequence else commit.last + 1
        self._steps = read_committed_blocks(reads.journal.history, commit, place, by_sequence=sequence)
        self._items: Iterator[Slice | StageCommit | BlocksCommit | LostRange] = iter(())
        self._asked = False  # whether a thread reads the next block
        self._came: list[FoundBatch | LostRange] | OSError | None = None

    @property
    def _is_gone(self) -> bool:
        """Whether retention took all of it meanwhile: then the topics report it to the reader."""
        return all(self._logs[topic].first > last for topic, (_, last) in self._commit.shares.items())

    def take(self) -> Slice | LostRange | Moved | Literal[EndOfJournal.END] | None:
        """Its next records. None: not yet, the reader will be woken."""
        while True:
            for item in self._items:
                if isinstance(item, LostRange):
                    if self._is_gone:
                        return END
                    if not self._reads.journal.ledger.is_read(self._commit.stage):
                        return Moved(item.first)
                    self._place = max(self._place, item.end)
                    return item
                assert isinstance(item, Slice), "a block holds records"
                return item
            came, self._came = self._came, None
            if came is None:
                if not self._asked:
                    self._asked = True
                    self._reads.look(self._read, self._got)
                return None
            if isinstance(came, OSError):
                came = [LostRange(self._place, self._end, f"a staged block cannot be read: {came}")]
                self._steps = iter(())
            elif not came:
                return END
            self._items = slices(came, self._logs, by_sequence=self._sequence)

    def _read(self) -> list[FoundBatch | LostRange]:
        """Its records in the next block, read in a thread; empty: that was the last one."""
        found: list[FoundBatch | LostRange] = []
        for item in self._steps:
            if not isinstance(item, int):
                found.append(item)
            elif found:
                break
        return found

    def _got(self, found: list[FoundBatch | LostRange] | OSError) -> None:
        self._asked = False
        if not isinstance(found, OSError) or not self._reads.is_closed:
            self._came = found
        self._wake()


# -- Catching up -----------------------------------------------------------------------------------------


class CatchUp:
    """One way through the journal, from a place on: an offset of one topic, or a sequence of several.

    It only goes forward; a cursor that is moved begins another. `is_history`: its reader was never near the end. One
    that was, and fell behind, is not held back for live traffic, or it would never catch up with it. `until`: its
    reader takes the range up to there, as fast as it comes.
    """

    __slots__ = (
        "_chunks",
        "_held",
        "_is_history",
        "_items",
        "_logs",
        "_on_demand",
        "_reads",
        "_sequence",
        "_stage",
        "_topics",
        "_until",
        "_wake",
    )

    def __init__(
        self,
        reads: JournalReads,
        topics: Callable[[], Mapping[int, Log]],
        wake: Callable[[], None],
        *,
        sequence: bool,
        on_demand: bool = False,
        is_history: bool = False,
        until: int | None = None,
    ) -> None:
        self._reads, self._topics, self._wake, self._sequence = reads, topics, wake, sequence
        self._on_demand = on_demand  # read no chunk before its records are requested
        self._is_history, self._until = is_history, until
        self._chunks = self._chunks_from(0)
        self._held: deque[Slice | LostRange] = deque()  # records that were cut off, or put back
        self._logs: Mapping[int, Log] = {}
        self._items: Iterator[Slice | StageCommit | BlocksCommit | LostRange] = iter(())  # of the chunk in hand
        # while records are read from where they were staged
        self._stage: StagedReader | BlocksReader | None = None

    def take(self, place: int, limit: int) -> Slice | LostRange | Literal[EndOfJournal.END] | None:
        """The next records at `place` or behind it, up to `limit` of them. None: not yet, the owner will be woken."""
        while True:
            if not self._held:
                came = self._following(place)
                if came is None or came is END:
                    return came
                self._held.append(came)
            if self._end(self._held[0]) > place:
                break
            self._held.popleft()
        found = self._held.popleft()
        if isinstance(found, LostRange):
            return LostRange(max(found.first, place), found.end, found.reason)
        start = found.start + max(0, place - self._place(found))
        if start > found.start or found.end - start > limit:
            if found.end - start > limit:
                self._held.appendleft(found.cut(start + limit, found.end))
            found = found.cut(start, min(found.end, start + limit))
        return found

    @property
    def reach(self) -> int:
        """The place up to which it has read; earlier records that were not taken are in memory."""
        return self._chunks.reach

    def put_back(self, found: Slice | LostRange) -> None:
        """Take it again later."""
        self._held.appendleft(found)

    def _place(self, item: Slice | StageCommit | BlocksCommit | LostRange) -> int:
        if isinstance(item, LostRange):
            return item.first
        if isinstance(item, StageCommit | BlocksCommit):
            return item.sequence if self._sequence else item.base
        return item.sequence if self._sequence else item.start

    def _end(self, item: Slice | StageCommit | BlocksCommit | LostRange) -> int:
        if isinstance(item, LostRange):
            return item.end
        if isinstance(item, BlocksCommit):
            return item.end_sequence if self._sequence else item.last + 1
        return self._place(item) + (item.last - item.base + 1 if isinstance(item, StageCommit) else len(item))

    def _following(self, place: int) -> Slice | LostRange | Literal[EndOfJournal.END] | None:
        """The next records, from any source."""
        while True:
            if self._stage is not None:
                found = self._stage.take()
                if isinstance(found, Moved):
                    self._begin_again(found.place)
                elif found is not END:
                    return found
                self._stage = None
            item = next(self._items, None)
            if item is None:
                came = self._chunks.take(place)
                if came is None or came is END:
                    return came
                self._logs = self._topics()
                packed = self._reads.keeps_packed
                self._items = slices(came, self._logs, by_sequence=self._sequence, packed=packed)
            elif isinstance(item, BlocksCommit):
                if self._end(item) > place and self._wants(item):
                    self._stage = BlocksReader(
                        self._reads, item, self._logs, place, self._wake, sequence=self._sequence
                    )
            elif not isinstance(item, StageCommit):
                return item
            elif self._end(item) > place and self._logs[item.topic].first <= item.last:  # or it is not wanted any more
                self._stage = StagedReader(
                    self._reads,
                    item,
                    self._logs[item.topic],
                    place,
                    self._wake,
                    sequence=self._sequence,
                    on_demand=self._on_demand,
                    is_history=self._is_history,
                )

    def _wants(self, commit: BlocksCommit) -> bool:
        """Whether any topic still has records of it."""
        return any(self._logs[topic].first <= last for topic, (_, last) in commit.shares.items())

    def _begin_again(self, place: int) -> None:
        """Continue from `place`, where the cleaner put the staged records."""
        self._chunks = self._chunks_from(place)
        self._items = iter(())

    def _chunks_from(self, place: int) -> ChunkReader:
        return ChunkReader(
            self._reads,
            self._topics,
            self._wake,
            sequence=self._sequence,
            on_demand=self._on_demand,
            start=place,
            is_history=self._is_history,
            until=self._until,
        )
