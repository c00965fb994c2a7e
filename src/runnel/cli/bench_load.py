"""The two who make a load: one publishes records that say when they were due, the other reads when they came.

A record begins with 8 bytes: nanoseconds of the machine's monotonic clock, which all its processes share. What follows
is random, so that nothing can be compressed away.
Below: runnel.open, samples. Above: bench_run.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from runnel.cli.samples import Samples
from runnel.core.record import Gap

STAMP = struct.Struct("<Q")
PATIENCE = 10.0  # seconds without a record, after which what is missing is lost


class Load(msgspec.Struct, frozen=True):
    """What is to be done, by each publisher and subscriber alike."""

    where: str
    topic: str
    size: int
    batch: int
    in_flight: int
    messages: int | None  # of one publisher
    seconds: float | None
    rate: float | None  # of one publisher
    policy: str | None = None
    buffer: int | None = None
    durable: bool | None = None  # None: as the place does
    temporary: bool = False  # the topic goes when all is done


class Outcome(msgspec.Struct):
    """What one of them did. Times are of the monotonic clock; latencies in seconds."""

    role: str
    count: int
    began: float
    ended: float
    latencies: list[float]
    missed: int = 0


async def publish(broker: Any, load: Load) -> Outcome:
    """Publish until the number or the time is reached; the latencies are those of the awaited calls.

    With a rate a record is due at its time, whatever became of those before it, and its latency counts from then.
    """
    topic, samples = broker.topic(load.topic), Samples()
    filler, sent = os.urandom(max(0, load.size - STAMP.size)), 0
    under_way: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    until = None if load.seconds is None else began + load.seconds

    async def one(values: list[bytes], due: float) -> None:
        await (topic.publish(values[0]) if len(values) == 1 else topic.publish_many(values))
        samples.add(time.monotonic() - due)

    while (load.messages is None or sent < load.messages) and (until is None or time.monotonic() < until):
        count = load.batch if load.messages is None else min(load.batch, load.messages - sent)
        due = time.monotonic()
        if load.rate is not None:
            due = began + sent / load.rate
            if (pause := due - time.monotonic()) > 0:
                await asyncio.sleep(pause)
        value = STAMP.pack(int(due * 1e9)) + filler
        if load.in_flight == 1:
            await one([value] * count, due)
        else:
            task = asyncio.ensure_future(one([value] * count, due))
            under_way.add(task)
            if len(under_way) >= load.in_flight:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()
        sent += count
    if under_way:
        await asyncio.gather(*under_way)
    return Outcome("publisher", sent, began, time.monotonic(), samples.values())


async def receive(
    broker: Any, load: Load, ready: Callable[[], None], expected: Callable[[], Awaitable[int]]
) -> Outcome:
    """Read until what was published is there; the latencies are from when a record was due to when it was handed out.

    Eight records of each batch are looked at, evenly, so that looking does not become the load.
    """
    samples, count, missed, began, ended = Samples(), 0, 0, 0.0, 0.0

    def miss(gap: Gap) -> None:
        nonlocal missed
        missed += gap.count or 0

    options: dict[str, Any] = {"start": "earliest", "on_gap": miss}
    options |= {name: value for name in ("policy", "buffer") if (value := getattr(load, name)) is not None}
    total: asyncio.Future[int] = asyncio.ensure_future(expected())
    async with broker.subscribe(load.topic, **options) as subscription:
        ready()
        batches = subscription.batches()
        coming: asyncio.Future[Any] = asyncio.ensure_future(anext(batches))
        try:
            while not (total.done() and count + missed >= total.result()):
                waiting = {coming} if total.done() else {coming, total}
                patience = PATIENCE if total.done() else None
                done, _ = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if coming in done:
                    values = coming.result().values
                    ended = time.monotonic()
                    began = began or ended
                    count += len(values)
                    for value in values[:: max(1, len(values) // 8)]:
                        samples.add(ended - STAMP.unpack_from(value)[0] / 1e9)
                    coming = asyncio.ensure_future(anext(batches))
        finally:
            coming.cancel()
            total.cancel()
            await asyncio.wait([coming])
    return Outcome("subscriber", count, began, ended, samples.values(), missed)
