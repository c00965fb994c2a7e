"""Reading committed blocks: records of many topics that were staged together, in the order in which they were staged.

The records of a stage are numbered, and its blocks are found by these numbers, as if the stage were a topic. A reader
by sequence reads whole blocks. A reader of one topic reads their directories, and of each block the part of its topic.
Missing or damaged records are reported as a `LostRange`, and reading continues behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import NamedTuple, Protocol

from runnel.core.errors import BadBatch
from runnel.journal.format import entry, merged_batch, segment, staged_block
from runnel.journal.format.entry import HEADER, PART, STAGE_TOPIC, EntryHead, PartKind
from runnel.journal.format.index import next_head
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.offset_sets import RangeSet
from runnel.journal.format.staged_block import BlockDirectory, BlockTopic
from runnel.journal.read.cleaned_segment import damage_reason, in_sequence
from runnel.journal.read.segment_reader import STAGED_MISSING, BlocksCommit, FoundBatch, LostRange, SegmentReader

_FIRST_READ = 4 * 1024  # of an entry or a block: most heads and directories are shorter


class Segments(Protocol):
    """The segments of a journal: a `JournalReader`."""

    sources: list[SegmentReader]


class BlockPlace(NamedTuple):
    """The place of a block: the records [first, end) of its stage. `why` is the error before it, if any."""

    source: SegmentReader
    position: int  # of its entry
    body: int
    length: int
    first: int
    end: int
    why: str | None


def block_places(history: Segments, stage: int, number: int) -> Iterator[BlockPlace]:
    """The blocks of a stage, from the one that holds record `number` on. Reads nothing but the heads of entries."""
    topic, why = STAGE_TOPIC | stage, None
    for source in tuple(history.sources):  # the writer may drop some meanwhile
        index = source.index
        held = index.range_of(topic)
        if source.suspect:
            why = why or f"damaged on disk, and so is the index ({source.info.name})"
        if held is None or held.end <= number:
            continue
        position = 0
        while number < held.end:
            position = max(position, index.window(topic, number)[0])
            if position >= source.written:
                break
            head = _head_at(source, position)
            if head is None:
                why = damage_reason(source, position)
                if (found := _position_behind(source, position)) is None:
                    break
                position = found
                continue
            at = position + head.bodies
            for kind, _, _, length, _, part_topic, base, last, *_ in head.table:
                if kind == PartKind.STAGED_BLOCK and part_topic == stage and last >= number:
                    yield BlockPlace(source, position, at, length, base, last + 1, why)
                    number, why = last + 1, None
                at += length
            position = head.end


def _head_at(source: SegmentReader, position: int) -> EntryHead | None:
    """The head of the entry at `position`; None: it is damaged, or ends behind the readable end."""
    left = source.written - position
    data = source.file.read(position, min(_FIRST_READ, left))
    if len(data) < HEADER.size:
        return None
    size = HEADER.size + HEADER.unpack_from(data)[3] * PART.size
    if len(data) < size <= left:
        data = source.file.read(position, size)
    head = entry.read_head(data, 0, source.info.id, position)
    return head if head is not None and head.end <= source.written else None


def _position_behind(source: SegmentReader, position: int) -> int | None:
    """Where the next entry begins that is not damaged. Reads all of the segment: damage is rare."""
    whole = source.file.read(0, source.written)
    if source.is_cleaned:
        head = next_head(whole, position + 1, source.info, position + 1)
        return None if head is None else head.position
    found = segment.next_whole_entry(whole, position + 1, source.info)
    return None if found is None else found.position


def read_directory(place: BlockPlace, topic: int | None = None) -> BlockDirectory:
    """The directory of a block, of all topics or of one. `BadBatch`: it is damaged."""
    file = place.source.file
    data = file.read(place.body, min(_FIRST_READ, place.length))
    size = staged_block.directory_size(data)
    if len(data) < size <= place.length:
        data = file.read(place.body, size)
    directory = staged_block.directory_of(data) if topic is None else staged_block.directory_for(data, topic)
    if (directory.first, directory.end) != (place.first, place.end):
        raise BadBatch("it holds other records than its entry says")
    return directory


# -- From a place on -------------------------------------------------------------------------------------


def read_committed_blocks(
    history: Segments, commit: BlocksCommit, place: int, *, by_sequence: bool
) -> Iterator[FoundBatch | LostRange | int]:
    """The records that a commit made visible, from `place` on, read from its blocks; after each block, its bytes.

    Of several topics, by sequence, in the order of sequences; of one topic also by offset.
    """
    return _by_sequence(history, commit, place) if by_sequence else _by_offset(history, commit, place)


def read_whole_blocks(
    history: Segments, commit: BlocksCommit
) -> Iterator[tuple[list[FoundBatch], int] | tuple[LostRange, int]]:
    """The blocks of a commit, one after the other: one batch for each topic, and the bytes. Or the lost range."""
    number = 0
    for found in block_places(history, commit.stage, 0):
        if found.first > number:
            break
        batches, lost = _block(found, commit, commit.sequence + number)
        if lost:
            yield lost[0], 0
        yield batches, found.length
        number = found.end
    if number < commit.records:
        yield LostRange(commit.sequence + number, commit.end_sequence, STAGED_MISSING), 0


def _by_sequence(history: Segments, commit: BlocksCommit, place: int) -> Iterator[FoundBatch | LostRange | int]:
    start = commit.sequence
    number = max(0, place - start)
    for found in block_places(history, commit.stage, number):
        if found.first > number:
            yield LostRange(start + number, start + min(found.first, commit.records), found.why or STAGED_MISSING)
        if found.first >= commit.records:
            return
        number = max(number, found.first)
        batches, lost = _block(found, commit, start + number)
        for item in in_sequence(batches, lost, start + number):
            assert isinstance(item, FoundBatch | LostRange), "a block holds no commits"
            yield item
        number = found.end
        yield found.length
    if number < commit.records:
        yield LostRange(start + number, commit.end_sequence, STAGED_MISSING)


def _block(found: BlockPlace, commit: BlocksCommit, place: int) -> tuple[list[FoundBatch], list[LostRange]]:
    """The batches of a block; of a damaged one the valid ones, and the lost ranges from `place` on."""
    data = memoryview(found.source.file.read(found.body, found.length))
    why, start = damage_reason(found.source, found.position), commit.sequence
    batches: list[FoundBatch] = []
    proven: list[list[RecordRun]] = []
    lost = False
    try:
        directory = staged_block.directory_of(data)
        if (directory.first, directory.end) != (found.first, found.end):
            raise BadBatch("it holds other records than its entry says")
    except BadBatch:
        return [], [LostRange(place, start + found.end, why)]
    for topic in directory.topics.values():
        if commit.known is not None and topic.topic not in commit.known:
            lost = True
            continue
        body = data[topic.start : topic.start + topic.length]
        try:
            runs = staged_block.runs_in(directory, topic, body)
        except BadBatch:
            lost = True
            continue
        proven.append(runs)
        if topic.topic in commit.shares:
            batches.append(_placed(commit, topic, runs, body))
    return batches, _missing(proven, start, place, start + found.end, why) if lost else []


def _missing(proven: list[list[RecordRun]], start: int, first: int, end: int, why: str) -> list[LostRange]:
    """The parts of [first, end) in none of these runs, which count from `start` on."""
    known = RangeSet()
    for run in chain.from_iterable(proven):
        known.add(start + run.sequence, start + run.sequence + run.count)
    found: list[LostRange] = []
    for begin, behind in known:
        if begin > first:
            found.append(LostRange(first, begin, why))
        first = max(first, behind)
    if end > first:
        found.append(LostRange(first, end, why))
    return found


def _by_offset(history: Segments, commit: BlocksCommit, place: int) -> Iterator[FoundBatch | LostRange | int]:
    topic, base, end = commit.topic, commit.base, commit.last + 1
    place = max(place, base)
    why: str | None = None
    for found in block_places(history, commit.stage, 0):
        if place >= end:
            return
        why = why or found.why
        try:
            directory = read_directory(found, topic)
        except BadBatch:
            why = damage_reason(found.source, found.position)  # later records show its share of the topic
            continue
        held = directory.topics.get(topic)
        if held is None or base + held.before + held.records <= place:
            continue
        if base + held.before > place:
            yield LostRange(place, base + held.before, why or STAGED_MISSING)
        why = None
        first, place = max(place, base + held.before), base + held.before + held.records
        body = found.source.file.read(found.body + held.start, held.length)
        try:
            batch = _placed(commit, held, staged_block.runs_in(directory, held, body), memoryview(body))
        except BadBatch:
            yield LostRange(first, place, damage_reason(found.source, found.position))
            continue
        yield from _from_offset(batch, first)
        yield held.length
    if place < end:
        yield LostRange(place, end, why or STAGED_MISSING)


def _from_offset(batch: FoundBatch, first: int) -> Iterator[FoundBatch]:
    """Without the runs that end before an offset."""
    runs, at = list(batch.runs or ()), batch.at
    while runs and runs[0].offset + runs[0].count <= first:
        at += runs.pop(0).count
    if runs:
        yield batch._replace(base=runs[0].offset, sequence=runs[0].sequence, runs=runs, at=at)


def _placed(commit: BlocksCommit, topic: BlockTopic, runs: list[RecordRun], body: memoryview) -> FoundBatch:
    """The records of one topic in a block, where the commit put them."""
    base = commit.shares[topic.topic][0]
    placed = [RecordRun(base + run.offset, commit.sequence + run.sequence, commit.time, run.count) for run in runs]
    first, last = placed[0], placed[-1]
    batch = bytes(merged_batch.batch_of(body))
    end = last.offset + last.count
    return FoundBatch(topic.topic, first.offset, end - 1, first.sequence, commit.time, batch, placed)


# -- Where a sequence lies in the topics -----------------------------------------------------------------


def offsets_in_blocks(
    history: Segments, commit: BlocksCommit, sequence: int, topics: Collection[int]
) -> dict[int, int]:
    """The offset of the first record of each of `topics` at `sequence` or behind it; those without one are left out.

    One block is read, and directories behind it, until all topics were met.
    """
    if sequence <= commit.sequence:
        return {topic: commit.shares[topic][0] for topic in topics}
    due: dict[int, int] = {}
    wanted = set(topics)
    for found in block_places(history, commit.stage, sequence - commit.sequence):
        if not wanted:
            break
        try:
            directory = read_directory(found)
        except BadBatch:
            continue
        for topic in wanted & directory.topics.keys():
            held = directory.topics[topic]
            offset: int | None = commit.shares[topic][0] + held.before
            if commit.sequence + directory.first < sequence:
                offset = _offset_in_block(found, commit, directory, held, sequence)
            if offset is not None:
                due[topic] = offset
                wanted.remove(topic)
    return due


def _offset_in_block(
    found: BlockPlace, commit: BlocksCommit, directory: BlockDirectory, held: BlockTopic, sequence: int
) -> int | None:
    body = found.source.file.read(found.body + held.start, held.length)
    try:
        runs = staged_block.runs_in(directory, held, body)
    except BadBatch:
        return None
    base, number = commit.shares[held.topic][0], sequence - commit.sequence
    for run in runs:
        if run.sequence + run.count > number:
            return base + run.offset + max(0, number - run.sequence)
    return None
