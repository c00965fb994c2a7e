"""Cleaning: neighbouring sealed segments are rewritten with their live records only, and small batches are merged.

A job reads sealed files and writes new ones that no manifest names; `Journal.replace` puts them in place. The output
is *blocks*: stretches of the journal in which records are grouped by topic. Offsets, sequences, append times, keys and
headers stay as they are. Damage ends a job: unreadable records are never dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from runnel.core import batch_format
from runnel.core.batch_format import DELTAS, HEADER_SIZE, VALUES, BatchHeader, read_batch_header
from runnel.core.errors import BadBatch, FormatUnknown, JournalDamaged
from runnel.journal.clean.live_records import LiveSnapshot
from runnel.journal.format import entry, merged_batch, segment, staged_block
from runnel.journal.format.atomic_file import replace_file
from runnel.journal.format.entry import (
    HEADER,
    HOLDS_RECORDS,
    HOLDS_STAGED,
    STAGE_TOPIC,
    EntryHead,
    Part,
    PartKind,
    body_crc,
    size_of,
    state_part,
)
from runnel.journal.format.index import CleanedIndexBuilder, block_start, end_sequence
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.segment import START, TEMPORARY, SegmentInfo
from runnel.journal.read.cleaned_segment import decode_stage_commit
from runnel.journal.read.journal_reader import JournalReader, read_committed_stage
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    LostRange,
    SegmentReader,
    StageCommit,
    blocks_commit,
)
from runnel.journal.read.staged_blocks import read_whole_blocks
from runnel.journal.storage import File, Storage

BLOCK_BYTES = 8 * 1024 * 1024  # bytes of records, before compression
MAX_ENTRY_BYTES = 1024 * 1024  # of one topic that make one entry: merged in one step, and read in one

Spans = list[tuple[int, int]]  # of indexes in a batch, [first, end)

_PRIORITIES = 6  # where they are among the columns: the only one that holds no None


class LivePiece(msgspec.Struct, gc=False):
    """Records of one batch that live: where they belong, and which they are; None: all of them.

    Not known to the garbage collector, and neither are its neighbours: a block has many of them.
    """

    runs: Sequence[RecordRun]
    header: BatchHeader
    batch: bytes | memoryview
    spans: Spans | None = None

    @property
    def raw(self) -> int:
        """Their bytes, about."""
        if self.spans is None:
            return HEADER_SIZE + self.header.raw_length
        living = sum(run.count for run in self.runs)
        return HEADER_SIZE + self.header.raw_length * living // self.header.count


class BlockItem(msgspec.Struct, gc=False):
    """An item of a block: a piece of a batch, or an unchanged part.

    Or a commit of what was `staged`, in the place of which its records go there. Items with the same sequence are the
    commit of one stage of many topics, and stay together.
    """

    topic: int
    sequence: int
    time: int
    size: int
    piece: LivePiece | None
    part: Part | None = None
    staged: StageCommit | BlocksCommit | None = None


class BlockPart(NamedTuple):
    """A part of a block, ready to be written; of a merged one also its runs."""

    part: Part
    runs: list[RecordRun] | None = None


class _MergeGroup:
    """Neighbouring pieces of one topic that become one batch."""

    __slots__ = ("pieces", "size")

    def __init__(self, piece: LivePiece, size: int) -> None:
        self.pieces = [piece]
        self.size = size

    def takes(self, piece: LivePiece, size: int) -> bool:
        """Whether `piece` may be merged with the present one."""
        one, two = self.pieces[0].header, piece.header
        return (
            self.size + size <= MAX_ENTRY_BYTES
            and one.content_type == two.content_type
            and one.schema == two.schema
            and one.flags == two.flags
        )

    def add(self, piece: LivePiece, size: int) -> None:
        self.pieces.append(piece)
        self.size += size


class BlockBuilder:
    """The items collected so far for a block. `parts` empties it."""

    def __init__(self) -> None:
        self.size = 0
        self.sequence = self.time = 0  # the lowest
        self.end_sequence = self.end_time = 0  # the highest, of the sequences one more
        self._topics: dict[int, list[_MergeGroup | Part]] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def __repr__(self) -> str:
        return f"<BlockBuilder of {len(self._topics)} topics, {self.size:,} bytes>"

    def add(self, item: BlockItem) -> None:
        """Take one more; of each topic, in the order of its offsets."""
        if not self._topics:
            self.sequence, self.time = item.sequence, item.time
            self.end_sequence = self.end_time = 0
        elif item.sequence < self.sequence:
            self.sequence, self.time = item.sequence, item.time
        self.size += item.size
        groups = self._topics.setdefault(item.topic, [])
        piece = item.piece
        if piece is None:
            assert item.part is not None
            self._ends(end_sequence(item.part), item.time)
            groups.append(item.part)
            return
        last_run = piece.runs[-1]
        self._ends(last_run.sequence + last_run.count, last_run.time)
        last = groups[-1] if groups else None
        if isinstance(last, _MergeGroup) and last.takes(piece, item.size):
            last.add(piece, item.size)
        else:
            groups.append(_MergeGroup(piece, item.size))

    def _ends(self, sequence: int, time: int) -> None:
        if sequence > self.end_sequence:
            self.end_sequence, self.end_time = sequence, time

    def parts(self) -> Iterator[BlockPart]:
        """All of it, topic by topic."""
        topics, self._topics, self.size = self._topics, {}, 0
        for topic in sorted(topics):
            for group in topics[topic]:
                if isinstance(group, Part):
                    yield BlockPart(group)
                else:
                    yield _merge_pieces(topic, group.pieces)


def runs_of_batch(part: Part, header: BatchHeader) -> Sequence[RecordRun]:
    """Where the records of a plain batch belong."""
    if not header.columns & DELTAS:
        if part.count != header.count:
            raise BadBatch(f"it holds {header.count} records for {part.count} offsets")
        return (RecordRun(part.base, part.sequence, part.time, header.count),)
    deltas = batch_format.unpack(part.body, verify=False).deltas
    assert deltas is not None
    if deltas[-1] != part.last - part.base:
        raise BadBatch(f"it spans {deltas[-1] + 1} offsets, not {part.count}")
    return joined_runs([RecordRun(part.base + delta, part.sequence + delta, part.time, 1) for delta in deltas])


def split_at_sequence(items: Sequence[BlockItem], sequence: int) -> tuple[list[BlockItem], list[BlockItem]]:
    """The same in two: the items before a sequence that none of them contains, and those behind it."""
    before: list[BlockItem] = []
    behind: list[BlockItem] = []
    for item in items:
        piece = item.piece
        if piece is None or not piece.runs[0].sequence < sequence <= piece.runs[-1].sequence:
            (before if item.sequence < sequence else behind).append(item)
            continue
        at = sum(run.sequence < sequence for run in piece.runs)
        count = sum(run.count for run in piece.runs[:at])
        low: Spans = []
        high: Spans = []
        for first, end in piece.spans or [(0, piece.header.count)]:
            middle = min(end, first + max(0, count))
            count -= end - first
            low += [(first, middle)] if middle > first else []
            high += [(middle, end)] if end > middle else []
        for runs, spans, found in ((piece.runs[:at], low, before), (piece.runs[at:], high, behind)):
            one = LivePiece(runs, piece.header, piece.batch, spans)
            found.append(BlockItem(item.topic, runs[0].sequence, runs[0].time, one.raw, one))
    return before, behind


def joined_runs(runs: Sequence[RecordRun]) -> list[RecordRun]:
    """The same with as few runs as there can be."""
    found: list[RecordRun] = []
    for run in runs:
        if found:
            offset, sequence, time, count = found[-1]
            if offset + count == run.offset and sequence + count == run.sequence and time == run.time:
                found[-1] = RecordRun(offset, sequence, time, count + run.count)
                continue
        found.append(run)
    return found


def _merge_pieces(topic: int, pieces: list[LivePiece]) -> BlockPart:
    """The part that some pieces become."""
    runs = joined_runs([run for piece in pieces for run in piece.runs])
    header = pieces[0].header
    if len(pieces) == 1 and pieces[0].spans is None and not header.columns & DELTAS:
        batch = bytes(pieces[0].batch)
    else:
        about: dict[str, Any] = {
            "compression": header.compression,
            "content_type": header.content_type,
            "schema": header.schema,
        }
        if all(piece.header.columns == VALUES and piece.spans is None for piece in pieces):
            count = sum(piece.header.count for piece in pieces)
            body = b"".join((b"\x91", _array_head(count), *map(_elements, pieces)))
            batch = batch_format.pack_body(VALUES, count, body, **about)
        else:
            batch = batch_format.pack_columns(_columns(pieces), **about)
    body = merged_batch.encode(runs, batch)
    first, last = runs[0], runs[-1]
    crc, end = int.from_bytes(body[:4], "little"), last.offset + last.count
    part = Part(PartKind.MERGED, body, crc, topic, first.offset, end - 1, first.sequence, first.time)
    return BlockPart(part, runs)


def _elements(piece: LivePiece) -> bytes | memoryview:
    """The values of a batch that has nothing else, one behind the other as they are encoded: nothing is decoded."""
    body = batch_format.batch_body(piece.header, piece.batch)
    size, count = 0, -1
    if len(body) > 1 and body[0] == 0x91:
        kind = body[1]
        if 0x90 <= kind <= 0x9F:
            size, count = 2, kind & 0x0F
        elif kind in (0xDC, 0xDD):
            size = 4 if kind == 0xDC else 6
            count = int.from_bytes(body[2:size], "big")
    if count != piece.header.count:
        raise BadBatch("its values are not an array of as many as it says")
    return body[size:]


def _array_head(count: int) -> bytes:
    """How msgpack begins an array."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def _columns(pieces: list[LivePiece]) -> list[list[Any] | None]:
    """The columns of all pieces, each as long as all of them together; None where no record has anything in it."""
    columns: list[list[Any] | None] = [[], None, None, None, None, None, None]
    length = 0
    for piece in pieces:
        one = batch_format.unpack(piece.batch, verify=False)
        spans = [(0, len(one))] if piece.spans is None else piece.spans
        count = sum(end - first for first, end in spans)
        found = (one.values, one.keys, one.headers, one.times, one.due, one.expires, one.priorities)
        for at, column in enumerate(found):
            have = columns[at]
            if have is None:
                if column is None:
                    continue
                have = columns[at] = [_absent(at)] * length
            if column is None:
                have.extend([_absent(at)] * count)
            else:
                for first, end in spans:
                    have.extend(column[first:end])
        length += count
    return [
        None if at and column is not None and column.count(_absent(at)) == length else column
        for at, column in enumerate(columns)
    ]


def _absent(at: int) -> int | None:
    return 0 if at == _PRIORITIES else None


# -- The job ---------------------------------------------------------------------------------------------


# Read, or written, at a time: some 3 ms, less than other threads wait for the interpreter.
STEP_BYTES = 64 * 1024

_KNOWN = frozenset(int(kind) for kind in PartKind)


class _SegmentOutput:
    """A cleaned segment that is being written."""

    def __init__(self, info: SegmentInfo, file: File) -> None:
        self.info, self.file = info, file
        self.index = CleanedIndexBuilder()
        self.end = START
        self._pieces: list[bytes] = []
        self._from = START

    def put(self, part: Part, block: int, runs: Sequence[RecordRun] | None = None) -> int:
        """One entry more, of the block that begins at `block`; how many bytes wait to be written now."""
        self.index.add(self.end, block, part, runs)
        self._pieces += entry.encode([part], self.info.id, self.end, block, part.time)
        self.end += size_of([part])
        return self.end - self._from

    def write(self) -> int:
        """Write the pending block; its size in bytes."""
        size = self.end - self._from
        if size:
            self.file.write(self._from, self._pieces)
            self._pieces, self._from = [], self.end
        return size


class CleaningJob:
    """One cleaning of some neighbouring segments. `step` until `done`, or `abandon`."""

    def __init__(
        self,
        storage: Storage,
        sources: Sequence[SegmentReader],
        living: LiveSnapshot,
        segment_bytes: int,
        now: int,
        history: JournalReader | None = None,
        placing: frozenset[int] = frozenset(),
    ) -> None:
        self.sources = tuple(sources)
        self.made: list[SegmentInfo] = []
        self.files: set[str] = set()  # names that are ours as long as no manifest has them
        self.done = False
        self.read = self.written = 0  # bytes
        self.taken: dict[int, int] = {}  # by topic: records that compaction took
        self.living = living
        self.reading: SegmentReader | None = None  # while it is read: whose fault it is if that fails
        self.following: int | None = None  # while a stage is: the same
        self.placed: set[int] = set()  # stages whose records are in the written blocks
        self.left: dict[int, list[tuple[int, int]]] = {}  # by topic: offsets of stages that stay where they lie
        self._history, self._placing = history or JournalReader(list(sources)), placing
        self._storage, self._limit, self._now = storage, segment_bytes, now
        self._block_bytes = min(BLOCK_BYTES, segment_bytes)
        self._generation = 1 + max(source.info.generation for source in sources)
        self._output: _SegmentOutput | None = None
        self._block, self._staged = BlockBuilder(), BlockBuilder()
        self._sequence, self._time = sources[0].info.first_sequence, sources[0].info.first_time  # behind all written
        self._work: Iterator[None] | None = self._run()

    def __repr__(self) -> str:
        numbers = ", ".join(str(source.info.number) for source in self.sources)
        return f"<CleaningJob on segments {numbers}, {self.read:,} bytes read, {self.written:,} written>"

    @property
    def size(self) -> int:
        """The bytes that it reads in all."""
        return sum(source.info.end for source in self.sources)

    def step(self) -> None:
        """Do a little. An error ends the job, and leaves nothing behind."""
        assert self._work is not None, "this job is over"
        try:
            next(self._work, None)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """End it, and remove what it wrote. Harmless when it is over."""
        self._work = None
        self.done = False
        if self._output is not None:
            self._output.file.close()
            self._output = None
        files, self.files = self.files, set()
        for name in files:
            with suppress(OSError):
                self._storage.remove(name)

    def _run(self) -> Iterator[None]:
        for source in self.sources:
            self.reading = source
            segment.check_header(source.file.read(0, START), source.info)
            self.reading = None
            yield from self._take(source)
        if missing := self._placing - self.placed:  # the skipped ones would be lost
            self.following = min(missing)
            raise JournalDamaged(f"stage {self.following}", 0, "its commit is not where its records should be")
        yield from self._write(self._block)
        yield from self._write_staged()
        if self._output is not None:
            last = self.sources[-1].info
            yield from self._finish(self._output, last.end_sequence, last.last_time)
        self._work = None
        self.done = True

    # -- reading ------------------------------------------------------------------------------------------------

    def _take(self, source: SegmentReader) -> Iterator[None]:
        """Collect the live records of a segment, an entry at a time, or of a cleaned one a block at a time."""
        info = source.info
        position, unit, items = START, START, list[BlockItem]()
        while position < info.end:
            self.reading = source
            data = _read(source, position)
            self.reading = None
            self.read += len(data)
            at = 0
            while at < len(data):
                head = entry.read_head(data, at, info.id, position)
                if head is None or at + head.end - position > len(data):
                    if at == 0:
                        raise JournalDamaged(info.name, position, "an entry is not whole")
                    break
                if not info.generation or block_start(head) != unit:
                    yield from self._gather(items, in_order=not info.generation)
                    unit, items = block_start(head), []
                try:
                    items += self._living_of(head, data, at, info)
                except BadBatch as error:
                    raise JournalDamaged(info.name, position, f"a batch is not one: {error.why}") from error
                at += head.end - position
                position = head.end
            yield
        yield from self._gather(items, in_order=not info.generation)

    def _living_of(self, head: EntryHead, data: bytes, at: int, info: SegmentInfo) -> Iterator[BlockItem]:
        """The live items of an entry."""
        wants = self.living.wants
        body_at = at + head.bodies
        for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
            body_at += length
            if kind not in HOLDS_RECORDS and kind not in HOLDS_STAGED:
                if kind < PartKind.OPTIONAL and kind not in _KNOWN:
                    raise FormatUnknown(f"an entry part of kind {kind}", kind, max(_KNOWN))
                continue  # state: the checkpoints that were written since hold it
            place = STAGE_TOPIC | topic if kind in HOLDS_STAGED else topic
            if not wants(place, last) or (kind in HOLDS_STAGED and topic in self._placing):
                continue
            body = data[body_at - length : body_at]
            if body_crc(kind, body) != crc:
                raise JournalDamaged(info.name, head.position, "the crc of a batch is wrong")
            part = Part(kind, body, crc, topic, base, last, sequence, time)
            if kind in HOLDS_STAGED:
                yield BlockItem(place, sequence, time, length, None, part)
            elif kind in (PartKind.STAGE_COMMIT, PartKind.BLOCKS_COMMIT):
                staged: StageCommit | BlocksCommit | None = None
                if kind == PartKind.STAGE_COMMIT:
                    staged = decode_stage_commit(body, RecordRun(base, sequence, time, part.count), topic)
                elif (share := staged_block.share_of(body)) is not None:
                    staged = blocks_commit(share.stage, sequence, share.records, time, {topic: (base, last)})
                if staged is not None and staged.stage in self._placing:
                    yield BlockItem(topic, sequence, time, 0, None, part, staged)
                else:
                    self.left.setdefault(topic, []).append((base, last + 1))
                    yield BlockItem(topic, sequence, time, length, None, part)
            elif (piece := self._piece(part)) is not None:
                yield BlockItem(topic, piece.runs[0].sequence, piece.runs[0].time, piece.raw, piece)

    def _piece(self, part: Part) -> LivePiece | None:
        """The live records of a batch; None: there are none."""
        if part.kind == PartKind.MERGED:
            batch: bytes | memoryview = merged_batch.batch_of(part.body)
            header = read_batch_header(batch)
            runs: Sequence[RecordRun] = merged_batch.runs_of(part.body)
        else:
            batch, header = part.body, read_batch_header(part.body)
            runs = runs_of_batch(part, header)
        return self._living_piece(part.topic, runs, header, batch)

    def _living_piece(
        self, topic: int, runs: Sequence[RecordRun], header: BatchHeader, batch: bytes | memoryview
    ) -> LivePiece | None:
        first, taken = self.living.firsts[topic], self.living.taken.get(topic)
        if runs[0].offset >= first and not taken:
            return LivePiece(runs, header, batch)
        living: list[RecordRun] = []
        spans: Spans = []
        at = 0
        for run in runs:
            start, end = max(run.offset, first), run.offset + run.count
            found = taken.spans_without(start, end) if taken else [(start, end)] if start < end else []
            for low, high in found:
                living.append(RecordRun(low, run.sequence + low - run.offset, run.time, high - low))
                spans.append((at + low - run.offset, at + high - run.offset))
            if taken and start < end:
                gone = end - start - sum(high - low for low, high in found)
                self.taken[topic] = self.taken.get(topic, 0) + gone
            at += run.count
        left = sum(run.count for run in living)
        return LivePiece(living, header, batch, None if left == at else spans) if left else None

    def _gather(self, items: list[BlockItem], *, in_order: bool) -> Iterator[None]:
        """Put items into the block; write it when they would be too many."""
        records: list[BlockItem] = []
        for item in items:
            if item.topic < STAGE_TOPIC:
                records.append(item)
            else:
                if self._staged.size + item.size > self._block_bytes:
                    yield from self._write_staged()
                self._staged.add(item)
        if in_order:
            records.sort(key=attrgetter("sequence"))
            for unit in _units(records):
                if unit[0].staged is not None:
                    yield from self._place(_whole_commit(unit))
                else:
                    yield from self._add(unit)
            return
        commits = sorted((item for item in records if item.staged is not None), key=attrgetter("sequence"))
        records = [item for item in records if item.staged is None]
        for unit in _units(commits):  # the block is split: items behind the commit are behind all of its records
            before, records = split_at_sequence(records, unit[0].sequence)
            yield from self._add(before)
            yield from self._place(_whole_commit(unit))
        yield from self._add(records)

    def _add(self, items: list[BlockItem]) -> Iterator[None]:
        """Put items into one block: into the one that there is, unless they would be too many."""
        if self._block.size + sum(item.size for item in items) > self._block_bytes:
            yield from self._write(self._block)
        for item in items:
            self._block.add(item)

    def _place(self, staged: StageCommit | BlocksCommit) -> Iterator[None]:
        """Put the live records of a stage in the place of its commit."""
        self.following = staged.stage
        if isinstance(staged, BlocksCommit):
            yield from self._place_blocks(staged)
        else:
            yield from self._place_batches(staged)
        self.following = None
        self.placed.add(staged.stage)

    def _place_blocks(self, staged: BlocksCommit) -> Iterator[None]:
        for found, size in read_whole_blocks(self._history, staged):
            if isinstance(found, LostRange):
                raise JournalDamaged(f"stage {staged.stage}", found.first, found.reason)
            self.read += size
            try:
                items = [item for one in found if (item := self._living_item(one)) is not None]
            except BadBatch as error:
                raise JournalDamaged(f"stage {staged.stage}", found[0].base, f"not a batch: {error.why}") from error
            if items:
                yield from self._add(items)  # together: their sequences lie between each other
            yield

    def _living_item(self, found: FoundBatch) -> BlockItem | None:
        assert found.runs is not None, "a batch of a block has runs"
        piece = self._living_piece(found.topic, found.runs, read_batch_header(found.body), found.body)
        if piece is None:
            return None
        return BlockItem(found.topic, piece.runs[0].sequence, piece.runs[0].time, piece.raw, piece)

    def _place_batches(self, staged: StageCommit) -> Iterator[None]:
        place = max(staged.base, self.living.firsts[staged.topic])
        for found in read_committed_stage(self._history, staged, place, by_sequence=False):
            if isinstance(found, int):
                self.read += found
                yield
                continue
            if isinstance(found, LostRange):
                raise JournalDamaged(f"stage {staged.stage}", found.first, found.reason)
            crc = int.from_bytes(found.body[:4], "little")
            part = Part(
                PartKind.BATCH, found.body, crc, staged.topic, found.base, found.last, found.sequence, found.time
            )
            try:
                piece = self._piece(part)
            except BadBatch as error:
                raise JournalDamaged(f"stage {staged.stage}", found.base, f"not a batch: {error.why}") from error
            if piece is not None:
                run = piece.runs[0]
                yield from self._add([BlockItem(staged.topic, run.sequence, run.time, piece.raw, piece)])

    # -- writing ------------------------------------------------------------------------------------------------

    def _write_staged(self) -> Iterator[None]:
        """Write staged items. They have no sequence, so they lie before the next record."""
        if self._staged:
            first = self._block if self._block else None
            self._staged.sequence = self._staged.end_sequence = first.sequence if first else self._sequence
            self._staged.time = self._staged.end_time = first.time if first else self._time
            yield from self._write(self._staged)

    def _write(self, block: BlockBuilder) -> Iterator[None]:
        if not block:
            return
        output = self._output
        may_split = len(self.made) + 1 < len(self.sources) or self._placing  # or it is as large as its input
        if output is not None and output.end >= self._limit and may_split:
            yield from self._finish(output, block.sequence, self._time)
            output = None
        if output is None:
            output = self._output = self._begin(block)
        begin = output.end
        self._sequence, self._time = max(self._sequence, block.end_sequence), max(self._time, block.end_time)
        for part, runs in block.parts():
            # An entry stores the start of its block in the field where others store the synced position.
            if output.put(part, begin, runs) >= STEP_BYTES:
                self.written += output.write()
                yield
        self.written += output.write()
        yield
        output.file.sync()  # little by little: one large sync would hold up those of the commits
        yield

    def _begin(self, block: BlockBuilder) -> _SegmentOutput:
        """The next segment, under the lowest number that is left of those that were read.

        What was staged elsewhere may take more segments than were read: they share the last number.
        """
        number = self.sources[min(len(self.made), len(self.sources) - 1)].info.number
        oldest, there = self.sources[0].info, set(self._storage.names())
        info = SegmentInfo(number, secrets.randbits(63), 0, block.sequence, 0, block.time, 0, self._generation)
        while info.name in there:
            info.generation += 1
        if not self.made:
            info.first_sequence, info.first_time = oldest.first_sequence, oldest.first_time
        self.files |= {info.name, info.name + TEMPORARY, info.index_name, info.index_name + TEMPORARY}
        file = self._storage.create(info.name + TEMPORARY)
        output = self._output = _SegmentOutput(info, file)  # at once: it is closed whatever happens now
        file.write(0, [segment.encode_header(info, self._now)])
        topics = {topic for source in self.sources for topic, _ in source.index.topics()}
        if names := [name for topic in sorted(topics) if (name := self.living.names.get(topic)) is not None]:
            output.put(state_part(PartKind.NAMES, msgspec.msgpack.encode(names)), START)
        return output

    def _finish(self, output: _SegmentOutput, end_sequence: int, last_time: int) -> Iterator[None]:
        """Name a segment, all of which is synced, and write its index; both are durable but for their names."""
        info = output.info
        info.end, info.end_sequence, info.last_time = output.end, end_sequence, last_time
        output.file.close()
        self._output = None
        self._storage.rename(info.name + TEMPORARY, info.name)
        yield
        index = output.index.finish(info).encode(info)
        replace_file(self._storage, info.index_name, [index])
        self.written += len(index)
        self.files -= {info.name + TEMPORARY, info.index_name + TEMPORARY}
        self.made.append(info)
        yield


def _units(items: list[BlockItem]) -> Iterator[list[BlockItem]]:
    """Items that stay together, in the order of their sequences: the parts of a commit of blocks."""
    for _, unit in groupby(items, key=attrgetter("sequence")):
        yield list(unit)


def _whole_commit(unit: list[BlockItem]) -> StageCommit | BlocksCommit:
    """The meaning of a commit with all its parts."""
    staged = unit[0].staged
    assert staged is not None, "it is a commit"
    if not isinstance(staged, BlocksCommit):
        return staged
    shares = {
        topic: share
        for item in unit
        if isinstance(item.staged, BlocksCommit)
        for topic, share in item.staged.shares.items()
    }
    return blocks_commit(staged.stage, staged.sequence, staged.records, staged.time, shares)


def _read(source: SegmentReader, position: int) -> bytes:
    """A piece of a segment: at least one whole entry, however long, unless it is damaged."""
    left = source.info.end - position
    data = source.file.read(position, min(STEP_BYTES, left))
    if len(data) >= HEADER.size:
        magic, _, length, *_ = HEADER.unpack_from(data)
        if magic == entry.MAGIC and len(data) < length <= left:
            data += source.file.read(position + len(data), length - len(data))
    if not data:
        raise JournalDamaged(source.info.name, position, "the file is shorter than it was")
    return data
