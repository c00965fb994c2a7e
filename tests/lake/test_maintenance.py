"""Maintenance beside writers: nothing is lost, repeated, or removed that a reader or a writer still needs."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from runnel.core.errors import InvalidOption
from runnel.lake import Lake, exact_table
from tests.lake.rows import batch, created, due, places


def fill(lake: Lake, commits: int, *, topic: str = "orders", first: int = 0) -> None:
    for number in range(first, first + commits):
        files = lake.write([batch(topic, range(10 * number, 10 * number + 10)), batch("quotes", (number,))])
        lake.commit(files, application="archive", version=number)


def files_of(lake: Lake) -> set[str]:
    return set(pa.table(DeltaTable(lake.records.uri).get_add_actions(flatten=True))["path"].to_pylist())


def on_disk(lake: Lake) -> set[str]:
    return {file.path for file in lake.records.files("", lambda path: not path.startswith("_delta_log"))}


def test_small_files_become_one_per_day_and_bucket(tmp_path: Path) -> None:
    lake = created(tmp_path)
    fill(lake, 12)
    before = places(lake)
    told: list[tuple[str, int, int]] = []
    report = lake.maintain(progress=lambda *step: told.append(step))
    assert (report.compacted, report.into) == (24, 2)
    assert len(files_of(lake)) == 2
    assert places(lake) == before
    assert lake.next_offsets() == {("orders", 1): 120, ("quotes", 1): 12}
    assert ("compacting", 2, 2) in told
    assert lake.maintain().compacted == 0, "one file is not compacted again"


def test_two_compactions_at_once_repeat_nothing(tmp_path: Path) -> None:
    lake = created(tmp_path)
    fill(lake, 10)
    lakes = [lake, Lake(tmp_path / "lake"), Lake(tmp_path / "lake")]
    threads = [threading.Thread(target=one.maintain) for one in lakes]
    threads.append(threading.Thread(target=fill, args=(lake, 5), kwargs={"first": 10}))
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert places(lake) == due("orders", range(150)) + due("quotes", range(15))


def test_a_stale_replacement_is_not_made(tmp_path: Path) -> None:
    """Delta itself accepts two commits that remove the same file and add its rows again."""
    lake, other = created(tmp_path), Lake(tmp_path / "lake")
    fill(lake, 3)
    files = lake.snapshot().files
    orders = [file for file in files if file.rows == 10]
    copies = [lake.write([batch("orders", range(30))]) for _ in range(2)]
    assert lake.replace(orders, copies[0], data_change=False)
    assert not other.replace(orders, copies[1], data_change=False)
    assert places(lake) == due("orders", range(30)) + due("quotes", range(3))


def test_rows_below_the_floor_are_erased_and_not_archived_again(tmp_path: Path) -> None:
    lake = created(tmp_path)
    fill(lake, 4)
    report = lake.maintain({("orders", 1): 25, ("unknown", 1): 7})
    assert report.erased_rows == 25
    assert places(lake) == due("orders", range(25, 40)) + due("quotes", range(4))
    assert lake.next_offsets()["orders", 1] == 40
    again = lake.write([batch("orders", range(40))])
    assert lake.commit(again, application="archive", version=9).rows == 0
    lake.maintain({("orders", 1): 1 << 62})  # the topic was deleted
    assert places(lake) == due("quotes", range(4))


def test_what_was_replaced_stays_for_readers_of_older_snapshots(tmp_path: Path) -> None:
    lake = created(tmp_path)
    fill(lake, 3)
    old = DeltaTable(lake.records.uri)
    before = on_disk(lake)
    assert lake.maintain({("orders", 1): 15}).removed_files == 0
    assert before <= on_disk(lake)
    assert old.to_pyarrow_table().num_rows == 33


def test_replaced_files_are_removed_when_they_are_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = created(tmp_path)
    fill(lake, 3)
    monkeypatch.setattr(exact_table, "COMMIT_AGE", 0.0)
    report = lake.maintain({("orders", 1): 30}, safe_age=0)
    assert (report.erased_rows, report.removed_files) == (30, 6)  # three were erased, three of quotes compacted
    assert on_disk(lake) == files_of(lake)
    assert places(lake) == due("quotes", range(3))


def test_only_left_over_files_that_are_old_are_removed(tmp_path: Path) -> None:
    lake = created(tmp_path)
    fill(lake, 2)
    (old,), (young,) = (lake.write([batch("orders", (100 + number,))]) for number in range(2))
    for path in (old.path, *files_of(lake)):
        os.utime(lake.records.folder / path, (0, time.time() - 8 * 86400))  # type: ignore[operator]
    assert lake.maintain().removed_files == 1
    assert old.path not in on_disk(lake)
    assert lake.commit([young], application="archive", version=9).rows == 1
    assert places(lake) == sorted([*due("orders", range(20)), ("orders", 1, 101), *due("quotes", range(2))])


def test_an_age_at_which_writers_may_still_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="48 hours or more"):
        created(tmp_path).maintain(safe_age=3600)
