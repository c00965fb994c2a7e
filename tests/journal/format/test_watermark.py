"""The watermark: what was last said, whole, or nothing."""

from __future__ import annotations

from runnel.core.checksum import crc_of
from runnel.journal.format import watermark
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.watermark import Watermark
from runnel.testing import MemoryStorage
from tests.journal.written_journal import put


def published(*marks: Watermark) -> MemoryStorage:
    storage = MemoryStorage()
    file = storage.create(watermark.NAME)
    for one in marks:
        watermark.write(file, *one)
    return storage


def test_there_may_be_none() -> None:
    assert watermark.read(MemoryStorage()) is None


def test_the_last_one_counts() -> None:
    assert watermark.read(published(Watermark(3, 77, 64), Watermark(3, 77, 500))) == Watermark(3, 77, 500)


def test_it_is_these_bytes() -> None:
    body = b"runnel/d" + b"".join(number.to_bytes(8, "little") for number in (3, 77, 500))
    assert read_whole(published(Watermark(3, 77, 500)), watermark.NAME) == body + crc_of(body).to_bytes(4, "little")


WHOLE = read_whole(published(Watermark(3, 77, 500)), watermark.NAME)


def test_a_mark_cut_anywhere_is_none() -> None:
    for kept in range(len(WHOLE)):
        storage = MemoryStorage()
        put(storage, watermark.NAME, WHOLE[:kept])
        assert watermark.read(storage) is None, f"cut at {kept}"


def test_a_mark_with_a_changed_bit_is_none() -> None:
    for at in range(len(WHOLE)):
        storage = MemoryStorage()
        put(storage, watermark.NAME, WHOLE[:at] + bytes([WHOLE[at] ^ 4]) + WHOLE[at + 1 :])
        assert watermark.read(storage) is None, f"byte {at}"


def test_something_else_with_a_crc_that_fits_is_none() -> None:
    storage = MemoryStorage()
    other = b"runnel/x" + WHOLE[8:-4]
    put(storage, watermark.NAME, other + crc_of(other).to_bytes(4, "little"))
    assert watermark.read(storage) is None


def test_publishing_one_does_not_sync() -> None:
    storage = published(Watermark(1, 2, 64))
    assert storage.syncs == 0
