"""Small files are replaced as a whole, or not at all."""

from __future__ import annotations

import pytest

from runnel.journal.format.atomic_file import read_whole, replace_file
from runnel.testing import MemoryStorage, PowerLost
from tests.journal.written_journal import put


def test_a_file_holds_the_pieces_one_behind_the_other() -> None:
    storage = MemoryStorage()
    replace_file(storage, "a", [b"one", b"two"])
    assert read_whole(storage, "a") == b"onetwo"
    assert storage.names() == ["a"]


def test_its_bytes_are_durable_before_it_has_its_name() -> None:
    storage = MemoryStorage()
    replace_file(storage, "a", [b"one"])
    assert [call for call, _ in storage.trace] == ["create", "write", "sync", "rename"]


def test_a_missing_file_is_reported() -> None:
    with pytest.raises(FileNotFoundError):
        read_whole(MemoryStorage(), "a")


@pytest.mark.parametrize("call", range(1, 5))
@pytest.mark.parametrize("midway", [False, True])
def test_wherever_the_power_goes_the_old_file_or_the_new_one_is_found(call: int, midway: bool) -> None:
    storage = MemoryStorage(page=4, sector=2)
    put(storage, "a", b"the old one")
    storage.crash_at, storage.midway = storage.calls + call, midway
    with pytest.raises(PowerLost):
        replace_file(storage, "a", [b"the new one"])
    for fate, found in storage.worst():
        assert read_whole(found, "a") in (b"the old one", b"the new one"), fate
