"""Staging on a disk.

How fast is a gigabyte staged, against publishing it, and committed? And how long does a publish to another topic take
meanwhile?
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.disk import PER_SECOND, PER_SYNC, Writes, bare_fsync, emptied, watching, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.latency import MAX, P50, P99
from benchmarks.load import PUBLISH, Lossy, payloads

LIST = 1000
DISTINCT = 20  # lists that differ; then they come again
SIZE = 1024
COMMIT = "ms the commit took"
BESIDE = "MB/s staged beside it"
STAGED, PUBLISHED = "a stage, in lists", "plain publishing, in lists"
LONE, COMPANY = "a publish alone", "a publish beside a stage"


@dataclass(frozen=True, slots=True)
class Loads:
    """How much is staged, and for how long a publisher beside it is watched."""

    lists: int = 1_000  # of 1,000 values of 1 KiB: a gigabyte
    seconds: float = 5.0
    fsyncs: int = 100


QUICK = Loads(lists=100, seconds=1.0, fsyncs=30)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """A gigabyte in both ways; then a lone publisher with and without company."""
    loads = loads or (QUICK if quick else Loads())

    def contender(name: str, measure: Callable[[], Awaitable[Figures]], call: str, league: str) -> Contender:
        return Contender(name, measure, call, league, peer=name in (PUBLISHED, LONE), needs=("runnel",))

    lists, alone = f"{loads.lists * LIST * SIZE / 1e9:.1f} GB", "one publish after the other"
    return Question(
        name="staging",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=[
            contender(STAGED, partial(_staged, folder, loads), f"await stage.write({LIST:,} v)", lists),
            contender(PUBLISHED, partial(_published, folder, loads), f"await topic.publish_many({LIST:,} v)", lists),
            contender(LONE, partial(_beside, folder, loads, staging=False), "await other.publish(v)", alone),
            contender(
                COMPANY,
                partial(_beside, folder, loads, staging=True),
                "the same; beside it stage.write(64 MB) again and again",
                alone,
            ),
        ],
        aims=[Aim(STAGED, PUBLISH, times_best_peer=0.7), Aim(COMPANY, P99, times_best_peer=1 / 3)],
        notes=[
            where(folder),
            f'fsync="commit" and crc on; lists of {LIST:,} random values of {SIZE:,} B, one writer that awaits each',
            "committed: tx.commit(stage), until all of it is visible; the clock of staging does not include it",
            "beside: one task publishes 100 B values to another topic, each awaited; one loop does it all",
        ],
    )


@asynccontextmanager
async def _opened(folder: Path) -> AsyncIterator[Any]:
    import runnel

    async with emptied(folder) as made, runnel.open(made) as broker:
        await asyncio.gather(broker.topic("t").declare(), broker.topic("other").declare())
        yield broker


def _lists(count: int) -> list[list[bytes]]:
    values = payloads(DISTINCT * LIST, SIZE)
    return list(islice(cycle([values[at : at + LIST] for at in range(0, len(values), LIST)]), count))


async def _staged(folder: Path, loads: Loads) -> Figures:
    lists, disk, writes = _lists(loads.lists), bare_fsync(folder, loads.fsyncs), Writes()
    async with _opened(folder) as broker:
        stage = broker.stage("t", writer="bench", batch=1)
        with watching(writes):
            begun = time.perf_counter()
            for some in lists:
                await stage.write(some)
            spent = time.perf_counter() - begun
        begun = time.perf_counter()
        async with broker.transaction() as tx:
            tx.commit(stage)
        committed = time.perf_counter() - begun
        _check(broker, loads)
    return _figures(loads, spent, writes) | {COMMIT: committed * 1e3} | disk


async def _published(folder: Path, loads: Loads) -> Figures:
    lists, disk, writes = _lists(loads.lists), bare_fsync(folder, loads.fsyncs), Writes()
    async with _opened(folder) as broker:
        topic = broker.topic("t")
        with watching(writes):
            begun = time.perf_counter()
            for some in lists:
                await topic.publish_many(some)
            spent = time.perf_counter() - begun
        _check(broker, loads)
    return _figures(loads, spent, writes) | {COMMIT: 0.0} | disk


async def _beside(folder: Path, loads: Loads, *, staging: bool) -> Figures:
    """What a publish takes while somebody else stages as much as he can."""
    values, small, disk = list(chain(*_lists(64))), payloads(LIST), bare_fsync(folder, loads.fsyncs)
    async with _opened(folder) as broker:
        stage, other = broker.stage("t", writer="bench", batch=1), broker.topic("other")

        async def company() -> None:
            while True:
                await stage.write(values)

        task = asyncio.ensure_future(company()) if staging else None
        spent: list[float] = []
        begun = time.perf_counter()
        for value in cycle(small):
            before = time.perf_counter()
            await other.publish(value)
            now = time.perf_counter()
            spent.append(now - before)
            if now - begun > loads.seconds:
                break
        rate = stage.bytes / (time.perf_counter() - begun) / 1e6
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if staging and not rate:
            raise ValueError("nothing was staged beside it")
    spent.sort()
    return {
        PUBLISH: statistics.fmean(spent) * 1e9,
        P50: spent[len(spent) // 2] * 1e6,
        P99: spent[int(len(spent) * 0.99)] * 1e6,
        MAX: spent[-1] * 1e6,
        BESIDE: rate,
    } | disk


def _figures(loads: Loads, spent: float, writes: Writes) -> dict[str, float]:
    count = loads.lists * LIST
    return {PUBLISH: spent / count * 1e9, PER_SECOND: count / spent, PER_SYNC: count / max(1, writes.syncs)}


def _check(broker: Any, loads: Loads) -> None:
    if (end := broker.statistics().topics["t"].end) != loads.lists * LIST:
        raise Lossy(loads.lists * LIST, [end])
