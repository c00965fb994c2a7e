"""Publishing to a disk.

What does a durable publish cost, against a bare write and fdatasync: alone, from 64 tasks, in lists of 1,000, with 10
subscribers reading along, and spread over 10,000 topics?
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.disk import PER_SECOND, PER_SYNC, Writes, bare_fsync, emptied, watching, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import BATCH, PUBLISH, TIMEOUT, Lossy, Tally, payloads, reading
from benchmarks.peers.bare_files import bare_file

TASKS = 64
LIST = 1000
DISTINCT = 20  # lists that differ; then they come again
SUBSCRIBERS = 10
TURN = 50  # publishes of the lone one, then as many bare writes
PUBLISHERS = (1, 4)
SIZES = {"100 B": 100, "1 KiB": 1024}


@dataclass(frozen=True, slots=True)
class Loads:
    """How much is published."""

    alone: int = 5_000
    each: int = 5_000  # of the tasks
    lists: int = 2_000  # of 1,000 values of 100 B; of larger ones a quarter
    topics: int = 10_000
    fsyncs: int = 100  # bare ones, before each measurement


QUICK = Loads(alone=300, each=200, lists=200, topics=1_000, fsyncs=30)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Each way of publishing, each beside its yardstick."""
    loads = loads or (QUICK if quick else Loads())
    contenders: list[Contender] = []
    aims: list[Aim] = []
    for label in SIZES:
        for more, wanted in (_alone(label, loads, folder), _tasks(label, loads, folder)):
            contenders += more
            aims += wanted
        for publishers in PUBLISHERS:
            more, wanted = _lists(label, publishers, loads, folder)
            contenders += more
            aims += wanted
    more, wanted = _topics(loads, folder)
    return Question(
        name="durable",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=contenders + more,
        aims=aims + wanted,
        notes=[
            where(folder),
            'fsync="commit" and crc on: each await returns when its record is synced; the journal\'s bounds are on',
            "records a sync: the batch that formed, counted at the disk; random values, none compressed",
            "bare: the same bytes in the same pieces and as many fdatasyncs as runnel's run just before, one after the",
            "other on one preallocated file, without loop or thread; the zeros are written before the clock runs",
            f"alone: runnel and the bare file take turns of {TURN}, so that the disk is the same for both",
            f"with {SUBSCRIBERS} reading along: until the last of them had the last value in hand, as bytes",
            f"the best peer of {TASKS} tasks is the lone publisher, that of many topics is one topic",
            f"topics are declared before the clock runs; task k publishes to topics k, k + {TASKS}, and so on, around",
        ],
    )


# -- the contenders ---------------------------------------------------------------------------------------------


def _alone(label: str, loads: Loads, folder: Path) -> tuple[list[Contender], list[Aim]]:
    """(a) one publisher, who waits for each record."""
    name, league, bare = f"runnel alone, {label}", f"alone, {label}", Turns()
    measure = partial(_in_turn, folder, loads, label, bare)
    return [
        Contender(name, measure, "await topic.publish(v)", league, needs=("runnel",)),
        Contender(f"bare into zeros, {league}", bare.figures, _BARE, league, peer=True),
    ], [Aim(name, PUBLISH, times_best_peer=0.8)]


def _tasks(label: str, loads: Loads, folder: Path) -> tuple[list[Contender], list[Aim]]:
    """(b) many tasks, each of which waits for each of its records."""
    name, league = f"runnel from {TASKS} tasks, {label}", f"{TASKS} tasks, {label}"
    work = partial(_from_tasks, label, loads.each)
    all_of = partial(_published, folder, loads, TASKS * loads.each, work, Writes())
    alone = partial(_published, folder, loads, loads.alone, partial(_one_by_one, label, loads.alone), Writes())
    return [
        Contender(name, all_of, f"await topic.publish(v), {TASKS} tasks at once", league, needs=("runnel",)),
        Contender(f"the lone one, {label}", alone, "await topic.publish(v)", league, peer=True, needs=("runnel",)),
    ], [Aim(name, PUBLISH, times_best_peer=50)]


def _lists(label: str, publishers: int, loads: Loads, folder: Path) -> tuple[list[Contender], list[Aim]]:
    """(c) lists of 1,000; (d) the same while others read."""
    several = "1 publisher" if publishers == 1 else f"{publishers} publishers"
    league, writes = f"lists, {several}, {label}", Writes()
    name, along = f"runnel in lists, {several}, {label}", f"runnel with {SUBSCRIBERS} readers, {several}, {label}"
    lists = max(publishers, loads.lists if label == "100 B" else loads.lists // 4) // publishers * publishers
    count, work = lists * LIST, partial(_in_lists, label, lists // publishers, publishers)
    call = f"await topic.publish_many({LIST:,} v)"
    bare = partial(_bare, folder, loads, count, writes)
    contenders = [
        Contender(name, partial(_published, folder, loads, count, work, writes), call, league, needs=("runnel",)),
        Contender(
            along,
            partial(_read_along, folder, loads, count, work),
            f"the same; {SUBSCRIBERS} × sub.batches(): batch.values",
            league,
            needs=("runnel",),
        ),
        Contender(f"bare preallocated, {league}", partial(bare, zeroed=False), _BARE, league, peer=True),
        Contender(f"bare into zeros, {league}", partial(bare, zeroed=True), _BARE, league, peer=True),
    ]
    aims = [Aim(name, PUBLISH, times_best_peer=0.5)]
    if label == "100 B":
        aims = [Aim(name, PUBLISH, at_most=1e9 / 2e6), *aims, Aim(along, PUBLISH, at_most=1e9 / 1.5e6)]
    return contenders, aims


def _topics(loads: Loads, folder: Path) -> tuple[list[Contender], list[Aim]]:
    """(e) many topics, against one, both from the same tasks."""
    league = f"{TASKS} tasks, topics"

    def contender(name: str, topics: int, *, peer: bool = False) -> Contender:
        work = partial(_round_robin, "100 B", loads.each, topics)
        measure = partial(_published, folder, loads, TASKS * loads.each, work, Writes())
        return Contender(name, measure, "await topics[n].publish(v)", league, peer=peer, needs=("runnel",))

    many = f"runnel to {loads.topics:,} topics, 100 B"
    contenders = [contender(many, loads.topics), contender("runnel to 1 topic, 100 B", 1, peer=True)]
    return contenders, [Aim(many, PUBLISH, times_best_peer=0.5)]


_BARE = "pwrite, fdatasync: the same bytes and syncs"


# -- measuring --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be published: topics that are there before the clock runs, and what happens while it does."""

    names: Sequence[str]
    publish: Callable[[Sequence[Any]], Awaitable[None]]


@asynccontextmanager
async def _opened(folder: Path, names: Sequence[str]) -> AsyncIterator[tuple[Any, list[Any]]]:
    """A broker with a new folder, and its topics, declared."""
    import runnel

    async with emptied(folder) as made, runnel.open(made) as broker:
        topics = [broker.topic(name) for name in names]
        for first in range(0, len(topics), LIST):
            await asyncio.gather(*(topic.declare() for topic in topics[first : first + LIST]))
        yield broker, topics


async def _published(folder: Path, loads: Loads, count: int, plan: Callable[[], Work], writes: Writes) -> Figures:
    """Time from the first publish until the last one is durable."""
    work, disk = plan(), bare_fsync(folder, loads.fsyncs)
    writes.steps.clear()
    async with _opened(folder, work.names) as (broker, topics):
        with watching(writes):
            begun = time.perf_counter()
            await work.publish(topics)
            spent = time.perf_counter() - begun
        _check(broker, count)
    return _figures(count, spent, writes) | disk


async def _read_along(folder: Path, loads: Loads, count: int, plan: Callable[[], Work]) -> Figures:
    """Time from the first publish until the last subscriber had the last value in hand."""
    work, disk, writes = plan(), bare_fsync(folder, loads.fsyncs), Writes()
    tallies = [Tally() for _ in range(SUBSCRIBERS)]
    async with _opened(folder, work.names) as (broker, topics), AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(broker.subscribe(work.names[0], start="latest")) for _ in tallies
        ]
        over = [asyncio.Event() for _ in tallies]

        async def read(subscription: Any, tally: Tally, done: asyncio.Event) -> None:
            async for batch in subscription.batches():
                tally.values += len(batch.values)
                tally.batches += 1
                if tally.values >= count:
                    done.set()

        readers = [read(*each) for each in zip(subscriptions, tallies, over, strict=True)]
        async with reading(readers):
            with watching(writes):
                begun = time.perf_counter()
                await work.publish(topics)
                try:
                    async with asyncio.timeout(TIMEOUT):
                        await asyncio.gather(*(done.wait() for done in over))
                except TimeoutError:
                    raise Lossy(count, [tally.values for tally in tallies]) from None
                spent = time.perf_counter() - begun
        _check(broker, count)
    if any(tally.values != count for tally in tallies):
        raise Lossy(count, [tally.values for tally in tallies])
    read_batches = sum(tally.values for tally in tallies) / sum(tally.batches for tally in tallies)
    return _figures(count, spent, writes) | {BATCH: read_batches} | disk


async def _bare(folder: Path, loads: Loads, count: int, writes: Writes, *, zeroed: bool) -> Figures:
    """The writes of the run before, bare."""
    if not writes.syncs:
        raise ValueError("runnel wrote nothing that could be written again")
    disk = bare_fsync(folder, loads.fsyncs)
    with bare_file(folder, writes.bytes, zeroed=zeroed) as file:
        return _figures(count, file.replay(writes.steps), writes) | disk


class Turns:
    """What the bare file came to that took turns with runnel."""

    def __init__(self) -> None:
        self.found: Figures | None = None

    async def figures(self) -> Figures:
        """Its figures of this round."""
        if self.found is None:
            raise ValueError("runnel wrote nothing that could be written again")
        return self.found


async def _in_turn(folder: Path, loads: Loads, label: str, bare: Turns) -> Figures:
    """A few publishes, then the same writes bare, and so on: what the disk does meanwhile, it does to both."""
    values, disk, writes = _values(label, loads.alone), bare_fsync(folder, loads.fsyncs), Writes()
    room = loads.alone * (SIZES[label] + 4096)
    ours = theirs = 0.0
    bare.found = None
    async with _opened(folder, ("t",)) as (broker, (topic,)):
        with bare_file(folder, room, zeroed=True) as file, watching(writes):
            for first in range(0, len(values), TURN):
                done, some = len(writes.steps), values[first : first + TURN]
                begun = time.perf_counter()
                for value in some:
                    await topic.publish(value)
                ours += time.perf_counter() - begun
                theirs += file.replay(writes.steps[done:])
        _check(broker, loads.alone)
    bare.found = _figures(loads.alone, theirs, writes) | disk
    return _figures(loads.alone, ours, writes) | disk


def _figures(count: int, spent: float, writes: Writes) -> dict[str, float]:
    return {PUBLISH: spent / count * 1e9, PER_SECOND: count / spent, PER_SYNC: count / max(1, writes.syncs)}


def _check(broker: Any, count: int) -> None:
    stored = sum(topic.end for topic in broker.statistics().topics.values())
    if stored != count:
        raise Lossy(count, [stored])


# -- ways of publishing -----------------------------------------------------------------------------------------


def _values(label: str, count: int) -> list[bytes]:
    return list(islice(cycle(payloads(DISTINCT * LIST, SIZES[label])), count))


def _one_by_one(label: str, count: int) -> Work:
    values = _values(label, count)

    async def publish(topics: Sequence[Any]) -> None:
        send = topics[0].publish
        for value in values:
            await send(value)

    return Work(("t",), publish)


def _from_tasks(label: str, each: int) -> Work:
    return _round_robin(label, each, 1)


def _round_robin(label: str, each: int, count: int) -> Work:
    values = _values(label, each)

    async def publish(topics: Sequence[Any]) -> None:
        async def one(task: int) -> None:
            mine = [topics[n % count] for n in range(task, task + TASKS * each, TASKS)]
            for topic, value in zip(mine, values, strict=True):
                await topic.publish(value)

        await asyncio.gather(*(one(task) for task in range(TASKS)))

    return Work([f"jobs.{n}.log" for n in range(count)], publish)


def _in_lists(label: str, each: int, publishers: int) -> Work:
    values = payloads(DISTINCT * LIST, SIZES[label])
    lists = [values[first : first + LIST] for first in range(0, len(values), LIST)]

    async def publish(topics: Sequence[Any]) -> None:
        send = topics[0].publish_many

        async def one(publisher: int) -> None:
            for some in islice(cycle(lists), publisher, publisher + each):
                await send(some)

        await asyncio.gather(*(one(publisher) for publisher in range(publishers)))

    return Work(("t",), publish)
