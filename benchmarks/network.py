"""Over TCP, from process to process.

What do a publish and a delivery cost through a server: without a subscriber, 1 publisher to 1 subscriber, and 1 to 10;
against nats-server and Redis with their Python clients?
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import crew
from benchmarks.crew import Setup, flooded
from benchmarks.disk import where
from benchmarks.harness import Aim, Contender, Question, asked
from benchmarks.load import DELIVERY, PUBLISH
from benchmarks.roads import IN_FLIGHT, LIST

FAN_OUTS = (0, 1, 10)


@dataclass(frozen=True, slots=True)
class Loads:
    """How many values of 100 B each publishes, to so many subscribers as FAN_OUTS says."""

    runnel: int = 2_000_000
    nats: tuple[int, ...] = (500_000, 300_000, 100_000)
    jetstream: tuple[int, ...] = (100_000, 50_000, 20_000)
    always: tuple[int, ...] = (20_000, 20_000, 10_000)  # JetStream, synced before each answer
    redis: tuple[int, ...] = (300_000, 200_000, 50_000)
    fsyncs: int = 100  # bare ones, before each measurement


QUICK = Loads(
    400_000, (50_000, 30_000, 10_000), (20_000, 10_000, 5_000), (4_000, 4_000, 2_000), (50_000, 50_000, 10_000)
)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Each server and client, for each number of subscribers."""
    loads = loads or (QUICK if quick else Loads())
    return Question(
        name="network",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=[one for at in range(len(FAN_OUTS)) for one in _contenders(at, loads, folder)],
        aims=[
            Aim(_named(LISTS, 0), PUBLISH, at_most=1e9 / 1.2e6),
            Aim(_named(LISTS, 0), PUBLISH, times_best_peer=20, peer=_named(JETSTREAM, 0)),
            Aim(_named(LISTS, 0), PUBLISH, times_best_peer=8, peer=_named(REDIS, 0)),
            Aim(_named(LISTS, 0), PUBLISH, times_best_peer=8, peer=_named(REDIS_ALWAYS, 0)),
            Aim(_named(LISTS, 10), PUBLISH, at_most=1e9 / 1.2e6),
            Aim(_named(LISTS, 10), DELIVERY, at_most=1e9 / 12e6),
            Aim(_named(LISTS, 10), PUBLISH, times_best_peer=20, peer=_named(CORE, 10)),
            Aim(_named(TICKS, 10), PUBLISH, times_best_peer=20, peer=_named(CORE, 10)),
        ],
        notes=[
            where(folder),
            "random values of 100 B; from the first publish until the last subscriber had the last value in hand, as",
            "bytes, and the publisher its last answer; the server, the publisher and up to 2 processes of subscribers,",
            "which read over one connection each, share the cores of this machine",
            'runnel: fsync="commit", crc on: checked by the server, in the journal and by the reader; bounds on; an',
            "answer means synced. By tick: 1,000 publish_nowait, then a turn of the loop, in which they leave as one",
            "batch; the last one is awaited",
            f"lists: {IN_FLIGHT} under way, of every client; JetStream has no lists: {IN_FLIGHT * LIST:,} values",
            "nats core keeps nothing and answers nothing; JetStream keeps files and syncs them every 2 minutes, or",
            "before each answer (always); Redis keeps a file, synced every second, or before it answers (always)",
            "records a batch: what a subscriber had in hand at a time; a sync: counted by the journal",
        ],
    )


LISTS, TICKS, CORE = "runnel in lists", "runnel by tick", "nats-py core"
JETSTREAM, JETSTREAM_ALWAYS = "JetStream, 2 minutes", "JetStream, always"
REDIS, REDIS_ALWAYS = "Redis, everysec", "Redis, always"


def _contenders(at: int, loads: Loads, folder: Path) -> list[Contender]:
    subscribers = FAN_OUTS[at]
    league = _league(subscribers)
    read_by_batch = "; sub.batches(): batch.values" if subscribers else ""
    message = "; cb(message): message.data" if subscribers else ""

    def contender(name: str, setup: Setup, count: int, call: str) -> Contender:
        measure = partial(flooded, setup, folder, count, subscribers, loads.fsyncs)
        is_peer = not name.startswith("runnel")
        return Contender(
            _named(name, subscribers), measure, call, league, is_peer, needs=setup.needs, programs=setup.programs
        )

    js = f"await js.publish_async(t, v), {IN_FLIGHT * LIST:,} unanswered" + (
        "; ordered consumer" + message[1:] if subscribers else ""
    )
    add = f"pipelines of 1,000 XADD, {IN_FLIGHT} under way" + ("; XREAD COUNT 1000" if subscribers else "")
    return [
        contender(
            LISTS,
            crew.RUNNEL,
            loads.runnel,
            f"await topic.publish_many(1,000 v), {IN_FLIGHT} under way" + read_by_batch,
        ),
        contender(TICKS, crew.RUNNEL_BY_TICK, loads.runnel, "topic.publish_nowait(v)" + read_by_batch),
        contender(CORE, crew.NATS, loads.nats[at], "await nc.publish(t, v)" + message),
        contender(JETSTREAM, crew.JETSTREAM, loads.jetstream[at], js),
        contender(JETSTREAM_ALWAYS, crew.JETSTREAM_ALWAYS, loads.always[at], js),
        contender(REDIS, crew.REDIS, loads.redis[at], add),
        contender(REDIS_ALWAYS, crew.REDIS_ALWAYS, loads.redis[at], add),
    ]


def _league(subscribers: int) -> str:
    return f"1 → {subscribers}" if subscribers else "no subscriber"


def _named(name: str, subscribers: int) -> str:
    return f"{name}, {_league(subscribers)}"
