"""One process of a measurement over a network: it publishes, or it is some of the subscribers.

`python -m benchmarks.worker PLAN`: started by `processes`, with a plan in JSON. Values are random; where latency is
measured they begin with the 8 bytes of the monotonic clock at which they were due.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

from benchmarks.harness import Figures, measured
from benchmarks.load import payloads
from benchmarks.roads import LIST, Road, road

DISTINCT = 20  # lists that differ; then they come again

now = time.monotonic_ns
_STAMP = struct.Struct("<Q")


def lists(count: int) -> Iterator[list[bytes]]:
    """`count` values, in lists."""
    values = payloads(DISTINCT * LIST)
    made = [values[first : first + LIST] for first in range(0, len(values), LIST)]
    yield from islice(cycle(made), count // LIST)
    if count % LIST:
        yield made[0][: count % LIST]


# -- publishing -------------------------------------------------------------------------------------------------


async def flood(way: Road, plan: dict[str, Any], begin: Callable[[], Awaitable[None]]) -> Figures:
    """Publish `count` values as fast as it goes."""
    ready = list(lists(plan["count"]))
    await begin()
    begun = now()
    await way.flood(ready)
    return {"begun": begun, "ended": now()}


async def store(way: Road, plan: dict[str, Any], begin: Callable[[], Awaitable[None]]) -> Figures:
    """Publish `count` values, each awaited, from so many `tasks`."""
    values, tasks = [value for some in lists(plan["count"]) for value in some], plan["tasks"]
    await way.store(values[0])  # connections, and the topic
    await begin()

    async def one(task: int) -> None:
        for value in values[task::tasks]:
            await way.store(value)

    begun = now()
    await asyncio.gather(*(one(task) for task in range(tasks)))
    return {"begun": begun, "ended": now()}


async def pace(way: Road, plan: dict[str, Any], begin: Callable[[], Awaitable[None]]) -> Figures:
    """Publish `count` values at `rate`, `together` at a time: each list when it is due, whatever became of the last."""
    count, together, every = plan["count"], plan["together"], plan["together"] / plan["rate"] * 1e9
    tails = [value[_STAMP.size :] for value in payloads(DISTINCT * LIST)]
    under_way: set[asyncio.Task[None]] = set()
    await begin()
    begun = now()
    for n in range(count // together):
        due = begun + int(n * every)
        if (early := due - now()) > 0:
            await asyncio.sleep(early / 1e9)
        if together == 1:
            await way.hand_over(_STAMP.pack(now()) + tails[n % len(tails)])
            continue
        stamp, first = _STAMP.pack(due), n * together % (len(tails) - together)
        task = asyncio.create_task(way.send([stamp + tail for tail in tails[first : first + together]]))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        await asyncio.sleep(0)
    ended = now()
    await asyncio.gather(*under_way)
    return {"begun": begun, "ended": ended}


# -- reading ----------------------------------------------------------------------------------------------------


class Reader:
    """One subscriber: it counts what it has in hand, and notes how old some of it is."""

    def __init__(self, count: int, step: int) -> None:
        self.values = self.batches = self.last = 0
        self.ages: list[int] = []
        self.done = asyncio.Event()
        self._count, self._step, self._skip = count, step, 0

    def keep(self, values: Sequence[bytes]) -> None:
        """These are in hand."""
        self.values += len(values)
        self.batches += 1
        if self.values >= self._count:
            self.last = now()
            self.done.set()

    def keep_aged(self, values: Sequence[bytes]) -> None:
        """The same, and every so manieth is looked at."""
        at, stamp, step = now(), _STAMP.unpack_from, self._step
        self.ages += [at - stamp(value)[0] for value in values[self._skip :: step]]
        self._skip = (self._skip - len(values)) % step
        self.keep(values)


async def read(way: Road, plan: dict[str, Any], begin: Callable[[], Awaitable[None]]) -> Figures:
    """Be some `subscribers`, until each had `count` values, or none for `stalled` seconds.

    With `step`, every so manieth value tells its age.
    """
    step = plan.get("step", 0)
    readers = [Reader(plan["count"], step) for _ in range(plan["subscribers"])]
    for reader in readers:
        await way.subscribe(reader.keep_aged if step else reader.keep)
    await begin()
    for reader in readers:
        while not reader.done.is_set():
            before = reader.values
            try:
                async with asyncio.timeout(plan["stalled"]):
                    await reader.done.wait()
            except TimeoutError:
                if reader.values == before:
                    break
    await asyncio.sleep(0.01)  # what comes twice would come now
    found: dict[str, Any] = {
        "values": [reader.values for reader in readers],
        "batches": sum(reader.batches for reader in readers),
        "last": max(reader.last for reader in readers),
        "ages": sorted(age for reader in readers for age in reader.ages),
    }
    return found


# -- the process ------------------------------------------------------------------------------------------------

TASKS = {"flood": flood, "store": store, "pace": pace, "read": read}


async def _work(plan: dict[str, Any]) -> Figures:
    async def begin() -> None:
        print("{}", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    async with road(plan["road"], plan["url"]) as way:
        return await TASKS[plan["task"]](way, plan, begin)


def main(arguments: Sequence[str]) -> int:
    """Do what the plan says; print what it came to."""
    (plan,) = arguments
    found = json.dumps(measured(partial(_work, json.loads(plan))))
    with open(sys.stdout.fileno(), "w", closefd=False) as said:  # PYTHONUNBUFFERED would cut it where the pipe is full
        print(found, file=said)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
