from __future__ import annotations

import pytest

from runnel.journal.clean import key_compaction
from runnel.journal.clean.key_compaction import (
    KEYS_FILE,
    CompactionState,
    KeyPassState,
    PendingCleaning,
    TopicCompactionState,
)
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.offset_sets import OffsetBitmap
from runnel.testing import MemoryStorage, power_loss
from tests.journal.written_journal import flip, put

PAGES = OffsetBitmap([1, 70, 5000]).encode()
NOTE = CompactionState(
    "abc",
    [1, 1 << 62],
    [TopicCompactionState(3, 100, 7, True, 12, PAGES)],
    PendingCleaning([1], [2], [(3, PAGES)]),
    KeyPassState(3, 100, (0, 200), 5, 6, 200, 1, 120, None, False, True, b"s" * 16, b"n" * 16, b"o" * 8, b"z" * 4),
)


def noted(note: CompactionState = NOTE) -> MemoryStorage:
    storage = MemoryStorage()
    assert key_compaction.save_state(storage, note) == len(read_whole(storage, KEYS_FILE))
    return storage


def test_what_was_noted_is_there_again() -> None:
    assert key_compaction.load_state(noted(), "abc") == NOTE


def test_a_later_note_takes_the_place_of_an_earlier_one() -> None:
    storage = noted()
    key_compaction.save_state(storage, CompactionState("abc", [], []))
    assert key_compaction.load_state(storage, "abc") == CompactionState("abc", [], [])


def test_it_survives_a_loss_of_power_once_its_name_is_synced() -> None:
    storage = noted()
    assert key_compaction.load_state(storage.after_power_loss(power_loss.keep_nothing), "abc") is None
    storage.sync_names()
    assert key_compaction.load_state(storage.after_power_loss(power_loss.keep_nothing), "abc") == NOTE


def test_that_of_another_journal_is_not_believed() -> None:
    assert key_compaction.load_state(noted(), "abd") is None


def test_none_is_none() -> None:
    assert key_compaction.load_state(MemoryStorage(), "abc") is None


@pytest.mark.parametrize("kept", range(0, 60, 3))
def test_one_that_is_cut_short_is_not_believed(kept: int) -> None:
    storage = MemoryStorage()
    put(storage, KEYS_FILE, read_whole(noted(), KEYS_FILE)[:kept])
    assert key_compaction.load_state(storage, "abc") is None


@pytest.mark.parametrize("position", range(0, 100, 7))
def test_one_that_is_damaged_is_not_believed(position: int) -> None:
    storage = noted()
    flip(storage, KEYS_FILE, position)
    assert key_compaction.load_state(storage, "abc") is None


def test_one_of_other_fields_is_not_believed() -> None:
    storage = noted(CompactionState("abc", ["one"], []))  # type: ignore[list-item]
    assert key_compaction.load_state(storage, "abc") is None
