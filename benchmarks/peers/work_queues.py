"""One asyncio.Queue shared by several workers, each saying `task_done()`: what most programs share work with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.harness import Figures
from benchmarks.load import Load, Tally, share_work


async def one_by_one(load: Load) -> Figures:
    """Await get() for each value, then task_done()."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    for value in load.values:
        queue.put_nowait(value)

    def worker(tally: Tally) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            while True:
                if await queue.get():
                    tally.values += 1
                queue.task_done()

        return work

    return await share_work(load, worker, queue.join)


async def taken_together(load: Load) -> Figures:
    """Await get(), then get_nowait() up to 64 values, then task_done() for each."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    for value in load.values:
        queue.put_nowait(value)

    def worker(tally: Tally) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            while True:
                values = [await queue.get()]
                values += [queue.get_nowait() for _ in range(min(63, queue.qsize()))]
                tally.values += len(values)
                tally.batches += 1
                for _ in values:
                    queue.task_done()

        return work

    return await share_work(load, worker, queue.join)


async def in_lists(load: Load) -> Figures:
    """Each item of the queue is a list of values, passed by reference, and done with one task_done()."""
    queue: asyncio.Queue[list[bytes]] = asyncio.Queue()
    for chunk in load.chunks():
        queue.put_nowait(chunk)

    def worker(tally: Tally) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            while True:
                tally.values += len(await queue.get())
                tally.batches += 1
                queue.task_done()

        return work

    return await share_work(load, worker, queue.join)
