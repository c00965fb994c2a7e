"""What a folder in a warm standby knows of itself: kept whole, and refused where a later version wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

import runnel
from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.folder_lock import LOCK
from runnel.journal.format import lineage
from runnel.journal.format.atomic_file import encode_value
from runnel.journal.format.lineage import Lineage
from runnel.journal.storage import OsStorage


def test_what_is_written_is_read_and_a_folder_without_one_never_had_a_standby(tmp_path: Path) -> None:
    storage = OsStorage(tmp_path)
    assert lineage.load(storage) is None
    known = Lineage(id="a", origin="b", number=3, key="c", standby="d", superseded=4)
    lineage.write(storage, known)
    assert lineage.load(storage) == known


def test_a_field_that_this_version_does_not_know_is_left_out(tmp_path: Path) -> None:
    data = encode_value(lineage.MAGIC, lineage.VERSION, {"id": "a", "number": 2, "later": [1]})
    (tmp_path / lineage.NAME).write_bytes(data)
    assert lineage.load(OsStorage(tmp_path)) == Lineage(id="a", number=2)


def test_every_byte_counts(tmp_path: Path) -> None:
    storage = OsStorage(tmp_path)
    lineage.write(storage, Lineage(id="a", origin="b", number=3))
    data = (tmp_path / lineage.NAME).read_bytes()
    for at in range(len(data)):
        (tmp_path / lineage.NAME).write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(FormatUnknown if 8 <= at < 12 else JournalDamaged):
            lineage.load(storage)
        (tmp_path / lineage.NAME).write_bytes(data[:at])
        with pytest.raises(JournalDamaged):
            lineage.load(storage)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the lock, which each try takes."""
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name != LOCK}


async def test_an_earlier_version_opens_no_folder_with_the_lineage_of_a_later_one(tmp_path: Path) -> None:
    async with runnel.open(tmp_path, min_free=0) as broker:
        await broker.publish("orders", b"1")
    lineage.write(OsStorage(tmp_path), Lineage(id="a"))
    data = bytearray((tmp_path / lineage.NAME).read_bytes())
    data[8] = 2
    (tmp_path / lineage.NAME).write_bytes(data)
    before = contents(tmp_path)
    with pytest.raises(FormatUnknown, match="LINEAGE is written in format 2"):
        await runnel.open(tmp_path, min_free=0).__aenter__()
    assert contents(tmp_path) == before
