"""The manifest: swapped as a whole, checked as a whole."""

from __future__ import annotations

import errno
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.checksum import crc_of
from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format import manifest
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import SegmentInfo
from runnel.testing import MemoryStorage
from tests.journal.written_journal import put

U63 = st.integers(0, 2**63 - 1)
SEGMENTS = st.lists(st.builds(SegmentInfo, U63, U63, U63, U63, U63, U63, U63), max_size=5)
MANIFESTS = st.builds(Manifest, st.text(), SEGMENTS, st.lists(U63), U63, st.text(), U63, U63)

EXAMPLE = Manifest(
    "00ff", [SegmentInfo(1, 5, 900, 0, 7, 1, 2), SegmentInfo(4, 6)], [2, 4], next_number=5, chain_bytes=10
)


def stored(known: Manifest) -> MemoryStorage:
    storage = MemoryStorage()
    manifest.write(storage, known)
    return storage


@given(MANIFESTS)
def test_it_comes_back_as_it_was(known: Manifest) -> None:
    assert manifest.load(stored(known)) == known


def test_there_may_be_none() -> None:
    assert manifest.load(MemoryStorage()) is None


def test_a_later_one_takes_its_place_and_no_temporary_file_stays() -> None:
    storage = stored(EXAMPLE)
    later = msgspec.structs.replace(EXAMPLE, next_number=6)
    manifest.write(storage, later)
    assert manifest.load(storage) == later
    assert storage.names() == [manifest.NAME]


def test_it_is_durable_with_its_name_when_it_is_written() -> None:
    assert stored(EXAMPLE).trace == [
        ("create", "MANIFEST.tmp"),
        ("write", "MANIFEST.tmp"),
        ("sync", "MANIFEST.tmp"),
        ("rename", "MANIFEST.tmp -> MANIFEST"),
        ("sync_names", ""),
    ]


def test_a_name_that_cannot_be_synced_is_not_taken_for_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()

    def sync_names() -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(storage, "sync_names", sync_names)
    with pytest.raises(OSError, match="could not be synced") as raised:
        manifest.write(storage, EXAMPLE)
    assert raised.value.errno == errno.EIO


WHOLE = read_whole(stored(EXAMPLE), manifest.NAME)


def harmed(data: bytes) -> type[Exception] | None:
    """The error that these bytes are refused with; None: they are taken as whole."""
    storage = MemoryStorage()
    put(storage, manifest.NAME, data)
    try:
        manifest.load(storage)
    except (JournalDamaged, FormatUnknown) as error:
        return type(error)
    return None


def test_one_changed_bit_anywhere_is_noticed() -> None:
    for at, bit in product(range(len(WHOLE)), range(8)):
        expected = FormatUnknown if 8 <= at < 12 else JournalDamaged
        data = WHOLE[:at] + bytes([WHOLE[at] ^ 1 << bit]) + WHOLE[at + 1 :]
        assert harmed(data) is expected, f"bit {bit} of byte {at}"


def test_a_manifest_cut_anywhere_is_damage() -> None:
    for kept in range(len(WHOLE)):
        assert harmed(WHOLE[:kept]) is JournalDamaged, f"cut at {kept}"


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    storage = MemoryStorage()
    known = msgspec.to_builtins(EXAMPLE)
    known["segments"] = [[*info, "more"] for info in known["segments"]]
    body = msgspec.msgpack.encode({**known, "later": True})
    put(storage, manifest.NAME, WHOLE[:12] + crc_of(body).to_bytes(4, "little") + body)
    assert manifest.load(storage) == EXAMPLE


def test_it_is_clean_when_nothing_in_it_is_open() -> None:
    assert not EXAMPLE.clean
    assert Manifest("00ff", [], []).clean
    assert Manifest("00ff", EXAMPLE.segments[:1], []).clean


def test_it_names_the_files_that_count() -> None:
    assert EXAMPLE.files() == {
        "MANIFEST",
        "000000000002.ckpt",
        "000000000004.ckpt",
        "000000000001.seg",
        "000000000001.idx",
        "000000000004.seg",
    }
