"""The cost of telemetry.

What does a record cost with telemetry, against the same without: one topic and ten readers, a reader that takes records
one by one, a hundred topics by turns, a group that acks, and a folder?
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.disk import emptied
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import Lossy, payloads, reading, settle

if TYPE_CHECKING:
    from runnel import Broker

CPU = "ns of the process, a record"
INTERVAL = 0.2  # seconds: fifty times as often as a server does it, so that short runs hold several samples
LIST, READERS, TOPICS = 1000, 10, 100
LOADS: dict[str, int] = {"readers": 300_000, "by record": 60_000, "topics": 100_000, "group": 40_000, "folder": 200_000}
CALLS = {
    "readers": f"await topic.publish_many(list of {LIST:,}); {READERS} × subscription.batches()",
    "by record": "await topic.publish(v); await anext(subscription)",
    "topics": f'await broker.publish(one of {TOPICS} by turns, v); broker.subscribe("*")',
    "group": "await topic.publish(v); await delivery.ack()",
    "folder": f"await topic.publish_many(list of {LIST:,}), fsync='os'; one reader",
}


def question(*, quick: bool = False, folder: Path, loads: dict[str, int] | None = None) -> Question:
    """Each without telemetry, then with it."""
    loads = loads or {name: count // 10 if quick else count for name, count in LOADS.items()}
    payloads(max(loads.values()))
    contenders = [
        Contender(
            f"{name}, {'with' if interval else 'without'} telemetry",
            partial(_measured, RUNS[name], folder, name == "folder", interval, loads[name]),
            CALLS[name],
            league=name,
            peer=interval is None,
            needs=("runnel",),
        )
        for name in loads
        for interval in (None, INTERVAL)
    ]
    return Question(
        name="telemetry",
        text=asked(__doc__),
        ranked=CPU,
        contenders=contenders,
        aims=[Aim(f"{name}, with telemetry", CPU, times_best_peer=0.97) for name in loads],
        notes=[
            f"values of 100 B, in one process; a sample every {INTERVAL} s, a server takes one every 10 s",
            "CPU of the process, not time that passes; with and without by turns, round by round",
        ],
    )


async def _measured(
    run: Callable[[Broker, int], Awaitable[float]], folder: Path, durable: bool, interval: float | None, count: int
) -> Figures:
    async with _opened(folder if durable else None, interval) as broker:
        return {CPU: await run(broker, count) / count * 1e9}


@asynccontextmanager
async def _opened(folder: Path | None, interval: float | None) -> AsyncIterator[Broker]:
    import runnel

    if folder is None:
        async with runnel.open(telemetry=interval) as broker:
            yield broker
        return
    async with emptied(folder) as made, runnel.open(made, share=False, fsync="os", telemetry=interval) as broker:
        yield broker


async def _readers(broker: Broker, count: int, readers: int = READERS) -> float:
    topic, values, got = broker.topic("t"), payloads(count), [0] * readers

    async def read(number: int) -> None:
        async with broker.subscribe("t", buffer=10 * LIST) as subscription:
            async for batch in subscription.batches():
                got[number] += len(batch.values)

    async with reading([read(number) for number in range(readers)]):
        await settle()
        begun = time.process_time()
        for first in range(0, count, LIST):
            await topic.publish_many(values[first : first + LIST])
        await _until(lambda: min(got) >= count)
        spent = time.process_time() - begun
    if min(got) != count:
        raise Lossy(count, got)
    return spent


async def _by_record(broker: Broker, count: int) -> float:
    topic = broker.topic("t")
    async with broker.subscribe("t") as subscription:
        begun = time.process_time()
        for value in payloads(count):
            await topic.publish(value)
            await anext(subscription)
        return time.process_time() - begun


async def _topics(broker: Broker, count: int) -> float:
    names, got = [f"t{number}" for number in range(TOPICS)], [0]

    async def read() -> None:
        async with broker.subscribe("*", buffer=10 * LIST) as subscription:
            async for batch in subscription.batches():
                got[0] += len(batch.values)

    async with reading([read()]):
        await settle()
        begun = time.process_time()
        for number, value in enumerate(payloads(count)):
            await broker.publish(names[number % TOPICS], value)
        await _until(lambda: got[0] >= count)
        spent = time.process_time() - begun
    if got[0] != count:
        raise Lossy(count, got)
    return spent


async def _group(broker: Broker, count: int) -> float:
    topic = broker.topic("t")
    async with broker.subscribe("t", group="work") as deliveries:
        begun = time.process_time()
        for first in range(0, count, LIST):
            for value in payloads(count)[first : first + LIST]:
                await topic.publish(value)
            for _ in range(min(LIST, count - first)):
                await (await anext(deliveries)).ack()
        return time.process_time() - begun


async def _until(is_done: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if is_done():
            return
        await asyncio.sleep(0)


RUNS: dict[str, Callable[[Broker, int], Awaitable[float]]] = {
    "readers": _readers,
    "by record": _by_record,
    "topics": _topics,
    "group": _group,
    "folder": partial(_readers, readers=1),
}
