"""Lines come in chunks, as they are there, whole and in order."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.cli import pub as module
from runnel.cli.pub import read_lines, split_lines


@given(st.binary(), st.lists(st.integers(1, 9)))
def test_however_the_bytes_come_the_lines_are_the_same(data: bytes, cuts: list[int]) -> None:
    found, carry, at = [], b"", 0
    for cut in [*cuts, len(data)]:
        some, carry = split_lines(carry, data[at : at + cut])
        found += some
        at += cut
    some, carry = split_lines(carry, data[at:])
    found += some
    whole = data.split(b"\n")
    assert carry == whole[-1]
    assert found == [line.removesuffix(b"\r") for line in whole[:-1]]


async def test_a_line_is_there_as_soon_as_it_was_typed_and_the_last_needs_no_end() -> None:
    reading, writing = os.pipe()
    try:
        lines = read_lines(reading)
        os.write(writing, b"one\n")
        assert await anext(lines) == ([b"one"], 4)
        os.write(writing, b"two\r\nthr")
        assert await anext(lines) == ([b"two"], 12)
        os.write(writing, b"ee")
        os.close(writing)
        assert await anext(lines) == ([b"three"], 14)
        assert await anext(lines, None) is None
    finally:
        os.close(reading)


async def test_a_big_input_is_never_in_memory_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 64)
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        for _ in range(500):
            os.write(writing, b"x" * 63 + b"\n")
        lines = read_lines(reading)
        first = await anext(lines)
        assert first == ([b"x" * 63], 64)
        count = 1
        for _ in range(200):  # turns of the loop, in which the reader could run away
            await asyncio.sleep(0)
        os.close(writing)
        async for chunk, _ in lines:
            count += len(chunk)
        assert count == 500
    finally:
        os.close(reading)


async def test_what_cannot_be_read_is_told(tmp_path: object) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    os.close(reading)
    with pytest.raises(OSError, match="descriptor"):
        await anext(read_lines(reading))
