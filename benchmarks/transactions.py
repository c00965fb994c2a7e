"""Transactions on a disk.

What does a transaction of 10 topics cost, against a single publish: alone, and from 64 tasks? And one that takes,
publishes and acks?
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.disk import PER_SYNC, Writes, bare_fsync, emptied, watching, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import payloads

COMMIT = "ns a commit"
PER_SECOND = "commits/s"
TOPICS = 10
TASKS = 64
TURN = 50  # transactions, then as many publishes: what the disk does meanwhile, it does to both


@dataclass(frozen=True, slots=True)
class Loads:
    """How many commits."""

    alone: int = 5_000
    each: int = 1_000  # of the tasks
    turn: int = TURN
    fsyncs: int = 100


QUICK = Loads(alone=300, each=50, fsyncs=30)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Transactions beside publishes."""
    loads = loads or (QUICK if quick else Loads())
    contenders: list[Contender] = []
    aims: list[Aim] = []
    for tasks, count in ((1, loads.alone), (TASKS, loads.each)):
        league = "alone" if tasks == 1 else f"{tasks} tasks"
        name, turns = f"a transaction of {TOPICS} topics, {league}", Turns()
        measure = partial(_in_turn, folder, loads, tasks, count, turns)
        contenders += [
            Contender(name, measure, f"async with transaction: {TOPICS} × tx.publish", league, needs=("runnel",)),
            Contender(f"one publish, {league}", turns.figures, "await topic.publish(v)", league, peer=True),
        ]
        if tasks == 1:  # a commit of many tasks holds many publishes, and as many transactions as can be made
            aims.append(Aim(name, COMMIT, times_best_peer=0.8))
    worked = partial(_worked, folder, loads)
    contenders.append(
        Contender(
            "take, publish, ack", worked, "async with transaction: tx.publish, tx.ack", "alone", needs=("runnel",)
        )
    )
    return Question(
        name="transactions",
        text=asked(__doc__),
        ranked=COMMIT,
        contenders=contenders,
        aims=aims,
        notes=[
            where(folder),
            'fsync="commit" and crc on; 100 B random values; each await returns when all of it is synced',
            f"a transaction of {TOPICS} topics publishes one value to each; against one value to one topic",
            f"both take turns of {loads.turn} commits of each task on the same broker",
        ],
    )


class Turns:
    """What those came to that took turns with transactions."""

    def __init__(self) -> None:
        self.found: Figures | None = None

    async def figures(self) -> Figures:
        """The figures of this round."""
        if self.found is None:
            raise ValueError("no transaction was measured before")
        return self.found


async def _in_turn(folder: Path, loads: Loads, tasks: int, count: int, other: Turns) -> Figures:
    """Some transactions of each task, then as many publishes, and so on."""
    import runnel

    values, disk = payloads(TOPICS), bare_fsync(folder, loads.fsyncs)
    ours, theirs = Writes(), Writes()
    spent = {"ours": 0.0, "theirs": 0.0}
    other.found = None
    async with emptied(folder) as made, runnel.open(made) as broker:
        topics = [broker.topic(f"t.{n}") for n in range(TOPICS)]
        for topic in topics:
            await topic.declare()

        async def transact(times: int) -> None:
            for _ in range(times):
                async with broker.transaction() as tx:
                    for topic, value in zip(topics, values, strict=True):
                        tx.publish(topic, value)

        async def publish(times: int) -> None:
            for _ in range(times):
                await topics[0].publish(values[0])

        for _ in range(count // loads.turn):
            for doing, writes, name in ((transact, ours, "ours"), (publish, theirs, "theirs")):
                with watching(writes):
                    spent[name] += await _timed(doing, tasks, loads.turn)
        stored = sum(topic.end for topic in broker.statistics().topics.values())
    done = count // loads.turn * loads.turn * tasks
    if stored != done * (TOPICS + 1):
        raise ValueError(f"{stored:,} records are stored, not {done * (TOPICS + 1):,}")
    other.found = _figures(done, spent["theirs"], theirs) | disk
    return _figures(done, spent["ours"], ours) | disk


async def _timed(doing: Callable[[int], Awaitable[None]], tasks: int, turn: int) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(doing(turn) for _ in range(tasks)))
    return time.perf_counter() - begun


async def _worked(folder: Path, loads: Loads) -> Figures:
    """A worker that takes a record, publishes another and acks, in one transaction each."""
    import runnel

    disk, writes, values = bare_fsync(folder, loads.fsyncs), Writes(), payloads(loads.alone)
    async with emptied(folder) as made, runnel.open(made) as broker:
        done, out = broker.topic("in"), broker.topic("out")
        await done.publish_many(values)
        await out.declare()
        async with broker.subscribe("in", group="workers") as deliveries:
            with watching(writes):
                begun = time.perf_counter()
                for _ in range(loads.alone):
                    delivery = await anext(deliveries)
                    async with broker.transaction() as tx:
                        tx.publish(out, delivery.value)
                        tx.ack(delivery)
                spent = time.perf_counter() - begun
        left: Sequence[Any] = [group.lag for group in broker.statistics().groups]
    if any(left):
        raise ValueError(f"{left} records were not acked")
    return _figures(loads.alone, spent, writes) | disk


def _figures(count: int, spent: float, writes: Writes) -> dict[str, float]:
    return {COMMIT: spent / count * 1e9, PER_SECOND: count / spent, PER_SYNC: count / max(1, writes.syncs)}
