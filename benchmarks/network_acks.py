"""Awaited publishes over TCP, one value each.

How many single values can one task, and 64 tasks, have stored and acknowledged in a second?
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import crew
from benchmarks.crew import Setup, stored
from benchmarks.disk import where
from benchmarks.harness import Aim, Contender, Question, asked
from benchmarks.load import PUBLISH

TASKS = (1, 64)
RUNNEL, ALWAYS = "runnel", "JetStream, always"


@dataclass(frozen=True, slots=True)
class Loads:
    """How many values of 100 B are published: by the lone task, and by all of the many together."""

    alone: int = 5_000
    together: int = 64_000  # runnel
    peers: int = 12_800
    fsyncs: int = 100


QUICK = Loads(alone=500, together=6_400, peers=1_280, fsyncs=30)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Each server, from one task and from many."""
    loads = loads or (QUICK if quick else Loads())
    return Question(
        name="network_acks",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=[one for tasks in TASKS for one in _contenders(tasks, loads, folder)],
        aims=[
            Aim(_named(RUNNEL, 1), PUBLISH, times_best_peer=2, peer=_named(ALWAYS, 1)),
            Aim(_named(RUNNEL, 64), PUBLISH, times_best_peer=20, peer=_named(ALWAYS, 64)),
        ],
        notes=[
            where(folder),
            "random values of 100 B; a server and a publisher, a process each; every value is awaited by its task",
            'runnel: fsync="commit", crc on: acknowledged means synced, as it does with always; the others sync later',
            "records a sync: counted by the journal; Redis has a connection for each task that waits",
        ],
    )


def _contenders(tasks: int, loads: Loads, folder: Path) -> list[Contender]:
    def contender(name: str, setup: Setup, call: str) -> Contender:
        count = loads.alone if tasks == 1 else loads.together if name == RUNNEL else loads.peers
        measure = partial(stored, setup, folder, count, tasks, loads.fsyncs)
        league, is_peer = _league(tasks), name != RUNNEL
        return Contender(
            _named(name, tasks), measure, call, league, is_peer, needs=setup.needs, programs=setup.programs
        )

    return [
        contender(RUNNEL, crew.RUNNEL, "await topic.publish(v)"),
        contender(ALWAYS, crew.JETSTREAM_ALWAYS, "await js.publish(t, v)"),
        contender("JetStream, 2 minutes", crew.JETSTREAM, "await js.publish(t, v)"),
        contender("Redis, always", crew.REDIS_ALWAYS, "await r.xadd(t, v)"),
        contender("Redis, everysec", crew.REDIS, "await r.xadd(t, v)"),
    ]


def _league(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _named(name: str, tasks: int) -> str:
    return f"{name}, {_league(tasks)}"
