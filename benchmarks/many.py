"""Many members, many topics of a pattern, many subscribers: each against few of them.

What does an acked delivery cost in a folder with 100 members of a group, and a delivery of a pattern over 1,000 topics?
What do deleting a topic and leaving one cost beside 10,000 subscribers with buffers?
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from benchmarks.disk import emptied
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import Lossy, payloads, reading, settle

LIST = 1000
TIMES = 300  # topics that are deleted, subscribers that leave
MEMBERS, TOPICS, AWAITED = "members of a group", "topics of a pattern", "topics of a pattern, awaited"
DELETE, LEAVE = "deleting", "leaving"
EACH = "ns of CPU each"
CALLS = {
    MEMBERS: 'async for d in broker.subscribe("t", group="g"): await d.ack()',
    TOPICS: 'broker.subscribe("t.*").batches(); topic.publish_nowait(v), in turn',
    AWAITED: 'broker.subscribe("t.*").batches(); await topic.publish(v) from 64 tasks, in turn',
    DELETE: "await broker.delete(name)",
    LEAVE: "leaving `async with broker.subscribe(name, buffer=10)`",
}


def question(*, quick: bool = False, folder: Path) -> Question:
    """Each with few, then with many."""
    count, others = (5_000, 1_000) if quick else (20_000, 10_000)
    payloads(count)
    leagues: dict[str, tuple[Callable[[int], Awaitable[Figures]], int, int, float]] = {
        MEMBERS: (partial(_members, folder, count), 1, 100, 2),
        TOPICS: (partial(_topics, folder, count, awaited=False), 10, 1_000, 5),
        AWAITED: (partial(_topics, folder, count, awaited=True), 10, 1_000, 5),
        DELETE: (_deletions, 10, others, 1.5),
        LEAVE: (_departures, TIMES, others, 1.5),
    }
    return Question(
        name="many",
        text=asked(__doc__),
        ranked=EACH,
        contenders=[
            Contender(f"{league}, {n:,}", partial(measure, n), CALLS[league], league, peer=n == few, needs=("runnel",))
            for league, (measure, few, many, _) in leagues.items()
            for n in (few, many)
        ],
        aims=[
            Aim(f"{league}, {many:,}", EACH, times_best_peer=1 / times)
            for league, (_, _, many, times) in leagues.items()
        ],
        notes=[
            f"{count:,} values of 100 B, CPU of the process; the best peer is the same with few",
            "members and topics: in a folder, fsync='os', so that the disk does not count",
            f"in turn: {LIST:,} publishes make a commit, so with 1,000 topics each record is a batch of its own",
            f"deleting: {TIMES} topics beside subscribers of others, half of them of patterns",
            f"leaving: {TIMES} of the subscribers of a topic",
        ],
    )


class Tally:
    """Counts deliveries. Waiting for the last of them costs nothing meanwhile, while the disk is written."""

    def __init__(self, count: int) -> None:
        self._count, self._got, self._all = count, 0, asyncio.Event()

    def add(self, count: int) -> None:
        """So many more came."""
        self._got += count
        if self._got >= self._count:
            self._all.set()

    async def wait(self) -> None:
        """Return when all came; raise if not, or if there were more."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all.wait(), 60)
        if self._got != self._count:
            raise Lossy(self._count, [self._got])


async def _members(folder: Path, count: int, members: int) -> Figures:
    import runnel

    values, tally = payloads(count), Tally(count)
    async with emptied(folder) as made, runnel.open(made, share=False, fsync="os") as broker:
        topic = broker.topic("t")

        async def work() -> None:
            async with broker.subscribe("t", group="g") as deliveries:
                async for delivery in deliveries:
                    await delivery.ack()
                    tally.add(1)

        async with reading([work() for _ in range(members)]):
            await settle()
            begun = time.process_time()
            for first in range(0, count, LIST):
                await topic.publish_many(values[first : first + LIST])
            await tally.wait()
            return {EACH: (time.process_time() - begun) / count * 1e9}


async def _topics(folder: Path, count: int, topics: int, *, awaited: bool) -> Figures:
    import runnel

    values, tally = payloads(count), Tally(count)
    async with emptied(folder) as made, runnel.open(made, share=False, fsync="os") as broker:
        handles = [broker.topic(f"t.{n}") for n in range(topics)]
        for handle in handles:
            handle.publish_nowait(b"first")
        await broker.sync()

        async def read() -> None:
            async with broker.subscribe("t.*") as subscription:
                async for batch in subscription.batches():
                    tally.add(len(batch))

        async def publish(task: int) -> None:
            for n in range(task, count, 64):
                await handles[n % topics].publish(values[n])

        async with reading([read()]):
            await settle()
            begun = time.process_time()
            if awaited:
                await asyncio.gather(*(publish(task) for task in range(64)))
            else:
                for n, value in enumerate(values):
                    handles[n % topics].publish_nowait(value)
                    if n % LIST == LIST - 1:
                        await broker.sync()
            await tally.wait()
            return {EACH: (time.process_time() - begun) / count * 1e9}


async def _deletions(subscribers: int) -> Figures:
    import runnel

    async with runnel.open() as broker, AsyncExitStack() as stack:
        for n in range(subscribers):
            pattern = f"others.{n}" if n % 2 else f"others.{n}.*"
            await stack.enter_async_context(broker.subscribe(pattern, buffer=10))
        for n in range(TIMES):
            await broker.publish(f"small.{n}", b"x")
        begun = time.process_time()
        for n in range(TIMES):
            await broker.delete(f"small.{n}")
        return {EACH: (time.process_time() - begun) / TIMES * 1e9}


async def _departures(subscribers: int) -> Figures:
    import runnel

    async with runnel.open() as broker:
        subscriptions = [broker.subscribe("t", buffer=10) for _ in range(subscribers)]
        for one in subscriptions:
            await one.__aenter__()
        await broker.publish("t", b"x")
        begun = time.process_time()
        for one in subscriptions[:TIMES]:
            await one.__aexit__(None, None, None)
        spent = time.process_time() - begun
        for one in subscriptions[TIMES:]:
            await one.__aexit__(None, None, None)
    return {EACH: spent / TIMES * 1e9}
