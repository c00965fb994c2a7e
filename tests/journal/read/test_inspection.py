"""Looking at a folder: what is durable is seen, whoever owns it, and nothing is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.core.errors import FolderUnusable, JournalDamaged
from runnel.core.record import Gap, Meta, Record
from runnel.journal.check.verify import verify
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format import manifest, watermark
from runnel.journal.format.ledger import trim_part
from runnel.journal.read import inspection as module
from runnel.journal.read.inspection import Inspection, NoJournal, consistent_view, owner_of
from runnel.journal.storage import OsStorage, Storage
from tests.journal.cleaned_segments import folder_with_stages
from tests.journal.folders import (
    BEGAN,
    SECOND,
    Owner,
    fill,
    flip,
    other_owner,
    publish_numbered,
    segments_of,
    snapshot_of,
)
from tests.journal.journal_cleaning import clean


def records(seen: Inspection, *patterns: str, place: int = 0, time: int | None = None) -> list[Record[bytes]]:
    found = list(seen.read(*patterns, place=place, time=time))
    assert all(isinstance(one, Record) for one in found), found
    return [one for one in found if isinstance(one, Record)]


def test_a_closed_folder_is_read_whole_and_left_as_it_was(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    before = snapshot_of(tmp_path)
    with Inspection(tmp_path) as seen:
        assert seen.clean
        assert seen.owner is None
        assert [(topic.name, topic.first, topic.end) for topic in seen.topics] == [("jobs", 0, 90), ("orders", 0, 90)]
        orders = records(seen, "orders")
        assert [record.offset for record in orders] == list(range(90))
        assert orders[4].value.startswith(b"orders 2.1 ")
        everything = records(seen)
        assert [record.sequence for record in everything] == list(range(180))
    assert snapshot_of(tmp_path) == before
    assert repr(seen) == f"<Inspection of {str(tmp_path)!r}, closed>"


def test_a_record_comes_back_with_all_that_was_published(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        owner.publish("t", [b"a", b"b"], [Meta(key=b"k", headers={"h": "1"}), None], compression="zstd")
        epoch = owner.topic("t").epoch
    with Inspection(tmp_path) as seen:
        first, second = records(seen, "t")
    assert (first.topic, first.offset, first.sequence, first.epoch) == ("t", 0, 0, epoch)
    assert (first.key, first.value, dict(first.headers)) == (b"k", b"a", {"h": "1"})
    assert first.time.timestamp() * SECOND == BEGAN
    assert (second.key, dict(second.headers)) == (None, {})


@pytest.mark.parametrize("place", [0, 1, 44, 45, 46, 89, 90, 1000])
def test_reading_starts_at_any_offset_and_any_sequence(tmp_path: Path, place: int) -> None:
    fill(tmp_path, batches=60)
    with Inspection(tmp_path) as seen:
        assert [record.offset for record in records(seen, "orders", place=place)] == list(range(place, 90))
        assert [record.sequence for record in records(seen, ">", place=place)] == list(range(place, 180))


@pytest.mark.parametrize("late", [0, 1, 2, 31, 58, 59, 60])
def test_reading_starts_at_a_time(tmp_path: Path, late: int) -> None:
    fill(tmp_path, batches=60)
    with Inspection(tmp_path) as seen:
        assert [r.sequence for r in records(seen, ">", time=BEGAN + late * SECOND)] == list(range(3 * late, 180))
        first = 3 * ((late + 1) // 2)  # every other batch is one of orders
        assert [r.offset for r in records(seen, "orders", time=BEGAN + late * SECOND)] == list(range(first, 90))
        assert seen.place_at("orders", BEGAN + late * SECOND) == (first if first < 90 else None)


def test_several_topics_and_patterns_are_read_by_sequence(tmp_path: Path) -> None:
    fill(tmp_path, batches=9, topics=("a.x", "a.y", "b"))
    with Inspection(tmp_path) as seen:
        assert {record.topic for record in records(seen, "a.*")} == {"a.x", "a.y"}
        both = records(seen, "b", "a.x")
        assert [record.sequence for record in both] == sorted(record.sequence for record in both)
        assert {record.topic for record in both} == {"a.x", "b"}
        assert records(seen, "nobody") == []


def test_what_retention_let_go_of_is_not_shown(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 6)
        owner.write(trim_part(owner.topic("orders").id, 4, 0))
    with Inspection(tmp_path) as seen:
        assert [record.offset for record in records(seen, "orders")] == [4, 5, 6, 7, 8]
        assert len(records(seen)) == 14
        assert {name: held.records for name, held in seen.held().items()} == {"orders": 5, "jobs": 9}


def test_another_process_may_own_the_folder_and_write(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        owner.tell("publish", 4)
        with Inspection(tmp_path) as seen:
            assert seen.owner is not None
            assert seen.owner.pid == owner.pid
            assert not seen.clean
            assert len(records(seen)) == 12
            owner.tell("publish", 100)  # over several segments
            assert len(records(seen)) == 12  # as it was when it was opened
        with Inspection(tmp_path) as seen:
            assert len(records(seen)) == 312


def test_files_stay_while_a_reader_uses_them(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        owner.tell("publish", 100)
        with Inspection(tmp_path) as seen:
            named = seen.manifest.files()
            for _ in range(20):  # more rolls than a chain of checkpoints has links
                owner.tell("publish", 1)
                owner.tell("roll")
            assert named <= set(snapshot_of(tmp_path))
            assert len(records(seen)) == 300


def test_a_killed_owner_s_acknowledged_records_are_seen(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        owner.tell("publish", 7)
        owner.kill()
        assert owner_of(tmp_path) is None
        with Inspection(tmp_path) as seen:
            assert not seen.clean
            assert len(records(seen)) == 21


def test_nothing_beyond_the_durable_mark_is_seen_while_an_owner_runs(tmp_path: Path) -> None:
    owner = Owner(tmp_path, fsync="os")
    publish_numbered(owner, 0, 2)
    owner.journal.sync()
    owner.journal._publish_watermark()
    publish_numbered(owner, 2, 4)  # written, not synced
    with Inspection(tmp_path) as seen:
        assert seen.manifest.fsync == "os"
        assert len(records(seen)) == 6
    owner.crash()


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_owner_that_rolls_while_we_open_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    owner = Owner(tmp_path)
    publish_numbered(owner, 0, 3)
    real, calls = manifest.load, 0

    def load(storage: OsStorage) -> manifest.Manifest | None:
        nonlocal calls
        found = real(storage)
        calls += 1
        if calls == moment:
            owner.journal._roll(0, owner.time)
            publish_numbered(owner, 3, 4)
        return found

    monkeypatch.setattr(manifest, "load", load)
    with Inspection(tmp_path) as seen:
        assert len(records(seen)) in ((9, 12) if moment == 3 else (12,))
    owner.crash()


def test_an_owner_that_never_stops_swapping_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path)
    real = manifest.load

    def load(storage: OsStorage) -> manifest.Manifest | None:
        found = real(storage)
        with monkeypatch.context() as rolling:  # the owner looks at the manifest too
            rolling.setattr(manifest, "load", real)
            owner.journal._roll(0, owner.time)
        return found

    monkeypatch.setattr(module, "MAX_RETRIES", 3)
    monkeypatch.setattr(manifest, "load", load)
    with pytest.raises(FolderUnusable, match="swapped the manifest"), Inspection(tmp_path):
        pass
    owner.crash()


def test_damage_in_a_sealed_segment_is_reported_as_a_gap_in_its_place(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    flip(segments_of(tmp_path)[1], 300)
    with Inspection(tmp_path) as seen:
        by_offset, by_sequence = list(seen.read("orders")), list(seen.read())
    (gap,) = (one for one in by_offset if isinstance(one, Gap))
    assert (gap.topic, gap.count) == ("orders", gap.end - gap.first)
    assert "damaged on disk" in gap.reason
    offsets = {one.offset for one in by_offset if isinstance(one, Record)}
    assert offsets == set(range(90)) - set(range(gap.first, gap.end))
    assert by_offset.index(gap) == gap.first
    (gap,) = (one for one in by_sequence if isinstance(one, Gap))
    assert gap.count is None
    assert len(by_sequence) == 178


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_missing_segment_is_damage(tmp_path: Path, at: int) -> None:
    fill(tmp_path, batches=60)
    segments_of(tmp_path)[at].unlink()
    with pytest.raises(JournalDamaged, match="missing"), Inspection(tmp_path):
        pass


def test_lag_is_what_a_group_has_not_settled(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 6, ["orders"])
        group = owner.group("billing", "orders")
        owner.settle(group, 0, 5, 8, 10)
        owner.group("audit", "*")
        owner.cursor("ada", "orders", 12)
    with Inspection(tmp_path) as seen:
        audit, billing = seen.groups
        assert (seen.lag_of(billing), billing.floor) == (11, 5)
        assert seen.lag_of(audit) is None
        (ada,) = seen.cursors
        assert seen.cursor_lag(ada) == 6


def test_sizes_count_what_is_written_not_what_is_reserved(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    publish_numbered(owner, 0, 1)
    with Inspection(tmp_path) as seen:
        assert seen.sizes()[segments_of(tmp_path)[-1].name] < 1000
    owner.crash()


@pytest.mark.parametrize("made", [True, False])
def test_a_folder_without_a_journal_is_refused_and_not_made(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "nothing"
    if made:
        folder.mkdir()
    with pytest.raises(NoJournal) as refused, Inspection(folder):
        pass
    assert refused.value.folder == str(folder)
    assert folder.exists() is made


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderUnusable), Inspection(tmp_path / "file"):
        pass


def test_damage_that_keeps_the_journal_from_opening_is_raised(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(tmp_path / "MANIFEST", 40)
    with pytest.raises(JournalDamaged), Inspection(tmp_path):
        pass
    lock = FolderLock(tmp_path)
    lock.take()
    assert not lock.has_readers()  # the lease was given back
    lock.release()


def test_a_missing_active_segment_is_damage(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    publish_numbered(owner, 0, 1)
    owner.crash()
    segments_of(tmp_path)[-1].unlink()
    with pytest.raises(JournalDamaged, match="missing"), Inspection(tmp_path):
        pass


def test_bytes_of_a_torn_write_are_counted_when_the_folder_has_no_owner(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    publish_numbered(owner, 0, 1)
    end = owner.journal.history.sources[-1].written
    owner.crash()
    with segments_of(tmp_path)[-1].open("r+b") as file:
        file.seek(end)
        file.write(b"half an entry")
    with Inspection(tmp_path) as seen:
        assert seen.torn_bytes == 13
        assert len(records(seen)) == 3


@pytest.mark.parametrize("mode", ["interval", "os"])
def test_what_a_killed_owner_had_written_is_seen_as_it_will_come_back(tmp_path: Path, mode: str) -> None:
    owner = Owner(tmp_path, fsync=mode)
    publish_numbered(owner, 0, 2)
    owner.journal.sync()
    publish_numbered(owner, 2, 4)
    owner.topic("made last")
    with Inspection(tmp_path) as seen:
        assert len(records(seen)) == 6
        assert seen.unsynced.records == 6
    owner.crash()
    with Inspection(tmp_path) as seen:
        assert len(found := records(seen)) == 12 == verify(tmp_path).records
        assert {name: held.records for name, held in seen.held().items()} == {"orders": 6, "jobs": 6, "made last": 0}
        assert seen.unsynced == (0, 0)
    with Owner(tmp_path, fsync=mode), Inspection(tmp_path) as seen:
        assert records(seen) == found


@pytest.mark.parametrize("cleaned", [False, True])
def test_cleaned_segments_and_committed_stages_are_seen_as_records_like_all_others(
    tmp_path: Path, cleaned: bool
) -> None:
    folder_with_stages(tmp_path / "data", cleaned=cleaned)
    folder_with_stages(tmp_path / "plain", cleaned=False)
    with Inspection(tmp_path / "data") as seen, Inspection(tmp_path / "plain") as plain:
        every = records(plain)
        assert [one.sequence for one in every] == list(range(len(every)))
        assert b"never" not in {one.value for one in every}
        for place in (0, 1, 7, 20, 40):
            assert records(seen, ">", place=place) == every[place:]
        for name in ("a", "b", "c"):
            mine = [one for one in every if one.topic == name]
            for place in (0, 1, 2, 5, 13):
                assert records(seen, name, place=place) == mine[place:]
        for at in (0, 3, 8, 20):
            time = BEGAN + at * SECOND // 2
            since = [one for one in every if one.time.timestamp() * 1e6 >= time]
            assert records(seen, ">", time=time) == since
            mine = [one for one in since if one.topic == "a"]
            assert records(seen, "a", time=time) == mine
            assert seen.place_at("a", time) == (mine[0].offset if mine else None)
        held = seen.held()
        assert {name: one.records for name, one in held.items()} == {"a": 20, "b": 15, "c": 6}
        assert held["c"].bytes > sum(len(one.value) for one in every if one.topic == "c")


def test_a_staged_batch_that_is_lost_is_reported_as_a_gap_in_its_place(tmp_path: Path) -> None:
    folder_with_stages(tmp_path / "data", cleaned=True)
    (name,) = (tmp_path / "data").glob("*-1.seg")
    data = bytearray(name.read_bytes())
    data[data.index(b"s1")] ^= 1
    name.write_bytes(data)
    with Inspection(tmp_path / "data") as seen:
        found = list(seen.read("c"))
        assert [one.first if isinstance(one, Gap) else one.offset for one in found] == [0, 1, 2, 4, 5]
        gap = found[2]
        assert isinstance(gap, Gap)
        assert (gap.end, gap.count) == (4, 2)
        assert [one.first for one in seen.read() if isinstance(one, Gap)] == [8]  # the same by sequence
    assert [(one.topic, one.first, one.end) for one in verify(tmp_path / "data").lost] == [("c", 2, 4)]


def test_a_manifest_that_is_swapped_before_the_mark_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path)
    publish_numbered(owner, 0, 60)
    real, swapped = watermark.read, list[object]()

    def read(storage: Storage) -> watermark.Watermark | None:
        if not swapped:
            swapped.append(clean(owner.journal))
        return real(storage)

    monkeypatch.setattr(watermark, "read", read)
    found, position = consistent_view(tmp_path)
    assert swapped
    assert found == owner.journal.manifest
    assert position == owner.journal.history.sources[-1].written
    owner.crash()
