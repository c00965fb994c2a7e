"""Repairing: no more is lost than was said, the folder opens, and a crash on the way harms nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runnel.core.errors import FolderInUse, FormatUnknown, JournalDamaged
from runnel.core.record import Record
from runnel.journal.check.repair import apply_repair, plan_repair, repair
from runnel.journal.check.scan import JournalScan
from runnel.journal.check.verify import verify
from runnel.journal.clean import key_compaction
from runnel.journal.clean.key_compaction import CompactionState
from runnel.journal.format import checkpoint, manifest
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.ledger import compacted_part
from runnel.journal.options import JournalOptions
from runnel.journal.read.inspection import Inspection, RecordExtract
from runnel.journal.storage import Storage
from runnel.journal.write.journal import SKIPPED_OFFSETS, Journal
from runnel.testing.memory_storage import MemoryStorage, PowerLost
from tests.journal.check.test_salvage import load, overwrite
from tests.journal.check.test_scan import hurt
from tests.journal.folders import (
    Owner,
    Writer,
    fill,
    flip,
    in_memory,
    other_owner,
    publish_numbered,
    segments_of,
    snapshot_of,
)
from tests.nightly import nightly_beyond

Place = tuple[str, int]


def everything(storage: Storage) -> dict[Place, bytes]:
    """All that a journal serves, which is opened for it."""
    journal = Journal.open(storage, JournalOptions(segment_bytes=8192, min_free=0), now=1)
    extract = RecordExtract(journal.history, list(journal.ledger.topics.values()), ">", by_sequence=True)
    found = {(one.topic, one.offset): one.value for one in extract.read() if isinstance(one, Record)}
    journal.close()
    return found


def lost_by(survey: JournalScan) -> set[Place]:
    return {(one.topic, offset) for one in survey.lost for offset in range(one.first, one.end)}


def small(*, close: bool = True) -> MemoryStorage:
    """Two topics, a group and a cursor, in three small segments."""
    storage = MemoryStorage()
    writer = Writer(storage)
    for number in range(9):
        publish_numbered(writer, number, number + 1, ["a", "b"])
        if number % 3 == 2:
            writer.journal._roll(0, writer.time)
    writer.settle(writer.group("g", "a"), 0, 2)
    publish_numbered(writer, 9, 10, ["a", "b"])
    if close:
        writer.journal.close()
    return storage


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("kind", [".seg", ".idx", ".ckpt", "MANIFEST"])
@pytest.mark.parametrize("sparser", nightly_beyond(1, [5, 1]))
def test_whatever_byte_is_flipped_all_but_what_was_said_is_there(kind: str, close: bool, sparser: int) -> None:
    original = small(close=close)
    whole = everything(original.after_kill())
    names = [name for name in original.names() if name.endswith(kind)]
    flips = 0
    step = sparser * (7 if kind == ".seg" else 1)  # some bytes of each segment; every byte of one is in test_verify
    for name in names:
        for position in range(0, min(original.open(name).size(), 2048), step):
            storage = original.after_kill()
            hurt(storage, name, position)
            try:
                survey = JournalScan(storage).run()
            except FormatUnknown:
                continue
            mend_if_needed(survey)
            flips += bool(survey.damages)
            found = everything(storage)
            assert found == {place: whole[place] for place in found}, (name, position)
            if survey.guessed:  # nobody can say what the damaged bytes held, and that is told
                assert lost_by(survey) <= whole.keys() - found.keys(), (name, position)
            else:
                assert whole.keys() - found.keys() == lost_by(survey), (name, position)
            assert JournalScan(storage).run().damages == []
    assert flips > 20 // sparser


def mend_if_needed(survey: JournalScan) -> None:
    if plan_repair(survey):
        apply_repair(survey)


@pytest.mark.parametrize("kind", [".seg", ".idx", ".ckpt", "MANIFEST"])
def test_whatever_file_is_missing_the_folder_opens_again(kind: str) -> None:
    original = small()
    whole = everything(original.after_kill())
    for name in [name for name in original.names() if name.endswith(kind)]:
        storage = original.after_kill()
        storage.remove(name)
        survey = JournalScan(storage).run()
        mend_if_needed(survey)
        found = everything(storage)
        assert whole.keys() - found.keys() == lost_by(survey), name
        assert bool(lost_by(survey)) is (kind == ".seg")


@pytest.mark.parametrize("what", ["segment", "active", "checkpoint", "manifest"])
def test_a_power_loss_in_the_middle_of_a_repair_leaves_the_folder_no_worse(what: str) -> None:
    original = small(close=what != "active")
    known = load(original)
    name = {
        "segment": known.segments[1].name,
        "active": known.segments[-1].name,
        "checkpoint": checkpoint.name_of(known.checkpoints[-1]),
        "manifest": manifest.NAME,
    }[what]
    hurt(original, name, 100)
    first = JournalScan(original.after_kill()).run()
    keeps = everything(mended(original.after_kill()))
    for call in range(1, 200):
        storage = durable(original)
        storage.crash_at = call
        try:
            apply_repair(JournalScan(storage).run())
        except PowerLost:
            pass
        else:
            assert call > 5
            return
        for fate, found in storage.worst():
            again = JournalScan(found).run()
            mend_if_needed(again)
            assert everything(found) == keeps, (call, fate)
            if again.damages and what != "manifest":  # nothing was swapped yet: the same is lost as at first
                assert again.lost == first.lost, (call, fate)
    pytest.fail("it never ended")


def durable(storage: MemoryStorage) -> MemoryStorage:
    from runnel.testing import power_loss

    return storage.after_power_loss(power_loss.keep_everything)


def mended(storage: MemoryStorage) -> MemoryStorage:
    apply_repair(JournalScan(storage).run())
    return storage


def test_offsets_that_are_unknown_are_never_given_again() -> None:
    storage = small(close=False)
    name = load(storage).segments[-1].name
    data = bytearray(storage.open(name).read(0, 8192))
    last = data.rindex(b"rnle")
    data[last] ^= 0xFF  # the head of the last commit: what it held is unknown
    overwrite(storage, name, bytes(data))
    with pytest.raises(JournalDamaged):
        everything(storage.after_kill())
    survey = JournalScan(storage).run()
    assert survey.guessed
    apply_repair(survey)
    journal = Journal.open(storage, JournalOptions(segment_bytes=8192, min_free=0), now=1)
    assert all(topic.end >= SKIPPED_OFFSETS for topic in journal.ledger.topics.values())
    assert journal.ledger.sequence >= SKIPPED_OFFSETS
    journal.close()


def test_records_without_a_topic_get_one() -> None:
    storage = in_memory(60)
    known = load(storage)
    storage.remove(known.segments[0].name)
    for number in known.checkpoints:
        storage.remove(checkpoint.name_of(number))
    apply_repair(JournalScan(storage).run())
    assert {topic for topic, _ in everything(storage)} == {"recovered.1", "recovered.2"}


def test_groups_and_cursors_survive_the_loss_of_a_checkpoint(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 60)
        owner.settle(owner.group("billing", "orders"), 0, 12)
        owner.cursor("ada", "jobs", 30)
    flip(sorted(tmp_path.glob("*.ckpt"))[-1], 60)
    assert repair(tmp_path).done
    with Inspection(tmp_path) as seen:
        assert [group.floor for group in seen.groups] == [12]
        assert [cursor.place for cursor in seen.cursors] == [30]


def test_the_damaged_files_are_kept_aside_with_a_report(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    hurt_segment = segments_of(tmp_path)[1]
    flip(hurt_segment, 300)
    bytes_before = hurt_segment.read_bytes()
    found = repair(tmp_path)
    assert found.done
    assert found.originals is not None
    kept = Path(found.originals)
    assert kept.parent == tmp_path / "damaged"
    assert (kept / hurt_segment.name).read_bytes() == bytes_before
    assert json.loads((kept / "report.json").read_text())["lost"] == [
        {"topic": one.topic, "epoch": one.epoch, "first": one.first, "end": one.end} for one in found.lost
    ]
    assert not hurt_segment.exists()  # another one has its place
    assert verify(tmp_path).whole
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 60, 62)
    assert verify(tmp_path).whole
    assert (kept / hurt_segment.name).exists()


def test_originals_can_be_let_go_of(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    flip(segments_of(tmp_path)[1], 300)
    assert repair(tmp_path, keep_originals=False).originals is None
    assert not (tmp_path / "damaged").exists()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    flip(segments_of(tmp_path)[1], 300)
    repair(tmp_path, dry_run=True)  # makes the lock's files
    before = snapshot_of(tmp_path)
    found = repair(tmp_path, dry_run=True)
    assert found.needed
    assert not found.done
    assert {name: data for name, data in snapshot_of(tmp_path).items() if name != "LOCK"} == {
        name: data for name, data in before.items() if name != "LOCK"
    }
    assert [step.file for step in found.steps] == ["000000000002.seg", "MANIFEST"]


def test_nothing_is_done_where_nothing_is_damaged(tmp_path: Path) -> None:
    fill(tmp_path)
    assert not repair(tmp_path).needed
    assert not (tmp_path / "damaged").exists()


def test_a_folder_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        owner.tell("publish", 1)
        with pytest.raises(FolderInUse) as refused:
            repair(tmp_path)
        assert refused.value.pid == owner.pid


def test_a_snapshot_that_shares_files_is_not_touched(tmp_path: Path) -> None:
    from runnel.journal.backup.snapshot import snapshot

    fill(tmp_path / "data", batches=60)
    snapshot(tmp_path / "data", tmp_path / "snap")
    before = snapshot_of(tmp_path / "snap")
    flip(segments_of(tmp_path / "data")[1], 300)
    flip(sorted((tmp_path / "data").glob("*.idx"))[2], 50)
    flip(tmp_path / "data" / "MANIFEST", 50)
    assert repair(tmp_path / "data").done
    assert snapshot_of(tmp_path / "snap") == before
    assert verify(tmp_path / "snap").whole


def test_a_reader_keeps_its_files_through_a_repair(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    with Owner(tmp_path):
        pass  # so that there is something to hold a lease on
    flip(segments_of(tmp_path)[1], 300)
    with Inspection(tmp_path) as seen:
        assert repair(tmp_path).done
        assert sum(isinstance(one, Record) for one in seen.read()) == 177


def test_without_a_manifest_every_key_is_looked_at_again() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        topic = writer.topic("t", {"compact": True})
        publish_numbered(writer, 0, 3, ["t"])
        writer.write(compacted_part(topic.id, 0, 5, 5, 0, writer.time, 5))
    for name, left in (("000000000001.seg", 5), (manifest.NAME, 0)):  # segments that were replaced may be back
        hurt_one = storage.after_kill()
        overwrite(hurt_one, name, bytes(70) + read_whole(hurt_one, name)[70:])
        apply_repair(JournalScan(hurt_one).run())
        journal = Journal.open(hurt_one, JournalOptions(min_free=0))
        assert [topic.compacted for topic in journal.ledger.topics.values()] == [left]


def test_what_is_known_of_keys_is_forgotten() -> None:
    """What superseded a record may be among what is lost."""
    storage = small()
    known = load(storage)
    key_compaction.save_state(storage, CompactionState(known.journal, [info.id for info in known.segments], []))
    hurt(storage, known.segments[1].name, 200)
    survey = JournalScan(storage).run()
    assert plan_repair(survey)
    apply_repair(survey)
    assert key_compaction.KEYS_FILE not in storage.names()
