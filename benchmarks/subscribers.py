"""Few and many subscribers on one topic.

Does publishing get dearer with more subscribers, and what do 10,000 of them on one topic cost?
"""

from __future__ import annotations

import asyncio
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeAlias

from benchmarks.harness import Contender, Figures, Question, asked
from benchmarks.load import PUBLISH, Lossy, payloads, reading, settle

COUNTS = (1, 10, 100, 1000)
CHUNK = 1000
FIRST = "µs of it for the first"
ALL = "ms until all got one record"
COME, GO = "µs to come", "µs to go"
BYTES = "bytes each"

Put: TypeAlias = Callable[[bytes], object]
OpenBus: TypeAlias = Callable[[int, list[int]], AbstractAsyncContextManager[Put]]


def question(*, quick: bool = False) -> Question:
    """The same load at each number of subscribers, then one record to very many."""
    chunks = 2 if quick else 5
    many = 2_000 if quick else 10_000
    contenders = [
        Contender(
            f"{name}, {count:,} subscriber{'s' if count > 1 else ''}",
            partial(_publishing, open_bus, count, chunks),
            call,
            league=f"to {count:,}",
            peer=name != "runnel",
            needs=needs,
        )
        for count in COUNTS
        for name, open_bus, call, needs in BUSES
    ]
    contenders += [
        Contender(
            f"{name}, {many:,} subscribers",
            partial(_very_many, open_bus, many),
            call,
            league=f"to {many:,}",
            peer=name != "runnel",
            needs=needs,
        )
        for name, open_bus, call, needs in BUSES
    ]
    return Question(
        name="subscribers",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=contenders,
        notes=[
            f"{chunks} × {CHUNK:,} values of 100 B; only publishing is timed",
            "between those chunks every subscriber reads to the end, counts, and parks: the first publish wakes all",
            "come and go: a subscriber and its reading task begin and end, per subscriber",
            "memory: Python's own allocations (tracemalloc), subscription and parked reading task together",
        ],
    )


async def _publishing(open_bus: OpenBus, count: int, chunks: int) -> Figures:
    got = [0] * count
    values = payloads(CHUNK)
    spent = first = 0.0
    async with open_bus(count, got) as put:
        await settle()
        for n in range(chunks):
            begun = time.perf_counter()
            put(values[0])
            woken = time.perf_counter()
            for value in values[1:]:
                put(value)
            spent += time.perf_counter() - begun
            first += woken - begun
            await _until(got, CHUNK * (n + 1))
    return {PUBLISH: spent / (chunks * CHUNK) * 1e9, FIRST: first / chunks * 1e6}


async def _very_many(open_bus: OpenBus, count: int) -> Figures:
    value = payloads(CHUNK)[0]
    taken = []
    began = time.perf_counter()
    async with open_bus(count, got := [0] * count) as put:
        await settle()
        came = time.perf_counter() - began
        for n in range(1, 6):
            begun = time.perf_counter()
            put(value)
            await _until(got, n)
            taken.append(time.perf_counter() - begun)
        began = time.perf_counter()
    went = time.perf_counter() - began
    return {
        ALL: statistics.median(taken) * 1e3,
        COME: came / count * 1e6,
        GO: went / count * 1e6,
        BYTES: await _bytes_each(open_bus, min(count, 1000)),
    }


async def _bytes_each(open_bus: OpenBus, count: int) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        async with open_bus(count, [0] * count):
            await settle()
            return (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()


async def _until(got: Sequence[int], expected: int) -> None:
    for _ in range(10_000):
        await asyncio.sleep(0)
        if got[-1] == expected and min(got) == expected:
            return
    raise Lossy(expected, got)


@asynccontextmanager
async def _runnel(count: int, got: list[int]) -> AsyncIterator[Put]:
    import runnel

    async with runnel.open() as broker:
        topic = broker.topic("t")

        async def read(n: int) -> None:
            async with topic.subscribe(buffer=4 * CHUNK) as subscription:
                async for batch in subscription.batches():
                    got[n] += len(batch.values)

        async with reading(read(n) for n in range(count)):
            yield topic.publish_nowait


@asynccontextmanager
async def _queues(count: int, got: list[int]) -> AsyncIterator[Put]:
    queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in range(count)]

    async def read(n: int) -> None:
        queue = queues[n]
        while True:
            values = [await queue.get()]
            values += [queue.get_nowait() for _ in range(queue.qsize())]
            got[n] += len(values)

    def put(value: bytes) -> None:
        for queue in queues:
            queue.put_nowait(value)

    async with reading(read(n) for n in range(count)):
        yield put


BUSES: list[tuple[str, OpenBus, str, tuple[str, ...]]] = [
    ("runnel", _runnel, "topic.publish_nowait(v); sub.batches(): batch.values", ("runnel",)),
    ("asyncio.Queue", _queues, "put_nowait(v) into each; await get(), then get_nowait()", ()),
]
