"""A folder looked at again and again: only what is new is read, never past the watermark, and resting holds no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runnel.core.errors import JournalDamaged
from runnel.core.record import Record
from runnel.journal.format.entry import Entry
from runnel.journal.format.segment import START, entries
from runnel.journal.read import inspection as module
from runnel.journal.read.inspection import FolderFollower
from tests.journal.folders import Owner, fill, flip, other_owner, publish_numbered, segments_of, snapshot_of
from tests.journal.journal_cleaning import clean


def ends(seen: FolderFollower) -> dict[str, int]:
    return {topic.name: topic.end for topic in seen.topics}


def count(seen: FolderFollower) -> int:
    return sum(isinstance(one, Record) for one in seen.read())


def test_a_look_shows_what_came_since(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 4)
        with FolderFollower(tmp_path) as seen:
            assert ends(seen) == {"orders": 6, "jobs": 6}
            for first in range(4, 100, 3):  # over several segments
                publish_numbered(owner, first, first + 3)
                seen.look()
                assert sum(ends(seen).values()) == 3 * (first + 3)
                assert count(seen) == 3 * (first + 3)


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Owner(tmp_path, segment_bytes=1 << 20) as owner:
        publish_numbered(owner, 0, 50)
        with FolderFollower(tmp_path) as seen:
            read: list[int] = []

            def counted(data: bytes, *where: Any) -> Iterator[Entry]:
                read.append(len(data))
                return entries(data, *where)

            monkeypatch.setattr(module, "entries", counted)
            before = seen.history
            seen.look()
            assert read == []  # nothing is new
            assert seen.history is before
            publish_numbered(owner, 50, 51)
            seen.look()
            (size,) = read
            assert size < 1000
            assert count(seen) == 153


def test_a_topic_that_is_made_deleted_or_cleaned_is_seen(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 60)
        with FolderFollower(tmp_path) as seen:
            owner.publish("new", [b"x"])
            seen.look()
            assert seen.topic("new") is not None
            clean(owner.journal)
            seen.look()
            assert count(seen) == 181
            assert any(source.is_cleaned for source in seen.history.sources)


def test_nothing_behind_the_watermark_is_seen_with_or_without_an_owner(tmp_path: Path) -> None:
    with Owner(tmp_path, fsync="interval") as owner:
        publish_numbered(owner, 0, 4)
        owner.journal.sync()
        with FolderFollower(tmp_path) as seen:
            publish_numbered(owner, 4, 8)
            seen.look()
            assert sum(ends(seen).values()) == 12
            owner.crash()
            seen.look()
            assert sum(ends(seen).values()) == 12
        with FolderFollower(tmp_path) as fresh:
            assert sum(ends(fresh).values()) == 12


def test_while_it_rests_files_may_go(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        owner.tell("publish", 100)
        seen = FolderFollower.at(tmp_path)
        assert seen.is_held
        seen.rest()
        assert not seen.is_held
        assert repr(seen) == f"<FolderFollower of {str(tmp_path)!r}, resting>"
        named = seen.manifest.files()
        for _ in range(20):  # more rolls than a chain of checkpoints has links
            owner.tell("publish", 1)
            owner.tell("roll")
        assert not named <= set(snapshot_of(tmp_path))
        seen.look()
        assert count(seen) == 360
        named = seen.manifest.files()
        for _ in range(20):
            owner.tell("publish", 1)
            owner.tell("roll")
        assert named <= set(snapshot_of(tmp_path))
        seen.close()


def test_the_next_owner_is_followed(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 4)
        seen = FolderFollower.at(tmp_path)
        owner.crash()
    seen.look()
    assert count(seen) == 12
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 4, 8)
        seen.look()
        assert count(seen) == 24
    seen.look()
    assert seen.clean
    assert count(seen) == 24
    seen.close()
    assert repr(seen) == f"<FolderFollower of {str(tmp_path)!r}, resting>"


def test_bytes_below_the_mark_that_are_not_what_was_written_are_damage(tmp_path: Path) -> None:
    with Owner(tmp_path, segment_bytes=1 << 20) as owner:
        publish_numbered(owner, 0, 4)
        seen = FolderFollower.at(tmp_path)
        before = seen.history.sources[-1].written
        publish_numbered(owner, 4, 8)
        flip(tmp_path / segments_of(tmp_path)[-1], before + 30)
        with pytest.raises(JournalDamaged, match="was synced up to"):
            seen.look()
        seen.close()
        assert before > START
        owner.crash()


def test_a_closed_folder_is_followed_too(tmp_path: Path) -> None:
    fill(tmp_path, batches=6)
    with FolderFollower(tmp_path) as seen:
        seen.look()
        assert count(seen) == 18
