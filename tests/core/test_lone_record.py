"""A batch of one value is the same bytes, and is read the same, as by the general way."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runnel.core.batch_format import BYTES, JSON, MSGPACK, pack, unpack
from runnel.core.checksum import crc_of
from runnel.core.errors import BadBatch
from runnel.core.lone_record import append_of_lone, pack_lone, unpack_lone
from runnel.core.publishing import append_of_batch, checked_batch
from runnel.core.record import Meta
from tests.carried import columns_of

SIZES = (0, 1, 255, 256, 65_535, 65_536)


@given(
    st.binary(max_size=300),
    st.sampled_from([BYTES, JSON, MSGPACK]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_a_lone_value_is_packed_as_any_other_batch_and_comes_back(
    value: bytes, content_type: int, producer: int, number: int
) -> None:
    data = pack_lone(value, content_type, producer, number)

    assert data == pack((value,), content_type=content_type, producer=producer, producer_sequence=number)
    assert unpack_lone(data) == (value, content_type, producer, number)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_packed_the_same_and_appends_the_same(size: int) -> None:
    data = pack_lone(bytes(size), BYTES, 7, 9)

    assert data == pack((bytes(size),), producer=7, producer_sequence=9)
    found, usual = append_of_lone(data), append_of_batch("t", data, checked_batch("t", data), None)
    if size < 65_536:
        assert found is not None
        assert (found.values, found.columns, found.size, found.packed) == (usual.values, None, usual.size, data)
        assert (found.producer, found.producer_sequence, found.extra) == (7, 9, usual.extra)
    else:
        assert found is None


def test_other_batches_are_left_to_the_general_way() -> None:
    for data in (
        pack((b"a", b"b")),
        pack((b"a",), columns_of([Meta(b"key")])),
        pack((b"a" * 200,), compression="zstd"),
        pack((b"a",), deltas=[0]),
    ):
        assert unpack_lone(data) is None


@given(st.binary(min_size=1, max_size=60), st.data())
@example(b"x", None)
def test_what_the_general_way_refuses_is_never_read(value: bytes, draw: st.DataObject | None) -> None:
    sound = pack_lone(value, JSON, 3, 4)
    if draw is None:
        damaged = [sound[:end] for end in range(len(sound))] + [sound + b"\0"]
    else:
        at, other = draw.draw(st.integers(0, len(sound) - 1)), draw.draw(st.integers(1, 255))
        flipped = bytearray(sound)
        flipped[at] ^= other
        right_crc = struct.pack("<I", crc_of(bytes(flipped[4:]))) + flipped[4:]
        damaged = [bytes(flipped), bytes(right_crc)]
    for data in damaged:
        try:
            usual = unpack(data)
        except BadBatch:
            assert unpack_lone(data) is None
            continue
        header, found = usual.header, unpack_lone(data)
        if found is not None:
            assert found == (usual.values[0], header.content_type, header.producer, header.producer_sequence)


def test_a_crc_need_not_be_checked_twice() -> None:
    sound = pack_lone(b"value")
    damaged = bytes([sound[0] ^ 1]) + sound[1:]

    assert unpack_lone(damaged) is None
    assert unpack_lone(damaged, verify=False) == (b"value", BYTES, 0, 0)
