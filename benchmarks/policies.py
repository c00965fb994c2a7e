"""Every overflow policy, in memory.

What does a delivery cost under each policy, by batch and by record, and what do 10,000 subscribers cost that are full?
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import DELIVERY, PUBLISH, Lossy, payloads, reading, settle

POLICIES = ("drop_oldest", "drop_newest", "block", "disconnect")
LIST = 1000
READERS = 10
GO = "µs to go"


def question(*, quick: bool = False) -> Question:
    """The same load under each policy, and publishing beside subscribers that are full."""
    batches, records, many = (20_000, 10_000, 1_000) if quick else (200_000, 50_000, 10_000)
    payloads(batches)
    contenders = [
        Contender(
            f"{policy}, by {how}",
            partial(_deliveries, policy, count, by_batch=how == "batch"),
            f'broker.subscribe("t", policy="{policy}")',
            league=how,
            peer=policy == "drop_oldest",
            needs=("runnel",),
        )
        for how, count in (("batch", batches), ("record", records))
        for policy in POLICIES
    ]
    contenders += [
        Contender(
            f"{policy}, of a pattern",
            partial(_of_pattern, policy, records),
            f'broker.subscribe("*", policy="{policy}"); await topic.publish(v)',
            league="pattern",
            peer=policy == "drop_oldest",
            needs=("runnel",),
        )
        for policy in POLICIES
    ]
    full = [
        Contender(
            f"drop_newest, {count:,} full", partial(_full, count), "await topic.publish(v)", "full", needs=("runnel",)
        )
        for count in (1, many)
    ]
    return Question(
        name="policies",
        text=asked(__doc__),
        ranked=DELIVERY,
        contenders=contenders + full,
        aims=[
            Aim(f"{policy}, by {how}", DELIVERY, times_best_peer=0.67)
            for how in ("batch", "record")
            for policy in POLICIES[1:]
        ]
        + [Aim(f"{policy}, of a pattern", DELIVERY, times_best_peer=0.67) for policy in POLICIES[1:]],
        notes=[
            f"values of 100 B in lists of {LIST:,} by publish_many, {READERS} subscribers, none loses a record",
            "pattern: one subscriber, by record; published one by one",
            "full: subscribers with buffer=10 that do not read; a publish, and what it costs one of them to leave",
        ],
    )


async def _deliveries(policy: str, count: int, *, by_batch: bool) -> Figures:
    import runnel

    values, got = payloads(count), [0] * READERS
    async with runnel.open() as broker:
        topic = broker.topic("t")

        async def read(n: int) -> None:
            async with broker.subscribe("t", policy=policy, buffer=10 * LIST) as subscription:
                if by_batch:
                    async for batch in subscription.batches():
                        got[n] += len(batch.values)
                else:
                    async for _ in subscription:
                        got[n] += 1

        async with reading([read(n) for n in range(READERS)]):
            await settle()
            begun = time.process_time()
            for first in range(0, count, LIST):
                await topic.publish_many(values[first : first + LIST])
            for _ in range(100_000):
                if min(got) >= count:
                    break
                await asyncio.sleep(0)
            spent = time.process_time() - begun
    if min(got) != count:
        raise Lossy(count, got)
    return {DELIVERY: spent / count / READERS * 1e9}


async def _of_pattern(policy: str, count: int) -> Figures:
    import runnel

    values, got = payloads(count), [0]
    async with runnel.open() as broker:
        topic = broker.topic("t")

        async def read() -> None:
            async with broker.subscribe("*", policy=policy) as subscription:
                async for _ in subscription:
                    got[0] += 1

        async with reading([read()]):
            await settle()
            begun = time.process_time()
            for value in values:
                await topic.publish(value)
            for _ in range(100_000):
                if got[0] >= count:
                    break
                await asyncio.sleep(0)
            spent = time.process_time() - begun
    if got[0] != count:
        raise Lossy(count, got)
    return {DELIVERY: spent / count * 1e9}


async def _full(count: int) -> Figures:
    import runnel

    values = payloads(LIST)
    async with runnel.open() as broker:
        topic = broker.topic("t")
        subscriptions = [broker.subscribe("t", policy="drop_newest", buffer=10) for _ in range(count)]
        for one in subscriptions:
            await one.__aenter__()
        for value in values[:20]:
            await topic.publish(value)
        begun = time.process_time()
        for value in values:
            await topic.publish(value)
        published = time.process_time()
        for one in subscriptions:
            await one.__aexit__(None, None, None)
        left = time.process_time()
    return {PUBLISH: (published - begun) / LIST * 1e9, GO: (left - published) / count * 1e6}
