"""Things that are there and idle, in a folder.

What does a commit cost beside thousands of groups, and deleting a topic beside the records of many others? How long is
the longest collection of garbage with very many topics, and what do `statistics` of one of them cost?
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.disk import emptied
from benchmarks.harness import Aim, Contender, Figures, Question, asked

if TYPE_CHECKING:
    from runnel import Broker

CPU = "µs of the loop"
PAUSE = "ms, longest collection"
PUBLISHES, DELETES = 500, 20
THRESHOLDS = (10_000, 10, 50)  # those of `runnel serve`
COMMIT, DELETE, COLLECT, LOOK = "a commit", "a deletion", "collections", "statistics"
NO_GROUP, NO_TAIL, LEFT, ALL = "beside nothing", "beside 100 rounds", "as Python has it", "of all topics"
FROZEN, ONE = "as `runnel serve` has it", "of one topic"


def question(
    *, quick: bool = False, folder: Path, groups: int = 5_000, rounds: int = 100_000, topics: int = 150_000
) -> Question:
    """Each beside little, then beside much."""
    if quick:
        groups, rounds, topics = groups // 10, rounds // 10, topics // 10
    beside_groups, beside_rounds = f"beside {groups:,} idle groups", f"beside {rounds:,} rounds"
    publish, delete, keep = "await topic.publish(v), fsync='os'", "await broker.delete(name)", f"{topics:,} topics made"

    def one(
        name: str, measure: Callable[[], Awaitable[Figures]], call: str, league: str, *, peer: bool = False
    ) -> Contender:
        return Contender(name, measure, call, league, peer=peer, needs=("runnel",))

    return Question(
        name="idle",
        text=asked(__doc__),
        ranked=CPU,
        contenders=[
            one(NO_GROUP, partial(_commit, folder, 0), publish, COMMIT, peer=True),
            one(beside_groups, partial(_commit, folder, groups), publish, COMMIT),
            one(NO_TAIL, partial(_delete, folder, 100), delete, DELETE, peer=True),
            one(beside_rounds, partial(_delete, folder, rounds), delete, DELETE),
            one(LEFT, partial(_collect, folder, topics, tuned=False), keep, COLLECT, peer=True),
            one(FROZEN, partial(_collect, folder, topics, tuned=True), keep, COLLECT),
            one(ALL, partial(_look, folder, topics, None), "broker.statistics()", LOOK, peer=True),
            one(ONE, partial(_look, folder, topics, "jobs.7.log"), "broker.statistics(name)", LOOK),
        ],
        aims=[
            Aim(beside_groups, CPU, times_best_peer=0.67),
            Aim(beside_rounds, CPU, times_best_peer=0.67),
            Aim(FROZEN, PAUSE, at_most=50),
        ],
        notes=[
            "CPU of the event loop's thread, not time that passes",
            "a round is one record that was committed by itself, of one of 100 topics, and is in memory",
        ],
    )


async def _commit(folder: Path, groups: int) -> Figures:
    import runnel

    async with emptied(folder) as made, runnel.open(made, share=False, fsync="os") as broker:
        for number in range(groups):
            async with broker.subscribe(f"idle.{number}", group="workers"):
                pass
        topic = broker.topic("orders")
        for _ in range(PUBLISHES):  # meanwhile the groups end what their making began: some milliseconds, once
            await topic.publish(b"first")
        gc.collect()
        begun = time.thread_time()
        for _ in range(PUBLISHES):
            await topic.publish(b"x")
        return {CPU: (time.thread_time() - begun) / PUBLISHES * 1e6}


async def _delete(folder: Path, rounds: int) -> Figures:
    import runnel

    async with emptied(folder) as made, runnel.open(made, share=False, fsync="os", tail_bytes=1 << 30) as broker:
        for number in range(DELETES):
            await broker.publish(f"small.{number}", b"x")
        topics = [broker.topic(f"others.{number}") for number in range(100)]
        for _ in range(rounds // 100):
            for topic in topics:
                topic.publish_nowait(b"x")
            await topics[0].publish(b"x")
        gc.collect()
        spent = []
        for number in range(DELETES):
            begun = time.thread_time()
            await broker.delete(f"small.{number}")
            spent.append(time.thread_time() - begun)
        return {CPU: sorted(spent)[DELETES // 2] * 1e6}


async def _publish_to_each(broker: Broker, topics: int) -> None:
    for number in range(topics):
        broker.topic(f"jobs.{number}.log").publish_nowait(b"x")
        if number % 1000 == 0:
            await asyncio.sleep(0)


async def _collect(folder: Path, topics: int, *, tuned: bool) -> Figures:
    import runnel

    before = gc.get_threshold()
    try:
        async with emptied(folder) as made:
            async with runnel.open(made, share=False, fsync="os") as broker:
                await _publish_to_each(broker, topics)
            gc.collect()
            if tuned:
                gc.set_threshold(*THRESHOLDS)
            with _pauses() as pauses:
                async with runnel.open(made, share=False, fsync="os") as broker:
                    if tuned:
                        gc.freeze()
                    await _publish_to_each(broker, topics)
        return {PAUSE: max(pauses, default=0.0) * 1e3}
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _look(folder: Path, topics: int, pattern: str | None) -> Figures:
    import runnel

    async with emptied(folder) as made, runnel.open(made, share=False, fsync="os") as broker:
        await _publish_to_each(broker, topics)
        gc.collect()
        begun = time.thread_time()
        broker.statistics(pattern)
        return {CPU: (time.thread_time() - begun) * 1e6}


@contextmanager
def _pauses() -> Iterator[list[float]]:
    """How long each collection takes, in seconds of CPU of the thread that it stops."""
    pauses: list[float] = []
    begun = 0.0

    def heard(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.thread_time()
        else:
            pauses.append(time.thread_time() - begun)

    gc.callbacks.append(heard)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(heard)
