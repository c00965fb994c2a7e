"""Space given back.

Half of 10,000 topics are deleted: how much is written to give their space back, what does that cost those who publish
meanwhile, and how quickly is one of the topics that stay read before and after?
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.disk import bare_fsync, emptied, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import payloads

RANKED = "µs a record or publish"
WRITTEN = "bytes written a byte published"
KEPT = "bytes on disk a byte that lives"
SECONDS = "s of cleaning"
TASKS = 64
SEGMENT = 16 * 1024 * 1024
SAMPLE = 40  # topics that are read


@dataclass(frozen=True, slots=True)
class Loads:
    """How much is published, and for how long."""

    topics: int = 10_000
    each: int = 100  # records of each topic
    publishes: int = 20_000  # between two looks at the clock
    fsyncs: int = 100
    segment_bytes: int = SEGMENT


QUICK = Loads(topics=1_000, publishes=2_000, fsyncs=30, segment_bytes=1024 * 1024)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """One life of a folder, and the figures that come up on its way."""
    loads = loads or (QUICK if quick else Loads())
    life = Life(folder, loads)
    of = partial(Contender, needs=("runnel",))
    publishing, beside = "publishing, nothing to clean", "publishing beside the cleaner"
    reading, cleaned = "one small topic, as written", "one small topic, cleaned"
    return Question(
        name="cleaning",
        text=asked(__doc__),
        ranked=RANKED,
        contenders=[
            of(beside, life.live, f"await topic.publish(v), {TASKS} tasks", "publishing"),
            of(publishing, partial(life.told, publishing), "the same", "publishing", peer=True),
            of(cleaned, partial(life.told, cleaned), 'subscribe(t, start="earliest"): by batch', "catching up"),
            of(reading, partial(life.told, reading), "the same", "catching up", peer=True),
        ],
        aims=[
            Aim(beside, WRITTEN, at_most=2.5),
            Aim(beside, RANKED, times_best_peer=0.85),
            Aim(cleaned, RANKED, times_best_peer=10),
        ],
        notes=[
            where(folder),
            f"{loads.topics:,} topics, {loads.each} records of 100 B each, published round-robin by {TASKS} tasks, so",
            "that batches are small; then every second topic is deleted, and the cleaner works while others publish",
            "bytes written: by the journal and by the cleaner, over those of the batches that were published",
            f"catching up: {SAMPLE} topics one after the other, each from its beginning on, none of it in memory",
        ],
    )


class Life:
    """What one round came to."""

    def __init__(self, folder: Path, loads: Loads) -> None:
        self._folder, self._loads = folder, loads
        self._found: dict[str, Figures] = {}

    async def told(self, name: str) -> Figures:
        """A figure that came up on the way."""
        if name not in self._found:
            raise ValueError("the round before gave no figures")
        return self._found.pop(name)

    async def live(self) -> Figures:
        """Publish, read, delete, publish beside the cleaner, read again."""
        import runnel

        loads, disk = self._loads, bare_fsync(self._folder, self._loads.fsyncs)
        options: dict[str, Any] = {"segment_bytes": loads.segment_bytes, "tail_bytes": 1024 * 1024}
        async with emptied(self._folder) as made, runnel.open(made, **options) as broker:
            names = [f"jobs.{number}.log" for number in range(loads.topics)]
            await _fill(broker, names, loads.each)
            kept = names[1 :: max(2, loads.topics // SAMPLE // 2 * 2)][:SAMPLE]
            before = await _read(broker, kept, loads.each)
            idle = [await _publish(broker, loads.publishes) for _ in range(3)]
            given_back = _cleaner(broker).given_back
            for first in range(0, len(names), 2_000):
                await asyncio.gather(*(broker.delete(name) for name in names[first : first + 2_000 : 2]))
            began, beside = time.perf_counter(), []
            while not (cleaned := _is_clean(broker)) and time.perf_counter() - began < 300:
                beside.append(await _publish(broker, loads.publishes))
            spent = time.perf_counter() - began
            if not cleaned:
                raise ValueError("the cleaner was not done after five minutes")
            await _until_clean(broker)
            after = await _read(broker, kept, loads.each)
            found = _cleaner(broker)
        if found.given_back <= given_back:
            raise ValueError("nothing was given back")
        self._found = {
            "publishing, nothing to clean": {RANKED: sorted(idle)[1]} | disk,
            "one small topic, as written": {RANKED: before} | disk,
            "one small topic, cleaned": {RANKED: after} | disk,
        }
        return {
            RANKED: sorted(beside)[len(beside) // 2],
            WRITTEN: found.amplification,
            KEPT: found.on_disk / max(1, found.live),
            SECONDS: spent,
        } | disk


def _cleaner(broker: Any) -> Any:
    return broker.statistics().journal.cleaner


def _is_clean(broker: Any) -> bool:
    """Whether little is left of what is dead."""
    found = _cleaner(broker)
    return bool(found.segments) and found.live > 0.75 * found.on_disk


async def _until_clean(broker: Any, patience: float = 180) -> None:
    """Return when next to nothing is dead: the cleaner takes its time."""
    async with asyncio.timeout(patience):
        while (found := _cleaner(broker)).live < 0.95 * found.on_disk:  # noqa: ASYNC110  # a thread does it
            await asyncio.sleep(0.5)


async def _fill(broker: Any, names: list[str], each: int) -> None:
    values, topics = payloads(1000), [broker.topic(name) for name in names]

    async def one(task: int) -> None:
        for turn in range(each):
            for at in range(task, len(topics), TASKS):
                await topics[at].publish(values[(at + turn) % 1000])

    await asyncio.gather(*(one(task) for task in range(TASKS)))


async def _publish(broker: Any, count: int) -> float:
    """Microseconds a publish."""
    topic, values = broker.topic("live"), payloads(1000)

    async def one() -> None:
        for at in range(count // TASKS):
            await topic.publish(values[at % 1000])

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(TASKS)))
    return (time.perf_counter() - began) / (count // TASKS * TASKS) * 1e6


async def _read(broker: Any, names: list[str], each: int) -> float:
    """Microseconds a record."""
    began = time.perf_counter()
    for name in names:
        left = each
        async with broker.subscribe(name, start="earliest") as records:
            async for batch in records.batches():
                left -= len(batch.values)
                if left <= 0:
                    break
    return (time.perf_counter() - began) / (each * len(names)) * 1e6
