"""Snapshots: consistent while the owner writes, cheap, and folders in their own right."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runnel.core.errors import FolderUnusable, JournalDamaged
from runnel.core.record import Record
from runnel.journal.backup import snapshot as module
from runnel.journal.backup.snapshot import snapshot
from runnel.journal.check.verify import verify
from runnel.journal.format import watermark
from runnel.journal.format.ledger import compacted_part
from runnel.journal.read.inspection import Inspection, NoJournal, consistent_view
from runnel.journal.storage import OsFile, Storage
from tests.journal.folders import Owner, fill, other_owner, publish_numbered, segments_of, snapshot_of
from tests.journal.journal_cleaning import clean


def sequences(folder: Path) -> list[int]:
    with Inspection(folder) as seen:
        return [one.sequence for one in seen.read() if isinstance(one, Record)]


def test_a_closed_folder_is_linked_not_copied(tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    told: list[tuple[int, int]] = []
    made = snapshot(tmp_path / "data", tmp_path / "backups" / "monday", lambda *done: told.append(done))
    assert (made.copied, made.copied_bytes) == (0, 0)
    assert made.linked == len(snapshot_of(tmp_path / "data")) - 2  # the manifest is new, the durable mark not needed
    assert segments_of(Path(made.target))[0].samefile(segments_of(tmp_path / "data")[0])
    assert sequences(Path(made.target)) == list(range(180))
    assert told[-1][0] == told[-1][1]
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["monday"]


def test_the_growing_segment_is_copied_up_to_the_mark(tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 70)
        made = snapshot(tmp_path / "data", tmp_path / "snap")
        assert made.copied == 1
        active = segments_of(tmp_path / "snap")[-1]
        assert not active.samefile(tmp_path / "data" / active.name)
        assert active.stat().st_size < 8192  # nothing of what is only reserved
        owner.tell("publish", 70)
        assert sequences(tmp_path / "snap") == list(range(210))
        with Inspection(tmp_path / "snap") as seen:
            assert seen.clean  # there is nothing to recover
        assert verify(tmp_path / "snap").whole


def test_a_snapshot_opens_and_goes_on_and_the_original_does_not_notice(tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 30)
        snapshot(tmp_path / "data", tmp_path / "snap")
        with Owner(tmp_path / "snap") as restored:
            assert restored.journal.ledger.topics[1].end == 45
            publish_numbered(restored, 30, 80)
        owner.tell("publish", 5)
        assert sequences(tmp_path / "data") == list(range(105))
        assert verify(tmp_path / "data").whole
        assert verify(tmp_path / "snap").whole
        assert len(sequences(tmp_path / "snap")) == 240


def test_another_file_system_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    fill(tmp_path / "data", batches=60)
    monkeypatch.setattr(os, "link", refuse)
    made = snapshot(tmp_path / "data", tmp_path / "snap")
    assert made.linked == 0
    assert made.copied_bytes > 20_000
    assert sequences(tmp_path / "snap") == list(range(180))
    assert verify(tmp_path / "snap").whole


def test_every_snapshot_under_load_is_a_prefix(tmp_path: Path) -> None:
    owner, stop = Owner(tmp_path / "data", fsync="os"), threading.Event()
    publish_numbered(owner, 0, 1)

    def write() -> None:
        number = 1
        while not stop.is_set():
            publish_numbered(owner, number, number + 1)
            owner.journal.sync()
            number += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in range(10):
            snapshot(tmp_path / "data", tmp_path / str(number))
    finally:
        stop.set()
        writing.join()
    owner.crash()
    for number in range(10):
        found = sequences(tmp_path / str(number))
        assert found == list(range(len(found)))
        assert len(found) % 3 == 0
        assert verify(tmp_path / str(number)).whole


def test_an_owner_that_closes_meanwhile_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path / "data")
    owner.topic("t")  # nothing but state: closing removes the segment
    real = module._make
    calls = 0

    def make(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            owner.__exit__(None, None, None)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_make", make)
    snapshot(tmp_path / "data", tmp_path / "snap")
    assert calls == 2
    with Inspection(tmp_path / "snap") as seen:
        assert seen.clean
        assert [topic.name for topic in seen.topics] == ["t"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "snap"]


def test_a_mark_that_moves_on_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path / "data")
    publish_numbered(owner, 0, 3)
    real = module.watermark.read  # type: ignore[attr-defined]
    calls = 0

    def read(storage: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            owner.journal._roll(0, owner.time)
            publish_numbered(owner, 3, 4)
        return real(storage)

    monkeypatch.setattr("runnel.journal.format.watermark.read", read)
    snapshot(tmp_path / "data", tmp_path / "snap")
    assert calls > 1
    owner.crash()
    assert sequences(tmp_path / "snap") == list(range(12))


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_target_that_holds_something_is_refused(tmp_path: Path, what: str) -> None:
    fill(tmp_path / "data")
    target = tmp_path / "target"
    if what == "file":
        target.touch()
    else:
        (target / "precious").mkdir(parents=True)
    with pytest.raises(FolderUnusable, match="something in it"):
        snapshot(tmp_path / "data", target)


def test_an_empty_target_is_taken(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    (tmp_path / "snap").mkdir()
    snapshot(tmp_path / "data", tmp_path / "snap")
    assert verify(tmp_path / "snap").whole


def test_nothing_is_left_of_a_snapshot_that_failed(tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    segments_of(tmp_path / "data")[2].unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        snapshot(tmp_path / "data", tmp_path / "snap")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_there_must_be_a_journal(tmp_path: Path) -> None:
    with pytest.raises(NoJournal):
        snapshot(tmp_path, tmp_path / "snap")


@pytest.mark.parametrize("marked", [True, False])
def test_all_of_a_crashed_journal_is_copied_even_when_its_mark_was_lost(tmp_path: Path, marked: bool) -> None:
    owner = Owner(tmp_path / "data")
    publish_numbered(owner, 0, 4)
    owner.crash()
    if not marked:
        (tmp_path / "data" / "DURABLE").unlink()  # it is never synced: a power loss may take it
    snapshot(tmp_path / "data", tmp_path / "snap")
    assert sequences(tmp_path / "snap") == list(range(12))


@pytest.mark.parametrize("error", [PermissionError(13, "no"), FileNotFoundError(2, "gone"), OSError(28, "full")])
def test_what_is_wrong_with_the_target_is_not_damage_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    fill(tmp_path / "data")

    def fail(old: Path, new: Path) -> None:
        raise error

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(FolderUnusable, match=r"'.*snap' cannot hold a journal") as refused:
        snapshot(tmp_path / "data", tmp_path / "snap")
    assert refused.value.why == error.strerror
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_an_original_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "data")
    real = OsFile.read

    def no_link(old: Path, new: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    def read(file: OsFile, offset: int, size: int) -> bytes:
        if ".seg" in repr(file):
            raise OSError(5, "Input/output error")
        return real(file, offset, size)

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(OsFile, "read", read)
    with pytest.raises(OSError, match="Input/output") as failed:
        snapshot(tmp_path / "data", tmp_path / "snap")
    assert failed.value.filename == str(segments_of(tmp_path / "data")[0])


def test_what_the_cleaner_notes_is_never_without_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path / "data")
    topic = owner.topic("t", {"compact": True})
    publish_numbered(owner, 0, 60, ["t"])
    real, swapped = watermark.read, list[object]()

    def read(storage: Storage) -> watermark.Watermark | None:
        if not swapped:
            swapped.append(clean(owner.journal))
            owner.write(compacted_part(topic.id, 0, 9, 9, 0, owner.time, 9))
        return real(storage)

    monkeypatch.setattr(watermark, "read", read)
    snapshot(tmp_path / "data", tmp_path / "snap")
    owner.crash()
    with Inspection(tmp_path / "snap") as seen:
        assert [topic.compacted for topic in seen.topics] == [9]
        assert any(info.generation for info in seen.manifest.segments)


def test_an_owner_that_ends_while_it_is_copied_leaves_the_copy_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path / "data")
    publish_numbered(owner, 0, 2)

    def look(folder: Path) -> object:
        found = consistent_view(folder)
        publish_numbered(owner, 2, 3)
        owner.crash()
        return found

    monkeypatch.setattr(module, "consistent_view", look)
    snapshot(tmp_path / "data", tmp_path / "snap")
    assert sequences(tmp_path / "snap") == list(range(6))
