"""The table: each (topic, epoch, offset) is added once, whatever is committed again, and by how many processes."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from runnel.core.errors import InvalidOption, LakeFileExpired, LakeMismatch, UnknownLake
from runnel.lake import Lake
from runnel.lake.layout import bucket_of
from tests.lake.rows import batch, created, due, places


def test_a_commit_adds_rows_and_moves_the_next_offset(tmp_path: Path) -> None:
    lake = created(tmp_path)
    files = lake.write([batch("orders", range(100)), batch("quotes", range(7), epoch=2)])
    assert places(lake) == [], "what was written is seen when it is committed"
    done = lake.commit(files, application="archive", version=0)
    assert (done.rows, done.repeated) == (107, 0)
    assert done.next_offsets == {("orders", 1): 100, ("quotes", 2): 7} == lake.next_offsets()
    assert lake.next_offsets(["orders", "unknown"]) == {("orders", 1): 100}
    assert places(lake) == due("orders", range(100)) + due("quotes", range(7), 2)
    assert lake.application_version("archive") == 0


def test_a_batch_that_is_committed_again_repeats_nothing(tmp_path: Path) -> None:
    lake = created(tmp_path)
    files = lake.write([batch("orders", range(100))])
    lake.commit(files, application="archive", version=0)
    same = lake.commit(files, application="archive", version=0)
    assert (same.rows, same.files, same.repeated) == (0, 0, 100)
    assert same.next_offsets == {("orders", 1): 100}
    others = lake.write([batch("orders", range(100))])  # a driver that was killed writes the batch anew
    assert lake.commit(others, application="archive", version=0).rows == 0
    assert places(lake) == due("orders", range(100))


def test_a_deleted_checkpoint_repeats_nothing_and_loses_nothing(tmp_path: Path) -> None:
    lake = created(tmp_path)
    lake.commit(lake.write([batch("orders", range(100))]), application="archive", version=7)
    again = lake.write([batch("orders", range(250))])  # the query begins at offset 0 and batch 0 again
    done = lake.commit(again, application="archive", version=0)
    assert (done.rows, done.repeated) == (150, 100)
    assert places(lake) == due("orders", range(250))


def test_rows_below_the_next_offsets_are_not_written(tmp_path: Path) -> None:
    lake = created(tmp_path)
    lake.commit(lake.write([batch("orders", range(100))]), application="archive", version=0)
    known = lake.next_offsets(["orders"])
    assert lake.write([batch("orders", range(50))], behind=known) == []
    (file,) = lake.write([batch("orders", range(80, 120))], behind=known)
    assert [(one.first, one.last, one.count) for one in file.ranges] == [(100, 119, 20)]


def test_another_epoch_is_another_topic(tmp_path: Path) -> None:
    lake = created(tmp_path)
    for number, epoch in enumerate((1, 2)):
        files = lake.write([batch("orders", range(10), epoch=epoch)], behind=lake.next_offsets())
        assert lake.commit(files, application="archive", version=number).rows == 10
    assert places(lake) == due("orders", range(10), 1) + due("orders", range(10), 2)


def test_two_committers_from_one_snapshot_add_each_row_once(tmp_path: Path) -> None:
    created(tmp_path)
    lakes = [Lake(tmp_path / "lake") for _ in range(4)]
    ready = threading.Barrier(len(lakes))
    failed: list[BaseException] = []

    def archive(lake: Lake, name: str) -> None:
        try:
            for number in range(6):  # each copies all the topic, in steps of its own
                files = lake.write([batch("orders", range(30 * number, 30 * number + 45))])
                ready.wait(30)
                lake.commit(files, application=name, version=number)
        except BaseException as error:
            failed.append(error)
            ready.abort()

    threads = [threading.Thread(target=archive, args=(lake, f"archive {at}")) for at, lake in enumerate(lakes)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert failed == []
    assert places(lakes[0]) == due("orders", range(195))


def test_commits_of_different_topics_do_not_fail_each_other(tmp_path: Path) -> None:
    one, two = created(tmp_path), Lake(tmp_path / "lake")
    first, second = one.write([batch("orders", range(5))]), two.write([batch("quotes", range(5))])
    assert two.next_offsets() == {}
    one.commit(first, application="one", version=0)
    two.commit(second, application="two", version=0)
    assert places(one) == due("orders", range(5)) + due("quotes", range(5))


def test_ends_move_the_next_offset_behind_records_that_are_gone(tmp_path: Path) -> None:
    lake = created(tmp_path)
    files = lake.write([batch("orders", (3, 7))])
    lake.commit(files, application="archive", version=0, ends={("orders", 1): 20})
    assert lake.next_offsets() == {("orders", 1): 20}
    done = lake.commit([], application="archive", version=1, ends={("orders", 1): 30, ("quotes", 1): 4})
    assert (done.rows, lake.next_offsets()) == (0, {("orders", 1): 30, ("quotes", 1): 4})
    before = lake.version
    lake.commit([], application="archive", version=2, ends={("orders", 1): 30})
    assert lake.version == before, "nothing to say: no entry"


def test_next_offsets_outlive_checkpoints_and_the_cleanup_of_the_log(tmp_path: Path) -> None:
    lake = created(tmp_path)
    names = [f"sensor.{number}" for number in range(300)]
    lake.commit(lake.write([batch(name, range(2)) for name in names]), application="archive", version=0)
    for number in range(1, 45):
        lake.commit(lake.write([batch("busy", (number,))]), application="archive", version=number)
    log = lake.records.folder / "_delta_log"  # type: ignore[operator]
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    for entry in log.glob("*.json"):
        if int(entry.stem) <= 40:
            entry.unlink()  # as a cleanup does with entries before a checkpoint
    fresh = Lake(tmp_path / "lake")
    assert fresh.next_offsets() == {(name, 1): 2 for name in names} | {("busy", 1): 45} == lake.next_offsets()
    assert fresh.commit(fresh.write([batch(names[7], range(2))]), application="other", version=0).rows == 0
    table = DeltaTable(fresh.records.uri)
    assert table.transaction_version("runnel/1/sensor.7") == 2, "what other readers of Delta see"


def test_a_file_that_is_partly_known_is_committed_without_those_rows(tmp_path: Path) -> None:
    lake = created(tmp_path)
    lake.commit(lake.write([batch("orders", range(10))]), application="one", version=0)
    stale = lake.write([batch("orders", range(5, 15)), batch("quotes", range(3))])
    done = lake.commit(stale, application="two", version=0)
    assert (done.rows, done.repeated) == (8, 5)
    assert places(lake) == due("orders", range(15)) + due("quotes", range(3))


def test_rows_keep_all_that_a_record_has(tmp_path: Path) -> None:
    lake = created(tmp_path)
    rows = batch("orders", range(3), key=[b"\xff\x00", None, b""], headers=[[("a", "1"), ("a", "2")], [], [("b", "é")]])
    lake.commit(lake.write([rows]), application="archive", version=0)
    table = DeltaTable(lake.records.uri).to_pyarrow_table().sort_by("offset")
    assert table["key"].to_pylist() == [b"\xff\x00", None, b""]
    assert table["headers"].to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}],
        None,
        [{"key": "b", "value": "é".encode()}],
    ]
    assert table["time"].to_pylist() == rows.column("time").to_pylist()
    assert set(table["bucket"].to_pylist()) == {bucket_of("orders", lake.buckets)}
    assert {str(day) for day in table["day"].to_pylist()} == {"2026-03-04"}


def test_rows_of_several_days_go_to_several_folders(tmp_path: Path) -> None:
    lake = created(tmp_path)
    files = lake.write([batch("orders", range(30), step=3600_000_000)])
    assert sorted(str(file.day) for file in files) == ["2026-03-04", "2026-03-05"]
    lake.commit(files, application="archive", version=0)
    assert places(lake) == due("orders", range(30))


def test_what_an_executor_gets_and_returns_can_be_pickled(tmp_path: Path) -> None:
    lake = created(tmp_path)
    files = pickle.loads(pickle.dumps(lake)).write([batch("orders", range(10))])
    assert lake.commit(pickle.loads(pickle.dumps(files)), application="archive", version=0).rows == 10


def test_the_same_record_twice_in_one_commit_is_refused(tmp_path: Path) -> None:
    lake = created(tmp_path)
    files = lake.write([batch("orders", range(10))]) + lake.write([batch("orders", range(10))])
    with pytest.raises(InvalidOption, match="hold 20 rows for the offsets"):
        lake.commit(files, application="archive", version=0)
    assert places(lake) == []


def test_a_file_of_yesterday_is_not_committed(tmp_path: Path) -> None:
    lake = created(tmp_path)
    (file,) = lake.write([batch("orders", range(10))])
    old = msgspec.structs.replace(file, written=time.time() - 90_000)
    with pytest.raises(LakeFileExpired):
        lake.commit([old], application="archive", version=0)
    assert lake.commit([file], application="archive", version=0).rows == 10


def test_a_lake_is_of_one_journal(tmp_path: Path) -> None:
    lake = created(tmp_path)
    lake.create("journal-1")
    assert Lake(tmp_path / "lake").journal == "journal-1"
    with pytest.raises(LakeMismatch, match="journal-2"):
        Lake(tmp_path / "lake").create("journal-2")


def test_what_is_no_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownLake):
        Lake(tmp_path / "lake").next_offsets()
    assert not Lake(tmp_path / "lake").exists
    DeltaTable.create(tmp_path / "lake" / "records", pa.schema([pa.field("topic", pa.string())]))
    with pytest.raises(LakeMismatch, match="has no column 'epoch'"):
        Lake(tmp_path / "lake").create()
    lake = created(tmp_path / "other")
    with pytest.raises(InvalidOption, match="need sequence"):
        lake.write([batch("orders", range(2)).drop_columns(["sequence"])])
