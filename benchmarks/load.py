"""What is published, and the check that every subscriber got all of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.harness import Figures

DELIVERY = "ns a delivery"
PUBLISH = "ns a publish"
BATCH = "records a batch"
RATE = "acked/s"
TIMEOUT = 120.0


class Lossy(Exception):
    """A subscriber did not get what was published: the figure would be worth nothing."""

    def __init__(self, expected: int, got: Sequence[int]) -> None:
        self.expected, self.got = expected, got
        super().__init__(
            f"each subscriber should have got {expected:,} values, but they got {min(got):,}..{max(got):,}"
        )


@cache
def payloads(count: int, size: int = 100) -> list[bytes]:
    """Distinct random values, the same in every run."""
    source = random.Random(7788)
    return [source.randbytes(size) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Load:
    """`publishes` values to `subscribers` subscribers; the publisher lets others run after each `chunk`."""

    publishes: int
    subscribers: int = 10
    chunk: int = 1000

    @property
    def values(self) -> list[bytes]:
        """All the values."""
        return payloads(self.publishes)

    def chunks(self) -> list[list[bytes]]:
        """The values, in lists of `chunk`, made before any clock runs."""
        return _chunks(self.publishes, self.chunk)


@cache
def _chunks(count: int, size: int) -> list[list[bytes]]:
    values = payloads(count)
    return [values[first : first + size] for first in range(0, count, size)]


@dataclass(slots=True)
class Tally:
    """What one subscriber counts: values it had in hand, and how often it woke or was called."""

    values: int = 0
    batches: int = 0


Read = Callable[[Tally], Awaitable[None]]


async def fan_out(load: Load, publish: Callable[[], Awaitable[None]], readers: Sequence[Read]) -> Figures:
    """Time from the first publish until the last subscriber had the last value in hand.

    Each reader returns when it has counted all values. Readers are parked before the clock starts.
    """
    load.chunks()
    tallies = [Tally() for _ in readers]
    tasks = [asyncio.ensure_future(read(tally)) for read, tally in zip(readers, tallies, strict=True)]
    await settle()
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT):
            await publish()
            await asyncio.gather(*tasks)
    except TimeoutError:
        raise Lossy(load.publishes, [tally.values for tally in tallies]) from None
    finally:
        for task in tasks:
            task.cancel()
    return counted(load, time.perf_counter() - begun, tallies)


def counted(load: Load, seconds: float, tallies: Sequence[Tally]) -> Figures:
    """The figures, if nothing was lost and nothing came twice."""
    if any(tally.values != load.publishes for tally in tallies):
        raise Lossy(load.publishes, [tally.values for tally in tallies])
    deliveries = sum(tally.values for tally in tallies)
    return {
        DELIVERY: seconds / deliveries * 1e9,
        PUBLISH: seconds / load.publishes * 1e9,
        BATCH: deliveries / sum(tally.batches for tally in tallies),
    }


async def share_work(
    load: Load, worker: Callable[[Tally], Callable[[], Awaitable[None]]], until_done: Callable[[], Awaitable[object]]
) -> Figures:
    """Time from the first worker's first step until every value, which all wait already, is done with by one of them.

    `load.subscribers` is how many workers there are.
    """
    tallies = [Tally() for _ in range(load.subscribers)]
    begun = time.perf_counter()
    tasks = [asyncio.ensure_future(worker(tally)()) for tally in tallies]
    try:
        async with asyncio.timeout(TIMEOUT):
            await until_done()
        spent = time.perf_counter() - begun
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    done = sum(tally.values for tally in tallies)
    if done != load.publishes:
        raise Lossy(load.publishes, [done])
    figures = {DELIVERY: spent / done * 1e9, RATE: done / spent}
    if batches := sum(tally.batches for tally in tallies):
        figures[BATCH] = done / batches
    return figures


@asynccontextmanager
async def reading(readers: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Readers that run until the block ends. One that broke breaks the measurement."""
    tasks = [asyncio.create_task(reader) for reader in readers]
    try:
        await settle()
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def settle() -> None:
    """Let every task that can run do so, and park."""
    for _ in range(5):
        await asyncio.sleep(0)
