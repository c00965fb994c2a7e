"""Redis with redis-py and hiredis: a stream, written by pipelines of XADD and read by XREAD.

`appendfsync everysec` answers before the sync; `always` syncs once for all that came in one turn of its loop, and
answers then. As many pipelines are under way as runnel has lists, on one connection of the blocking client: that is
quicker than one pipeline at a time, than a thread for each, and than the asyncio client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import program
from benchmarks.load import reading
from benchmarks.processes import free_port, listening
from benchmarks.roads import IN_FLIGHT, LIST, TOPIC, Keep, Road

FIELD = b"v"


@asynccontextmanager
async def served(folder: Path, *, fsync: str) -> AsyncIterator[str]:
    """A server with an append-only file, synced as said: "always" or "everysec"."""
    port = free_port()
    said = {"port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "", "appendonly": "yes"}
    flags = [word for name, value in (said | {"appendfsync": fsync}).items() for word in (f"--{name}", value)]
    async with listening([program("redis-server") or "redis-server", *flags], port):
        yield f"redis://127.0.0.1:{port}"


@asynccontextmanager
async def streams(url: str) -> AsyncIterator[Road]:
    """A client."""
    import redis
    import redis.asyncio

    async with AsyncExitStack() as stack:
        blocking, client = redis.Redis.from_url(url), redis.asyncio.Redis.from_url(url)
        stack.callback(blocking.close)
        stack.push_async_callback(client.aclose)
        yield RedisStreams(blocking, client, stack)


class RedisStreams:
    """redis-py, and one stream."""

    def __init__(self, blocking: Any, client: Any, stack: AsyncExitStack) -> None:
        self._connection, self._client, self._stack = blocking.connection_pool.get_connection(), client, stack

    async def flood(self, lists: Iterable[list[bytes]]) -> None:
        under_way: deque[int] = deque()
        for values in lists:
            if len(under_way) == IN_FLIGHT:
                self._answered(under_way.popleft())
            under_way.append(self._piped(values))
        while under_way:
            self._answered(under_way.popleft())

    def _piped(self, values: list[bytes]) -> int:
        """Send a pipeline; how many answers it will have."""
        add = [("XADD", TOPIC, "*", FIELD, value) for value in values]
        self._connection.send_packed_command(self._connection.pack_commands(add))
        return len(values)

    def _answered(self, count: int) -> None:
        read = self._connection.read_response
        for _ in range(count):
            read()

    async def send(self, values: list[bytes]) -> None:
        self._answered(self._piped(values))

    async def hand_over(self, value: bytes) -> None:
        await self.store(value)

    async def store(self, value: bytes) -> None:
        await self._client.xadd(TOPIC, {FIELD: value})

    async def subscribe(self, keep: Keep) -> None:
        async def read() -> None:
            client, last = self._client.client(), b"0"
            while True:
                found = await client.xread({TOPIC: last}, count=LIST, block=1000)
                for _, entries in found:
                    last = entries[-1][0]
                    keep([fields[FIELD] for _, fields in entries])

        await self._stack.enter_async_context(reading([read()]))
        await asyncio.sleep(0)
