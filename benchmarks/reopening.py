"""What is done to a folder with much history, each in a process of its own: memory is a process's, and so is kill -9.

`python -m benchmarks.reopening write|die|open|read FOLDER …` prints its figures as JSON; `history` asks for them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.disk import PREFIX
from benchmarks.harness import Figures, measured
from benchmarks.load import payloads

LIST = 1000
PUBLISHERS = 4
TOPIC = "t"


def anonymous_megabytes() -> float:
    """What this process holds that no file backs: its own memory, without page cache and mapped indexes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError("this system does not tell RssAnon")


async def write(folder: Path, records: int, topics: int, *, fsync: str = "os") -> Figures:
    """Publish `records` to one topic, then 1 to each of `topics` others; close."""
    import runnel

    async with runnel.open(folder, fsync=fsync) as broker:
        await _fill(broker.topic(TOPIC), records)
        value = payloads(1)[0]
        for first in range(0, topics, LIST):
            names = [f"jobs.{n}.log" for n in range(first, min(first + LIST, topics))]
            await asyncio.gather(*(broker.publish(name, value) for name in names))
            _tell(first, topics, "topics")
    return {}


async def die(folder: Path, records: int, _: int) -> Figures:
    """Publish `records` one by one from 64 tasks, see every one acknowledged, and die by SIGKILL."""
    import runnel

    async with runnel.open(folder) as broker:
        topic, values = broker.topic(TOPIC), payloads(LIST)
        left = iter(range(records))

        async def publisher() -> None:
            for n in left:
                await topic.publish(values[n % LIST])

        await asyncio.gather(*(publisher() for _ in range(64)))
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def reopen(folder: Path, records: int, topics: int) -> Figures:
    """Open it; look that all is there."""
    import runnel

    begun = time.perf_counter()
    async with runnel.open(folder) as broker:
        spent = time.perf_counter() - begun
        held = anonymous_megabytes()
        known = broker.statistics().topics
        found = known[TOPIC].end if TOPIC in known else 0
        _expect("records", records, found)
        _expect("topics", topics, sum(name != TOPIC for name in known))
    return {"seconds": spent, "megabytes": held}


async def read(folder: Path, records: int, more: int) -> Figures:
    """Open it, read it from its beginning, and go on reading along while `more` are published."""
    import runnel

    begun = time.perf_counter()
    async with runnel.open(folder) as broker:
        spent, held = time.perf_counter() - begun, anonymous_megabytes()
        got = batches = 0
        publishing: asyncio.Task[None] | None = None
        async with broker.subscribe(TOPIC, start="earliest") as subscription:
            async for batch in subscription.batches():
                got += len(batch.values)
                batches += 1
                if batches % 1000 == 0:
                    held = max(held, anonymous_megabytes())
                    _tell(got, records, "records read")
                if got >= records and publishing is None:
                    held = max(held, anonymous_megabytes())
                    publishing = asyncio.create_task(_fill(broker.topic(TOPIC), more, fresh=True))
                if got >= records + more:
                    break
        assert publishing is not None
        await publishing
        held = max(held, anonymous_megabytes())
        _expect("records", records + more, got)
    return {"seconds": spent, "megabytes": held, "batch": got / batches}


async def _fill(topic: Any, records: int, *, fresh: bool = False) -> None:
    """Publish `records`. With `fresh` no two are one object, so that what is kept in memory has its full size."""
    every = payloads(20 * LIST)
    lists = [every[first : first + LIST] for first in range(0, len(every), LIST)]
    await topic.declare()
    left = iter(range(0, records, LIST))  # shared: each list is taken by one publisher

    async def publisher() -> None:
        for first in left:
            values = lists[first // LIST % len(lists)][: records - first]
            await topic.publish_many([bytes(bytearray(value)) for value in values] if fresh else values)
            if first % (1000 * LIST) == 0:
                _tell(first, records, "records written")

    await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))


def _expect(what: str, expected: int, found: int) -> None:
    if found != expected:
        raise SystemExit(f"the folder should have {expected:,} {what}, and has {found:,}")


def _tell(done: int, of: int, what: str) -> None:
    """Progress of long work: on one line of a terminal; to a file, a line for each tenth."""
    if of < (10_000 if what == "topics" else 1_000_000):
        return
    if sys.stderr.isatty():
        print(f"\r\x1b[Khistory: {done:,} of {of:,} {what}", end="", file=sys.stderr, flush=True)
    elif done * 10 // of != _told.get(what):
        _told[what] = done * 10 // of
        print(f"history: {done:,} of {of:,} {what}", file=sys.stderr, flush=True)


_told: dict[str, int] = {}

TASKS: dict[str, Callable[[Path, int, int], Awaitable[Figures]]] = {
    "write": write,
    "die": die,
    "open": reopen,
    "read": read,
}


def main(arguments: list[str] | None = None) -> int:
    """Do one of them and print what it came to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reopening", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("folder", type=Path, help=f"made by `history`, under a name that begins with {PREFIX}")
    parser.add_argument("records", type=int, help="write, die: how many to publish; open, read: how many are there")
    parser.add_argument("more", type=int, help="write, open: topics beside the one; read: how many to publish then")
    given = parser.parse_args(arguments)
    print(json.dumps(measured(partial(TASKS[given.task], given.folder, given.records, given.more))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
