"""Reading history from disk.

How fast does a subscriber read a topic from its beginning, by batch and by record, and what does that do to the one who
reads live beside it?
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.disk import FSYNC, PER_SECOND, bare_fsync, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.latency import MAX, P50, P99, TICK, Arrivals
from benchmarks.load import BATCH, TIMEOUT, Lossy, Tally, payloads, reading

LIST = 1000
RATE = 1_000  # live records a second
RECORD = "ns a record"
LATE = "p99 µs its tick was late"
CAUGHT_UP = "records/s caught up beside it"
BY_BATCH, BY_RECORD = "runnel by batch", "runnel by record"
ALONE, BESIDE = "a live reader alone", "a live reader beside one that catches up"


@dataclass(frozen=True, slots=True)
class Loads:
    """How much there is to read, and how long the live reader is watched."""

    records: int = 2_000_000
    seconds: float = 3.0
    fsyncs: int = 100


QUICK = Loads(records=200_000, seconds=0.5, fsyncs=30)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """The whole topic in two ways, then a live reader with and without company."""
    loads = loads or (QUICK if quick else Loads())
    shelf = Shelf(folder / "history", loads)

    def contender(name: str, measure: Callable[[], Awaitable[Figures]], call: str, league: str) -> Contender:
        return Contender(name, measure, call, league, needs=("runnel",))

    live = "topic.publish_nowait(v); sub.batches(): batch.values"
    return Question(
        name="catch_up",
        text=asked(__doc__),
        ranked=RECORD,
        contenders=[
            contender(BY_BATCH, partial(_whole, shelf, _batches), "sub.batches(): batch.values", "catching up"),
            contender(
                BY_RECORD, partial(_whole, shelf, _records), "async for record in sub: record.value", "catching up"
            ),
            contender(ALONE, partial(_live, shelf, catching_up=False), live, f"live, {RATE:,}/s"),
            contender(
                BESIDE,
                partial(_live, shelf, catching_up=True),
                'the same; beside it subscribe(start="earliest").batches(): batch.values, again and again',
                f"live, {RATE:,}/s",
            ),
        ],
        aims=[Aim(BY_BATCH, RECORD, at_most=1e9 / 5e6)],
        notes=[
            where(folder),
            f"one topic of {loads.records:,} random values of 100 B, written by publish_many of {LIST:,}, then closed;",
            "opened anew for each measurement: nothing is in the broker's memory, all is in the page cache; crc on",
            "every value is in hand, as bytes; the clock runs from subscribing to the last record",
            f'live: the same topic, fsync="commit", {loads.seconds:g} s; from just before publish_nowait until in',
            "hand, its fdatasync included; one loop does it all: how late the publisher's ticks came is shown too",
        ],
    )


class Shelf:
    """A folder with one topic in it, written when it is first needed."""

    def __init__(self, path: Path, loads: Loads) -> None:
        self.path, self.loads = path, loads
        self._written = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Any, Any, int]]:
        """A broker that has just found it, the topic, and how many records there are."""
        import runnel

        if not self._written:
            await self._write()
        async with runnel.open(self.path) as broker:
            yield broker, broker.topic("t"), broker.statistics().topics["t"].end

    async def _write(self) -> None:
        import runnel

        values = payloads(20 * LIST)
        async with runnel.open(self.path, fsync="os") as broker:
            topic = broker.topic("t")
            for first in range(0, self.loads.records, LIST):
                at = first % len(values)
                await topic.publish_many(values[at : at + LIST])
        self._written = True


Read = Callable[[Any, Tally, int], Awaitable[None]]


async def _whole(shelf: Shelf, read: Read) -> Figures:
    """Everything, once."""
    disk, tally = bare_fsync(shelf.path.parent, shelf.loads.fsyncs), Tally()
    async with shelf.opened() as (broker, _, count):
        begun = time.perf_counter()
        async with broker.subscribe("t", start="earliest") as subscription:
            try:
                async with asyncio.timeout(TIMEOUT):
                    await read(subscription, tally, count)
            except TimeoutError:
                pass  # the count says it
            spent = time.perf_counter() - begun
    if tally.values != count:
        raise Lossy(count, [tally.values])
    return {RECORD: spent / count * 1e9, PER_SECOND: count / spent, BATCH: count / tally.batches} | disk


async def _batches(subscription: Any, tally: Tally, count: int) -> None:
    async for batch in subscription.batches():
        tally.values += len(batch.values)
        tally.batches += 1
        if tally.values >= count:
            return


async def _records(subscription: Any, tally: Tally, count: int) -> None:
    values = 0
    async for record in subscription:
        if record.value:
            values += 1
        if values >= count:
            break
    tally.values = tally.batches = values


async def _live(shelf: Shelf, *, catching_up: bool) -> Figures:
    """Latency of a live reader, alone or in company."""
    disk = bare_fsync(shelf.path.parent, shelf.loads.fsyncs)
    mine, tally = Arrivals(), Tally()
    async with shelf.opened() as (broker, topic, count):

        async def live() -> None:
            async with broker.subscribe("t", start="latest") as subscription:
                async for batch in subscription.batches():
                    mine.keep(batch.values)

        async def behind() -> None:
            while True:
                again = Tally()
                async with broker.subscribe("t", start="earliest") as subscription:
                    async for batch in subscription.batches():
                        again.values += len(batch.values)
                        tally.values += len(batch.values)
                        tally.batches += 1
                        if again.values >= count:
                            break

        async with reading([live(), behind()] if catching_up else [live()]):
            began = time.perf_counter()
            late = await _paced(topic, shelf.loads.seconds, mine)
            spent = time.perf_counter() - began
    figures = _latencies(mine) | {LATE: late}
    if catching_up:
        if not tally.batches:
            raise Lossy(count, [0])
        figures |= {CAUGHT_UP: tally.values / spent, BATCH: tally.values / tally.batches}
    return figures | {FSYNC: disk[FSYNC]}


async def _paced(topic: Any, seconds: float, mine: Arrivals) -> float:
    """Publish what is due, every tick, until all is in hand; how late ticks came, p99 in µs."""
    tails = [value[8:] for value in payloads(10_000)]
    now, pack = time.perf_counter_ns, struct.Struct("<Q").pack
    total, sent = max(1, int(RATE * seconds)), 0
    late: list[int] = []
    begun = now()
    while sent < total:
        due = min(total, (now() - begun) * RATE // 1_000_000_000 + 1)
        for n in range(sent, due):
            topic.publish_nowait(pack(now()) + tails[n % 10_000])
        sent = due
        slept = now()
        await asyncio.sleep(TICK)
        late.append(now() - slept - int(TICK * 1e9))
    for _ in range(1000):
        if len(mine.values) >= total:
            break
        await asyncio.sleep(0.01)
    if len(mine.values) != total:
        raise Lossy(total, [len(mine.values)])
    return sorted(late)[len(late) * 99 // 100] / 1e3


def _latencies(mine: Arrivals) -> dict[str, float]:
    stamp = struct.Struct("<Q").unpack_from
    taken = sorted(at - stamp(value)[0] for at, value in zip(mine.times, mine.values, strict=True))
    return {P50: taken[len(taken) // 2] / 1e3, P99: taken[len(taken) * 99 // 100] / 1e3, MAX: taken[-1] / 1e3}
