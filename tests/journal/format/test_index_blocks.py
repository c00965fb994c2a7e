"""The index of a cleaned segment: its blocks and entries are found again, whatever cannot be read."""

from __future__ import annotations

from hypothesis import given, settings

from runnel.core.checksum import crc_of
from runnel.journal.format import entry
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.index import CleanedIndexBuilder, IndexBuilder, block_start, rebuild_cleaned_index
from runnel.journal.format.index import SegmentBlock as Found
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.read.segment_reader import SegmentReader
from tests.journal.cleaned_segments import Block, Rec, block_lists, cleaned, merged_part, staged_parts


def blocks_of(index: IndexBuilder) -> list[Found]:
    found, position = list[Found](), 0
    while (block := index.block(-1, position)) is not None:
        found.append(block)
        position = block.position + 1
    return found


@settings(max_examples=50)
@given(block_lists(min_size=1))
def test_every_entry_has_a_window_and_every_block_begins_with_its_lowest(blocks: list[Block]) -> None:
    source = cleaned(blocks, most=2)
    builder, whole = rebuild_cleaned_index(read_whole(source.storage, source.info.name), source.info)
    assert whole
    records = [one for block in blocks for one in block]
    for one in records:
        at, following = builder.window(one.topic, one.offset)
        head = entry.read_head(read_whole(source.storage, source.info.name), at, source.info.id, at)
        assert head is not None
        assert any(base <= one.offset <= last for *_, topic, base, last, _, _ in head.table if topic == one.topic)
        assert following is None or following >= head.end
    firsts = [found.first for found in blocks_of(builder)]
    staged = len({one.stage for one in records} - {0})
    assert firsts == [records[0].sequence] * staged + [block[0].sequence for block in blocks]
    for topic in {one.topic for one in records}:
        held = builder.range_of(topic)
        assert held is not None
        assert held.records == sum(one.topic == topic for one in records)


def test_a_block_without_records_begins_where_the_next_one_does_or_the_segment_ends() -> None:
    made = CleanedIndexBuilder()
    (staged,) = staged_parts([Rec(1, 0, 0, 0, b"x", stage=3)], [1])
    part, runs = merged_part([Rec(1, 0, 40, 5, b"x"), Rec(1, 1, 45, 6, b"y")])
    made.add(64, 64, staged)
    made.add(200, 200, part, runs)
    made.add(400, 400, staged)
    info = SegmentInfo(1, 1, 500, 30, 50, 4, 9, 1)
    assert blocks_of(made.finish(info)) == [
        Found(64, 200, 40, 40),
        Found(200, 400, 40, 50),
        Found(400, None, 50, None),
    ]
    assert made.builder.block(40) == Found(200, 400, 40, 50)  # and not the one without records
    assert made.builder.block_at_time(6) == Found(200, 400, 40, 50)


def test_what_is_no_batch_opens_no_block() -> None:
    made = CleanedIndexBuilder()
    made.add(64, 64, Part(PartKind.NAMES, b"\x90", crc_of(b"\x90")))
    assert blocks_of(made.finish(SegmentInfo(1, 1, 100, generation=1))) == []


def test_a_position_that_no_block_can_begin_at_is_not_believed() -> None:
    assert block_start(entry.EntryHead(100, 200, 64, 0, [], 0)) == 64
    assert block_start(entry.EntryHead(100, 200, 101, 0, [], 0)) == 100
    assert block_start(entry.EntryHead(100, 200, 0, 0, [], 0)) == 100


def test_of_a_segment_with_nothing_to_read_all_of_it_is_one_block() -> None:
    source = cleaned([[Rec(1, 0, 10, 5, b"x"), Rec(2, 0, 11, 5, b"y")]])
    source.storage.open(source.info.name, writable=True).write(START, [bytes(source.info.end - START)])
    source.storage.remove(source.info.index_name)
    damaged = SegmentReader(source.storage, source.info)
    assert damaged.index.block(0) == Found(START, None, 10, None)
    assert damaged.suspect
