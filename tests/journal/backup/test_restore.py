"""Restoring: exactly the state at a point, from an archive alone, or an error that says what is missing."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runnel.core.batch_format import pack
from runnel.core.errors import ArchiveDamaged, FolderUnusable, NoArchive, PointNotArchived
from runnel.core.record import Gap
from runnel.journal.backup import restore as module
from runnel.journal.backup.archive import archive
from runnel.journal.backup.archive_catalog import open_catalog
from runnel.journal.backup.restore import GIVEN, Point, restore, skipped
from runnel.journal.check.verify import verify
from runnel.journal.format.entry import PartKind, state_part
from runnel.journal.format.ledger import (
    StageState,
    compacted_part,
    marker_part,
    stage_commit_part,
    stage_part,
    staged_part,
    trim_part,
)
from runnel.journal.format.offset_sets import OffsetBitmap
from runnel.journal.read.inspection import Inspection
from runnel.journal.write.journal import SKIPPED_OFFSETS
from tests.journal.folder_contents import held, sequences, state_of, time_of
from tests.journal.folders import BEGAN, SECOND, Owner, flip, publish_numbered
from tests.journal.journal_cleaning import clean, sealed
from tests.nightly import nightly_beyond


def archived(tmp_path: Path, batches: int = 60, **options: object) -> Path:
    """An archive with a base at the beginning and several segments behind it; the owner has closed."""
    with Owner(tmp_path / "data", **options) as owner:
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 0, batches)
    archive(tmp_path / "data", tmp_path / "archive", now=time_of(batches))
    return tmp_path / "archive"


def test_without_a_point_everything_that_was_archived_is_restored(tmp_path: Path) -> None:
    done = restore(archived(tmp_path), tmp_path / "restored")
    assert held(tmp_path / "restored") == held(tmp_path / "data")
    assert (done.entries, done.segments) == (63, len(list((tmp_path / "data").glob("*.seg"))))
    assert verify(tmp_path / "restored").whole


@pytest.mark.parametrize("batch", [1, 2, 17, 30, 59])
def test_a_time_is_met_to_the_microsecond(tmp_path: Path, batch: int) -> None:
    from_archive = archived(tmp_path)
    restore(from_archive, tmp_path / "at", Point(time=time_of(batch)))
    restore(from_archive, tmp_path / "before", Point(time=time_of(batch) - 1))
    assert sequences(tmp_path / "at") == list(range(3 * batch + 3))
    assert sequences(tmp_path / "before") == list(range(3 * batch))
    assert verify(tmp_path / "at").whole


@pytest.mark.parametrize(("sequence", "count"), [(0, 0), (1, 0), (2, 3), (3, 3), (5, 6), (100, 99), (179, 180)])
def test_a_sequence_is_met_by_whole_entries(tmp_path: Path, sequence: int, count: int) -> None:
    restore(archived(tmp_path), tmp_path / "restored", Point(sequence=sequence))
    assert sequences(tmp_path / "restored") == list(range(count))


def test_what_changed_behind_the_point_is_not_there(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 0, 4)
        group = owner.group("billing", "orders")
        owner.settle(group, 0, 2)
        owner.cursor("reader", "jobs", 3)
        owner.write(marker_part("relay", "16/B374D848"))
        before, at = state_of(owner.journal.ledger), owner.time
        owner.time += SECOND
        owner.settle(group, 2, 5)
        owner.cursor("reader", "jobs", 6)
        owner.write(marker_part("relay", "16/FFFFFFFF"))
        owner.write(state_part(PartKind.TOPIC_DELETED, topic=1))
        owner.topic("new")
    archive(tmp_path / "data", tmp_path / "archive", now=at + SECOND)
    restore(tmp_path / "archive", tmp_path / "restored", Point(time=at))
    assert held(tmp_path / "restored")[0] == before
    assert before["marks"] == {"relay": "16/B374D848"}
    assert sequences(tmp_path / "restored") == list(range(12))


@pytest.mark.parametrize("later", [False, True])
def test_what_the_cleaner_did_to_other_files_is_not_said_of_these(tmp_path: Path, later: bool) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20)
        if later:
            archive(tmp_path / "data", tmp_path / "archive", now=owner.time)
        clean(owner.journal, taken={1: OffsetBitmap([3])})
        owner.write(compacted_part(1, 0, 10, 9, 1, owner.time))
        archive(tmp_path / "data", tmp_path / "archive", now=owner.time)
    restore(tmp_path / "archive", tmp_path / "restored")
    found = [offset for name, offset, *_ in held(tmp_path / "restored")[1] if name == "orders"]
    with Inspection(tmp_path / "restored") as seen:
        # An older base has the record still, so compaction has to come by again.
        assert (seen.ledger.topics[1].compacted, 3 in found) == ((0, True) if later else (10, False))
        assert [one for one in seen.read() if isinstance(one, Gap)] == []


# -- random histories -------------------------------------------------------------------------------------------


class History:
    """An owner that does one thing a second, crashes and closes; what it held after each thing is remembered."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice = folder, dice
        self.records: list[tuple[str, int, int, bytes]] = []
        self.staged: dict[int, list[bytes]] = {}
        self.moments: list[tuple[int, dict[str, Any], list[tuple[str, int, int, bytes]]]] = []
        self.owner = Owner(folder)
        self.remember()

    def remember(self) -> None:
        ledger = self.owner.journal.ledger
        first = {topic.name: topic.first for topic in ledger.topics.values()}
        kept = [one for one in self.records if one[1] >= first.get(one[0], 1 << 63)]
        self.moments.append((self.owner.time, state_of(ledger), kept))
        self.owner.time += SECOND

    def step(self) -> None:
        dice, owner = self.dice, self.owner
        ledger = owner.journal.ledger
        others = ["settle", "cursor", "group", "trim", "delete", "mark", "crash", "close", "stage", "commit", "clean"]
        what = dice.choice(["publish"] * 14 + others)
        name = dice.choice(["a", "b", "c"])
        if what == "publish":
            topic, sequence = owner.topic(name), ledger.sequence
            values = [dice.randbytes(dice.randrange(300)) for _ in range(dice.randrange(1, 5))]
            self.records += [(name, topic.end + at, sequence + at, value) for at, value in enumerate(values)]
            owner.publish(name, values)
            owner.time -= SECOND
        elif what == "settle" and ledger.groups:
            group = dice.choice(list(ledger.groups.values()))
            owner.settle(group, group.floor, group.floor + dice.randrange(1, 4))
        elif what == "cursor":
            owner.cursor(name, name, dice.randrange(100))
        elif what == "group":
            owner.group(f"group {ledger.next_group}", name)
        elif what == "trim":
            topic = owner.topic(name)
            owner.write(trim_part(topic.id, dice.randrange(topic.first, topic.end + 1), topic.end))
            owner.journal.retain(owner.time)
        elif what == "delete" and (topic_id := next((t.id for t in ledger.topics.values() if t.name == name), None)):
            owner.write(state_part(PartKind.TOPIC_DELETED, topic=topic_id))
            self.records = [one for one in self.records if one[0] != name]
        elif what == "mark":
            owner.write(marker_part(name, dice.choice([None, 1, "x"])))
        elif what == "stage":
            self.stage(owner.topic(name).id)
        elif what == "commit" and ledger.stages:
            self.commit(dice.choice(list(ledger.stages.values())))
        elif what == "clean" and (sources := sealed(owner.journal)):
            start = dice.randrange(len(sources))
            clean(owner.journal, sources[start : start + dice.randrange(1, 4)])
        elif what in ("crash", "close"):
            (owner.crash if what == "crash" else lambda: owner.__exit__(None, None, None))()
            self.owner = Owner(self.folder)
            self.owner.time = owner.time
        self.remember()

    def stage(self, topic: int) -> None:
        """One batch more, in a stage of the topic."""
        ledger, dice = self.owner.journal.ledger, self.dice
        found = next((one for one in ledger.stages.values() if one.topic == topic), None)
        if found is None:
            found = StageState(ledger.next_stage, "writer", ledger.next_stage, 0, 0, topic, self.owner.time)
            self.owner.write(stage_part(found))
        values = [dice.randbytes(50) for _ in range(dice.randrange(1, 4))]
        self.staged.setdefault(found.id, []).extend(values)
        ordinal = len(ledger.stages[found.id].counts)
        self.owner.write(staged_part(found.id, ordinal, pack(values), self.owner.time))

    def commit(self, stage: StageState) -> None:
        """All that was staged is visible."""
        ledger = self.owner.journal.ledger
        topic, sequence = ledger.topics[stage.topic], ledger.sequence
        values = self.staged.pop(stage.id)
        self.records += [(topic.name, topic.end + at, sequence + at, value) for at, value in enumerate(values)]
        self.owner.write(stage_commit_part(stage, topic.end, sequence, self.owner.time))

    def at(self, time: int) -> tuple[dict[str, Any], list[tuple[str, int, int, bytes]]]:
        _, known, records = next(one for one in reversed(self.moments) if one[0] <= time)
        return known, records


@pytest.mark.parametrize("seed", nightly_beyond(2, range(6)))
def test_any_point_of_any_history_is_restored_exactly_or_refused(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    history = History(tmp_path / "data", dice)
    for _ in range(300):
        history.step()
        if dice.random() < 0.1:
            now = history.owner.time - SECOND  # of the last thing that was done
            archive(tmp_path / "data", tmp_path / "archive", new_base=dice.random() < 0.1, now=now)
    history.owner.crash()
    spans = open_catalog(tmp_path / "archive").spans()
    times = [dice.randrange(BEGAN, history.owner.time) for _ in range(12)]
    times += [dice.randrange(span.since, span.through + 1) for span in spans] + [spans[-1].through]
    restored = 0
    for at in sorted(set(times)):
        target = tmp_path / f"restored {at}"
        if any(span.since <= at <= span.through for span in spans):
            restore(tmp_path / "archive", target, Point(time=at))
            assert held(target) == history.at(at), at
            assert verify(target).whole
            restored += 1
        else:
            with pytest.raises(PointNotArchived):
                restore(tmp_path / "archive", target, Point(time=at))
            assert not target.exists()
    assert restored >= len(spans)


# -- going on ---------------------------------------------------------------------------------------------------


def test_no_offset_sequence_or_epoch_of_the_old_life_is_given_again(tmp_path: Path) -> None:
    restore(archived(tmp_path), tmp_path / "restored", Point(time=time_of(20)), now=time_of(100))
    with Inspection(tmp_path / "data") as old, Owner(tmp_path / "restored") as new:
        ledger = new.journal.ledger
        assert ledger.topics[1].end >= 33 + SKIPPED_OFFSETS + 80 * SECOND * GIVEN
        assert ledger.sequence >= old.ledger.reserved + SKIPPED_OFFSETS
        assert ledger.epoch > old.ledger.epoch
        new.publish("orders", [b"new"])
    places = [(one[0], one[1]) for one in held(tmp_path / "data")[1]]
    assert [one for one in held(tmp_path / "restored")[1] if one[3] == b"new" and one[:2] not in places]


def test_skipped_records_are_not_lag(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 10)
        group = owner.group("billing", "orders")
        owner.settle(group, 0, 4, 6, 8)
        owner.cursor("reader", "orders", 5)
    archive(tmp_path / "data", tmp_path / "archive", now=owner.time)
    restore(tmp_path / "archive", tmp_path / "restored")
    for folder in ("data", "restored"):
        with Inspection(tmp_path / folder) as seen:
            assert [seen.lag_of(group) for group in seen.groups] == [9]
            assert [seen.cursor_lag(cursor) for cursor in seen.cursors] == [10]


def test_how_much_is_skipped_grows_with_what_may_have_been_given() -> None:
    assert skipped(5, 5) == skipped(9, 5) == SKIPPED_OFFSETS
    assert skipped(0, 3600 * SECOND) - SKIPPED_OFFSETS == 16_000_000 * 3600  # sixteen million records a second


def test_a_restored_journal_is_another_one_and_goes_on(tmp_path: Path) -> None:
    done = restore(archived(tmp_path), tmp_path / "restored", Point(time=time_of(9)))
    with Inspection(tmp_path / "data") as old, Inspection(tmp_path / "restored") as new:
        assert new.clean
        assert new.manifest.journal == done.journal != old.manifest.journal == done.source
    with Owner(tmp_path / "restored") as owner:
        publish_numbered(owner, 10, 60)
    assert len(sequences(tmp_path / "restored")) == 180
    assert verify(tmp_path / "restored").whole
    assert verify(tmp_path / "data").whole
    assert restore(tmp_path / "archive", None).dry_run  # which shares files with it, is whole, too


# -- what cannot be restored ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "why"),
    [
        (Point(time=BEGAN - 1), "begins after it"),
        (Point(time=time_of(60) + 1), "ends at 2023-11-14T22:14:20.000000Z, sequence 179"),
        (Point(sequence=180), "ends at"),
    ],
)
def test_a_point_outside_of_the_archive_is_refused(tmp_path: Path, point: Point, why: str) -> None:
    archived(tmp_path)
    with pytest.raises(PointNotArchived, match=why):
        restore(tmp_path / "archive", tmp_path / "restored", point)
    assert not (tmp_path / "restored").exists()


def test_a_base_is_good_from_the_moment_it_was_taken_not_from_the_segment_it_stands_on(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)  # all in the first segment, whose beginning the base holds the state of
        archive(tmp_path / "data", tmp_path / "archive", now=owner.time)
    for point in (Point(time=time_of(3)), Point(sequence=13)):
        with pytest.raises(PointNotArchived, match=r"begins after it, at .*:24\.000000Z and sequence 15"):
            restore(tmp_path / "archive", tmp_path / "restored", point)
    assert restore(tmp_path / "archive", tmp_path / "restored", Point(sequence=14)).sequence == 15


def test_a_point_in_a_gap_names_both_ends(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 5)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 5, 50)
        owner.write(trim_part(1, 60, owner.topic("orders").end), trim_part(2, 60, owner.topic("jobs").end))
        owner.journal.retain(owner.time)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
    for point in (Point(time=time_of(20)), Point(sequence=100)):
        with pytest.raises(PointNotArchived, match=r"between .*:24\.0.* and .*:10\.0.*segments 1 to 2 were gone"):
            restore(tmp_path / "archive", tmp_path / "restored", point)
    restore(tmp_path / "archive", tmp_path / "before", Point(time=time_of(4)))
    assert sequences(tmp_path / "before") == list(range(15))
    restore(tmp_path / "archive", tmp_path / "after", Point(time=time_of(50)))
    assert held(tmp_path / "after")[1] == held(tmp_path / "data")[1]


def test_a_base_can_be_chosen_if_it_is_not_after_the_point(tmp_path: Path) -> None:
    archived(tmp_path)
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 60, 62)
        second = archive(tmp_path / "data", tmp_path / "archive", new_base=True, now=owner.time).base
        publish_numbered(owner, 62, 64)
        archive(tmp_path / "data", tmp_path / "archive", now=owner.time)
    first = open_catalog(tmp_path / "archive").bases[0].name
    assert second is not None
    assert restore(tmp_path / "archive", tmp_path / "newest").base == second
    assert restore(tmp_path / "archive", tmp_path / "oldest", base=first).base == first
    assert held(tmp_path / "newest") == held(tmp_path / "oldest") == held(tmp_path / "data")
    with pytest.raises(PointNotArchived, match="taken after it"):
        restore(tmp_path / "archive", None, Point(time=time_of(5)), base=second)
    with pytest.raises(PointNotArchived, match=f"base 'nosuch' cannot .* only {first}, {second};"):
        restore(tmp_path / "archive", None, base="nosuch")


def test_there_must_be_an_archive(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "nosuch"):
        with pytest.raises(NoArchive):
            restore(missing, tmp_path / "restored")


# -- damage -----------------------------------------------------------------------------------------------------


def pool(tmp_path: Path, ending: str = ".seg") -> list[Path]:
    return sorted((tmp_path / "archive" / "segments").glob(f"*{ending}"))


@pytest.mark.parametrize("position", [3, 64, 70, 200, 4000, -1])
def test_a_flipped_byte_in_an_archived_segment_is_found(tmp_path: Path, position: int) -> None:
    archived(tmp_path)
    damaged = pool(tmp_path)[1]
    flip(damaged, position)
    with pytest.raises(ArchiveDamaged) as found:
        restore(tmp_path / "archive", tmp_path / "restored")
    assert found.value.file == str(damaged)
    assert sorted(os.listdir(tmp_path)) == ["archive", "data"]
    assert restore(tmp_path / "archive", tmp_path / "restored", Point(time=time_of(3))).entries  # before it: fine


def test_damage_behind_the_point_in_the_same_segment_is_reported(tmp_path: Path) -> None:
    archived(tmp_path)
    flip(pool(tmp_path)[0], -1)
    with pytest.raises(ArchiveDamaged):
        restore(tmp_path / "archive", None, Point(time=time_of(0)))


@pytest.mark.parametrize("which", ["segment", "cut", "checkpoint", "manifest", "catalog"])
def test_whatever_is_missing_or_damaged_is_named(tmp_path: Path, which: str) -> None:
    archived(tmp_path)
    base = next((tmp_path / "archive" / "bases").iterdir())
    file = {
        "segment": pool(tmp_path)[2],
        "cut": pool(tmp_path)[2],
        "checkpoint": next(base.glob("*.ckpt")),
        "manifest": base / "MANIFEST",
        "catalog": tmp_path / "archive" / "CATALOG",
    }[which]
    if which == "segment":
        file.unlink()
    elif which == "cut":
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data[:5000])
    else:
        flip(file, -1)
    with pytest.raises(ArchiveDamaged) as found:
        restore(tmp_path / "archive", tmp_path / "restored")
    assert found.value.file == str(file)
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_an_index_is_made_again_and_that_is_said(tmp_path: Path, how: str) -> None:
    archived(tmp_path)
    file = pool(tmp_path, ".idx")[1]
    file.unlink() if how == "missing" else flip(file, 30)
    done = restore(tmp_path / "archive", tmp_path / "restored")
    assert len(done.notes) == 1
    assert done.notes[0].startswith(file.name)
    assert verify(tmp_path / "restored").whole
    assert held(tmp_path / "restored") == held(tmp_path / "data")


# -- the target -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", range(1, 40, 3))
def test_a_restore_that_is_cut_off_leaves_nothing_that_opens_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    archived(tmp_path, batches=30)
    left = call
    real = os.replace, os.rename

    def give_up(at: int) -> Any:
        def step(old: object, new: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            real[at](old, new)  # type: ignore[arg-type]

        return step

    monkeypatch.setattr(module.shutil, "rmtree", lambda *_, **__: None)  # type: ignore[attr-defined]  # as a kill: nobody tidies up
    monkeypatch.setattr(os, "replace", give_up(0))
    monkeypatch.setattr(os, "rename", give_up(1))
    try:
        restore(tmp_path / "archive", tmp_path / "restored")
    except KeyboardInterrupt:
        assert not (tmp_path / "restored").exists()
    else:
        assert left > 0
    monkeypatch.undo()
    if left == 0:
        restore(tmp_path / "archive", tmp_path / "restored")
    assert held(tmp_path / "restored") == held(tmp_path / "data")


def test_nothing_is_left_of_a_restore_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archived(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.checkpoint, "write", fail)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="No space"):
        restore(tmp_path / "archive", tmp_path / "restored")
    assert sorted(os.listdir(tmp_path)) == ["archive", "data"]


@pytest.mark.parametrize("target", ["file", "full", "archive/inside"])
def test_a_target_that_holds_something_is_refused(tmp_path: Path, target: str) -> None:
    archived(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "full" / "precious").mkdir(parents=True)
    with pytest.raises(FolderUnusable):
        restore(tmp_path / "archive", tmp_path / target)


def test_an_empty_target_is_taken(tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    restore(archived(tmp_path), tmp_path / "restored")
    assert verify(tmp_path / "restored").whole


def test_a_dry_run_reads_everything_and_makes_nothing(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    done = restore(archived(tmp_path), None, progress=lambda *at: told.append(at))
    assert (done.dry_run, done.target, done.linked, done.copied) == (True, "", 0, 0)
    assert done.sequence == 180
    assert told[-1][0] == told[-1][1] > 20_000
    assert sorted(os.listdir(tmp_path)) == ["archive", "data"]


def test_progress_is_reported_of_reading_and_then_of_carrying(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    restore(archived(tmp_path), tmp_path / "restored", link=False, progress=lambda *at: told.append(at))
    begun = [at for at, (one, two) in enumerate(pairwise(told), 1) if two[0] < one[0]]
    assert len(begun) == 1
    assert told[begun[0] - 1][0] == told[begun[0] - 1][1] == told[-1][0] == told[-1][1] > 20_000


def test_files_are_linked_where_they_do_not_change_and_copied_when_asked(tmp_path: Path) -> None:
    archived(tmp_path)
    linked = restore(tmp_path / "archive", tmp_path / "linked", Point(time=time_of(20)))
    copied = restore(tmp_path / "archive", tmp_path / "copied", Point(time=time_of(20)), link=False)
    assert (linked.linked, linked.copied) == (2, 1)  # a segment and its index; the one with the point in it
    assert (copied.linked, copied.copied) == (0, 3)
    assert held(tmp_path / "linked") == held(tmp_path / "copied")


def test_segments_of_which_nothing_is_left_are_read_and_not_carried(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 0, 60)
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        owner.write(trim_part(1, 80, 90), trim_part(2, 80, 90))
    archive(tmp_path / "data", tmp_path / "archive", now=owner.time)
    assert len(open_catalog(tmp_path / "archive").pieces) == 5
    assert restore(tmp_path / "archive", tmp_path / "restored").segments == 2
    assert [one[1] for one in held(tmp_path / "restored")[1] if one[0] == "orders"] == list(range(80, 90))
