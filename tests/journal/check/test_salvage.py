"""What can still be read: around damage, and without a manifest."""

from __future__ import annotations

import pytest

from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.check.salvage import DamagedSpot, is_newer_format, load_index, manifest_from_files, walk_segment
from runnel.journal.format import manifest
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Entry
from runnel.journal.format.segment import START
from runnel.journal.storage import Storage
from runnel.testing.memory_storage import MemoryStorage
from tests.journal.folders import Writer, in_memory, publish_numbered


def load(storage: Storage) -> manifest.Manifest:
    found = manifest.load(storage)
    assert found is not None
    return found


def overwrite(storage: Storage, name: str, data: bytes) -> None:
    file = storage.create(name)
    file.write(0, [data])
    file.sync()
    file.close()


def test_a_whole_segment_is_its_entries_and_nothing_else() -> None:
    storage = in_memory(5)
    (info,) = load(storage).segments
    found = list(walk_segment(read_whole(storage, info.name), info))
    assert all(isinstance(one, Entry) for one in found)
    assert found[0].position == START
    assert found[-1].end == info.end


def test_reserved_zeros_behind_the_last_entry_are_nothing() -> None:
    storage = in_memory(5)
    (info,) = load(storage).segments
    data = read_whole(storage, info.name)
    assert list(walk_segment(data + bytes(1000), info)) == list(walk_segment(data, info))


def test_every_flipped_byte_makes_one_spot_and_leaves_every_other_entry() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        for value in (b"one", b"two", b"three"):
            writer.publish("t", [value])
    (info,) = load(storage).segments
    data = read_whole(storage, info.name)
    whole = list(walk_segment(data, info))
    for position in range(START, len(data)):
        hurt = bytearray(data)
        hurt[position] ^= 1
        found = list(walk_segment(bytes(hurt), info))
        (spot,) = (one for one in found if isinstance(one, DamagedSpot))
        assert spot.position <= position < spot.end
        assert [one for one in found if isinstance(one, Entry)] == [
            one for one in whole if not one.position <= position < one.end
        ]


def test_of_an_entry_with_one_bad_body_the_other_parts_are_kept() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        writer.topic("a")
        writer.topic("b")
        from runnel.core.batch_format import pack

        first = writer.batch("a", pack([b"first"]), 1)
        second = writer.batch("b", pack([b"second"]), 1)
        second.sequence += 1
        writer.write(first, second)
    (info,) = load(storage).segments
    data = bytearray(read_whole(storage, info.name))
    data[data.index(b"first")] ^= 1
    (spot,) = (one for one in walk_segment(bytes(data), info) if isinstance(one, DamagedSpot))
    assert [part.topic for part in spot.lost] == [first.topic]
    assert [part.topic for part in spot.kept] == [second.topic]
    assert not spot.headless
    assert spot.why == "the crc of a batch in this entry is wrong"


def test_a_version_that_was_never_written_is_a_flipped_bit() -> None:
    assert is_newer_format(FormatUnknown("f", 2, 1))
    assert not is_newer_format(FormatUnknown("f", 0, 1))
    assert not is_newer_format(FormatUnknown("f", 1 | 1 << 20, 1))


@pytest.mark.parametrize("close", [True, False])
def test_a_manifest_is_put_together_from_the_files(close: bool) -> None:
    storage = MemoryStorage()
    writer = Writer(storage)
    publish_numbered(writer, 0, 60)
    if close:
        writer.journal.close()
    wanted = load(storage)
    storage.remove(manifest.NAME)
    made, hopeless = manifest_from_files(storage, "id")
    assert hopeless == []
    assert made.journal == "id"
    assert [(info.number, info.id, info.end) for info in made.segments] == [
        (info.number, info.id, info.end) for info in wanted.segments
    ]
    assert [info.first_sequence for info in made.segments] == [info.first_sequence for info in wanted.segments]
    assert made.checkpoints == wanted.checkpoints
    assert made.next_number >= wanted.next_number


def test_a_segment_without_a_header_is_known_by_its_index_or_not_at_all() -> None:
    storage = in_memory(60)
    wanted = load(storage).segments[1]
    data = read_whole(storage, wanted.name)
    overwrite(storage, wanted.name, bytes(START) + data[START:])
    made, hopeless = manifest_from_files(storage, "")
    assert hopeless == []
    assert made.segments[1].id == wanted.id
    assert made.segments[1].first_sequence == wanted.first_sequence
    storage.remove(wanted.index_name)
    made, (error,) = manifest_from_files(storage, "")
    assert wanted.number not in [info.number for info in made.segments]
    assert isinstance(error, JournalDamaged)
    assert error.file == wanted.name


def test_a_segment_of_a_later_format_is_not_guessed_at() -> None:
    from runnel.core.checksum import crc_of
    from runnel.journal.format import segment

    storage = in_memory(1)
    (info,) = load(storage).segments
    data = bytearray(read_whole(storage, info.name))
    data[8] = 2
    size = segment.HEADER.size
    data[size : size + 4] = crc_of(bytes(data[:size])).to_bytes(4, "little")
    overwrite(storage, info.name, bytes(data))
    with pytest.raises(FormatUnknown):
        manifest_from_files(storage, "")


def test_a_missing_index_is_reported() -> None:
    storage = in_memory(1)
    (info,) = load(storage).segments
    storage.remove(info.index_name)
    with pytest.raises(JournalDamaged, match="missing"):
        load_index(storage, info)
