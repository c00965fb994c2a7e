"""Bodies: read in pieces, and neither for ever nor beyond a bound."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from runnel.core.errors import LimitExceeded, TooLarge
from runnel.server.http.requests import RequestBody
from runnel.server.memory_budget import MemoryBudget
from runnel.server.options import ServerOptions
from tests.held_time import held_time


def body(
    *chunks: bytes,
    length: int | None = None,
    ends: bool = True,
    trickle: asyncio.Queue[bytes] | None = None,
    memory: MemoryBudget | None = None,
    **options: Any,
) -> RequestBody:
    """A body of these chunks; with `trickle`, of what is put there, without end."""
    left = list(chunks)

    async def receive() -> Message:
        if trickle is not None:
            return {"type": "http.request", "body": await trickle.get(), "more_body": True}
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not ends}
        if ends:
            return {"type": "http.disconnect"}
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    return RequestBody(request, ServerOptions(**{"max_body": 3} | options), memory or MemoryBudget(1_000_000))


async def gathered(lines: AsyncIterator[list[bytes]]) -> list[list[bytes]]:
    return [one async for one in lines]


async def test_a_body_is_put_together() -> None:
    assert await body(b"a", b"", b"bc").whole() == b"abc"
    assert await body(b"").whole() == b""


async def test_too_much_is_refused_as_soon_as_it_is_known() -> None:
    with pytest.raises(TooLarge, match="max_body"):
        await body(b"abc", b"d").whole()
    with pytest.raises(TooLarge, match="max_body"):
        await body(length=4).whole()  # not a byte of it was asked for


async def test_a_body_that_is_not_whole_in_time_is_not_waited_for() -> None:
    with pytest.raises(HTTPException, match=r"frame_timeout=0\.01") as late:
        await body(b"a", ends=False, frame_timeout=0.01).whole()
    assert late.value.status_code == 408
    with pytest.raises(HTTPException) as late:
        await gathered(body(b"a\nb", ends=False, frame_timeout=0.01).lines(3))
    assert late.value.status_code == 408


async def test_bytes_now_and_then_do_not_extend_the_time_of_a_body() -> None:
    with held_time() as later:
        trickle: asyncio.Queue[bytes] = asyncio.Queue()
        reading = asyncio.ensure_future(body(trickle=trickle, frame_timeout=10.0).whole())
        await later(0)
        for _ in range(9):
            trickle.put_nowait(b"")
            await later(1)
        assert not reading.done()
        await later(1.1)
        with pytest.raises(HTTPException, match="408"):
            await reading


async def test_a_body_that_is_not_whole_counts_and_one_too_many_is_refused() -> None:
    memory, trickle = MemoryBudget(1_000_000), asyncio.Queue[bytes]()
    slow = asyncio.ensure_future(body(trickle=trickle, memory=memory, max_body=1_000_000).whole())
    trickle.put_nowait(bytes(400_000))
    while memory.held != 400_000:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match="max_held_bytes"):  # the larger one is refused, while it reads
        await body(bytes(500_000), bytes(400_000), b"x", memory=memory, max_body=1_000_000).whole()
    assert memory.held == 400_000
    small = body(bytes(390_000), bytes(390_000), b"x", memory=memory, max_body=1_000_000).lines(500_000)
    with pytest.raises(LimitExceeded, match="max_held_bytes"):
        await gathered(small)
    trickle.put_nowait(bytes(300_000))
    other = asyncio.ensure_future(body(bytes(350_000), b"x", ends=False, memory=memory, max_body=1_000_000).whole())
    with pytest.raises(LimitExceeded, match="max_held_bytes"):  # while it waits
        await slow
    assert memory.held == 350_001
    other.cancel()
    await asyncio.wait([other])
    assert memory.held == 0


async def test_who_leaves_in_the_middle_has_published_nothing() -> None:
    with pytest.raises(HTTPException) as gone:
        await body(length=2).whole()
    assert gone.value.status_code == 400


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"ccc\r"]), min_size=1, max_size=30), st.integers(1, 9), st.integers(8, 40)
)
def test_lines_come_whole_and_in_order_however_they_are_cut(lines: list[bytes], step: int, limit: int) -> None:
    data = b"\n".join(lines)
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    pieces = asyncio.run(gathered(body(*chunks).lines(limit)))
    found = [line for piece in pieces for line in piece]
    assert [line.rstrip(b"\r") for line in found] == [line.rstrip(b"\r") for line in lines]
    assert all(sum(map(len, piece)) <= limit for piece in pieces)
    assert all(pieces)


async def test_a_line_that_fits_into_no_piece_is_refused() -> None:
    with pytest.raises(TooLarge, match="a line"):
        await gathered(body(b"a\n", b"x" * 20).lines(10))
