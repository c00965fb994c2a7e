"""Fan-out in one process, against everything else one might use.

What does it cost to bring a value from 1 publisher to 10 subscribers in one process?
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import DELIVERY, Load, Read, Tally, fan_out
from benchmarks.peers import broadcasts, calls, queues, signals, streams

ONE, MANY = "one by one", "in lists of 1,000"
BY_BATCH = "runnel publish_nowait, read by batch"
BY_RECORD = "runnel publish_nowait, read by record"
AWAITED = "runnel await publish, read by batch"
LISTS = "runnel publish_many, read by batch"
BUFFER = 65_536


def question(*, quick: bool = False) -> Question:
    """Runnel's four ways, and each peer's two."""
    load = Load(publishes=20_000 if quick else 100_000)

    def runnel(name: str, publish: Publish, read: Reader, call: str, league: str) -> Contender:
        return Contender(name, partial(_runnel, load, publish, read), call, league, needs=("runnel",))

    def peer(name: str, measure: Measure, call: str, league: str, *needs: str, floor: bool = False) -> Contender:
        return Contender(name, partial(measure, load), call, league, peer=not floor, needs=needs)

    return Question(
        name="fanout",
        text=asked(__doc__),
        ranked=DELIVERY,
        contenders=[
            runnel(BY_BATCH, _nowait, _batches, "topic.publish_nowait(v); sub.batches(): batch.values", ONE),
            runnel(AWAITED, _awaited, _batches, "await topic.publish(v); sub.batches(): batch.values", ONE),
            runnel(BY_RECORD, _nowait, _records, "topic.publish_nowait(v); async for record in sub: record.value", ONE),
            peer("asyncio.Queue", queues.one_by_one, "put_nowait(v) into 10; await get(), then get_nowait()", ONE),
            peer(
                "anyio streams",
                streams.one_by_one,
                "send_nowait(v) into 10; await receive(), then receive_nowait()",
                ONE,
                "anyio",
            ),
            peer("blinker", signals.one_by_one, "signal.send(None, value=v); called synchronously", ONE, "blinker"),
            peer("broadcaster", broadcasts.one_by_one, "await publish(v); async for event", ONE, "broadcaster"),
            peer("plain calls (floor)", calls.one_by_one, "10 Python functions, no queue, no task", ONE, floor=True),
            runnel(LISTS, _many, _batches, "await topic.publish_many(1,000 v); sub.batches(): batch.values", MANY),
            peer("asyncio.Queue of lists", queues.in_lists, "put_nowait([v, …]) into 10; await get()", MANY),
            peer(
                "anyio streams of lists",
                streams.in_lists,
                "send_nowait([v, …]) into 10; await receive()",
                MANY,
                "anyio",
            ),
            peer("blinker with lists", signals.in_lists, "signal.send(None, value=[v, …])", MANY, "blinker"),
            peer(
                "broadcaster of lists",
                broadcasts.in_lists,
                "await publish([v, …]); async for event",
                MANY,
                "broadcaster",
            ),
            peer("plain calls with lists (floor)", calls.in_lists, "10 Python functions", MANY, floor=True),
        ],
        aims=[
            Aim(BY_BATCH, DELIVERY, at_most=15),
            Aim(LISTS, DELIVERY, at_most=5),
            Aim(BY_RECORD, DELIVERY, at_most=120),
            Aim(BY_BATCH, DELIVERY, times_best_peer=5),
        ],
        notes=[
            f"{load.publishes:,} random values of 100 B; each of {load.subscribers} subscribers counted all of them",
            f"every publisher lets the readers run after {load.chunk:,} values",
            f"runnel: buffer={BUFFER:,}, bounds on; in memory there is no crc; every value is in hand, as bytes",
            "peers pass lists by reference, without bounds, offsets or isolation: nothing is done for each value",
        ],
    )


Publish = Callable[[Any, Load], Awaitable[None]]
Reader = Callable[[Any, Load], Read]
Measure = Callable[[Load], Awaitable[Figures]]


async def _runnel(load: Load, publish: Publish, reader: Reader) -> Figures:
    import runnel

    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(runnel.open())
        topic = broker.topic("t")
        readers = [
            reader(await stack.enter_async_context(broker.subscribe("t", buffer=BUFFER)), load)
            for _ in range(load.subscribers)
        ]
        return await fan_out(load, lambda: publish(topic, load), readers)


async def _nowait(topic: Any, load: Load) -> None:
    publish_nowait = topic.publish_nowait
    for chunk in load.chunks():
        for value in chunk:
            publish_nowait(value)
        await asyncio.sleep(0)


async def _awaited(topic: Any, load: Load) -> None:
    for chunk in load.chunks():
        for value in chunk:
            await topic.publish(value)
        await asyncio.sleep(0)


async def _many(topic: Any, load: Load) -> None:
    for chunk in load.chunks():
        await topic.publish_many(chunk)
        await asyncio.sleep(0)


def _batches(subscription: Any, load: Load) -> Read:
    async def read(tally: Tally) -> None:
        async for batch in subscription.batches():
            tally.values += len(batch.values)
            tally.batches += 1
            if tally.values >= load.publishes:
                return

    return read


def _records(subscription: Any, load: Load) -> Read:
    async def read(tally: Tally) -> None:
        values = 0
        async for record in subscription:
            if record.value:
                values += 1
            if values >= load.publishes:
                break
        tally.values = tally.batches = values

    return read
