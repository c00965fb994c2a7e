"""Archiving: run by run, beside the owner, and honest about what it missed."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from runnel.core.errors import ArchiveBusy, ArchiveMismatch, FolderUnusable, JournalDamaged
from runnel.journal.backup import archive as module
from runnel.journal.backup.archive import archive, plan_archive, release
from runnel.journal.backup.archive_catalog import ArchiveBase, ArchiveCatalog, ArchivedSegment, open_catalog
from runnel.journal.backup.restore import Point, restore
from runnel.journal.backup.snapshot import snapshot
from runnel.journal.check.repair import repair
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format import manifest
from runnel.journal.format.ledger import trim_part
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.read.inspection import NoJournal
from runnel.journal.storage import OsStorage
from runnel.journal.write import archive_holds
from tests.journal.folder_contents import held, sequences, time_of
from tests.journal.folders import BEGAN, Owner, fill, flip, other_owner, publish_numbered, segments_of, snapshot_of


def pool(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "archive" / "segments").iterdir())


def restored(tmp_path: Path, name: str = "restored", point: Point | None = None) -> list[int]:
    restore(tmp_path / "archive", tmp_path / name, point)
    return sequences(tmp_path / name)


def test_the_first_run_takes_a_base_and_the_next_ones_add_to_it(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20)
        first = archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        assert (first.base is not None, first.why, first.missed, first.segments) == (True, "the first", None, [])
        assert (first.since, first.through) == (time_of(19), time_of(19))
        publish_numbered(owner, 20, 60)
        second = archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        assert (second.base, second.missed) == (None, None)
        assert [info.number for info in second.segments] == [2, 3, 4]
        assert second.growing_bytes > 0
        third = archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        assert (third.segments, third.growing_bytes, third.linked, third.copied) == ([], 0, 0, 0)
    assert restored(tmp_path) == list(range(180))


def test_each_run_reaches_what_is_durable_by_then(tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        for count in (1, 2, 30, 40):
            owner.tell("publish", count)
            archive(tmp_path / "data", tmp_path / "archive")
            assert restored(tmp_path, f"after {count}") == sequences(tmp_path / "data")
        owner.kill()
    archive(tmp_path / "data", tmp_path / "archive")
    assert restored(tmp_path) == list(range(219))


def test_sealed_segments_are_linked_and_the_one_that_grows_is_a_copy(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 30)
        archive(tmp_path / "data", tmp_path / "archive")
        first, *_, second = sorted((tmp_path / "archive" / "segments").glob("*.seg"))
        assert first.samefile(segments_of(tmp_path / "data")[0])
        assert second.stat().st_nlink == 1
        publish_numbered(owner, 30, 60)
        archive(tmp_path / "data", tmp_path / "archive")
        assert second.samefile(tmp_path / "data" / second.name.replace(second.suffixes[0], ""))  # sealed meanwhile
    assert not [name for name in pool(tmp_path) if name.endswith(".tmp")]


def test_links_can_be_done_without(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    done = archive(tmp_path / "data", tmp_path / "archive", link=False)
    assert (done.linked, done.copied) == (0, len(snapshot_of(tmp_path / "data")) - 2)  # the manifest, the mark
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "archive" / "segments").iterdir())
    assert restored(tmp_path) == list(range(180))


def test_the_archive_alone_is_enough(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    archive(tmp_path / "data", tmp_path / "archive", link=False)
    before = held(tmp_path / "data")
    for path in (tmp_path / "data").iterdir():
        path.unlink()
    restore(tmp_path / "archive", tmp_path / "restored")
    assert held(tmp_path / "restored") == before


def test_a_closed_journal_is_complete_up_to_the_moment_of_the_run(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    assert archive(tmp_path / "data", tmp_path / "archive", now=time_of(1000)).through == time_of(1000)


@pytest.mark.parametrize(("fsync", "through"), [("commit", time_of(1000)), ("os", time_of(3))])
def test_beside_an_owner_the_moment_counts_only_if_every_commit_is_synced(
    tmp_path: Path, fsync: str, through: int
) -> None:
    owner = Owner(tmp_path / "data", fsync=fsync)
    publish_numbered(owner, 0, 4)
    owner.journal.sync()
    publish_numbered(owner, 4, 5)  # acknowledged, and with "os" not yet on disk
    assert archive(tmp_path / "data", tmp_path / "archive", now=time_of(1000)).through == through
    owner.crash()


# -- what was missed --------------------------------------------------------------------------------------------


def test_segments_that_retention_dropped_between_runs_are_noticed(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 5, 50)
        owner.write(trim_part(1, 60, owner.topic("orders").end), trim_part(2, 60, owner.topic("jobs").end))
        owner.journal.retain(owner.time)
        done = archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        assert done.missed is not None
        assert done.missed.startswith("segments 1 to 2 were gone before the archive had all of them: dropped by reten")
        assert (done.base is not None, done.why) == (True, "something was missed")
        assert done.since == time_of(50)
        publish_numbered(owner, 50, 80)
        again = archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        assert (again.missed, again.base) == (None, None)
    assert len(open_catalog(tmp_path / "archive").spans()) == 2
    assert restored(tmp_path) == sequences(tmp_path / "data")


def test_a_segment_of_state_that_came_and_went_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    with Owner(tmp_path / "data") as owner:
        owner.cursor("reader", "orders", 2)
    done = archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    assert done.missed is not None
    assert done.missed.startswith("segment 2 was gone")
    assert restored(tmp_path) == list(range(15))
    assert "reader" in held(tmp_path / "restored")[0]["cursors"]


def test_what_came_before_a_gap_is_archived_all_the_same(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 5, 60)
    with Owner(tmp_path / "data") as owner:
        owner.cursor("reader", "orders", 2)  # a segment of state, that closing drops
    done = archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    assert ([info.number for info in done.segments], done.missed is not None) == ([1, 2, 3, 4, 5], True)
    assert restored(tmp_path, "early", Point(time=time_of(30))) == list(range(93))


def test_a_segment_of_state_that_was_half_archived_is_noticed(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        owner.topic("orders")
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        owner.cursor("reader", "orders", 2)
    assert archive(tmp_path / "data", tmp_path / "archive", now=BEGAN).missed is not None


def test_a_cleaned_segment_is_no_segment_as_it_was_written(tmp_path: Path) -> None:
    known = ArchiveCatalog(
        "j", [ArchivedSegment(SegmentInfo(4, 44, 500, 0, 40), whole=True)], [ArchiveBase("b", 4, 64, 0, 0, 0, 0, "")]
    )
    written = [SegmentInfo(5, 55, 500, 40, 50), SegmentInfo(6, 66, 0, 50)]
    assert plan_archive(known, Manifest("j", written, [6], 7), "a").segments == written
    cleaned = [SegmentInfo(5, 77, 300, 40, 50, generation=1), SegmentInfo(6, 66, 0, 50)]
    found = plan_archive(known, Manifest("j", cleaned, [6], 7), "a")
    assert found.segments == []
    assert found.missed is not None
    assert found.missed.startswith("segment 5 was gone")


def test_the_next_number_alone_does_not_make_a_segment_the_next_one() -> None:
    known = ArchiveCatalog(
        "j", [ArchivedSegment(SegmentInfo(4, 44, 500, 0, 40), whole=True)], [ArchiveBase("b", 4, 64, 0, 0, 0, 0, "")]
    )
    mended = [SegmentInfo(5, 55, 500, 20, 40), SegmentInfo(6, 66, 0, 40)]  # written again, from an older one
    assert plan_archive(known, Manifest("j", mended, [6], 7), "a").missed is not None


def test_a_segment_that_a_repair_wrote_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    archive(tmp_path / "data", tmp_path / "archive", link=False, now=BEGAN)
    flip(segments_of(tmp_path / "data")[1], 3000)
    assert repair(tmp_path / "data").done
    assert archive(tmp_path / "data", tmp_path / "archive", now=BEGAN).missed is not None
    assert restored(tmp_path) == sequences(tmp_path / "data")


def test_a_new_base_can_be_asked_for_and_shares_what_is_there(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    archive(tmp_path / "data", tmp_path / "archive", link=False)
    before = pool(tmp_path)
    done = archive(tmp_path / "data", tmp_path / "archive", link=False, new_base=True)
    assert (done.why, done.missed, pool(tmp_path)) == ("asked for", None, before)
    assert done.copied == len(list((tmp_path / "data").glob("*.ckpt")))
    names = [base.name for base in open_catalog(tmp_path / "archive").bases]
    assert names[-1] == done.base
    assert len(set(names)) == 2  # within one second, too


# -- another journal, another life ------------------------------------------------------------------------------


def test_another_journal_is_refused(tmp_path: Path) -> None:
    for name in ("data", "other"):
        fill(tmp_path / name, batches=5)
    archive(tmp_path / "data", tmp_path / "archive")
    with pytest.raises(ArchiveMismatch, match="holds journal"):
        archive(tmp_path / "other", tmp_path / "archive")


def test_a_journal_that_went_back_to_a_snapshot_is_refused(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        snapshot(tmp_path / "data", tmp_path / "snap")
        publish_numbered(owner, 5, 40)
        archive(tmp_path / "data", tmp_path / "archive")
    with pytest.raises(ArchiveMismatch, match="older than its archive"):
        archive(tmp_path / "snap", tmp_path / "archive")
    archive(tmp_path / "data", tmp_path / "archive")
    with Owner(tmp_path / "snap") as other:
        publish_numbered(other, 5, 60)
    with pytest.raises(ArchiveMismatch, match="another life"):
        archive(tmp_path / "snap", tmp_path / "archive")


def test_a_restored_journal_needs_an_archive_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    archive(tmp_path / "data", tmp_path / "archive")
    restore(tmp_path / "archive", tmp_path / "restored")
    with pytest.raises(ArchiveMismatch, match="start a new archive"):
        archive(tmp_path / "restored", tmp_path / "archive")
    archive(tmp_path / "restored", tmp_path / "second")
    restore(tmp_path / "second", tmp_path / "twice")
    assert sequences(tmp_path / "twice") == list(range(180))


# -- damage, crashes, company -----------------------------------------------------------------------------------


def test_a_damaged_segment_is_not_archived(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 5, 60)
    flip(segments_of(tmp_path / "data")[1], 3000)
    with pytest.raises(JournalDamaged) as found:
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    damaged, info = segments_of(tmp_path / "data")[1], open_catalog(tmp_path / "archive").pieces[-1].info
    assert found.value.file == damaged.name
    assert info.number == 1, "the whole one before it was added"
    assert not [name for name in pool(tmp_path) if name.startswith(damaged.stem)]
    assert restored(tmp_path) == list(range(info.end_sequence))
    assert open_catalog(tmp_path / "archive").spans()[0].through == info.last_time, "no more than that is promised"


def test_damage_in_what_grew_does_not_come_in_the_place_of_what_is_whole(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        before = snapshot_of(tmp_path / "archive")
        publish_numbered(owner, 5, 60)
    flip(segments_of(tmp_path / "data")[0], 200)
    with pytest.raises(JournalDamaged):
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    assert snapshot_of(tmp_path / "archive")["CATALOG"] == before["CATALOG"]
    assert restored(tmp_path) == list(range(15))


@pytest.mark.parametrize("link", [True, False])
def test_a_base_takes_no_damaged_segment(tmp_path: Path, link: bool) -> None:
    fill(tmp_path / "data")
    damaged = segments_of(tmp_path / "data")[2]
    flip(damaged, 3000)
    with pytest.raises(JournalDamaged) as found:
        archive(tmp_path / "data", tmp_path / "archive", link=link, hold=True)
    assert found.value.file == damaged.name
    assert not [name for name in pool(tmp_path) if name.startswith(damaged.stem)]
    assert not (tmp_path / "archive" / "CATALOG").exists()
    assert archive_holds.load(OsStorage(tmp_path / "data")) == [], "a run that fails does not begin to hold"


def test_a_base_after_a_gap_takes_no_damaged_segment_and_what_came_before_the_gap_counts(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 5, 40)
    with Owner(tmp_path / "data") as owner:
        owner.cursor("reader", "orders", 2)  # a segment of state, that closing drops
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 40, 60)
        damaged = segments_of(tmp_path / "data")[-2]
    flip(damaged, 3000)
    with pytest.raises(JournalDamaged, match=damaged.name):
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    known = open_catalog(tmp_path / "archive")
    assert len(known.bases) == 1
    assert restored(tmp_path) == list(range(120))


# -- holding ----------------------------------------------------------------------------------------------------


def holders(tmp_path: Path) -> list[tuple[str, int]]:
    found = archive_holds.load(OsStorage(tmp_path / "data"))
    return [(Path(one.place).name, one.through) for one in found]


def test_what_an_archive_holds_is_there_when_it_comes_by_and_goes_then(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20)
        assert archive(tmp_path / "data", tmp_path / "archive", hold=True).holds
        assert holders(tmp_path) == [("archive", 1)]
        publish_numbered(owner, 20, 60)
        owner.write(trim_part(1, 90, owner.topic("orders").end), trim_part(2, 90, owner.topic("jobs").end))
        owner.journal.retain(owner.time)
        assert [info.number for info in owner.journal.manifest.segments] == [2, 3, 4, 5]
        done = archive(tmp_path / "data", tmp_path / "archive")
        assert (done.missed, done.holds, holders(tmp_path)) == (None, True, [("archive", 4)])
        owner.journal.retain(owner.time)
        assert [info.number for info in owner.journal.manifest.segments] == [5]
    assert restored(tmp_path, "early", Point(time=time_of(40))) == list(range(123))


@pytest.mark.parametrize("crash", [False, True])
def test_a_segment_of_state_stays_for_an_archive_that_holds(tmp_path: Path, crash: bool) -> None:
    fill(tmp_path / "data", batches=5)
    archive(tmp_path / "data", tmp_path / "archive", hold=True, now=BEGAN)
    with Owner(tmp_path / "data") as owner:
        owner.cursor("reader", "orders", 2)
        if crash:
            owner.crash()
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 5, 10)
    assert archive(tmp_path / "data", tmp_path / "archive", now=BEGAN).missed is None
    assert held(tmp_path / "data")[0]["cursors"].keys() == {"reader"}
    restore(tmp_path / "archive", tmp_path / "restored")
    assert held(tmp_path / "restored") == held(tmp_path / "data")


def test_of_several_archives_the_least_counts_and_each_lets_go_for_itself(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20)
        archive(tmp_path / "data", tmp_path / "archive", hold=True)
        publish_numbered(owner, 20, 60)
        archive(tmp_path / "data", tmp_path / "other", hold=True)
        assert holders(tmp_path) == [("archive", 1), ("other", 4)]
        assert owner.journal.safe_through() == 1
        assert not archive(tmp_path / "data", tmp_path / "archive", hold=False).holds
        assert owner.journal.safe_through() == 4
        assert [one.through for one in release(tmp_path / "data", tmp_path / "other")] == [4]
        assert owner.journal.safe_through() == archive_holds.ALL_SEGMENTS
        assert not archive(tmp_path / "data", tmp_path / "other").holds


def test_an_archive_that_moved_is_the_same_one(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    archive(tmp_path / "data", tmp_path / "archive", hold=True, now=BEGAN)
    (tmp_path / "archive").rename(tmp_path / "moved")
    archive(tmp_path / "data", tmp_path / "moved", now=BEGAN + 1)
    (found,) = archive_holds.load(OsStorage(tmp_path / "data"))
    assert (Path(found.place).name, found.since, found.seen) == ("moved", BEGAN, BEGAN + 1)


def test_an_archive_of_another_journal_does_not_begin_to_hold(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    fill(tmp_path / "others")
    archive(tmp_path / "others", tmp_path / "archive")
    with pytest.raises(ArchiveMismatch):
        archive(tmp_path / "data", tmp_path / "archive", hold=True)
    assert holders(tmp_path) == []


def test_an_archive_that_went_back_holds_again_what_it_has_not(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20)
        archive(tmp_path / "data", tmp_path / "archive", hold=True)
        shutil.copytree(tmp_path / "archive", tmp_path / "copy")
        publish_numbered(owner, 20, 60)
        archive(tmp_path / "data", tmp_path / "archive")
        assert holders(tmp_path) == [("archive", 4)]
        archive(tmp_path / "data", tmp_path / "copy")
        assert holders(tmp_path) == [("copy", 4)]


@pytest.mark.parametrize("call", range(1, 60, 4))
def test_a_run_that_is_cut_off_leaves_the_archive_as_it_was_and_the_next_one_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 5, 40)
        left = call
        real = {name: getattr(os, name) for name in ("replace", "link", "fsync", "fdatasync", "pwritev")}

        def give_up(name: str) -> object:
            def step(*arguments: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
                return real[name](*arguments)

            return step

        for name in real:
            monkeypatch.setattr(os, name, give_up(name))
        try:
            archive(tmp_path / "data", tmp_path / "archive", new_base=True, now=BEGAN)
        except KeyboardInterrupt:
            monkeypatch.undo()
            assert restored(tmp_path, "meanwhile") in (list(range(15)), list(range(120)))
        monkeypatch.undo()
        publish_numbered(owner, 40, 45)
        assert archive(tmp_path / "data", tmp_path / "archive", now=BEGAN).missed is None
    assert restored(tmp_path) == list(range(135))
    assert restored(tmp_path, "early", Point(time=time_of(4))) == list(range(15))


def test_one_run_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    archive(tmp_path / "data", tmp_path / "archive")
    lock = FolderLock(tmp_path / "archive")
    lock.take()
    with pytest.raises(ArchiveBusy, match=f"process {os.getpid()} is writing"):
        archive(tmp_path / "data", tmp_path / "archive")
    lock.release()
    archive(tmp_path / "data", tmp_path / "archive")


def test_an_owner_that_closes_meanwhile_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path / "data")
    owner.topic("t")  # nothing but state: closing removes the segment
    real, calls = module._look, 0

    def look(folder: Path) -> object:
        nonlocal calls
        found = real(folder)
        calls += 1
        if calls == 1:
            owner.__exit__(None, None, None)
        return found

    monkeypatch.setattr(module, "_look", look)
    archive(tmp_path / "data", tmp_path / "archive")
    assert calls == 2
    restore(tmp_path / "archive", tmp_path / "restored")
    assert list(held(tmp_path / "restored")[0]["topics"]) == ["t"]


def test_every_run_under_load_is_a_prefix_and_nothing_is_missed(tmp_path: Path) -> None:
    owner, stop = Owner(tmp_path / "data"), threading.Event()
    publish_numbered(owner, 0, 1)

    def write() -> None:
        number = 1
        while not stop.is_set():
            publish_numbered(owner, number, number + 1)
            number += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in range(10):
            assert archive(tmp_path / "data", tmp_path / "archive").missed is None
            found = restored(tmp_path, str(number))
            assert found == list(range(len(found)))
            assert len(found) % 3 == 0
    finally:
        stop.set()
        writing.join()
    owner.crash()


# -- places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["data/inside", "file", "full"])
def test_a_place_that_is_no_archive_is_refused(tmp_path: Path, target: str) -> None:
    fill(tmp_path / "data", batches=5)
    (tmp_path / "file").touch()
    (tmp_path / "full" / "precious").mkdir(parents=True)
    with pytest.raises(FolderUnusable):
        archive(tmp_path / "data", tmp_path / target)
    assert os.listdir(tmp_path / "full") == ["precious"]


def test_there_must_be_a_journal(tmp_path: Path) -> None:
    with pytest.raises(NoJournal):
        archive(tmp_path / "data", tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_a_journal_that_holds_nothing_yet_can_be_archived(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    manifest.write(OsStorage(tmp_path / "data"), Manifest("new", [], []))
    archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
    assert archive(tmp_path / "data", tmp_path / "archive", now=BEGAN).missed is None
    assert restored(tmp_path) == list(range(15))


def test_progress_is_reported_to_the_end(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    told: list[tuple[int, int]] = []
    archive(tmp_path / "data", tmp_path / "archive", progress=lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1] > 20_000
