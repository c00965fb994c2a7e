"""Readings in a test: journals that much happened to, and what is read of them record by record."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import msgspec

import runnel
from runnel.arrow.range_reader import DecodedBatch, FoundPart, LakeRows, RangeReader
from runnel.arrow.ranges import OffsetRange
from runnel.core.clock import micros
from runnel.core.pattern import matches
from runnel.core.record import Meta
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.journal.read.segment_reader import LostRange
from runnel.journal.storage import OsStorage
from runnel.server import Server, ServerOptions
from tests.journal.journal_cleaning import Seen, World
from tests.patience import PATIENCE

T = TypeVar("T")


class Row(NamedTuple):
    """One record, as far as columns tell of it."""

    offset: int
    sequence: int
    time: int
    key: bytes | None
    value: bytes
    headers: dict[str, str]


_PLAIN = Meta()


def row_of(one: Seen) -> Row:
    """What is to be read of a record that was published."""
    time = one.time if one.client_time is None else one.client_time
    return Row(one.offset, one.sequence, time, one.meta.key, one.value, dict(one.meta.headers))


def rows_of(found: Iterable[FoundPart], wanted: OffsetRange) -> list[Row | LostRange]:
    """What was read of a range, record by record."""
    rows: list[Row | LostRange] = []
    for one in found:
        if isinstance(one, LostRange):
            rows.append(one)
            continue
        if isinstance(one, LakeRows):
            rows += _rows_of_lake(one)
            continue
        batch, at = one.batch, one.at
        for run in one.runs:
            assert wanted.first <= run.offset <= run.offset + run.count <= wanted.end
            for number in range(run.count):
                meta = batch.metas.get(at + number, _PLAIN)
                own = None if batch.times is None else batch.times[at + number]
                rows.append(
                    Row(
                        run.offset + number,
                        run.sequence + number,
                        run.time if own is None else own,
                        meta.key,
                        batch.values[at + number],
                        dict(meta.headers),
                    )
                )
            at += run.count
    return rows


def _rows_of_lake(found: LakeRows) -> Iterator[Row]:
    for one in found.table.to_pylist():
        headers = {pair["key"]: pair["value"].decode() for pair in one["headers"] or ()}
        yield Row(one["offset"], one["sequence"], micros(one["time"]), one["key"], one["value"], headers)


def read_all(reading: RangeReader, topic: str) -> list[Row | LostRange]:
    """Everything that a topic has now."""
    (one,) = reading.bounds([topic])
    wanted = OffsetRange(topic, one.epoch, one.first, one.end)
    return rows_of(reading.read(wanted), wanted)


def world(folder: Path, seed: int) -> World:
    """A journal in a folder, to which much will happen."""
    return World(seed, OsStorage(folder))


def expected(made: World, topic: str, first: int = 0, end: int = 1 << 62) -> list[Row]:
    """What a world's topic holds in [first, end)."""
    (known,) = [one for one in made.journal.ledger.topics.values() if one.name == topic]
    wanted = made.wanted(made.journal.ledger)
    return [row_of(one) for one in wanted if one.topic == known.id and first <= one.offset < end]


async def live_through(broker: runnel.Broker, random: Random) -> None:
    """Topics of which some of everything happened: by many, keyed and compacted, staged, trimmed."""
    prices = broker.topic("prices", compact=True)
    for number in range(60):
        await prices.publish(b"%d" % number * 30, key=random.choice("abc"), headers={"n": str(number)})
        await broker.topic("many").publish_many([random.randbytes(20) for _ in range(random.randrange(1, 90))])
        if number % 10 == 0:
            stage = broker.stage("many", writer="w", batch=number, part=0)
            await stage.write([b"staged %d" % at for at in range(random.randrange(1, 90))])
            async with broker.transaction() as tx:
                tx.commit(stage.key)
    await prices.publish(None, key="b")
    await broker.topic("many").trim(100)


async def clean(broker: runnel.Broker) -> None:
    """Have the cleaner do something, and stop it: it takes nothing away between two readings."""
    store = broker.backend.store
    assert store is not None
    async with asyncio.timeout(PATIENCE):
        while not store.cleaner.statistics().segments:
            store.cleaner.wake()
            await asyncio.sleep(0.01)
    await asyncio.to_thread(store.cleaner.stop)


class Shelf:
    """A reading of topics that a test puts there. What is put there later was published later."""

    def __init__(self, *bounds: TopicBounds, journal: str = "j") -> None:
        self.topics: dict[str, TopicBounds] = {}
        self.journal = journal
        self.times: dict[datetime, dict[str, int]] = {}
        self.questions = 0  # about sequences
        self._published: list[tuple[str, int, int, int]] = []  # topic, epoch, offset, sequence: stretches
        self._sequence = 0
        self.put(*bounds)

    def put(self, *bounds: TopicBounds) -> None:
        """Have topics, in the place of those of the same names."""
        for one in bounds:
            known = self.topics.get(one.topic)
            first = known.end if known is not None and known.epoch == one.epoch else one.first
            self._published.append((one.topic, one.epoch, first, self._sequence))
            self._sequence += max(0, one.end - first)
            self.topics[one.topic] = one

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """What is there of these names and patterns."""
        found = [self.topics[name] for name in sorted(self.topics) if any(matches(one, name) for one in patterns)]
        if sequence is not None:
            self.questions += 1
            return [msgspec.structs.replace(one, at=self._at(one, sequence)) for one in found]
        if time is None:
            return found
        return [msgspec.structs.replace(one, at=self.times[time].get(one.topic, one.end)) for one in found]

    def _at(self, one: TopicBounds, sequence: int) -> int:
        mine = [stretch for stretch in self._published if stretch[:2] == (one.topic, one.epoch)]
        ends = [*(offset for _, _, offset, _ in mine[1:]), one.end]
        for (_, _, offset, began), end in zip(mine, ends, strict=True):
            if began + end - offset > sequence:
                return max(offset + max(0, sequence - began), one.first)
        return one.end

    def end_sequence(self) -> int:
        """The sequence after the last record."""
        return self._sequence

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        """None of them was ever trimmed."""
        return {
            one.topic: TopicFloors(one.topic, one.epoch, 0, one.first, 0, one.end)
            for one in self.topics.values()
            if one.topic in topics
        }

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """Nothing: no test asks for it."""
        raise NotImplementedError

    def read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        """Nothing: no test asks for it."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


class Served:
    """A broker of a folder, and its server, in a thread of their own."""

    def __init__(self, folder: Path, port: int = 0, **options: Any) -> None:
        self._folder, self._port, self._options = folder, port, options
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        self.run(self._open())
        return self

    def __exit__(self, *how: object) -> None:
        self.run(self._held.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        self._held = AsyncExitStack()
        self.broker = await self._held.enter_async_context(runnel.open(self._folder, **self._options))
        options = ServerOptions(port=self._port, json_port=None)
        self.server = await self._held.enter_async_context(Server(self.broker, options))
        assert self.server.serving is not None
        self.url = self.server.serving.listeners[0].url

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something with the broker."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def publish_many(self, topic: str, values: Sequence[bytes]) -> None:
        """Publish some records together."""
        self.run(self.broker.topic(topic).publish_many(values))
