"""broadcaster with its memory backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.harness import Figures
from benchmarks.load import Load, Read, Tally, fan_out


async def one_by_one(load: Load) -> Figures:
    """Await broadcast.publish for each value; it has no way to read several at once."""
    return await _fan_out(load, lambda chunk: chunk, lambda message: 1)


async def in_lists(load: Load) -> Figures:
    """Each message is a list of values."""
    return await _fan_out(load, lambda chunk: [chunk], len)


async def _fan_out(load: Load, items: Callable[[list[bytes]], list[Any]], count: Callable[[Any], int]) -> Figures:
    from broadcaster import Broadcast

    async with AsyncExitStack() as stack:
        broadcast = await stack.enter_async_context(Broadcast("memory://"))
        subscribers = [await stack.enter_async_context(broadcast.subscribe("t")) for _ in range(load.subscribers)]

        async def publish() -> None:
            for chunk in load.chunks():
                for item in items(chunk):
                    await broadcast.publish("t", item)
                await asyncio.sleep(0)

        def reader(subscriber: Any) -> Read:
            async def read(tally: Tally) -> None:
                async for event in subscriber:
                    tally.values += count(event.message)
                    tally.batches += 1
                    if tally.values >= load.publishes:
                        return

            return read

        return await fan_out(load, publish, [reader(subscriber) for subscriber in subscribers])
