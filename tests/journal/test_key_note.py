from __future__ import annotations

import pytest

from runnel.journal import key_note
from runnel.journal.key_note import NAME, KeyNote, PassNote, Pending, TopicNote
from runnel.journal.offset_set import OffsetSet
from runnel.journal.swap import read_whole
from runnel.testing import MemoryStorage, fates
from tests.journal.rig import flip, put

PAGES = OffsetSet([1, 70, 5000]).encode()
NOTE = KeyNote(
    "abc",
    [1, 1 << 62],
    [TopicNote(3, 100, 7, True, 12, PAGES)],
    Pending([1], [2], [(3, PAGES)]),
    PassNote(3, 100, (0, 200), 5, 6, 200, 1, 120, None, False, True, b"s" * 16, b"n" * 16, b"o" * 8, b"z" * 4),
)


def noted(note: KeyNote = NOTE) -> MemoryStorage:
    storage = MemoryStorage()
    assert key_note.save(storage, note) == len(read_whole(storage, NAME))
    return storage


def test_what_was_noted_is_there_again() -> None:
    assert key_note.load(noted(), "abc") == NOTE


def test_a_later_note_takes_the_place_of_an_earlier_one() -> None:
    storage = noted()
    key_note.save(storage, KeyNote("abc", [], []))
    assert key_note.load(storage, "abc") == KeyNote("abc", [], [])


def test_it_survives_a_loss_of_power_once_its_name_is_synced() -> None:
    storage = noted()
    assert key_note.load(storage.after_power_loss(fates.nothing), "abc") is None
    storage.sync_names()
    assert key_note.load(storage.after_power_loss(fates.nothing), "abc") == NOTE


def test_that_of_another_journal_is_not_believed() -> None:
    assert key_note.load(noted(), "abd") is None


def test_none_is_none() -> None:
    assert key_note.load(MemoryStorage(), "abc") is None


@pytest.mark.parametrize("kept", range(0, 60, 3))
def test_one_that_is_cut_short_is_not_believed(kept: int) -> None:
    storage = MemoryStorage()
    put(storage, NAME, read_whole(noted(), NAME)[:kept])
    assert key_note.load(storage, "abc") is None


@pytest.mark.parametrize("position", range(0, 100, 7))
def test_one_that_is_damaged_is_not_believed(position: int) -> None:
    storage = noted()
    flip(storage, NAME, position)
    assert key_note.load(storage, "abc") is None


def test_one_of_other_fields_is_not_believed() -> None:
    storage = noted(KeyNote("abc", ["one"], []))  # type: ignore[list-item]
    assert key_note.load(storage, "abc") is None
