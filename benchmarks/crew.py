"""A server, a publisher and some subscribers, each a process: what the questions about the network measure with.

Below: processes, the roads. Above: network, network_latency, network_acks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import runnel_road
from benchmarks.disk import PER_SECOND, PER_SYNC, bare_fsync, emptied
from benchmarks.harness import Figures
from benchmarks.load import BATCH, DELIVERY, PUBLISH, Lossy
from benchmarks.peers import nats_road, redis_road
from benchmarks.processes import Found, worked

P50, P99, MAX = "p50 µs", "p99 µs", "max µs"
DELIVERIES = "deliveries/s"
PROCESSES = "processes"
STALLED = 15.0  # seconds without a value, after which a reader waits for no more
MOST_READERS = 2  # processes; so many subscribers share them


@dataclass(frozen=True, slots=True)
class Setup:
    """A server as it is started, and the road to it."""

    road: str
    served: Callable[[Path], AbstractAsyncContextManager[str]]
    prepare: Callable[[str], Awaitable[None]] | None = None
    syncs: Callable[[str], Awaitable[int]] | None = None  # how often it synced, if it tells
    needs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


def _runnel(road: str, *, memory: bool = False) -> Setup:
    served = partial(runnel_road.served, memory=memory)
    return Setup(road, served, runnel_road.prepare, runnel_road.syncs, ("runnel",))


def _jetstream(sync: str) -> Setup:
    served = partial(nats_road.served, sync=sync)
    return Setup("jetstream", served, nats_road.prepare, needs=("nats",), programs=("nats-server",))


def _redis(fsync: str) -> Setup:
    served = partial(redis_road.served, fsync=fsync)
    return Setup("redis", served, needs=("redis", "hiredis"), programs=("redis-server",))


RUNNEL, RUNNEL_BY_TICK, RUNNEL_IN_MEMORY = _runnel("runnel"), _runnel("runnel by tick"), _runnel("runnel", memory=True)
NATS = Setup("nats", nats_road.served, needs=("nats",), programs=("nats-server",))
JETSTREAM, JETSTREAM_ALWAYS = _jetstream("2m"), _jetstream("always")
REDIS, REDIS_ALWAYS = _redis("everysec"), _redis("always")


async def flooded(setup: Setup, folder: Path, count: int, subscribers: int, fsyncs: int) -> Figures:
    """Time from the first publish until the last subscriber had the last value in hand, and all was acknowledged."""
    publisher: Found = {"task": "flood", "count": count}
    (publish, *readers), more = await _together(setup, folder, publisher, count, subscribers, fsyncs)
    seconds = (max([publish["ended"], *(reader["last"] for reader in readers)]) - publish["begun"]) / 1e9
    figures = {PUBLISH: seconds / count * 1e9, PER_SECOND: count / seconds}
    if readers:
        deliveries = count * subscribers
        figures |= {DELIVERY: seconds / deliveries * 1e9, DELIVERIES: deliveries / seconds}
        figures[BATCH] = deliveries / sum(reader["batches"] for reader in readers)
    return figures | more


async def paced(
    setup: Setup, folder: Path, count: int, subscribers: int, fsyncs: int, *, rate: float, together: int, step: int
) -> Figures:
    """How old values are when subscribers have them in hand, at a rate; every `step`-th value is asked."""
    publisher: Found = {"task": "pace", "count": count, "rate": rate, "together": together}
    (publish, *readers), more = await _together(setup, folder, publisher, count, subscribers, fsyncs, step)
    ages = sorted(age for reader in readers for age in reader["ages"])
    return {
        P50: ages[len(ages) // 2] / 1e3,
        P99: ages[len(ages) * 99 // 100] / 1e3,
        MAX: ages[-1] / 1e3,
        PER_SECOND: count / (publish["ended"] - publish["begun"]) * 1e9,
        BATCH: count * subscribers / sum(reader["batches"] for reader in readers),
    } | more


async def stored(setup: Setup, folder: Path, count: int, tasks: int, fsyncs: int) -> Figures:
    """Time for publishing `count` values, each awaited by one of `tasks`."""
    plan: Found = {"task": "store", "count": count, "tasks": tasks}
    (publish,), more = await _together(setup, folder, plan, count, 0, fsyncs)
    seconds = (publish["ended"] - publish["begun"]) / 1e9
    return {PUBLISH: seconds / count * 1e9, PER_SECOND: count / seconds} | more


async def _together(
    setup: Setup, folder: Path, publisher: Found, count: int, subscribers: int, fsyncs: int, step: int = 0
) -> tuple[list[Found], dict[str, float]]:
    """What the publisher and the readers came to, if nothing was lost; and what is stated of each such run."""
    disk = bare_fsync(folder, fsyncs)
    async with emptied(folder) as made, setup.served(made) as url:
        if setup.prepare is not None:
            await setup.prepare(url)
        before = 0 if setup.syncs is None else await setup.syncs(url)
        readers: list[Found] = [
            {"task": "read", "count": count, "subscribers": share, "step": step, "stalled": STALLED}
            for share in _shares(subscribers)
        ]
        plans = [plan | {"road": setup.road, "url": url} for plan in [*readers, publisher]]
        *reads, publish = await worked(plans)
        formed = {} if setup.syncs is None else _per_sync(count, await setup.syncs(url) - before)
    got = [values for read in reads for values in read["values"]]
    if any(values != count for values in got):
        raise Lossy(count, got)
    return [publish, *reads], formed | {PROCESSES: len(plans) + 1} | disk


def _shares(subscribers: int) -> list[int]:
    """How many subscribers each process is."""
    processes = min(subscribers, MOST_READERS)
    return [len(range(first, subscribers, processes)) for first in range(processes)]


def _per_sync(count: int, syncs: int) -> dict[str, float]:
    return {PER_SYNC: count / syncs} if syncs else {}
