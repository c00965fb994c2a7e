"""Cleaned segments in a test: written block by block from single records, and read back as single records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from runnel.core.batch_format import pack, unpack
from runnel.core.checksum import crc_of
from runnel.core.record import Meta
from runnel.journal.check.salvage import walk_segment
from runnel.journal.format import entry, manifest
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.index import CleanedIndexBuilder
from runnel.journal.format.ledger import StageState, stage_commit_part, stage_part, staged_part
from runnel.journal.format.merged_batch import RecordRun, encode
from runnel.journal.format.segment import START, SegmentInfo, encode_header
from runnel.journal.read.journal_reader import JournalReader, ReadPlan, StagePlacement, stage_topic_of
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    LostRange,
    SegmentReader,
    StageCommit,
    runs_of_item,
)
from runnel.journal.storage import Storage
from runnel.testing import MemoryStorage
from tests.carried import columns_of
from tests.journal.folders import Writer as FolderWriter
from tests.journal.folders import publish_numbered
from tests.journal.written_journal import put


class Rec(NamedTuple):
    """One record, wherever it lies. `stage` names the stage that it lies in."""

    topic: int
    offset: int
    sequence: int
    time: int
    value: bytes
    key: bytes | None = None
    stage: int = 0


Block = list[Rec]


def merged_part(records: Sequence[Rec]) -> tuple[Part, list[RecordRun]]:
    """Records of one topic as one part."""
    runs: list[RecordRun] = []
    for one in records:
        last = runs[-1] if runs else None
        if (
            last is not None
            and last.offset + last.count == one.offset
            and last.sequence + last.count == one.sequence
            and last.time == one.time
        ):
            runs[-1] = last._replace(count=last.count + 1)
        else:
            runs.append(RecordRun(one.offset, one.sequence, one.time, 1))
    metas = [None if one.key is None else Meta(key=one.key) for one in records]
    body = encode(runs, pack([one.value for one in records], columns_of(metas if any(metas) else None)))
    first = records[0]
    crc = int.from_bytes(body[:4], "little")
    return Part(
        PartKind.MERGED, body, crc, first.topic, first.offset, records[-1].offset, first.sequence, first.time
    ), runs


def commit_part(records: Sequence[Rec], counts: Sequence[int]) -> Part:
    """A commit of a stage that holds these records."""
    first = records[0]
    body = msgspec.msgpack.encode([first.stage, list(counts), 100])
    return Part(
        PartKind.STAGE_COMMIT,
        body,
        crc_of(body),
        first.topic,
        first.offset,
        records[-1].offset,
        first.sequence,
        first.time,
    )


def staged_parts(records: Sequence[Rec], counts: Sequence[int]) -> list[Part]:
    """The batches of a stage."""
    parts, at = [], 0
    for ordinal, count in enumerate(counts):
        body = pack([one.value for one in records[at : at + count]])
        crc = int.from_bytes(body[:4], "little")
        parts.append(Part(PartKind.STAGED, body, crc, records[0].stage, ordinal, ordinal, 0, 1))
        at += count
    return parts


def counts_of(records: Sequence[Rec]) -> list[int]:
    """How the records of a stage were staged: two at a time."""
    return [len(records[at : at + 2]) for at in range(0, len(records), 2)]


class CleanedWriter:
    """Writes one cleaned segment."""

    def __init__(self, storage: Storage, number: int = 1, generation: int = 1) -> None:
        self.storage = storage
        self.info = SegmentInfo(number, 1000 + number, generation=generation)
        self.made = CleanedIndexBuilder()
        self.position = START
        self.pieces: list[bytes] = []
        self.entries: list[int] = []  # where they begin

    def block(self, parts: Iterable[tuple[Part, list[RecordRun] | None]]) -> None:
        """One block, an entry a part."""
        begins = self.position
        for part, runs in parts:
            self.pieces += entry.encode([part], self.info.id, self.position, begins, part.time)
            self.made.add(self.position, begins, part, runs)
            self.entries.append(self.position)
            self.position += entry.size_of([part])

    def records(self, records: Block, most: int = 1000) -> None:
        """A block of records, grouped by topic, at most so many in an entry; staged ones as commits."""
        parts: list[tuple[Part, list[RecordRun] | None]] = []
        for _, ours in groupby(sorted(records, key=lambda one: (one.topic, one.offset)), key=lambda one: one.topic):
            for stage, some in groupby(ours, key=lambda one: one.stage):
                found = list(some)
                if stage:
                    parts.append((commit_part(found, counts_of(found)), None))
                else:
                    parts += [merged_part(found[at : at + most]) for at in range(0, len(found), most)]
        self.block(parts)

    def finish(self, first: int, end: int, first_time: int, last_time: int) -> SegmentInfo:
        """Write the files."""
        info = self.info
        info.end, info.first_sequence, info.end_sequence = self.position, first, end
        info.first_time, info.last_time = first_time, last_time
        put(self.storage, info.name, b"".join([encode_header(info, 1), *self.pieces]))
        put(self.storage, info.index_name, self.made.finish(info).encode(info))
        return info


def cleaned(
    blocks: Sequence[Block], storage: Storage | None = None, number: int = 1, most: int = 1000
) -> SegmentReader:
    """A cleaned segment of some records. What was staged lies in blocks of its own, before those of the records."""
    storage = MemoryStorage() if storage is None else storage
    writer = CleanedWriter(storage, number)
    every = [one for block in blocks for one in block]
    for stage in sorted({one.stage for one in every} - {0}):
        mine = [one for one in every if one.stage == stage]
        writer.block([(part, None) for part in staged_parts(mine, counts_of(mine))])
    for block in blocks:
        if block:
            writer.records(block, most)
    low, high = (every[0], every[-1]) if every else (Rec(0, 0, 0, 0, b""), Rec(0, 0, 0, 0, b""))
    return SegmentReader(storage, writer.finish(low.sequence, high.sequence + 1, low.time, high.time))


# -- reading ----------------------------------------------------------------------------------------------------


def followed(
    history: JournalReader, staged: StageCommit, place: int, *, by_sequence: bool
) -> list[FoundBatch | LostRange]:
    """What a commit of a stage makes visible, from a place on."""
    placing = StagePlacement(staged, place, by_sequence=by_sequence)
    topic, items = stage_topic_of(staged), list[FoundBatch | LostRange]()
    plan = history.plan(topic, placing.ordinal)
    while plan is not None and not placing.done:
        parsed = history.parse(plan, history.fetch(plan), {topic}, by_sequence=False)
        items += placing.placed(parsed.items)
        plan = history.plan(topic, parsed.place, plan, parsed.position)
    return items + list(placing.rest())


def read_all(
    history: JournalReader, plan: ReadPlan | None, topics: Collection[int], place: int, *, by_sequence: bool
) -> list[Rec | LostRange]:
    """Everything from a plan on, as single records, and what is told to be lost."""
    told: list[Rec | LostRange] = []
    rounds = 0
    while plan is not None:
        parsed = history.parse(plan, history.fetch(plan), topics, by_sequence=by_sequence)
        for item in parsed.items:
            assert not isinstance(item, BlocksCommit), "these tests commit no blocks"
            many = followed(history, item, place, by_sequence=by_sequence) if isinstance(item, StageCommit) else [item]
            for one in many:
                told += single(one, by_sequence=by_sequence, place=place)
        assert parsed.position > plan.position, "reading does not get on"
        place = max(place, parsed.place)
        if by_sequence:
            plan = history.plan_sequence(place, plan, parsed.position)
        else:
            (topic,) = topics
            plan = history.plan(topic, place, plan, parsed.position)
        rounds += 1
        assert rounds < 10_000
    return told


def single(item: FoundBatch | LostRange, *, by_sequence: bool, place: int) -> list[Rec | LostRange]:
    """The records of one batch, from a place on."""
    if isinstance(item, LostRange):
        return [item]
    batch = unpack(item.body)
    at, found = item.at, list[Rec | LostRange]()
    for run in runs_of_item(item):
        for number in range(run.count):
            key = None if batch.keys is None else batch.keys[at]
            one = Rec(item.topic, run.offset + number, run.sequence + number, run.time, batch.values[at], key)
            at += 1
            if (one.sequence if by_sequence else one.offset) >= place:
                found.append(one)
    return found


def by_topic(history: JournalReader, topic: int, offset: int = 0) -> list[Rec | LostRange]:
    """Everything of a topic."""
    return read_all(history, history.plan(topic, offset), (topic,), offset, by_sequence=False)


def in_sequence(history: JournalReader, topics: Collection[int], sequence: int = 0) -> list[Rec | LostRange]:
    """Everything of some topics."""
    return read_all(history, history.plan_sequence(sequence), topics, sequence, by_sequence=True)


# -- making -----------------------------------------------------------------------------------------------------


@st.composite
def block_lists(draw: st.DrawFn, min_size: int = 0, *, stages: bool = True) -> list[Block]:
    """Records as a journal holds them, in blocks: sequences and offsets rise and skip, times never fall."""
    ends, sequence, time, stage = dict[int, int](), draw(st.integers(0, 5)), 1000, 0
    blocks: list[Block] = []
    for _ in range(draw(st.integers(min_size, 4))):
        block: Block = []
        for _ in range(draw(st.integers(1, 12))):
            topic = draw(st.integers(1, 4))
            count = draw(st.integers(1, 4))
            is_staged = stages and draw(st.sampled_from([False] * 9 + [True]))
            keyed = not is_staged and draw(st.booleans())
            stage += is_staged
            offset = ends.get(topic, 3 * topic) + draw(st.sampled_from([0, 0, 0, 1, 5]))
            sequence += draw(st.sampled_from([0, 0, 0, 1, 7]))
            time += draw(st.integers(0, 2))
            for number in range(count):
                value = b"%d.%d" % (topic, offset + number)
                key = value if keyed else None
                block.append(
                    Rec(topic, offset + number, sequence + number, time, value, key, stage if is_staged else 0)
                )
            ends[topic] = offset + count
            sequence += count
        blocks.append(block)
    return blocks


def plain(records: Iterable[Rec]) -> list[Rec]:
    """As readers see them, who cannot tell what was staged."""
    return [one._replace(stage=0) for one in records]


# -- whole journals ---------------------------------------------------------------------------------------------


def stage(writer: FolderWriter, topic: str, batches: Sequence[Sequence[bytes]], *, commit: bool = True) -> int:
    """Batches staged for a topic, an entry each, and committed or not; the id of the stage."""
    ledger = writer.journal.ledger
    to = writer.topic(topic)
    number = ledger.next_stage
    writer.write(stage_part(StageState(number, "writer", number, 0, 0, to.id, writer.time)))
    for ordinal, values in enumerate(batches):
        writer.write(staged_part(number, ordinal, pack(values), writer.time))
    if commit:
        state = ledger.stages[number]
        writer.write(stage_commit_part(state, to.end, ledger.sequence, writer.time))
    return number


def clean(
    storage: Storage, *, block: int = 12, keep: int = 1, wanted: Callable[[Rec], bool] = lambda one: True
) -> SegmentInfo:
    """Replace all sealed segments of a journal but the last `keep` by one cleaned segment, of the `wanted` records."""
    known = manifest.load(storage)
    assert known is not None
    olds = [info for info in known.segments if info.sealed]
    olds = olds[: len(olds) - keep]
    writer = CleanedWriter(storage, olds[0].number)
    items: list[Rec | Part] = []
    for info in olds:
        for found in walk_segment(read_whole(storage, info.name)[: info.end], info):
            assert isinstance(found, entry.Entry)
            for part in found.parts:
                if part.kind == PartKind.STAGED:
                    writer.block([(part, None)])
                elif part.kind == PartKind.STAGE_COMMIT:
                    items.append(part)
                elif part.kind == PartKind.BATCH:
                    read = FoundBatch(part.topic, part.base, part.last, part.sequence, part.time, part.body)
                    records = single(read, by_sequence=False, place=0)
                    items += [one for one in records if isinstance(one, Rec) and wanted(one)]
    for at in range(0, len(items), block):
        parts: list[tuple[Part, list[RecordRun] | None]] = []
        by_topic_of = sorted(items[at : at + block], key=lambda one: one.topic)
        for _, ours in groupby(by_topic_of, key=lambda one: one.topic):
            for kind, some in groupby(ours, key=type):
                found_here = list(some)
                if kind is Rec:
                    parts.append(merged_part([one for one in found_here if isinstance(one, Rec)]))
                else:
                    parts += [(one, None) for one in found_here if isinstance(one, Part)]
        writer.block(parts)
    made = writer.finish(olds[0].first_sequence, olds[-1].end_sequence, olds[0].first_time, olds[-1].last_time)
    rest = [info for info in known.segments if info not in olds]
    manifest.write(storage, msgspec.structs.replace(known, segments=[made, *rest]))
    for info in olds:
        storage.remove(info.name)
        storage.remove(info.index_name)
    storage.sync_names()
    return made


def journal_with_stages() -> MemoryStorage:
    """Three topics in several segments, a stage that was committed, one that was not, and one of a later commit."""
    storage = MemoryStorage()
    with FolderWriter(storage) as writer:
        for number in range(9):
            publish_numbered(writer, number, number + 1, ["a", "b"])
            if number == 1:
                stage(writer, "c", [[b"s%d" % at] * 2 for at in range(3)])
            if number == 3:
                stage(writer, "b", [[b"never"]], commit=False)
            if number == 4:
                open_one = stage(writer, "a", [[b"later %d" % at] for at in range(2)], commit=False)
            if number % 3 == 2:
                writer.journal._roll(0, writer.time)
        state, to = writer.journal.ledger.stages[open_one], writer.topic("a")
        writer.write(stage_commit_part(state, to.end, writer.journal.ledger.sequence, writer.time))
        publish_numbered(writer, 9, 11, ["a", "b"])
    return storage


def folder_with_stages(folder: Path, *, cleaned: bool) -> None:
    """The same on a disk, as it was written or with a cleaned segment."""
    storage = journal_with_stages()
    if cleaned:
        clean(storage)
    folder.mkdir(exist_ok=True)
    for name in storage.names():
        (folder / name).write_bytes(read_whole(storage, name))
