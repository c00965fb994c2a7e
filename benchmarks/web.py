"""Events to browsers, and publishing over HTTP.

What does a delivery to one of 1,000 open event streams cost, when events come one by one and when they come in bursts
of 100, against sse-starlette over asyncio.Queue and against nchan? And what does a publish over HTTP cost?
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import web_place
from benchmarks.crew import DELIVERIES, P50, P99
from benchmarks.disk import PER_SECOND, bare_fsync, emptied, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import Lossy
from benchmarks.peers import nchan, sse_queues
from benchmarks.processes import Found, running
from benchmarks.web_place import Place

CPU = "CPU ns each"  # of the server, all its processes and threads
BURST, LINES = 100, 1_000
SINGLE, BURSTS, POST, NDJSON = "one by one", f"bursts of {BURST}", "a publish", f"{LINES:,} lines a publish"
TO_WORK = 900.0  # seconds for one measurement
RUNNEL, QUEUES, NCHAN = "runnel", "sse-starlette", "nchan"

Served = Callable[[Path], AbstractAsyncContextManager[Place]]


@dataclass(frozen=True, slots=True)
class Loads:
    """How many streams there are, and how often is published to them."""

    connections: int = 1_000
    singles: int = 300
    bursts: int = 100
    peers_bursts: int = 10  # they take longer
    looks: int = 100  # publishes at leisure, of which the age of events is asked
    posts: int = 40_000
    lists: int = 2_000
    fsyncs: int = 100  # bare ones, before each measurement


QUICK = Loads(200, 50, 20, 5, 20, 4_000, 200)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """All of them, each way."""
    loads = loads or (QUICK if quick else Loads())
    contenders = [*_deliveries(SINGLE, folder, loads), *_deliveries(BURSTS, folder, loads), *_publishes(folder, loads)]
    return Question(
        name="web",
        text=asked(__doc__),
        ranked=CPU,
        contenders=contenders,
        aims=[
            Aim(_named(RUNNEL, SINGLE), CPU, at_most=1e9 / 60_000),
            Aim(_named(RUNNEL, SINGLE), CPU, times_best_peer=1, peer=_named(NCHAN, SINGLE)),
            Aim(_named(RUNNEL, BURSTS), CPU, at_most=1e9 / 3e6),
            Aim(_named(RUNNEL, BURSTS), CPU, times_best_peer=3, peer=_named(QUEUES, BURSTS)),
            Aim(_named(RUNNEL, POST), CPU, at_most=1e9 / 10_000),
            Aim(_named(RUNNEL, NDJSON), CPU, at_most=1e9 / 500_000),
        ],
        notes=[
            where(folder),
            f"values of 100 B to {loads.connections:,} streams of one process, which counts events on raw sockets; the",
            "next publish goes out when everybody has the last one, so that nothing piles up and the server waits for",
            f"its readers now and then. {CPU}: what a core of the server's can do, its reciprocal; {DELIVERIES} is by",
            "the clock, with the readers on the same machine. Age: from before the publish until it was read, by the",
            "first event of each read, at 10 publishes a second",
            'runnel: fsync="commit", each event synced before anybody sees it, with id, offset, sequence and time, so',
            "that a browser can go on from it. nchan sends ids too, and keeps events in memory; sse-starlette sends",
            "the value alone, and keeps nothing",
            f"nchan takes one event a publish: a burst is {BURST} of them, one behind the other",
            "publishing: from 64 connections (lines: 8), each of which waits for its answer before it sends again",
        ],
    )


def _deliveries(way: str, folder: Path, loads: Loads) -> list[Contender]:
    together = 1 if way == SINGLE else BURST
    calls = {
        RUNNEL: "POST /topics/t" + (" of 100 lines" if together > 1 else "") + "; GET /events?topic=t",
        QUEUES: "queue.put_nowait(v) for each; EventSourceResponse(queue.get() …)",
        NCHAN: "nchan_publisher; nchan_subscriber eventsource",
    }

    def contender(name: str, served: Served, needs: tuple[str, ...] = (), programs: tuple[str, ...] = ()) -> Contender:
        bursts = loads.bursts if name == RUNNEL else loads.peers_bursts
        measure = partial(delivered, served, folder, loads, together, loads.singles if way == SINGLE else bursts)
        return Contender(_named(name, way), measure, calls[name], way, name != RUNNEL, needs, programs)

    return [
        contender(RUNNEL, web_place.served, ("uvicorn", "starlette", "httptools")),
        contender(QUEUES, sse_queues.served, ("sse_starlette", "uvicorn", "uvloop", "httptools")),
        contender(NCHAN, nchan.served, programs=() if nchan.module() else (nchan.NEEDED,)),
    ]


def _publishes(folder: Path, loads: Loads) -> list[Contender]:
    def contender(name: str, way: str, served: Served, programs: tuple[str, ...] = ()) -> Contender:
        measure = partial(stored, served, folder, loads, lines=way == NDJSON)
        call = "POST, 100 B" if way == POST else "POST, application/x-ndjson"
        return Contender(_named(name, way), measure, call, way, name != RUNNEL, programs=programs)

    return [
        contender(RUNNEL, POST, web_place.served),
        contender(QUEUES, POST, sse_queues.served),
        contender(NCHAN, POST, nchan.served, () if nchan.module() else (nchan.NEEDED,)),
        contender(RUNNEL, NDJSON, web_place.served),
    ]


async def delivered(served: Served, folder: Path, loads: Loads, together: int, publishes: int) -> Figures:
    """What a delivery costs, and how old events are."""
    plan = {"task": "deliver", "together": together, "publishes": publishes, "connections": loads.connections}
    plan |= {"looks": loads.looks if together == 1 else max(1, loads.looks // 20), "paced": 0.1}
    disk = bare_fsync(folder, loads.fsyncs)
    found = await _done(served, folder, plan, lines=together > 1)
    count = loads.connections * together * publishes
    if found["over"]:
        raise Lossy(0, [found["over"]])
    return {CPU: found["cpu"] / count * 1e9, DELIVERIES: count / found["seconds"]} | _ages(found) | disk


async def stored(served: Served, folder: Path, loads: Loads, *, lines: bool) -> Figures:
    """What a publish over HTTP costs."""
    together, connections, publishes = (LINES, 8, loads.lists) if lines else (1, 64, loads.posts)
    disk = bare_fsync(folder, loads.fsyncs)
    plan = {"task": "store", "together": together, "publishes": publishes, "connections": connections}
    found = await _done(served, folder, plan, lines=lines)
    count = together * publishes
    return {CPU: found["cpu"] / count * 1e9, PER_SECOND: count / found["seconds"]} | _ages(found) | disk


async def _done(served: Served, folder: Path, plan: Found, *, lines: bool) -> Found:
    """What a crowd of this plan came to, at a server of its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the processes that are started here have it too
    async with emptied(folder) as made, served(made) as place:
        kind = "application/x-ndjson" if lines and place.many else "text/plain"
        plan |= {"port": place.port, "pids": place.pids, "events": place.events, "topic": place.publish, "kind": kind}
        plan["lines"] = lines and place.many
        async with running([sys.executable, "-m", "benchmarks.web_crowd", json.dumps(plan)]) as crowd:
            assert crowd.stdout is not None
            async with asyncio.timeout(TO_WORK):
                line = await crowd.stdout.readline()
            if not line:
                raise RuntimeError(f"the crowd ended with {await crowd.wait()}; what it said is above")
            found: Found = json.loads(line)
            return found


def _ages(found: Found) -> dict[str, float]:
    ages = found["ages"]
    return {P50: ages[len(ages) // 2] / 1e3, P99: ages[len(ages) * 99 // 100] / 1e3}


def _named(name: str, way: str) -> str:
    return f"{name}, {way}"
