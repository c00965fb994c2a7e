"""Sources: their index tells of records, commits and stages, and is made again where it is gone."""

from __future__ import annotations

import pytest

from runnel.core.packing import pack
from runnel.journal.entry import STAGE_TOPIC
from runnel.journal.history import History
from runnel.journal.index import IndexBuilder, IndexFile
from runnel.journal.manifest import load
from runnel.journal.parts import staged_part
from runnel.journal.segment import SegmentInfo
from runnel.journal.source import Source, add_part, rebuilt
from runnel.journal.swap import read_whole
from runnel.testing.power import MemoryStorage
from tests.journal.cleaned import (
    Rec,
    clean,
    cleaned,
    commit_part,
    in_sequence,
    journal_with_stages,
    stage,
    staged_parts,
)
from tests.journal.folders import Writer as FolderWriter
from tests.journal.rig import batch


def sources(storage: MemoryStorage) -> list[Source]:
    found = load(storage)
    assert found is not None
    return [Source(storage, info) for info in found.segments]


@pytest.mark.parametrize("with_cleaned", [False, True])
def test_an_index_made_again_says_what_the_one_that_was_written_says(with_cleaned: bool) -> None:
    storage = journal_with_stages()
    if with_cleaned:
        clean(storage)
    for source in sources(storage):
        builder, whole = rebuilt(storage, source.info)
        assert whole
        assert builder.encode(source.info) == read_whole(storage, source.info.index_name)
        storage.remove(source.info.index_name)
        again = Source(storage, source.info)
        assert list(again.index.topics()) == list(builder.topics())
        assert again.damage
        assert not again.suspect


def test_staged_batches_are_found_by_their_stage_and_are_nobody_s_records() -> None:
    builder = IndexBuilder()
    for at, part in enumerate(staged_parts([Rec(1, 0, 0, 0, b"x", stage=5)] * 3, [2, 1])):
        add_part(builder, 64 + at, part)
    assert [(topic, found.first, found.end) for topic, found in builder.topics()] == [(STAGE_TOPIC | 5, 0, 2)]
    source = Source(MemoryStorage(), SegmentInfo(1, 1), builder)
    source.written = 200
    assert not source.holds_records()
    assert source.end_sequence == 0
    history = History([source])
    assert history.plan_sequence(0) is None
    assert history.plan_sequence_at_time(0) is None
    assert history.plan(STAGE_TOPIC | 5, 1) is not None
    add_part(builder, 300, batch(1, 0, 7, 1, [b"x"]))
    assert source.holds_records()
    assert source.end_sequence == 8


def test_a_commit_is_found_as_a_batch_of_its_topic() -> None:
    builder = IndexBuilder()
    records = [Rec(2, 10 + at, 70 + at, 3, b"x", stage=5) for at in range(3)]
    add_part(builder, 64, commit_part(records, [3]))
    held = builder.range_of(2)
    assert held is not None
    assert (held.first, held.end, held.records) == (10, 13, 3)
    assert builder.end_sequence == 73


def test_a_cleaned_segment_knows_that_it_is_one() -> None:
    source = cleaned([[Rec(1, 0, 10, 5, b"x")]])
    assert source.is_cleaned
    assert isinstance(source.index, IndexFile)
    assert source.end_sequence == 11
    assert not Source(MemoryStorage(), SegmentInfo(1, 1)).is_cleaned


def test_what_is_staged_takes_no_sequence_from_what_is_read() -> None:
    storage = MemoryStorage()
    with FolderWriter(storage) as writer:
        number = stage(writer, "t", [[b"x"]], commit=False)
        writer.write(staged_part(number, 1, pack([b"y"]), 1), writer.batch("t", pack([b"first"]), 1))
        found = in_sequence(writer.journal.history, {1}, 0)
    assert [one.value for one in found if isinstance(one, Rec)] == [b"first"]
