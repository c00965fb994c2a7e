"""The body of a request, read piece by piece and never beyond a bound, nor for ever.

Below: nothing. Above: publishing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from runnel.core.errors import TooLarge

PATIENCE = 30.0  # seconds until the next bytes of a body must have come


async def whole(request: Request, limit: int) -> bytes:
    """All of it; `TooLarge` beyond `limit` bytes, said before they were sent if the client says how many they are."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > limit:
        raise TooLarge("the body of a request", int(said), "max_body", limit)
    gathered: list[bytes] = []
    size = 0
    async for chunk in chunks(request):
        size += len(chunk)
        if size > limit:
            raise TooLarge("the body of a request", size, "max_body", limit)
        gathered.append(chunk)
    return gathered[0] if len(gathered) == 1 else b"".join(gathered)


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
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(PATIENCE):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise HTTPException(408, f"nothing more of the body came within {PATIENCE:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body ended before it was complete") from None
        if chunk is None:
            return
        if chunk:
            yield chunk


def _split(data: bytes) -> list[bytes]:
    found = data.replace(b"\r\n", b"\n").split(b"\n") if b"\r" in data else data.split(b"\n")
    return [line for line in found if line]
