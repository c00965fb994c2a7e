"""The body of a request, read piece by piece and never beyond a bound, nor for ever.

Below: nothing. Above: publishing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.exceptions import HTTPException
from starlette.requests import Request

from runnel.core.errors import TooLarge

PATIENCE = 30.0  # seconds until the next bytes of a body must have come


async def whole(request: Request, limit: int) -> bytes:
    """All of it; `TooLarge` beyond `limit` bytes, said before they were sent if the client says how many they are."""
    said = next((value for name, value in request.scope["headers"] if name == b"content-length"), b"")
    if said.isdigit() and int(said) > limit:
        raise TooLarge("the body of a request", int(said), "max_body", limit)
    chunk, more = await _next(request)
    if not more and len(chunk) <= limit:
        return chunk  # it came in one piece, as most do
    gathered, size = [chunk], len(chunk)
    while more and size <= limit:
        chunk, more = await _next(request)
        size += len(chunk)
        gathered.append(chunk)
    if size > limit:
        raise TooLarge("the body of a request", size, "max_body", limit)
    return b"".join(gathered)


async def lines(request: Request, limit: int) -> AsyncIterator[list[bytes]]:
    """Its lines, in lists of as many as `limit` bytes hold. Empty ones are left out."""
    gathered: list[bytes] = []
    size = 0
    async for chunk in chunks(request):
        gathered.append(chunk)
        size += len(chunk)
        while size > limit:
            data = b"".join(gathered)
            cut = data.rfind(b"\n", 0, limit + 1) + 1
            if not cut:
                raise TooLarge("a line of the body", size, "max_body", limit)
            if found := _split(data[:cut]):
                yield found
            gathered, size = [data[cut:]], len(data) - cut
    if found := _split(b"".join(gathered)):
        yield found


async def chunks(request: Request) -> AsyncIterator[bytes]:
    """Its bytes as they come. A client that stops in the middle is not waited for."""
    more = True
    while more:
        chunk, more = await _next(request)
        if chunk:
            yield chunk


async def _next(request: Request) -> tuple[bytes, bool]:
    """The next bytes, and whether there are more."""
    try:
        async with asyncio.timeout(PATIENCE):
            message = await request.receive()
    except TimeoutError:
        raise HTTPException(408, f"nothing more of the body came within {PATIENCE:g} s") from None
    if message["type"] == "http.disconnect":
        raise HTTPException(400, "the body ended before it was complete")
    return message.get("body", b""), message.get("more_body", False)


def _split(data: bytes) -> list[bytes]:
    found = data.replace(b"\r\n", b"\n").split(b"\n") if b"\r" in data else data.split(b"\n")
    return [line for line in found if line]
