"""Runs jobs, each in a task of its own, and publishes what they say: a topic for each job, a record for each line.

A job is taken from the topic `jobs.queue` by one of all workers. The number of a line is its offset, and a line is
published *at* its number: a worker that takes over a job, because the one before died, learns how far that one came.
So no line is there twice, and none is left out. With `--dsn` lines are rows: the number is the primary key, and an
INSERT is all that a job does.

    python examples/joblogs/worker.py --native-port 7788
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

import runnel

if TYPE_CHECKING:
    from examples.joblogs.table_log import TableLog

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
    """All that a job will say. It stands for work: a run from line n comes to the same line n."""
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


class Log(Protocol):
    """Where lines go."""

    async def write(self, job: str, number: int, line: bytes) -> int:
        """Write a line at its number, unless there is one; the number of the next line that is missing."""


class TopicLog:
    """Lines are records, a topic for each job. Of these the broker keeps `retained`; None: all."""

    def __init__(self, broker: runnel.Broker, retained: int | None) -> None:
        self._broker, self._retained = broker, retained

    async def write(self, job: str, number: int, line: bytes) -> int:
        topic = self._broker.topic(f"joblogs.{job}", retention_count=self._retained)
        try:
            await topic.publish(line, expected_offset=number)
        except runnel.OffsetConflict as conflict:
            return conflict.actual  # another worker has come up to there
        return number + 1


async def run(broker: runnel.Broker, log: Log, delivery: runnel.Delivery[Job]) -> None:
    """Run one job to its end, unless another worker has it by now."""
    try:
        async with delivery:
            await do(broker, log, delivery)
    except runnel.RunnelError as error:  # it comes again, here or at another worker, and goes on at its next line
        print(f"job {delivery.value.id}: {error}", file=sys.stderr)


async def do(broker: runnel.Broker, log: Log, delivery: runnel.Delivery[Job]) -> None:
    """Write the lines of a job that are not there yet."""
    job, missing = delivery.value, 0
    states = broker.topic("jobs.states")

    async def tell(state: str, done: int) -> None:
        told = {"id": job.id, "state": state, "done": done, "lines": job.lines, "attempt": delivery.attempt}
        await states.publish(msgspec.json.encode(told), key=job.id)

    state = "running"
    for number, line in enumerate(script(job)):
        state = line.get("state", state)
        if number < missing:
            continue
        if delivery.lapsed:
            return
        missing = await log.write(job.id, number, msgspec.json.encode(line))
        if missing > number + 1:
            continue
        if number % max(1, job.lines // 10) == 0:
            await tell("running", number + 1)
            await delivery.extend(60 + job.lines / job.rate)
        await asyncio.sleep(random.uniform(0.5, 1.5) / job.rate)
    await tell(state, job.lines)


def table_log(dsn: str) -> TableLog:
    """Loaded only where it is wanted: the rest of the example needs no psycopg."""
    if not TYPE_CHECKING:
        from table_log import TableLog  # beside this file
    return TableLog(dsn)


async def work(native_port: int, dsn: str | None, retained: int | None) -> None:
    """Take jobs for as long as the program runs. While the server is away, everything here waits for it."""
    async with AsyncExitStack() as held:
        broker = await held.enter_async_context(runnel.open(f"runnel://127.0.0.1:{native_port}"))
        log: Log = TopicLog(broker, retained)
        if dsn is not None:
            log = table = table_log(dsn)
            held.push_async_callback(table.close)
        running = await held.enter_async_context(asyncio.TaskGroup())
        jobs = broker.subscribe("jobs.queue", group="workers", type=Job, prefetch=AT_ONCE)
        async with jobs as deliveries:
            async for delivery in deliveries:
                running.create_task(run(broker, log, delivery))


async def until_eof(work: Coroutine[Any, Any, None]) -> None:
    """The same, until the program that started this one is gone."""
    working = asyncio.create_task(work)
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    await asyncio.wait([working])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run jobs of the job-log example.")
    parser.add_argument("--native-port", type=int, default=7788)
    parser.add_argument("--dsn", help="write lines into PostgreSQL; default: publish them")
    parser.add_argument("--retained", type=int, help="lines of a job that the broker keeps; default: all")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    given = parser.parse_args()
    job = work(given.native_port, given.dsn, given.retained)
    with suppress(KeyboardInterrupt):
        asyncio.run(until_eof(job) if given.until_eof else job)
