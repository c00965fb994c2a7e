"""Publish to receive, in microseconds.

How long does a value take from publish to the hands of the subscribers, at a low and a high rate?
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TypeAlias

from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import Lossy, payloads, reading

SUBSCRIBERS = 10
TICK = 0.001  # what loops can sleep: uvloop's timers know milliseconds
P50, P99, MAX, RATE = "p50 µs", "p99 µs", "max µs", "values/s published"

Put: TypeAlias = Callable[[bytes], object]


@dataclass(slots=True)
class Arrivals:
    """What one subscriber got, and when. Two flat lists: nothing here for the garbage collector to walk."""

    times: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def keep(self, values: Sequence[bytes]) -> None:
        """Note that all of these are in hand now."""
        self.times += repeat(time.perf_counter_ns(), len(values))
        self.values += values


OpenBus: TypeAlias = Callable[[list[Arrivals]], AbstractAsyncContextManager[Put]]


def question(*, quick: bool = False) -> Question:
    """Each backend at each rate."""
    seconds = 0.5 if quick else 2.0
    return Question(
        name="latency",
        text=asked(__doc__),
        ranked=P99,
        contenders=[
            Contender(
                f"{name}, {rate:,}/s",
                partial(_paced, open_bus, rate, seconds),
                call,
                league=f"{rate:,}/s",
                peer=not needs,
                needs=needs,
            )
            for rate in (1_000, 100_000)
            for name, open_bus, call, needs in BUSES
        ],
        aims=[
            Aim("runnel by batch, 100,000/s", P99, at_most=1000),
            Aim("runnel by record, 100,000/s", P99, at_most=1000),
        ],
        notes=[
            f"1 publisher, {SUBSCRIBERS} subscribers, {seconds:g} s, 100 B; every delivery counts",
            "from just before a value is published until it is in hand",
            f"paced: each {TICK * 1e3:g} ms the publisher hands over what is due (1 value, or a burst of about 100);",
            "a tick that comes late makes its burst larger",
        ],
    )


async def _paced(open_bus: OpenBus, rate: int, seconds: float) -> Figures:
    arrivals = [Arrivals() for _ in range(SUBSCRIBERS)]
    tails = [value[8:] for value in payloads(10_000)]
    now, pack = time.perf_counter_ns, struct.Struct("<Q").pack
    total = int(rate * seconds)
    sent = 0
    async with open_bus(arrivals) as put:
        begun = now()
        while sent < total:
            due = min(total, (now() - begun) * rate // 1_000_000_000 + 1)
            for n in range(sent, due):
                put(pack(now()) + tails[n % 10_000])
            sent = due
            await asyncio.sleep(TICK)
        spent = (now() - begun) / 1e9
        await _until_all(arrivals, total)
    return _percentiles(arrivals) | {RATE: total / spent}


async def _until_all(arrivals: list[Arrivals], total: int) -> None:
    counts: list[int] = []
    for _ in range(200):
        counts = [len(mine.values) for mine in arrivals]
        if min(counts) >= total:
            break
        await asyncio.sleep(0.01)
    if any(count != total for count in counts):
        raise Lossy(total, counts)


def _percentiles(arrivals: list[Arrivals]) -> dict[str, float]:
    """Worked out after the run, so that it costs the measured ones nothing."""
    stamp = struct.Struct("<Q").unpack_from
    taken = sorted(at - stamp(value)[0] for mine in arrivals for at, value in zip(mine.times, mine.values, strict=True))
    return {P50: taken[len(taken) // 2] / 1e3, P99: taken[len(taken) * 99 // 100] / 1e3, MAX: taken[-1] / 1e3}


@asynccontextmanager
async def _runnel_batches(arrivals: list[Arrivals]) -> AsyncIterator[Put]:
    import runnel

    async with runnel.open() as broker:
        topic = broker.topic("t")

        async def read(mine: Arrivals) -> None:
            async with topic.subscribe(buffer=65_536) as subscription:
                async for batch in subscription.batches():
                    mine.keep(batch.values)

        async with reading(read(mine) for mine in arrivals):
            yield topic.publish_nowait


@asynccontextmanager
async def _runnel_records(arrivals: list[Arrivals]) -> AsyncIterator[Put]:
    import runnel

    now = time.perf_counter_ns
    async with runnel.open() as broker:
        topic = broker.topic("t")

        async def read(mine: Arrivals) -> None:
            at, value = mine.times.append, mine.values.append
            async with topic.subscribe(buffer=65_536) as subscription:
                async for record in subscription:
                    at(now())
                    value(record.value)

        async with reading(read(mine) for mine in arrivals):
            yield topic.publish_nowait


@asynccontextmanager
async def _queues(arrivals: list[Arrivals]) -> AsyncIterator[Put]:
    queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in arrivals]

    async def read(queue: asyncio.Queue[bytes], mine: Arrivals) -> None:
        while True:
            values = [await queue.get()]
            values += [queue.get_nowait() for _ in range(queue.qsize())]
            mine.keep(values)

    def put(value: bytes) -> None:
        for queue in queues:
            queue.put_nowait(value)

    async with reading(read(queue, mine) for queue, mine in zip(queues, arrivals, strict=True)):
        yield put


BUSES: list[tuple[str, OpenBus, str, tuple[str, ...]]] = [
    ("runnel by batch", _runnel_batches, "topic.publish_nowait(v); sub.batches(): batch.values", ("runnel",)),
    (
        "runnel by record",
        _runnel_records,
        "topic.publish_nowait(v); async for record in sub: record.value",
        ("runnel",),
    ),
    ("asyncio.Queue", _queues, "put_nowait(v) into each; await get(), then get_nowait()", ()),
]
