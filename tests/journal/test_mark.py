"""The durable mark: what was last said, whole, or nothing."""

from __future__ import annotations

import pytest

from runnel.core.checksum import crc_of
from runnel.journal import mark
from runnel.journal.mark import Mark
from runnel.journal.swap import read_whole
from runnel.testing import MemoryStorage
from tests.journal.rig import put


def published(*marks: Mark) -> MemoryStorage:
    storage = MemoryStorage()
    file = storage.create(mark.NAME)
    for one in marks:
        mark.write(file, *one)
    return storage


def test_there_may_be_none() -> None:
    assert mark.read(MemoryStorage()) is None


def test_the_last_one_counts() -> None:
    assert mark.read(published(Mark(3, 77, 64), Mark(3, 77, 500))) == Mark(3, 77, 500)


def test_it_is_these_bytes() -> None:
    body = b"runnel/d" + b"".join(number.to_bytes(8, "little") for number in (3, 77, 500))
    assert read_whole(published(Mark(3, 77, 500)), mark.NAME) == body + crc_of(body).to_bytes(4, "little")


WHOLE = read_whole(published(Mark(3, 77, 500)), mark.NAME)


@pytest.mark.parametrize("kept", range(len(WHOLE)))
def test_a_mark_cut_anywhere_is_none(kept: int) -> None:
    storage = MemoryStorage()
    put(storage, mark.NAME, WHOLE[:kept])
    assert mark.read(storage) is None


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_a_mark_with_a_changed_bit_is_none(at: int) -> None:
    storage = MemoryStorage()
    put(storage, mark.NAME, WHOLE[:at] + bytes([WHOLE[at] ^ 4]) + WHOLE[at + 1 :])
    assert mark.read(storage) is None


def test_something_else_with_a_crc_that_fits_is_none() -> None:
    storage = MemoryStorage()
    other = b"runnel/x" + WHOLE[8:-4]
    put(storage, mark.NAME, other + crc_of(other).to_bytes(4, "little"))
    assert mark.read(storage) is None


def test_publishing_one_does_not_sync() -> None:
    storage = published(Mark(1, 2, 64))
    assert storage.syncs == 0
