"""Reading a cleaned segment: one entry for a reader of one topic, a whole block for a reader by sequence.

`read_cleaned` reads and checks, in the thread that reads. `items_of_topic` returns what the bytes hold of a topic, and
`items_by_sequence` sorts a block into the order of sequences, lazily.

Exactly what is damaged is reported as lost: of a batch whose head or runs are whole, its records. Where we cannot
tell which sequences some bytes held, the lost ones are those of the block that no other entry of it accounts for:
blocks share no sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from runnel.core.errors import BadBatch
from runnel.journal.format import entry, merged_batch
from runnel.journal.format.entry import HEADER, STAGE_TOPIC, EntryHead, PartKind, body_crc
from runnel.journal.format.index import SegmentBlock, next_head
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.offset_sets import RangeSet
from runnel.journal.read.segment_reader import (
    FoundBatch,
    LostRange,
    SegmentReader,
    StageCommit,
    offset_at,
    runs_of_item,
)

FIRST_READ = 8 * 1024  # of one entry: most are smaller, and a larger one says how long it is

_decode_commit = msgspec.msgpack.Decoder(tuple[int, list[int], int]).decode


class DamagedPart(NamedTuple):
    """A part whose body is not what was written. `runs` are known where they can be proven."""

    topic: int
    base: int
    last: int
    sequence: int
    runs: Sequence[RecordRun] | None
    position: int


class CleanedChunk(NamedTuple):
    """What some bytes of a cleaned segment hold, and where there is no telling what they held."""

    parts: list[FoundBatch | StageCommit | DamagedPart]
    unknown: list[int]  # positions
    end: int  # the position behind it


def read_cleaned(source: SegmentReader, position: int, size: int, *, alone: bool) -> CleanedChunk:
    """Read and check the entry at `position` (`alone`), or all that lie in `size` bytes from there on."""
    info = source.info
    data = source.file.read(position, min(size, FIRST_READ) if alone else size)
    if alone and len(data) >= HEADER.size:
        magic, _, length, *_ = HEADER.unpack_from(data)
        if magic == entry.MAGIC and len(data) < length <= source.written - position:
            data += source.file.read(position + len(data), length - len(data))
    parts: list[FoundBatch | StageCommit | DamagedPart] = []
    unknown: list[int] = []
    at, end = 0, size
    while at < end:
        head = entry.read_head(data, at, info.id, position + at)
        if head is None or head.end > source.written:
            unknown.append(position + at)
            if alone:
                return CleanedChunk(parts, unknown, position + 1)
            head = next_head(data, at + 1, info, position + at + 1)
            if head is None:
                break
            at = head.position - position
        parts += _parts_of(data, at, head)
        at = head.end - position
        if alone:
            return CleanedChunk(parts, unknown, head.end)
    return CleanedChunk(parts, unknown, position + size)


def _parts_of(data: bytes, at: int, head: EntryHead) -> Iterator[FoundBatch | StageCommit | DamagedPart]:
    at += head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = data[at : at + length]
        at += length
        if kind == PartKind.STAGED:
            topic |= STAGE_TOPIC
        elif kind not in entry.HOLDS_RECORDS:
            continue
        one = RecordRun(base, sequence, time, last - base + 1)
        whole = body_crc(kind, body) == crc
        runs: Sequence[RecordRun] | None
        if kind == PartKind.MERGED:
            try:
                runs = merged_batch.runs_of(body) if whole else merged_batch.provable_runs(body, crc)
            except BadBatch:
                whole, runs = False, None
            if whole and runs is not None:
                yield FoundBatch(topic, base, last, sequence, time, bytes(merged_batch.batch_of(body)), runs)
                continue
        elif whole and kind == PartKind.STAGE_COMMIT:
            if (staged := decode_stage_commit(body, one, topic)) is not None:
                yield staged
                continue
            runs = (one,)
        elif whole:
            yield FoundBatch(topic, base, last, sequence, time, body)
            continue
        else:
            runs = (one,)
        yield DamagedPart(topic, base, last, sequence, runs, head.position)


def decode_stage_commit(body: bytes, place: RecordRun, topic: int) -> StageCommit | None:
    """What a commit of a stage makes visible; None where it does not say what it should."""
    try:
        stage, counts, _ = _decode_commit(body)
    except msgspec.MsgspecError:
        return None
    if sum(counts) != place.count or min(counts) < 1:
        return None
    last = place.offset + place.count - 1
    return StageCommit(topic, place.offset, last, place.sequence, place.time, stage, counts)


# -- by topic ---------------------------------------------------------------------------------------------------


def items_of_topic(
    found: CleanedChunk, source: SegmentReader, position: int, place: int, topics: Collection[int], *, suspect: bool
) -> tuple[list[FoundBatch | StageCommit | LostRange], int]:
    """What the entry at `position` holds of a topic from offset `place` on, and the first offset behind it.

    `suspect` says that what is missing before it was lost, and is no hole.
    """
    items: list[FoundBatch | StageCommit | LostRange] = []
    for part in found.parts:
        if part.topic in topics and part.last >= place:
            if suspect and part.base > place:
                items.append(LostRange(place, part.base, f"damaged on disk, and so is the index ({source.info.name})"))
            if isinstance(part, DamagedPart):
                for first, end in _offsets_of(part):
                    if end > place:
                        items.append(LostRange(max(first, place), end, damage_reason(source, part.position)))
            else:
                items.append(_from_offset(part, place))
            place = part.last + 1
    if found.unknown:
        (topic,) = topics
        index = source.index
        here, held = index.base_behind(topic, position), index.range_of(topic)
        if here is not None and held is not None:
            following = index.base_behind(topic, position + 1)
            end = held.end if following is None else following
            first = place if suspect else max(place, here)
            if end > first:
                items.append(LostRange(first, end, damage_reason(source, position)))
            place = max(place, end)
    return items, place


def first_offset_at(source: SegmentReader, block: SegmentBlock, topic: int, sequence: int) -> int | None:
    """The offset of the first record of a topic at `sequence`, which lies in `block`, or behind it; None: not here.

    Reads its entries alone.
    """
    index, position = source.index, block.position
    if index.range_of(topic) is None:
        return None
    while (base := index.base_behind(topic, position)) is not None:
        at, _ = index.window(topic, base)
        if block.end is not None and at >= block.end:
            return base
        for part in read_cleaned(source, at, source.written - at, alone=True).parts:
            if part.topic == topic and not isinstance(part, DamagedPart):
                offset = offset_at(part, sequence)
                if offset is not None:
                    return offset
        position = at + 1
    return None


def _offsets_of(part: DamagedPart) -> list[tuple[int, int]]:
    if part.runs is None:
        return [(part.base, part.last + 1)]
    found: list[tuple[int, int]] = []
    for run in part.runs:
        if found and found[-1][1] == run.offset:
            found[-1] = (found[-1][0], run.offset + run.count)
        else:
            found.append((run.offset, run.offset + run.count))
    return found


def _from_offset(part: FoundBatch | StageCommit, place: int) -> FoundBatch | StageCommit:
    """Without the runs that end before an offset."""
    if not isinstance(part, FoundBatch) or part.runs is None:
        return part
    at = skipped = 0
    for run in part.runs:
        if run.offset + run.count > place:
            break
        at, skipped = at + 1, skipped + run.count
    return part if not at else _piece(part, at, len(part.runs), skipped)


def _piece(part: FoundBatch, first: int, end: int, at: int) -> FoundBatch:
    """Some runs of a merged batch, of which the first begins with its record number `at`."""
    assert part.runs is not None, "only a merged batch has pieces"
    runs = part.runs[first:end]
    last = runs[-1].offset + runs[-1].count - 1
    return FoundBatch(part.topic, runs[0].offset, last, runs[0].sequence, runs[0].time, part.body, runs, part.at + at)


# -- by sequence ------------------------------------------------------------------------------------------------


def items_by_sequence(
    found: CleanedChunk, source: SegmentReader, block: SegmentBlock, place: int, topics: Collection[int]
) -> Iterator[FoundBatch | StageCommit | LostRange]:
    """What a block holds of some topics from sequence `place` on. No piece lies across another."""
    waiting: list[
        tuple[int, int, FoundBatch | StageCommit | LostRange, int, int]
    ] = []  # first sequence, unique, part, run, record
    for lost in _lost(found, source, block, place, topics):
        waiting.append((lost.first, len(waiting), lost, 0, 0))
    for part in found.parts:
        if part.topic in topics and not isinstance(part, DamagedPart):
            at = skipped = 0
            runs = runs_of_item(part)
            while at < len(runs) and runs[at].sequence + runs[at].count <= place:
                skipped += runs[at].count
                at += 1
            if at < len(runs):
                waiting.append((runs[at].sequence, len(waiting), part, at, skipped))
    heapify(waiting)
    while waiting:
        _, number, item, first, skipped = heappop(waiting)
        if not isinstance(item, FoundBatch) or item.runs is None:
            yield item
            continue
        runs = item.runs
        end, following = first + 1, skipped + runs[first].count
        while end < len(runs) and (not waiting or runs[end].sequence < waiting[0][0]):
            following += runs[end].count
            end += 1
        if end < len(runs):
            heappush(waiting, (runs[end].sequence, number, item, end, following))
        yield item if end - first == len(runs) else _piece(item, first, end, skipped)


def _lost(
    found: CleanedChunk, source: SegmentReader, block: SegmentBlock, place: int, topics: Collection[int]
) -> list[LostRange]:
    """The sequences from `place` on that cannot be read."""
    place = max(place, block.first)
    hurt = [part for part in found.parts if isinstance(part, DamagedPart) and part.topic in topics]
    if not hurt and not found.unknown:
        return []
    lost: list[LostRange] = []
    for part in hurt:
        why = damage_reason(source, part.position)
        ends = ((run.sequence, run.sequence + run.count) for run in part.runs or ())
        lost += [LostRange(max(first, place), end, why) for first, end in ends if end > place]
    vague = [part for part in hurt if part.runs is None]
    if found.unknown or vague:
        known = RangeSet()
        for one in found.parts:
            if one.topic < STAGE_TOPIC:
                for run in (one.runs or ()) if isinstance(one, DamagedPart) else runs_of_item(one):
                    known.add(run.sequence, run.sequence + run.count)
        first = place if found.unknown else max(place, min(part.sequence for part in vague))
        where = found.unknown[0] if found.unknown else vague[0].position
        behind = source.info.end_sequence if block.behind is None else block.behind
        for start, end in known:
            if end > first and start < behind:
                if start > first:
                    lost.append(LostRange(first, start, damage_reason(source, where)))
                first = end
        if behind > first:
            lost.append(LostRange(first, behind, damage_reason(source, where)))
    return lost


def damage_reason(source: SegmentReader, position: int) -> str:
    """Why something is lost."""
    return f"damaged on disk ({source.info.name} at {position})"
