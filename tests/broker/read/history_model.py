"""Readers over a source of history and the journal, while retention moves and an archive copies: a random model.

The archive holds the journal back by its name, so at every moment each record is in the journal or in the source.
Every reader must see each record of its topics once, in order, from its start to the end, and no gap.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import runnel
from runnel.core.batch import Slice
from runnel.core.history import HistorySource
from runnel.core.pattern import matches
from runnel.core.record import Record
from runnel.testing import MemoryHistory
from tests.patience import PATIENCE

TOPICS: dict[str, dict[str, Any]] = {
    "a.count": {"retention_count": 7},
    "a.bytes": {"retention_bytes": 300},
    "b.kept": {},
    "b.count": {"retention_count": 30},
}
PATTERNS = ("a.count", "a.bytes", "b.count", "a.*", "b.*", ">", "*.count")


class Source(HistorySource, Protocol):
    """A source that an archive fills."""

    is_closed: bool

    def add(self, records: Iterable[Record[bytes]]) -> None: ...


class SlowHistory(MemoryHistory):
    """A source that takes its time, while retention and the archive go on."""

    async def read(self, topic: str, epoch: int, start: int, end: int) -> Sequence[Slice]:
        await asyncio.sleep(random.uniform(0, 0.002))
        found = await super().read(topic, epoch, start, end)
        await asyncio.sleep(random.uniform(0, 0.002))
        return found

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        await asyncio.sleep(random.uniform(0, 0.002))
        found = await super().read_sequences(patterns, start, end)
        await asyncio.sleep(random.uniform(0, 0.002))
        return found


class Reader:
    """One subscription, the records that it read, and those that it must have read in the end."""

    def __init__(self, pattern: str, start: Any, first: int) -> None:
        self.pattern, self.start, self.first = pattern, start, first  # `first`: of all records, where it starts
        self.seen: list[Record[bytes]] = []
        self.records: AsyncIterator[Record[bytes]] | None = None
        self.stack = AsyncExitStack()
        self.task: asyncio.Task[None] | None = None
        self.wanted, self.enough = -1, asyncio.Event()

    async def open(self, broker: runnel.Broker) -> None:
        subscription = await self.stack.enter_async_context(broker.subscribe(self.pattern, start=self.start))
        self.records = aiter(subscription)

    def due(self, published: list[tuple[str, bytes]]) -> list[bytes]:
        return [value for topic, value in published[self.first :] if matches(self.pattern, topic)]

    async def read(self, count: int) -> None:
        assert self.records is not None
        for _ in range(count):
            async with asyncio.timeout(PATIENCE):
                self.seen.append(await anext(self.records))

    async def keep_reading(self, random: random.Random) -> None:
        """Read at a pace of its own, beside all the rest."""
        while True:
            await self.read(1)
            if len(self.seen) == self.wanted:
                self.enough.set()
            if random.random() < 0.1:
                await asyncio.sleep(random.uniform(0, 0.003))

    async def read_up_to(self, count: int) -> None:
        """Have so many records in all."""
        if self.task is None:
            await self.read(count - len(self.seen))
            return
        self.wanted = count
        if len(self.seen) < count:
            waiting = asyncio.create_task(self.enough.wait())
            await asyncio.wait([self.task, waiting], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        self.task.cancel()
        await asyncio.wait([self.task])


class Model:
    """What was published, and the parts that act on it."""

    def __init__(self, folder: Path, seed: int, source: Source | None = None) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.source: Source = source or SlowHistory(chunk=self.random.choice((1, 3, 50)))
        self.published: list[tuple[str, bytes]] = []
        self.readers: list[Reader] = []
        self.archived: list[Record[bytes]] = []

    async def run(self, lives: int, steps: int) -> None:
        for _ in range(lives):
            self.source.is_closed = False
            tail = self.random.choice((1, 400, 1 << 20))
            options: dict[str, Any] = {"segment_bytes": 4096, "tail_bytes": tail, "share": False, "fsync": "os"}
            async with runnel.open(self.folder, history=self.source, **options) as broker:
                for name, kept in TOPICS.items():
                    await broker.topic(name, **kept).declare()
                async with broker.subscribe(">", name="archive", hold=True, start="earliest") as archive:
                    self.copied = aiter(archive.batches(5))
                    self.copying: asyncio.Future[Any] | None = None
                    for _ in range(steps):
                        await self.random.choice((self.publish, self.publish, self.copy, self.begin, self.read))(broker)
                    await self.finish()
                    if self.copying is not None:
                        self.copying.cancel()
                        await asyncio.wait([self.copying])

    async def publish(self, broker: runnel.Broker) -> None:
        topic = self.random.choice(list(TOPICS))
        count = self.random.choice((1, 2, 10, 40))
        values = [b"%d" % number for number in range(len(self.published), len(self.published) + count)]
        self.published += [(topic, value) for value in values]
        if self.random.random() < 0.5:
            await broker.topic(topic).publish_many(values)
        else:
            for value in values:
                await broker.topic(topic).publish(value, key=value, headers={"n": value.decode()})

    async def copy(self, broker: runnel.Broker) -> None:
        """Copy a few batches. The next one is asked for when these are in the source: that lets retention go on."""
        for _ in range(self.random.choice((1, 2, 20))):
            self.copying = self.copying or asyncio.ensure_future(anext(self.copied))
            await asyncio.wait([self.copying], timeout=0.002)
            if not self.copying.done():
                return
            batch, self.copying = self.copying.result(), None
            copied = self.archived[-1].sequence if self.archived else -1
            news = [record for record in batch if record.sequence > copied]  # the others came before a restart
            self.source.add(news)
            self.archived += news

    async def begin(self, broker: runnel.Broker) -> None:
        pattern = self.random.choice(PATTERNS)
        first = 0
        start: str | int = "earliest"
        if "*" not in pattern and ">" not in pattern and self.random.random() < 0.5:
            places = [place for place, (topic, _) in enumerate(self.published) if topic == pattern]
            if places:
                number = self.random.randrange(len(places))
                first, start = places[number], number
        reader = Reader(pattern, start, first)
        await reader.open(broker)
        self.readers.append(reader)
        if self.random.random() < 0.6:
            reader.task = asyncio.create_task(reader.keep_reading(random.Random(self.random.random())))

    async def read(self, broker: runnel.Broker) -> None:
        if waiting := [reader for reader in self.readers if reader.task is None]:
            reader = self.random.choice(waiting)
            left = len(reader.due(self.published)) - len(reader.seen)
            await reader.read(min(left, self.random.choice((1, 5, 100))))

    async def finish(self) -> None:
        for reader in self.readers:
            due = reader.due(self.published)
            await reader.read_up_to(len(due))
            assert [record.value for record in reader.seen] == due, reader.pattern
            assert [record.gap for record in reader.seen if record.gap is not None] == []
            known = {record.value: record for record in self.archived}
            for record in reader.seen:
                assert known.get(record.value, record) == record
            await reader.stack.aclose()
        self.readers.clear()
