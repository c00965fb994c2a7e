"""Publishing that may be repeated, on a disk.

What do a producer's numbers cost, and message ids, against a plain publish: alone, from 64 tasks, in lists of 1,000?
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.disk import PER_SECOND, PER_SYNC, Writes, bare_fsync, emptied, watching, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import PUBLISH, Lossy, payloads

TASKS = 64
LIST = 1000
DISTINCT = 20  # lists that differ; then they come again
PLAIN, NUMBERED, TOLD_APART = "plain", "with a producer", "with message ids"

Publish = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loads:
    """How much is published each way, and how much before the next way has its turn."""

    alone: int = 5_000
    each: int = 2_000  # of the tasks
    lists: int = 2_000
    turn: int = 50  # publishes of the lone one, or of each task; lists
    fsyncs: int = 100  # bare ones, before each measurement


QUICK = Loads(alone=300, each=100, lists=200, fsyncs=30)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Each way beside the plain one."""
    loads = loads or (QUICK if quick else Loads())
    contenders: list[Contender] = []
    aims: list[Aim] = []
    for league, load, tasks, ways in (
        ("alone", loads.alone, 1, (PLAIN, NUMBERED, TOLD_APART)),
        (f"{TASKS} tasks", loads.each, TASKS, (PLAIN, NUMBERED, TOLD_APART)),
        ("lists", loads.lists, 1, (PLAIN, NUMBERED)),
    ):
        in_lists = league == "lists"
        turns = Turns(ways)
        measure = partial(_in_turn, folder, loads, load, tasks, in_lists, turns)
        for way in ways:
            name, figures = f"{way}, {league}", measure if way == PLAIN else partial(turns.figures, way)
            call = (_LIST_CALLS if in_lists else _CALLS)[way]
            contenders.append(Contender(name, figures, call, league, peer=way == PLAIN, needs=("runnel",)))
        if in_lists:
            aims.append(Aim(f"{NUMBERED}, {league}", PUBLISH, times_best_peer=0.95))
    return Question(
        name="idempotent",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=contenders,
        aims=aims,
        notes=[
            where(folder),
            'fsync="commit" and crc on; 100 B random values; each await returns when its record is synced',
            f"all ways of a league take turns of {loads.turn} publishes (of each task) on the same broker and topic",
            f"{TASKS} tasks share one producer, as the tasks of one client do; message ids are of 36 characters",
            "none is a repetition: what is measured is what telling them apart costs",
        ],
    )


_CALLS = {
    PLAIN: "await topic.publish(v)",
    NUMBERED: "await producer.publish(topic, v)",
    TOLD_APART: "await topic.publish(v, message_id=id)",
}
_LIST_CALLS = {
    PLAIN: f"await topic.publish_many({LIST:,} v)",
    NUMBERED: f"await producer.publish_many(topic, {LIST:,} v)",
}


class Turns:
    """What each way came to in this round."""

    def __init__(self, ways: tuple[str, ...]) -> None:
        self.ways = ways
        self.found: dict[str, Figures] = {}

    async def figures(self, way: str) -> Figures:
        """The figures of one that took turns with the plain one."""
        if way not in self.found:
            raise ValueError("nothing was published plainly before")
        return self.found.pop(way)


async def _in_turn(folder: Path, loads: Loads, load: int, tasks: int, in_lists: bool, turns: Turns) -> Figures:
    """Some publishes each way, then some more, and so on: what the disk does meanwhile, it does to all."""
    import runnel

    disk = bare_fsync(folder, loads.fsyncs)
    writes = {way: Writes() for way in turns.ways}
    spent = dict.fromkeys(turns.ways, 0.0)
    rounds = max(1, load // loads.turn)
    turn = min(load, loads.turn)
    async with emptied(folder) as made, runnel.open(made) as broker:
        topic = broker.topic("t")
        await topic.declare()
        publishing = _in_lists(topic, broker) if in_lists else _one_by_one(topic, broker)
        for _ in range(rounds):
            for way in turns.ways:
                publish = publishing[way]
                with watching(writes[way]):
                    begun = time.perf_counter()
                    await asyncio.gather(*(publish(turn) for _ in range(tasks)))
                    spent[way] += time.perf_counter() - begun
        stored = broker.statistics().topics["t"].end
    done = rounds * turn * tasks * (LIST if in_lists else 1)
    if stored != done * len(turns.ways):
        raise Lossy(done * len(turns.ways), [stored])
    for way in turns.ways:
        seconds = spent[way]
        turns.found[way] = {
            PUBLISH: seconds / done * 1e9,
            PER_SECOND: done / seconds,
            PER_SYNC: done / max(1, writes[way].syncs),
        } | disk
    return turns.found.pop(PLAIN)


def _one_by_one(topic: Any, broker: Any) -> dict[str, Publish]:
    values = cycle(payloads(DISTINCT * LIST))
    ids = (f"{number:036d}" for number in count())
    producer = broker.producer()

    async def plain(times: int) -> None:
        for value in islice(values, times):
            await topic.publish(value)

    async def numbered(times: int) -> None:
        for value in islice(values, times):
            await producer.publish(topic, value)

    async def told_apart(times: int) -> None:
        for value in islice(values, times):
            await topic.publish(value, message_id=next(ids))

    return {PLAIN: plain, NUMBERED: numbered, TOLD_APART: told_apart}


def _in_lists(topic: Any, broker: Any) -> dict[str, Publish]:
    values = payloads(DISTINCT * LIST)
    lists = cycle([values[first : first + LIST] for first in range(0, len(values), LIST)])
    producer = broker.producer()

    async def plain(times: int) -> None:
        for some in islice(lists, times):
            await topic.publish_many(some)

    async def numbered(times: int) -> None:
        for some in islice(lists, times):
            await producer.publish_many(topic, some)

    return {PLAIN: plain, NUMBERED: numbered}
