"""Few and many patterns, over few and many topics.

Does a pattern cost its tokens, or the topics it covers and the patterns beside it?
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import PUBLISH, Lossy, payloads, reading, settle

COME, GO = "µs to come", "µs to go"


def question(*, quick: bool = False) -> Question:
    """Subscribing beside topics, then publishing beside patterns."""
    many, topics = (200, 5_000) if quick else (1_000, 100_000)
    come = [
        ("1 over 1 topic", 1, 1),
        (f"1 over {topics:,} topics", 1, topics),
        (f"{many:,} over {many:,} topics", many, many),
    ]
    publish = [("2 disjoint patterns", 2), (f"{many:,} disjoint patterns", many)]
    return Question(
        name="patterns",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=[
            *(
                Contender(name, partial(_come, patterns, count), 'broker.subscribe("a.>")', "come", needs=("runnel",))
                for name, patterns, count in come
            ),
            *(
                Contender(
                    name, partial(_publish, count), "await topic.publish(v), in turn", "publish", needs=("runnel",)
                )
                for name, count in publish
            ),
        ],
        aims=[
            Aim(come[1][0], COME, at_most=1000),
            Aim(come[2][0], COME, at_most=1000),
            Aim(publish[1][0], PUBLISH, times_best_peer=1 / 3, peer=publish[0][0]),
        ],
        notes=[
            "come and go: entering and leaving one subscription",
            "disjoint: a topic and a subscription for each pattern, published to in turn; with reading",
        ],
    )


async def _come(patterns: int, topics: int) -> Figures:
    import runnel

    async with runnel.open() as broker:
        for n in range(topics):
            broker.topic(f"a.{n}.log").publish_nowait(b"first")
        subscriptions = [broker.subscribe("a.>") for _ in range(patterns)]
        begun = time.process_time()
        for one in subscriptions:
            await one.__aenter__()
        came = time.process_time()
        for one in subscriptions:
            await one.__aexit__(None, None, None)
        went = time.process_time()
    return {COME: (came - begun) / patterns * 1e6, GO: (went - came) / patterns * 1e6}


async def _publish(patterns: int) -> Figures:
    import runnel

    count = 10 * max(patterns, 500)
    values, got = payloads(count), 0
    async with runnel.open() as broker:
        topics = [broker.topic(f"a.{n}.log") for n in range(patterns)]

        async def read(n: int) -> None:
            nonlocal got
            async with broker.subscribe(f"a.{n}.>") as subscription:
                async for batch in subscription.batches():
                    got += len(batch)

        async with reading([read(n) for n in range(patterns)]):
            await settle()
            begun = time.process_time()
            for n, value in enumerate(values):
                await topics[n % patterns].publish(value)
            for _ in range(100_000):
                if got >= count:
                    break
                await asyncio.sleep(0)
            spent = time.process_time() - begun
    if got != count:
        raise Lossy(count, [got])
    return {PUBLISH: spent / count * 1e9}
