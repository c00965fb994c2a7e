"""Which archives hold a journal: kept in a file that several of them change, and that the owner reads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.storage import OsStorage, Storage
from runnel.journal.write import archive_holds
from runnel.journal.write.archive_holds import ALL_SEGMENTS, NAME, ArchiveHold, ArchiveHolder, hold, load, release, safe
from tests.journal.folders import Owner, publish_numbered


def test_the_least_of_those_who_hold_counts(tmp_path: Path) -> None:
    assert load(OsStorage(tmp_path)) == []
    assert safe([]) == ALL_SEGMENTS
    hold(tmp_path, ArchiveHolder("b", "/b", 7, 1, 1))
    hold(tmp_path, ArchiveHolder("a", "/a", 3, 2, 2))
    assert load(OsStorage(tmp_path)) == [ArchiveHolder("a", "/a", 3, 2, 2), ArchiveHolder("b", "/b", 7, 1, 1)]
    assert safe(load(OsStorage(tmp_path))) == 3
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_it_holds_since_it_first_did(tmp_path: Path) -> None:
    hold(tmp_path, ArchiveHolder("a", "/a", 3, 10, 10))
    hold(tmp_path, ArchiveHolder("a", "/moved", 9, 20, 20))
    assert load(OsStorage(tmp_path)) == [ArchiveHolder("a", "/moved", 9, 10, 20)]


def test_the_one_of_an_id_is_released_and_of_a_place_if_no_other_has_the_id(tmp_path: Path) -> None:
    for id, place in (("a", "/a"), ("b", "/b"), ("c", "/a2")):
        hold(tmp_path, ArchiveHolder(id, place, 3, 1, 1))
    assert [one.id for one in release(tmp_path, "c", "/a")] == ["c"]
    assert [one.id for one in release(tmp_path, "", "/a")] == ["a"]
    assert release(tmp_path, "nosuch", "/nosuch") == []
    assert [one.id for one in load(OsStorage(tmp_path))] == ["b"]


def test_those_who_come_by_at_once_do_not_forget_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = threading.Thread(target=hold, args=(tmp_path, ArchiveHolder("b", "/b", 7, 1, 1)))
    real = archive_holds.load

    def meanwhile(storage: Storage) -> list[ArchiveHolder]:
        found = real(storage)
        monkeypatch.setattr(archive_holds, "load", real)
        other.start()
        other.join(0.2)  # it would be done by then, if it did not have to wait
        return found

    monkeypatch.setattr(archive_holds, "load", meanwhile)
    hold(tmp_path, ArchiveHolder("a", "/a", 3, 1, 1))
    other.join()
    assert [one.id for one in load(OsStorage(tmp_path))] == ["a", "b"]


@given(st.data())
def test_every_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    hold(folder, ArchiveHolder("a", "/a", 3, 1, 1))
    good = bytearray((folder / NAME).read_bytes())
    good[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / NAME).write_bytes(good)
    with pytest.raises((JournalDamaged, FormatUnknown)):
        load(OsStorage(folder))


def test_an_owner_that_clears_up_does_not_take_it_nor_what_it_is_about_to_be(tmp_path: Path) -> None:
    (tmp_path / archive_holds.NEW).write_bytes(b"half")
    hold(tmp_path, ArchiveHolder("a", "/a", 3, 1, 1))
    (tmp_path / archive_holds.NEW).write_bytes(b"half")
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 30)
        owner.journal._remove_unfinished()
        assert (tmp_path / archive_holds.NEW).exists()
        assert [one.id for one in owner.journal.archives()] == ["a"]


def test_a_run_that_was_cut_off_leaves_a_hold_that_the_next_one_goes_on_with(tmp_path: Path) -> None:
    first = ArchiveHold(tmp_path, "/a", "", 0)
    first.begin(True, 1)
    assert load(OsStorage(tmp_path)) == [ArchiveHolder(first.id, "/a", 0, 1, 1)]
    again = ArchiveHold(tmp_path, "/a", "", 0)
    again.begin(True, 2)
    assert again.id == first.id
    again.undo()
    assert len(load(OsStorage(tmp_path))) == 1, "it held before"


def test_it_continues_unchanged_unless_asked(tmp_path: Path) -> None:
    for wanted, holds in ((None, False), (True, True), (None, True), (False, False), (None, False)):
        one = ArchiveHold(tmp_path, "/a", "a", 5)
        one.begin(wanted, 1)
        one.move(6, 2)
        assert one.holds == holds
        assert [found.through for found in load(OsStorage(tmp_path))] == [6] * holds
        assert ("on" if holds else "off") in repr(one)


def test_what_an_archive_has_lost_is_held_again_before_it_is_added_to(tmp_path: Path) -> None:
    hold(tmp_path, ArchiveHolder("a", "/a", 9, 1, 1))
    ArchiveHold(tmp_path, "/a", "a", 5).begin(None, 2)
    assert safe(load(OsStorage(tmp_path))) == 5
