"""Bodies: read in pieces, and neither for ever nor beyond a bound."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from runnel.core.errors import TooLarge
from runnel.server.http import requests


def request(*chunks: bytes, length: int | None = None, ends: bool = True) -> Request:
    left = list(chunks)

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not ends}
        if ends:
            return {"type": "http.disconnect"}
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def gathered(lines: AsyncIterator[list[bytes]]) -> list[list[bytes]]:
    return [one async for one in lines]


async def test_a_body_is_put_together() -> None:
    assert await requests.read_body(request(b"a", b"", b"bc"), 3) == b"abc"
    assert await requests.read_body(request(b""), 3) == b""


async def test_too_much_is_refused_as_soon_as_it_is_known() -> None:
    with pytest.raises(TooLarge, match="max_body"):
        await requests.read_body(request(b"abc", b"d"), 3)
    with pytest.raises(TooLarge, match="max_body"):
        await requests.read_body(request(length=4), 3)  # not a byte of it was asked for


async def test_who_stops_in_the_middle_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_TIMEOUT", 0.01)
    with pytest.raises(HTTPException) as late:
        await requests.read_body(request(b"a", ends=False), 3)
    assert late.value.status_code == 408


async def test_who_leaves_in_the_middle_has_published_nothing() -> None:
    with pytest.raises(HTTPException) as gone:
        await requests.read_body(request(length=2), 3)
    assert gone.value.status_code == 400


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"ccc\r"]), min_size=1, max_size=30), st.integers(1, 9), st.integers(8, 40)
)
def test_lines_come_whole_and_in_order_however_they_are_cut(lines: list[bytes], step: int, limit: int) -> None:
    data = b"\n".join(lines)
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    pieces = asyncio.run(gathered(requests.read_lines(request(*chunks), limit)))
    found = [line for piece in pieces for line in piece]
    assert [line.rstrip(b"\r") for line in found] == [line.rstrip(b"\r") for line in lines]
    assert all(sum(map(len, piece)) <= limit for piece in pieces)
    assert all(pieces)


async def test_a_line_that_fits_into_no_piece_is_refused() -> None:
    with pytest.raises(TooLarge, match="a line"):
        await gathered(requests.read_lines(request(b"a\n", b"x" * 20), 10))
