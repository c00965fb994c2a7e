"""The crc is CRC-32C, by its published check values, whichever way it is computed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.checksum import crc_behind, crc_extended, crc_of


def slowly(data: bytes) -> int:
    """CRC-32C a bit at a time, from its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_known_values(data: bytes, crc: int) -> None:
    assert crc_of(data) == slowly(data) == crc


@given(st.binary(), st.binary())
def test_extending_is_the_crc_of_both(first: bytes, second: bytes) -> None:
    assert crc_extended(crc_of(first), second) == crc_of(first + second) == slowly(first + second)


def test_only_bytes_are_taken() -> None:
    with pytest.raises(TypeError):
        crc_of(memoryview(b"abc"))  # type: ignore[arg-type]


@given(st.binary())
def test_the_crc_behind_the_first_four_bytes_needs_no_copy_of_the_rest(data: bytes) -> None:
    assert crc_behind(data) == crc_of(data[4:])
