"""runnel over TCP: a server in a process of its own, and its client.

Below: the command line and the client of runnel. Above: roads, crew.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.load import reading
from benchmarks.processes import running
from benchmarks.roads import IN_FLIGHT, TOPIC, Keep, Road

PATIENCE = 30.0


@asynccontextmanager
async def served(folder: Path, *, memory: bool = False) -> AsyncIterator[str]:
    """A server on an empty folder, or in memory; its url."""
    place = ["--memory"] if memory else ["--data", str(folder)]
    command = [sys.executable, "-m", "runnel", "serve", *place, "--port", "0", "--json-port", "off", "--json"]
    command += ["--http-port", "off"]
    async with running([*command, "--log-level", "warning"]) as process:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            told = await process.stdout.readline()
        if not told:
            raise RuntimeError("the server ended before it was ready; what it said is above")
        yield msgspec.json.decode(told)["listeners"][0]["url"]


async def prepare(url: str) -> None:
    """Make the topic."""
    import runnel

    async with runnel.open(url) as broker:
        await broker.topic(TOPIC).declare()


async def syncs(url: str) -> int:
    """How often the journal was synced since the server began."""
    import runnel

    async with runnel.open(url) as broker:
        journal = broker.statistics().journal
        return 0 if journal is None else journal.syncs


@asynccontextmanager
async def in_lists(url: str) -> AsyncIterator[Road]:
    """Publishing by publish_many; reading by batch."""
    async with _opened(url, by_tick=False) as road:
        yield road


@asynccontextmanager
async def by_tick(url: str) -> AsyncIterator[Road]:
    """Publishing by publish_nowait: what one turn of the loop published goes together; reading by batch."""
    async with _opened(url, by_tick=True) as road:
        yield road


@asynccontextmanager
async def _opened(url: str, *, by_tick: bool) -> AsyncIterator[RunnelRoad]:
    import runnel

    async with runnel.open(url) as broker, AsyncExitStack() as stack:
        yield RunnelRoad(broker, stack, by_tick=by_tick)


class RunnelRoad:
    """A client of a server."""

    def __init__(self, broker: Any, stack: AsyncExitStack, *, by_tick: bool) -> None:
        self._broker, self._stack, self._by_tick = broker, stack, by_tick
        self._topic = broker.topic(TOPIC)

    async def flood(self, lists: Iterable[list[bytes]]) -> None:
        if self._by_tick:
            before: list[bytes] = []
            for values in lists:
                await self._tick(before)
                before = values
            await self._tick(before[:-1])
            await self._topic.publish(before[-1])  # answered after all that were published before it
            return
        left, publish_many = iter(lists), self._topic.publish_many  # shared: each list is taken by one of the tasks

        async def publisher() -> None:
            for values in left:
                await publish_many(values)

        await asyncio.gather(*(publisher() for _ in range(IN_FLIGHT)))

    async def _tick(self, values: list[bytes]) -> None:
        """Publish these one by one, in one turn of the loop if there is room for them."""
        import runnel

        put = self._topic.publish_nowait
        for value in values:
            try:
                put(value)
            except runnel.Full:
                await self._topic.publish(value)
        await asyncio.sleep(0)

    async def send(self, values: list[bytes]) -> None:
        await self._topic.publish_many(values)

    async def hand_over(self, value: bytes) -> None:
        self._topic.publish_nowait(value)

    async def store(self, value: bytes) -> None:
        await self._topic.publish(value)

    async def subscribe(self, keep: Keep) -> None:
        subscription = await self._stack.enter_async_context(self._broker.subscribe(TOPIC))

        async def read() -> None:
            async for batch in subscription.batches():
                keep(batch.values)

        await self._stack.enter_async_context(reading([read()]))
