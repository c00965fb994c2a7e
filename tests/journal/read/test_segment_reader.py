"""Segment readers: their index tells of records, commits and stages, and is made again where it is gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from sys import getrefcount
from threading import Thread
from weakref import ref

import pytest

from runnel.core.batch_format import pack
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import STAGE_TOPIC
from runnel.journal.format.index import IndexBuilder, IndexFile, TopicRange
from runnel.journal.format.ledger import staged_part
from runnel.journal.format.manifest import load
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.read import segment_reader as source_module
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import (
    FoundBatch,
    OpenFiles,
    SegmentReader,
    StageCommit,
    index_part,
    offset_at,
    rebuild_index,
    run_at_time,
    runs_of_item,
)
from runnel.journal.storage import OsFile, OsStorage, Storage
from runnel.testing.faulty_storage import FaultyStorage
from runnel.testing.memory_storage import MemoryStorage
from tests.journal.cleaned_segments import (
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
from tests.journal.folders import fill, in_memory
from tests.journal.written_journal import batch, flip, read_topic


def sources(storage: Storage, handles: OpenFiles | None = None) -> list[SegmentReader]:
    found = load(storage)
    assert found is not None
    return [SegmentReader(storage, info, handles=handles) for info in found.segments]


@pytest.mark.parametrize("with_cleaned", [False, True])
def test_an_index_made_again_says_what_the_one_that_was_written_says(with_cleaned: bool) -> None:
    storage = journal_with_stages()
    if with_cleaned:
        clean(storage)
    for source in sources(storage):
        builder, whole = rebuild_index(storage, source.info)
        assert whole
        assert builder.encode(source.info) == read_whole(storage, source.info.index_name)
        storage.remove(source.info.index_name)
        again = SegmentReader(storage, source.info)
        assert list(again.index.topics()) == list(builder.topics())
        assert again.damage
        assert not again.suspect


def test_staged_batches_are_found_by_their_stage_and_are_no_records_of_a_topic() -> None:
    builder = IndexBuilder()
    for at, part in enumerate(staged_parts([Rec(1, 0, 0, 0, b"x", stage=5)] * 3, [2, 1])):
        index_part(builder, 64 + at, part)
    assert [(topic, found.first, found.end) for topic, found in builder.topics()] == [(STAGE_TOPIC | 5, 0, 2)]
    source = SegmentReader(MemoryStorage(), SegmentInfo(1, 1), builder)
    source.written = 200
    assert not source.holds_records()
    assert source.end_sequence == 0
    history = JournalReader([source])
    assert history.plan_sequence(0) is None
    assert history.plan_sequence_at_time(0) is None
    assert history.plan(STAGE_TOPIC | 5, 1) is not None
    index_part(builder, 300, batch(1, 0, 7, 1, [b"x"]))
    assert source.holds_records()
    assert source.end_sequence == 8


def test_a_commit_is_found_as_a_batch_of_its_topic() -> None:
    builder = IndexBuilder()
    records = [Rec(2, 10 + at, 70 + at, 3, b"x", stage=5) for at in range(3)]
    index_part(builder, 64, commit_part(records, [3]))
    held = builder.range_of(2)
    assert held is not None
    assert (held.first, held.end, held.records) == (10, 13, 3)
    assert builder.end_sequence == 73


def test_a_cleaned_segment_knows_that_it_is_one() -> None:
    source = cleaned([[Rec(1, 0, 10, 5, b"x")]])
    assert source.is_cleaned
    assert isinstance(source.index, IndexFile)
    assert source.end_sequence == 11
    assert not SegmentReader(MemoryStorage(), SegmentInfo(1, 1)).is_cleaned


def test_what_is_staged_takes_no_sequence_from_what_is_read() -> None:
    storage = MemoryStorage()
    with FolderWriter(storage) as writer:
        number = stage(writer, "t", [[b"x"]], commit=False)
        writer.write(staged_part(number, 1, pack([b"y"]), 1), writer.batch("t", pack([b"first"]), 1))
        found = in_sequence(writer.journal.history, {1}, 0)
    assert [one.value for one in found if isinstance(one, Rec)] == [b"first"]


# -- what is at hand --------------------------------------------------------------------------------------------

FULL = 120  # batches, for some segments


def small_journal() -> MemoryStorage:
    return in_memory(FULL, segment_bytes=4096)


def said(source: SegmentReader) -> list[tuple[int, TopicRange]]:
    return list(source.index.topics())


def test_only_the_files_that_were_read_last_stay_open() -> None:
    found = sources(small_journal(), OpenFiles(files=2))
    files = [source.file for source in found]
    assert len(found) > 4
    assert [source._file for source in found] == [*[None] * (len(found) - 2), *files[-2:]]
    assert found[-2].file is files[-2]  # used: so the other one is next to go
    assert found[0].file.read(0, 8)
    assert [source._file is None for source in found[-2:]] == [False, True]


def test_a_file_is_closed_when_its_reader_is_done(tmp_path: Path) -> None:
    fill(tmp_path, FULL, segment_bytes=4096)
    found = sources(OsStorage(tmp_path), OpenFiles(files=1))
    reading = found[0].file
    assert isinstance(reading, OsFile)
    fd = reading._fd
    assert found[1].file.read(0, 8)
    assert found[0]._file is None
    assert reading.read(0, 8) == found[1].file.read(0, 8)
    del reading
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_only_so_many_bytes_of_indexes_stay_in_memory() -> None:
    storage = small_journal()
    told = [said(source) for source in sources(storage)]
    found = sources(storage, OpenFiles(index_bytes=1))
    for _ in range(2):
        assert [said(source) for source in found] == told
        assert [source._index is None for source in found] == [*[True] * (len(found) - 1), False]
    assert [source.damage for source in found] == [None] * len(found)


def test_a_long_index_is_mapped_and_counts_as_one_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FaultyStorage(small_journal(), kinds=("map",))
    monkeypatch.setattr(source_module, "MAPPED", 50)
    found = sources(storage, OpenFiles(index_bytes=3 * 50))
    told = [said(source) for source in found]
    assert storage.calls == len(found)
    assert sum(source._index is not None for source in found) == 3
    monkeypatch.undo()
    assert [said(source) for source in sources(storage)] == told
    assert storage.calls == len(found), "short ones are not"


def test_an_index_that_was_made_again_stays_and_so_does_what_was_wrong_with_it() -> None:
    storage = small_journal()
    found = sources(storage, OpenFiles(index_bytes=1))
    flip(storage, found[0].info.index_name, 20)
    flip(storage, found[0].info.name, 200)
    made, damage = found[0].index, found[0].damage
    assert damage
    for source in found:
        assert said(source)
    assert found[0].index is made
    assert (found[0].damage, found[0].suspect) == (damage, True)
    assert not any(source.damage or source.suspect for source in found[1:])


def test_an_index_that_is_damaged_while_it_is_not_at_hand_is_made_again() -> None:
    storage = small_journal()
    first, second, *_ = sources(storage, OpenFiles(index_bytes=1))
    told = said(first), said(second)
    flip(storage, first.info.index_name, 20)
    assert said(first) == told[0]
    assert first.damage
    assert not first.suspect


@pytest.mark.parametrize("read_meanwhile", [False, True])
def test_what_is_held_can_be_read_when_its_names_are_gone_and_others_were_read(read_meanwhile: bool) -> None:
    storage = small_journal()
    handles = OpenFiles(files=1, index_bytes=1)
    held, *others = sources(storage, handles)
    told = said(held)
    held.hold_on()
    if read_meanwhile:  # by a thread that did not see yet that it is held
        handles.files.put(held)
        handles.indexes.put(held, 100)
    storage.remove(held.info.name)
    storage.remove(held.info.index_name)
    for source in others:
        assert source.file.read(0, 8)
        assert said(source)
    assert held.file.read(0, held.info.end)
    assert said(held) == told
    assert held.damage is None


def test_those_that_were_held_first_are_let_go_when_there_are_too_many() -> None:
    storage = small_journal()
    found = sources(storage, OpenFiles(held=2))
    for source in found[:3]:
        source.hold_on()
        storage.remove(source.info.name)
        storage.remove(source.info.index_name)
    assert [source._file is None for source in found[:3]] == [True, False, False]
    with pytest.raises(FileNotFoundError):
        _ = found[0].file
    with pytest.raises(FileNotFoundError):
        _ = found[0].index
    assert found[3].file.read(0, 8)


def test_held_resources_are_closed_when_they_have_no_reference() -> None:
    handles = OpenFiles()
    found = sources(small_journal(), handles)
    found[0].hold_on()
    file, source = found[0].file, ref(found.pop(0))
    assert source() is None
    assert getrefcount(file) == 2, "ours, and that of the call"


def test_running_out_of_handles_closes_what_can_be_opened_again() -> None:
    storage = FaultyStorage(small_journal(), kinds=("open",), error=errno.EMFILE)
    found = sources(storage, OpenFiles())
    assert all(said(source) and source.file for source in found[1:])
    storage.fail_at = storage.calls + 1
    assert found[0].file.read(0, 8)
    assert [source._file is None for source in found] == [False, *[True] * (len(found) - 1)]
    storage.fail_at = storage.calls + 1
    assert said(found[0])
    assert storage.failed == 2
    assert found[0].damage is None


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_an_index_is_not_damaged_because_there_are_no_handles(error: int) -> None:
    storage = FaultyStorage(small_journal(), kinds=("open",), error=error, lasting=True)
    source = sources(storage)[0]
    storage.fail_at = storage.calls + 1
    with pytest.raises(OSError, match=os.strerror(error)):
        _ = source.index
    with pytest.raises(OSError, match=os.strerror(error)):
        _ = source.file
    storage.fail_at = None
    assert said(source)
    assert isinstance(source.index, IndexFile)
    assert source.damage is None


def test_a_source_that_is_closed_has_neither_file_nor_index() -> None:
    handles = OpenFiles()
    found = sources(small_journal(), handles)
    history = JournalReader(found)
    read_topic(history, 1)
    found[0].hold_on()
    history.close()
    assert [(source._file, source._index) for source in found] == [(None, None)] * len(found)
    for shelf in (handles.files, handles.indexes, handles.held):
        assert not any(source in shelf for source in found)


def test_many_threads_read_through_few_handles() -> None:
    storage = small_journal()
    whole = read_topic(JournalReader(sources(storage)), 1)
    history = JournalReader(sources(storage, OpenFiles(files=1, index_bytes=1)))
    read: list[object] = []
    threads = [Thread(target=lambda: read.append(read_topic(history, 1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [whole] * 4
    assert not history.suspect


# -- What a read returns: offsets in it are found by sequence and by time, whatever kind it is ---------------


RUNS = [RecordRun(5, 50, 1, 2), RecordRun(9, 60, 3, 1), RecordRun(10, 70, 3, 4)]
MERGED = FoundBatch(1, 5, 13, 50, 1, b"", RUNS)


@pytest.mark.parametrize("item", [FoundBatch(1, 5, 8, 50, 7, b""), StageCommit(1, 5, 8, 50, 7, 2, (3, 1))])
def test_all_but_merged_batches_are_one_run(item: FoundBatch | StageCommit) -> None:
    assert runs_of_item(item) == (RecordRun(5, 50, 7, 4),)
    assert [offset_at(item, sequence) for sequence in (0, 50, 53, 54)] == [5, 5, 8, None]
    assert run_at_time(item, 7) == RecordRun(5, 50, 7, 4)
    assert run_at_time(item, 8) is None


def test_a_merged_batch_has_the_runs_that_it_says() -> None:
    assert runs_of_item(MERGED) == RUNS
    wanted = {0: 5, 51: 6, 52: 9, 60: 9, 61: 10, 72: 12, 73: 13, 74: None}
    assert {sequence: offset_at(MERGED, sequence) for sequence in wanted} == wanted
    assert [run_at_time(MERGED, time) for time in (0, 1, 2, 3, 4)] == [RUNS[0], RUNS[0], RUNS[1], RUNS[1], None]
