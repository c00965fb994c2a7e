"""Publish to receive over TCP, in microseconds.

How long does a value take from one process through a server to another: 1,000 single ones a second, and lists at half
of the rate that is reached?
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from benchmarks import crew
from benchmarks.crew import P50, P99, Setup, flooded, paced
from benchmarks.disk import FSYNC, PER_SECOND, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.roads import LIST

SLOW = 1_000  # values a second, one by one
STEP = 100  # of the many values at a high rate, every so manieth is asked for its age
SINGLE, HALF = "1,000/s one by one, 1 → 1", "lists at half of the rate, "
MEMORY, DURABLE, CORE = "runnel in memory", "runnel, synced", "nats-py core"
MORE = "syncs more than in memory"
REACHED = "records/s reached"

Measure: TypeAlias = Callable[[], Awaitable[Figures]]


@dataclass(frozen=True, slots=True)
class Loads:
    """For how long, and how many to find the rate."""

    singles: int = 5_000
    flood: int = 1_000_000
    seconds: float = 3.0
    fsyncs: int = 200


QUICK = Loads(singles=1_000, flood=300_000, seconds=1.0, fsyncs=50)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Single values through each server; then lists through runnel's."""
    loads = loads or (QUICK if quick else Loads())
    memory = Remembered()

    def single(name: str, setup: Setup, call: str) -> Contender:
        measure: Measure = partial(_singles, setup, folder, loads)
        if name == MEMORY:
            measure = partial(memory.noted, measure)
        elif name == DURABLE:
            measure = partial(memory.compared, measure)
        peer = not name.startswith("runnel")
        return Contender(name, measure, call, SINGLE, peer, needs=setup.needs, programs=setup.programs)

    def half(subscribers: int) -> Contender:
        call = "await topic.publish_many(1,000 v), each when it is due; sub.batches(): batch.values"
        measure = partial(_at_half, crew.RUNNEL, folder, loads, subscribers)
        league = f"{HALF}1 → {subscribers}"
        return Contender(f"runnel at half, 1 → {subscribers}", measure, call, league, needs=("runnel",))

    by_batch = "topic.publish_nowait(v); sub.batches(): batch.values"
    js = "await js.publish_async(t, v); ordered consumer cb(message): message.data"
    return Question(
        name="network_latency",
        text=asked(__doc__),
        ranked=P99,
        contenders=[
            single(MEMORY, crew.RUNNEL_IN_MEMORY, by_batch),
            single(CORE, crew.NATS, "await nc.publish(t, v); cb(message): message.data"),
            single(DURABLE, crew.RUNNEL, by_batch),
            single("JetStream, 2 minutes", crew.JETSTREAM, js),
            single("JetStream, always", crew.JETSTREAM_ALWAYS, js),
            single("Redis, everysec", crew.REDIS, "await r.xadd(t, v); XREAD COUNT 1000"),
            single("Redis, always", crew.REDIS_ALWAYS, "await r.xadd(t, v); XREAD COUNT 1000"),
            half(1),
            half(10),
        ],
        aims=[
            Aim(MEMORY, P50, times_best_peer=1, peer=CORE),
            Aim(MEMORY, P99, times_best_peer=1, peer=CORE),
            Aim(DURABLE, MORE, at_most=1.5),
            Aim("runnel at half, 1 → 1", P99, at_most=10_000),
            Aim("runnel at half, 1 → 10", P99, at_most=10_000),
        ],
        notes=[
            where(folder),
            "random values of 100 B that begin with the time of the machine's clock, which all processes share; until",
            "it is in hand as bytes; the server, the publisher and up to 2 processes of subscribers share the cores",
            "one by one: from just before the publish; every value counts. Paced by a timer of about a millisecond",
            "at half: first at full speed, then at half of the rate that all subscribers had kept up with; from when",
            f"the list was due, so that a publisher who comes late counts too; every {STEP}th value is asked",
            f"{MORE}: the p50s of one round, their difference in bare fsync p50s",
            'runnel: crc on; synced: fsync="commit", nobody sees a value before its sync; in memory: default bounds',
            "nats core keeps nothing. JetStream and Redis show a value before its sync, but for always",
        ],
    )


async def _singles(setup: Setup, folder: Path, loads: Loads) -> Figures:
    return await paced(setup, folder, loads.singles, 1, loads.fsyncs, rate=SLOW, together=1, step=1)


async def _at_half(setup: Setup, folder: Path, loads: Loads, subscribers: int) -> Figures:
    reached = (await flooded(setup, folder, loads.flood, subscribers, 1))[PER_SECOND]
    count = max(LIST, int(reached / 2 * loads.seconds) // LIST * LIST)
    found = await paced(setup, folder, count, subscribers, loads.fsyncs, rate=reached / 2, together=LIST, step=STEP)
    return {**found, REACHED: reached}


class Remembered:
    """What the last round in memory came to, for the durable one that follows it."""

    def __init__(self) -> None:
        self._p50: float | None = None

    async def noted(self, measure: Measure) -> Figures:
        """Measure, and remember."""
        self._p50 = None
        figures: Figures = await measure()
        self._p50 = figures[P50]
        return figures

    async def compared(self, measure: Measure) -> Figures:
        """Measure; by how many syncs that is more than what is remembered."""
        figures: Figures = await measure()
        if self._p50 is None:
            raise ValueError("there is nothing from memory to compare with")
        return {**figures, MORE: (figures[P50] - self._p50) / figures[FSYNC]}
