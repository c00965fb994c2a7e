"""Redis with redis-py and hiredis: a stream, written by pipelines of XADD and read by XREAD.

`appendfsync everysec` answers before the sync; `always` syncs once for all that came in one turn of its loop, and
answers then. The blocking client writes pipelines: it is about twice as quick as the asyncio one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import program
from benchmarks.load import reading
from benchmarks.processes import free_port, listening
from benchmarks.roads import LIST, TOPIC, Keep, Road

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
        self._blocking, self._client, self._stack = blocking, client, stack

    async def flood(self, lists: Iterable[list[bytes]]) -> None:
        for values in lists:
            self._pipelined(values)

    def _pipelined(self, values: list[bytes]) -> None:
        pipeline = self._blocking.pipeline(transaction=False)
        add = pipeline.execute_command  # what pipeline.xadd calls: a fifth quicker without it
        for value in values:
            add("XADD", TOPIC, "*", FIELD, value)
        pipeline.execute()

    async def send(self, values: list[bytes]) -> None:
        self._pipelined(values)

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
