"""A page's view of a job, without a browser: server-sent events over a plain socket, by the standard library alone.

It does what `runnel.js` does: when the line breaks it comes back, and goes on behind the last id that it has.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

PAUSE = 0.2  # seconds before coming back


async def follow(port: int, address: str) -> AsyncIterator[dict[str, Any]]:
    """Records of `/bus/events?topic=…` and the like, for as long as the caller asks."""
    last_id = ""
    while True:
        try:
            async for id, data in events(port, address, last_id):
                last_id = id or last_id
                if data:
                    yield json.loads(data)
        except OSError:
            pass
        await asyncio.sleep(PAUSE)


async def events(port: int, address: str, last_id: str) -> AsyncIterator[tuple[str, str]]:
    """Ids and data of one connection's events; the data of what is no record is left out."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    resume = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
    # In HTTP/1.0 a body is what comes until the end: nothing to take apart.
    writer.write(f"GET {address} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n{resume}\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.decode("latin-1"))
        id = name = data = ""
        while line := (await reader.readline()).decode():
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "id":
                id = value
            elif field == "event":
                name = value
            elif field == "data":
                data = value
            elif not line.strip():
                yield id, "" if name else data
                name = data = ""
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the server is gone") from error
    finally:
        writer.close()
