"""An asyncio.Queue for each subscriber: what most programs build themselves."""

from __future__ import annotations

import asyncio

from benchmarks.harness import Figures
from benchmarks.load import Load, Read, Tally, fan_out


async def one_by_one(load: Load) -> Figures:
    """put_nowait into each queue; a woken reader takes all that is there."""
    queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in range(load.subscribers)]

    async def publish() -> None:
        puts = [queue.put_nowait for queue in queues]
        for chunk in load.chunks():
            for value in chunk:
                for put in puts:
                    put(value)
            await asyncio.sleep(0)

    def reader(queue: asyncio.Queue[bytes]) -> Read:
        async def read(tally: Tally) -> None:
            get_nowait = queue.get_nowait
            while tally.values < load.publishes:
                values = [await queue.get()]
                values += [get_nowait() for _ in range(queue.qsize())]
                tally.values += len(values)
                tally.batches += 1

        return read

    return await fan_out(load, publish, [reader(queue) for queue in queues])


async def in_lists(load: Load) -> Figures:
    """Each item of a queue is a list of values."""
    queues: list[asyncio.Queue[list[bytes]]] = [asyncio.Queue() for _ in range(load.subscribers)]

    async def publish() -> None:
        for chunk in load.chunks():
            for queue in queues:
                queue.put_nowait(chunk)
            await asyncio.sleep(0)

    def reader(queue: asyncio.Queue[list[bytes]]) -> Read:
        async def read(tally: Tally) -> None:
            while tally.values < load.publishes:
                values = await queue.get()
                tally.values += len(values)
                tally.batches += 1

        return read

    return await fan_out(load, publish, [reader(queue) for queue in queues])
