"""An entry comes back as it was written, where it was written, or not at all."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runnel.core.batch_format import pack
from runnel.core.checksum import crc_extended, crc_of
from runnel.core.errors import FormatUnknown
from runnel.journal.format.entry import (
    HEADER,
    MAGIC,
    MAX_LENGTH,
    PART,
    SELF_CHECKED,
    Part,
    PartKind,
    WriteFailed,
    body_crc,
    encode,
    read_entry,
    read_head,
    size_of,
    state_part,
)
from tests.journal.written_journal import batch

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
STATE_KINDS = st.sampled_from([kind for kind in range(2, 256) if kind not in SELF_CHECKED])


@st.composite
def state_parts(draw: st.DrawFn) -> Part:
    body = draw(st.binary(max_size=60))
    return Part(draw(STATE_KINDS), body, crc_of(body), draw(U32), draw(U64), draw(U64), draw(U64), draw(U64))


@st.composite
def batch_parts(draw: st.DrawFn) -> Part:
    body = pack(draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4)))
    crc = int.from_bytes(body[:4], "little")
    return Part(PartKind.BATCH, body, crc, draw(U32), draw(U64), draw(U64), draw(U64), draw(U64))


PARTS = st.lists(state_parts() | batch_parts(), max_size=5)


def joined(parts: list[Part], segment_id: int, position: int, synced: int = 64, time: int = 9) -> bytes:
    return b"".join(encode(parts, segment_id, position, synced, time))


@given(PARTS, U64, st.integers(0, 2**40), U64, U64, st.binary(max_size=40), st.binary(max_size=40))
def test_any_parts_come_back_as_they_were(
    parts: list[Part], segment_id: int, position: int, synced: int, time: int, before: bytes, behind: bytes
) -> None:
    data = joined(parts, segment_id, position, synced, time)
    assert len(data) == size_of(parts)
    found = read_entry(before + data + behind, len(before), segment_id, position)
    assert found is not None
    assert (found.position, found.end, found.synced, found.time) == (position, position + len(data), synced, time)
    assert found.parts == parts


@given(PARTS, U64, st.integers(0, 2**40))
def test_the_head_says_where_the_bodies_lie_without_them(parts: list[Part], segment_id: int, position: int) -> None:
    data = joined(parts, segment_id, position)
    head = read_head(data[: HEADER.size + PART.size * len(parts)], 0, segment_id, position)
    assert head is not None
    assert (head.position, head.end, len(head.table)) == (position, position + len(data), len(parts))
    at = head.bodies
    for part, (kind, flags, reserved, length, crc, topic, base, last, sequence, time) in zip(
        parts, head.table, strict=True
    ):
        assert Part(kind, data[at : at + length], crc, topic, base, last, sequence, time) == part
        assert flags == reserved == 0
        at += length
    assert at == len(data)


@given(PARTS, U64, st.integers(0, 2**40), U64, st.integers(0, 2**40))
def test_an_entry_moved_to_another_place_or_segment_never_passes(
    parts: list[Part], segment_id: int, position: int, other_id: int, other_position: int
) -> None:
    assume((segment_id, position) != (other_id, other_position))
    data = joined(parts, segment_id, position)
    assert read_entry(data, 0, other_id, other_position) is None
    assert read_head(data, 0, other_id, other_position) is None


EXAMPLE = [
    batch(3, 10, 100, 5, [b"one", b"two"]),
    state_part(PartKind.CURSOR, b"\x94somewhere"),
    state_part(PartKind.TOPIC_DELETED),
]
EXAMPLE_BYTES = joined(EXAMPLE, 7, 64)


def test_one_changed_bit_anywhere_is_noticed() -> None:
    for at, bit in product(range(len(EXAMPLE_BYTES)), range(8)):
        data = bytearray(EXAMPLE_BYTES)
        data[at] ^= 1 << bit
        assert read_entry(bytes(data), 0, 7, 64) is None, f"bit {bit} of byte {at}"


def test_an_entry_cut_anywhere_is_not_there() -> None:
    for kept in range(len(EXAMPLE_BYTES)):
        cut = EXAMPLE_BYTES[:kept]
        assert read_entry(cut, 0, 7, 64) is None, f"cut at {kept}"
        assert read_entry(cut.ljust(len(EXAMPLE_BYTES), b"\0"), 0, 7, 64) is None, f"zeros from {kept} on"


def test_zeros_and_nothing_are_no_entry() -> None:
    assert read_entry(b"", 0, 7, 64) is None
    assert read_entry(bytes(4096), 0, 7, 64) is None
    assert read_head(bytes(4096), 4090, 7, 64) is None


def test_an_entry_may_be_read_from_a_view() -> None:
    found = read_entry(memoryview(EXAMPLE_BYTES), 0, 7, 64)
    assert found is not None
    assert found.parts == EXAMPLE
    assert all(type(part.body) is bytes for part in found.parts)


def test_a_length_that_was_never_written_is_not_believed() -> None:
    data = HEADER.pack(MAGIC, 0, MAX_LENGTH + 1, 0, 0, 0)
    assert read_head(data, 0, 7, 64) is None


def test_a_table_longer_than_its_entry_is_not_believed() -> None:
    # A crc that fits, over a header that cannot be: only a bug or an attacker writes this.
    (piece,) = encode([], 7, 64, 0, 0)
    covered = HEADER.pack(MAGIC, 0, HEADER.size, 1, 0, 0)[8:] + bytes(PART.size)
    crc = encode_crc(covered)
    assert read_head(piece[:4] + crc + covered, 0, 7, 64) is None


def test_bodies_that_do_not_fill_their_entry_are_not_believed() -> None:
    table = PART.pack(PartKind.CURSOR, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    covered = HEADER.pack(MAGIC, 0, HEADER.size + PART.size + 5, 1, 0, 0)[8:] + table
    data = MAGIC + encode_crc(covered) + covered + b"stray"
    assert read_head(data, 0, 7, 64) is not None
    assert read_entry(data, 0, 7, 64) is None


@pytest.mark.parametrize(("flags", "reserved"), [(1, 0), (0x80, 0), (0, 1), (0, 0x8000)])
def test_reserved_bits_of_a_later_version_are_refused_not_taken_for_damage(flags: int, reserved: int) -> None:
    table = PART.pack(PartKind.CURSOR, flags, reserved, 0, 0, 0, 0, 0, 0, 0)
    covered = HEADER.pack(MAGIC, 0, HEADER.size + PART.size, 1, 0, 0)[8:] + table
    with pytest.raises(FormatUnknown, match="flags"):
        read_entry(MAGIC + encode_crc(covered) + covered, 0, 7, 64)


def encode_crc(covered: bytes) -> bytes:
    """The crc for segment 7 at 64, as docs/reference/disk.md describes it."""
    seed = crc_of((7).to_bytes(8, "little") + (64).to_bytes(8, "little"))
    return crc_extended(seed, covered).to_bytes(4, "little")


def test_the_crc_is_seeded_with_segment_id_and_position() -> None:
    table_end = HEADER.size + PART.size * len(EXAMPLE)
    assert EXAMPLE_BYTES[:8] == MAGIC + encode_crc(EXAMPLE_BYTES[8:table_end])


def test_a_batch_brings_its_own_crc_into_the_table() -> None:
    body = pack([b"one"])
    assert body_crc(PartKind.BATCH, body) == int.from_bytes(body[:4], "little") == crc_of(body[4:])


@pytest.mark.parametrize("body", [b"", b"abc", b"abcd" + b"not the crc of this"])
def test_a_batch_whose_own_crc_is_wrong_has_none_that_fits(body: bytes) -> None:
    assert body_crc(PartKind.BATCH, body) not in (int.from_bytes(body[:4], "little"), crc_of(body[4:]))


def test_the_crc_of_state_covers_all_of_it() -> None:
    assert body_crc(PartKind.CURSOR, b"abcdefgh") == crc_of(b"abcdefgh") == state_part(PartKind.CURSOR, b"abcdefgh").crc


def test_a_part_counts_the_offsets_it_takes_up() -> None:
    assert batch(1, 5, 0, 0, [b"a", b"b", b"c"]).count == 3


def test_the_numbers_on_disk_are_these() -> None:
    assert {kind.name: kind.value for kind in PartKind} == {
        "BATCH": 1,
        "TOPIC": 2,
        "TOPIC_DELETED": 3,
        "CURSOR": 4,
        "GROUP": 5,
        "PROGRESS": 6,
        "GROUP_DELETED": 7,
        "SEQUENCE": 8,
        "TRIM": 9,
        "CURSOR_FORGOTTEN": 10,
        "STAGED": 16,
        "STAGE_COMMIT": 17,
        "MARK": 18,
        "MESSAGE_IDS": 19,
        "MERGED": 20,
        "STAGE": 21,
        "STAGE_DROPPED": 22,
        "COMPACTED": 23,
        "STAGED_BLOCK": 24,
        "BLOCKS_COMMIT": 25,
        "CONFIRMED": 26,
        "OPTIONAL": 128,
        "NAMES": 129,
    }
    assert (HEADER.size, PART.size, MAGIC) == (32, 48, b"rnle")


# -- How far a write came.


def test_a_failed_write_says_what_is_there_and_what_may_be() -> None:
    failed = WriteFailed(2, 5, OSError("no"))
    assert (failed.done, failed.begun, str(failed)) == (2, 5, "2 entries were written, 3 perhaps: no")
