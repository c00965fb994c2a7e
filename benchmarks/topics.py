"""Very many topics.

What do 100,000 topics cost: memory, publishing to each in turn, one pattern over all of them?
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from functools import partial

from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import DELIVERY, PUBLISH, Lossy, payloads, reading, settle

BYTES = "bytes a topic"
CREATE = "ns to create and publish once"
RUNNEL, HANDLES, NAMES, PATTERN = "runnel", "runnel, by handle", "runnel, by name", "runnel, one pattern"
QUEUES = "a dict of asyncio.Queue"


def question(*, quick: bool = False) -> Question:
    """Memory first; then publishing over the topics; then a pattern that reads all."""
    count = 10_000 if quick else 100_000
    payloads(count)
    return Question(
        name="topics",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=[
            Contender(
                RUNNEL, partial(_memory, count), "broker.topic(name).publish_nowait(v)", "made", needs=("runnel",)
            ),
            Contender(
                QUEUES, partial(_queue_memory, count), "queues[name] = Queue(); put_nowait(v)", "made", peer=True
            ),
            Contender(HANDLES, partial(_handles, count), "topic.publish_nowait(v)", "in turn", needs=("runnel",)),
            Contender(NAMES, partial(_names, count), "await broker.publish(name, v)", "in turn", needs=("runnel",)),
            Contender(f"{QUEUES} ", partial(_queues, count), "queues[name].put_nowait(v)", "in turn", peer=True),
            Contender(
                PATTERN, partial(_pattern, count), 'broker.subscribe("jobs.>"); batch.values', "read", needs=("runnel",)
            ),
        ],
        aims=[Aim(RUNNEL, BYTES, at_most=1024)],
        notes=[
            f"{count:,} topics named jobs.<n>.log, one value of 100 B each",
            "memory: Python's own allocations (tracemalloc), the topic's name included, its value not",
            "in turn: one publish to each topic, twice, the first of which is not timed",
        ],
    )


def _names_of(count: int) -> list[str]:
    return [f"jobs.{n}.log" for n in range(count)]


async def _memory(count: int) -> Figures:
    import runnel

    values = payloads(count)
    async with runnel.open() as broker:
        begun = time.perf_counter()
        for n in range(count):
            broker.topic(f"jobs.{n}.log").publish_nowait(values[n])
        spent = time.perf_counter() - begun
    async with runnel.open() as broker:
        broker.topic("first").publish_nowait(b"")
        tracemalloc.start()
        try:
            for n in range(count):
                broker.topic(f"jobs.{n}.log").publish_nowait(values[n])
            used = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    return {CREATE: spent / count * 1e9, BYTES: used / count}


async def _queue_memory(count: int) -> Figures:
    values = payloads(count)

    def make() -> dict[str, asyncio.Queue[bytes]]:
        queues: dict[str, asyncio.Queue[bytes]] = {}
        for n in range(count):
            queue = queues[f"jobs.{n}.log"] = asyncio.Queue()
            queue.put_nowait(values[n])
        return queues

    begun = time.perf_counter()
    make()
    spent = time.perf_counter() - begun
    tracemalloc.start()
    try:
        kept = make()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return {CREATE: spent / len(kept) * 1e9, BYTES: used / len(kept)}


async def _handles(count: int) -> Figures:
    import runnel

    async with runnel.open() as broker:
        topics = [broker.topic(name) for name in _names_of(count)]
        for topic in topics:
            topic.publish_nowait(b"first")
        pairs = list(zip(topics, payloads(count), strict=True))
        begun = time.perf_counter()
        for topic, value in pairs:
            topic.publish_nowait(value)
        return {PUBLISH: (time.perf_counter() - begun) / count * 1e9}


async def _names(count: int) -> Figures:
    import runnel

    async with runnel.open() as broker:
        names = _names_of(count)
        for name in names:
            await broker.publish(name, b"first")
        pairs = list(zip(names, payloads(count), strict=True))
        begun = time.perf_counter()
        for name, value in pairs:
            await broker.publish(name, value)
        return {PUBLISH: (time.perf_counter() - begun) / count * 1e9}


async def _queues(count: int) -> Figures:
    names = _names_of(count)
    queues: dict[str, asyncio.Queue[bytes]] = {name: asyncio.Queue() for name in names}
    for name in names:
        queues[name].put_nowait(b"first")
    pairs = list(zip(names, payloads(count), strict=True))
    begun = time.perf_counter()
    for name, value in pairs:
        queues[name].put_nowait(value)
    return {PUBLISH: (time.perf_counter() - begun) / count * 1e9}


async def _pattern(count: int) -> Figures:
    """Half the topics exist before the subscription, half join it."""
    import runnel

    values = payloads(count)
    got = 0
    async with runnel.open() as broker:
        topics = [broker.topic(name) for name in _names_of(count)]
        for topic in topics[: count // 2]:
            topic.publish_nowait(b"first")

        async def read() -> None:
            nonlocal got
            async with broker.subscribe("jobs.>", buffer=2 * count) as subscription:
                async for batch in subscription.batches():
                    got += len(batch.values)

        async with reading([read()]):
            await settle()
            begun = time.perf_counter()
            for n, (topic, value) in enumerate(zip(topics, values, strict=True)):
                topic.publish_nowait(value)
                if n % 1000 == 999:
                    await asyncio.sleep(0)
            published = time.perf_counter()
            for _ in range(100_000):
                if got >= count:
                    break
                await asyncio.sleep(0)
            spent = time.perf_counter() - begun
    if got != count:
        raise Lossy(count, [got])
    return {DELIVERY: spent / count * 1e9, f"{PUBLISH} of these": (published - begun) / count * 1e9}
