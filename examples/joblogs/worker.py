"""Runs jobs, each in a task of its own, and publishes what they say: a topic for each job, a record for each line.

A job is taken from the topic `jobs.queue` by one of all workers. The number of a line is its offset, and a line is
published *at* its number: a worker that takes over a job, because the one before died, is told how far that one came.
So no line is there twice, and none is left out.

    python examples/joblogs/worker.py --door 7788
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

import runnel

AT_ONCE = 500  # jobs that a worker runs at the same time
WORDS = [
    "cache",
    "queue",
    "shard",
    "index",
    "batch",
    "schema",
    "bucket",
    "token",
    "session",
    "replica",
    "ledger",
    "socket",
]
TROUBLE = {
    "debug": ["{word} {n} looked up in {ms} ms", "kept {word} {n} warm"],
    "info": ["{word} {n} done in {ms} ms", "read {n} rows of {word}", "moved {word} {n} to eu-{ms}"],
    "warning": ["{word} {n} took {ms} ms, that is long", "{word} {n} is there twice: the first one counts"],
    "error": ["{word} {n} cannot be read: checksum differs", "no answer of {word} {n} within {ms} ms: tried again"],
}


class Job(msgspec.Struct):
    """What is asked for: how many lines it will write, and how many in a second."""

    id: str
    title: str = "A job"
    lines: int = 60
    rate: float = 5.0


def script(job: Job) -> Iterator[dict[str, Any]]:
    """All that a job will say. It stands for work: whoever does it again from line n comes to the same line n."""
    chance = random.Random(job.id)
    fails = chance.random() < 0.15
    yield {"level": "info", "text": f"{job.title}: {job.lines} steps to do", "title": job.title}
    for n in range(1, job.lines - 1):
        level = chance.choices(list(TROUBLE), weights=(4, 12, 2, 1))[0]
        text = chance.choice(TROUBLE[level])
        yield {"level": level, "text": text.format(word=chance.choice(WORDS), n=n, ms=chance.randrange(2, 900))}
    if fails:
        yield {"level": "error", "text": "gave up: too many errors", "state": "failed"}
    else:
        yield {"level": "info", "text": "all done", "state": "succeeded"}


async def run(broker: runnel.Broker, delivery: runnel.Delivery[Job]) -> None:
    """Run one job to its end, unless somebody else has it by now."""
    try:
        async with delivery:
            await do(broker, delivery)
    except runnel.RunnelError as error:  # it comes again, here or at another worker, and goes on at its next line
        print(f"job {delivery.value.id}: {error}", file=sys.stderr)


async def do(broker: runnel.Broker, delivery: runnel.Delivery[Job]) -> None:
    """Write the lines of a job that are not there yet."""
    job, line_number = delivery.value, 0
    log, states = broker.topic(f"joblogs.{job.id}"), broker.topic("jobs.states")

    async def tell(state: str, done: int) -> None:
        told = {"id": job.id, "state": state, "done": done, "lines": job.lines, "attempt": delivery.attempt}
        await states.publish(msgspec.json.encode(told), key=job.id)

    state = "running"
    for number, line in enumerate(script(job)):
        state = line.get("state", state)
        if number < line_number:
            continue
        if delivery.lapsed:
            return
        try:
            await log.publish(msgspec.json.encode(line), expected_offset=number)
        except runnel.OffsetConflict as conflict:
            line_number = conflict.actual  # up to there somebody has come
            continue
        if number % max(1, job.lines // 10) == 0:
            await tell("running", number + 1)
            await delivery.extend(60 + job.lines / job.rate)
        await asyncio.sleep(random.uniform(0.5, 1.5) / job.rate)
    await tell(state, job.lines)


async def work(door: int) -> None:
    """Take jobs for as long as the program runs. While the server is away, everything here waits for it."""
    async with runnel.open(f"runnel://127.0.0.1:{door}") as broker, asyncio.TaskGroup() as running:
        jobs = broker.subscribe("jobs.queue", group="workers", type=Job, prefetch=AT_ONCE)
        async with jobs as deliveries:
            async for delivery in deliveries:
                running.create_task(run(broker, delivery))


async def until_eof(door: int) -> None:
    """The same, until whoever started this program is gone."""
    working = asyncio.create_task(work(door))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    await asyncio.wait([working])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run jobs of the job-log example.")
    parser.add_argument("--door", type=int, default=7788)
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    given = parser.parse_args()
    asyncio.run(until_eof(given.door) if given.until_eof else work(given.door))
