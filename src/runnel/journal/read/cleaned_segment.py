"""Reading a cleaned segment: one entry for a reader of one topic, a whole block for a reader by sequence.

`read_cleaned` reads and checks, in the thread that reads. `items_of_topic` returns the items of a topic, and
`items_by_sequence` sorts a block into the order of sequences, lazily.

Exactly the damaged records are reported as lost: of a batch whose head or runs are whole, its records. Where we cannot
tell which sequences some bytes held, the lost ones are those of the block that no other entry of it accounts for:
blocks share no sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from runnel.core.errors import BadBatch
from runnel.journal.format import entry, merged_batch, staged_block
from runnel.journal.format.entry import HEADER, HOLDS_STAGED, STAGE_TOPIC, EntryHead, PartKind, body_crc
from runnel.journal.format.index import SegmentBlock, next_head
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.offset_sets import RangeSet
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    FoundItem,
    LostRange,
    SegmentReader,
    StageCommit,
    blocks_commit,
    offset_at,
    runs_of_item,
)

FIRST_READ = 8 * 1024  # of one entry: most are smaller, and a larger one says how long it is

_decode_commit = msgspec.msgpack.Decoder(tuple[int, list[int], int]).decode


class DamagedPart(NamedTuple):
    """A part whose body is damaged. `runs` are known where they can be proven."""

    topic: int
    base: int
    last: int
    sequence: int
    runs: Sequence[RecordRun] | None
    position: int
    in_blocks: bool = False  # it is a commit of blocks: only its stage is unknown


CleanedPart = FoundBatch | StageCommit | BlocksCommit | DamagedPart


class CleanedChunk(NamedTuple):
    """The items in some bytes of a cleaned segment, and the ranges with unknown contents."""

    parts: list[CleanedPart]
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
    parts: list[CleanedPart] = []
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


def _parts_of(data: bytes, at: int, head: EntryHead) -> Iterator[CleanedPart]:
    at += head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = data[at : at + length]
        at += length
        if kind in HOLDS_STAGED:
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
        elif kind == PartKind.BLOCKS_COMMIT:
            share = staged_block.share_of(body) if whole else None
            if share is not None:
                yield blocks_commit(share.stage, sequence, share.records, time, {topic: (base, last)})
                continue
            runs = None
        elif whole:
            yield FoundBatch(topic, base, last, sequence, time, body)
            continue
        else:
            runs = (one,)
        yield DamagedPart(topic, base, last, sequence, runs, head.position, kind == PartKind.BLOCKS_COMMIT)


def decode_stage_commit(body: bytes, place: RecordRun, topic: int) -> StageCommit | None:
    """The records that a commit of a stage makes visible; None if the commit is invalid."""
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
) -> tuple[list[FoundItem], int]:
    """The items of a topic in the entry at `position`, from offset `place` on, and the first offset behind it.

    `suspect` says that records missing before it were lost, and are no hole.
    """
    items: list[FoundItem] = []
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


def first_offset_at(
    source: SegmentReader,
    block: SegmentBlock,
    topic: int,
    sequence: int,
    in_blocks: Callable[[BlocksCommit, int], int | None],
) -> int | None:
    """The offset of the first record of a topic at `sequence`, which lies in `block`, or behind it; None: not here.

    Reads its entries alone. `in_blocks` looks into a commit of blocks.
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
                offset = in_blocks(part, sequence) if isinstance(part, BlocksCommit) else offset_at(part, sequence)
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


def _from_offset(part: FoundBatch | StageCommit | BlocksCommit, place: int) -> FoundBatch | StageCommit | BlocksCommit:
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
) -> Iterator[FoundItem]:
    """The items of some topics in a block from sequence `place` on. No piece lies across another."""
    parts: list[FoundBatch | StageCommit | BlocksCommit] = list(_whole_commits(found, topics))
    parts += [part for part in found.parts if part.topic in topics and isinstance(part, FoundBatch | StageCommit)]
    yield from in_sequence(parts, _lost(found, source, block, place, topics), place)


def _whole_commits(found: CleanedChunk, topics: Collection[int]) -> Iterator[BlocksCommit]:
    """The commits of blocks, each with all its topics: in a cleaned segment every topic has an entry of its own.

    Where an entry cannot be read, it may have been that of a topic: what the blocks hold of others is lost.
    """
    commits: dict[int, BlocksCommit] = {}
    shares: dict[int, dict[int, tuple[int, int]]] = {}
    known: dict[int, set[int]] = {}
    for part in found.parts:
        if isinstance(part, BlocksCommit):
            commits[part.sequence] = part
        elif not (isinstance(part, DamagedPart) and part.in_blocks):
            continue
        known.setdefault(part.sequence, set()).add(part.topic)
        if part.topic in topics:
            shares.setdefault(part.sequence, {})[part.topic] = (part.base, part.last)
    for sequence, one in commits.items():
        if sequence in shares:
            sure = known[sequence] if found.unknown else None
            yield blocks_commit(one.stage, sequence, one.records, one.time, shares[sequence], sure)


def in_sequence(
    parts: Sequence[FoundBatch | StageCommit | BlocksCommit], lost: Sequence[LostRange], place: int
) -> Iterator[FoundItem]:
    """These from sequence `place` on, cut so that none lies across another."""
    waiting: list[tuple[int, int, FoundItem, int, int]] = []  # first sequence, unique, part, run, record
    for one in lost:
        waiting.append((one.first, len(waiting), one, 0, 0))
    for part in parts:
        if isinstance(part, BlocksCommit):
            if part.end_sequence > place:
                waiting.append((part.sequence, len(waiting), part, 0, 0))
        else:
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
    # of commits of blocks, one that is whole says for all which stage that was
    whole = {part.sequence for part in found.parts if isinstance(part, BlocksCommit)}
    damaged = [part for part in found.parts if isinstance(part, DamagedPart)]
    hurt = [one for one in damaged if one.topic in topics and not (one.in_blocks and one.sequence in whole)]
    if not hurt and not found.unknown:
        return []
    lost: list[LostRange] = []
    for part in hurt:
        why = damage_reason(source, part.position)
        ends = ((run.sequence, run.sequence + run.count) for run in part.runs or ())
        lost += [LostRange(max(first, place), end, why) for first, end in ends if end > place]
    vague = [part for part in hurt if part.runs is None]
    if found.unknown or vague:
        followed = {commit.sequence for commit in _whole_commits(found, topics)}  # blocks show which of them are lost
        known = RangeSet()
        for one in found.parts:
            if one.topic < STAGE_TOPIC:
                if isinstance(one, BlocksCommit):
                    if one.sequence in followed:
                        known.add(one.sequence, one.end_sequence)
                    continue
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
