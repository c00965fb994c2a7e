"""A random model of endless history: topics that stay until they are archived, and readers from any start.

The archive copies, confirms later and less than it copied, and is disturbed: before and after every call of a source
records are published, copied, confirmed and trimmed, so that retention and the cleaner move the journal's first offset
between any two steps of a reader. Every reader must see each record of its topics once and in order, unless it was
trimmed before the reader came to it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import runnel
from runnel import Position
from runnel.core.batch import Slice
from runnel.core.pattern import is_pattern, matches
from runnel.core.record import Record
from runnel.testing import MemoryHistory
from tests.patience import PATIENCE

TOPICS: dict[str, dict[str, Any]] = {
    "a.count": {"retention_count": 7},
    "a.bytes": {"retention_bytes": 300},
    "b.archived": {},
    "b.aged": {"retention_age": 10.0**6},
}
PATTERNS = (*TOPICS, "a.*", "b.*", ">")


class DisturbedHistory(MemoryHistory):
    """A source beside which others work: before it looks, and before its answer is taken."""

    disturb: Callable[[], Awaitable[None]]

    async def read(self, topic: str, epoch: int, start: int, end: int) -> Sequence[Slice]:
        await self.disturb()
        found = await super().read(topic, epoch, start, end)
        await self.disturb()
        return found

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        await self.disturb()
        found = await super().read_sequences(patterns, start, end)
        await self.disturb()
        return found


class Reader:
    """One subscription, and what it saw."""

    def __init__(self, pattern: str, start: str | int) -> None:
        self.pattern, self.start = pattern, start
        self.seen: list[Record[bytes]] = []
        self.first: dict[str, int] = {}  # by topic, where it began
        self.floors: dict[str, int] = {}  # by topic, what was trimmed before it began
        self.stack = AsyncExitStack()

    async def open(self, broker: runnel.Broker, gone: dict[str, int], ends: dict[str, int]) -> None:
        self.floors = dict(gone)
        subscription = await self.stack.enter_async_context(broker.subscribe(self.pattern, start=self.start))
        self.records = aiter(subscription)
        for topic in ends:
            if matches(self.pattern, topic):
                self.first[topic] = 0 if isinstance(self.start, str) else self.start

    async def read(self, count: int) -> None:
        for _ in range(count):
            async with asyncio.timeout(PATIENCE):
                self.seen.append(await anext(self.records))

    async def read_up_to(self, last: bytes) -> None:
        """Read to a record that was published last of all."""
        while not self.seen or self.seen[-1].value != last:
            await self.read(1)

    def judge(self, published: dict[str, list[bytes]], gone: dict[str, int]) -> None:
        assert [one.sequence for one in self.seen] == sorted({one.sequence for one in self.seen}), "in order, once"
        for topic, first in self.first.items():
            mine = [one for one in self.seen if one.topic == topic]
            offsets = {one.offset for one in mine}
            assert all(one.value == published[topic][one.offset] for one in mine)
            assert all(offset >= self.floors.get(topic, 0) for offset in offsets), "nothing came back"
            missed = [offset for offset in range(first, len(published[topic])) if offset not in offsets]
            assert all(offset < gone.get(topic, 0) for offset in missed), (self.pattern, topic, missed, gone)
        gaps = [one.gap for one in self.seen if one.gap is not None]
        assert not gaps or any(gone.values()), gaps
        missing = sum(gap.count or 0 for gap in gaps)
        assert missing <= sum(gone.values()), "only what was trimmed"


class EndlessModel:
    """What was published, archived, confirmed and trimmed."""

    def __init__(self, folder: Path, seed: int, source: Any = None, *, trims: bool = True) -> None:
        self.random, self.folder, self.trims = random.Random(seed), folder, trims
        self.source = source or DisturbedHistory(chunk=self.random.choice((1, 3, 50)))
        self.published: dict[str, list[bytes]] = {name: [] for name in TOPICS}
        self.number = 0
        self.archived: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.gone: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.epochs: dict[str, int] = {}
        self.readers: list[Reader] = []
        self.is_disturbing = self.is_over = False
        self.calm = asyncio.Event()
        self.moved = 0  # offsets that left the journal

    async def run(self, lives: int, steps: int) -> None:
        for _ in range(lives):
            self.source.is_closed = False
            tail = self.random.choice((1, 400, 1 << 20))
            options: dict[str, Any] = {"segment_bytes": 4096, "tail_bytes": tail, "share": False, "fsync": "os"}
            async with runnel.open(self.folder, history=self.source, **options) as broker:
                self.broker = broker
                self.source.disturb = self.disturb
                for name, kept in TOPICS.items():
                    await broker.topic(name, retention_until="archived", **kept).declare()
                self.epochs = {one.topic: one.epoch for one in await broker.bounds()}
                for _ in range(steps):
                    looks = (self.begin, self.read, self.page, self.plan)
                    await self.random.choice((self.publish, self.copy, self.confirm, self.clean, *looks))()
                    if self.trims and self.random.random() < 0.03:
                        await self.trim()
                await self.finish()
                self.moved += sum(one.moved for one in await broker.floors())

    async def disturb(self) -> None:
        """Something happens beside a reader, unless it does so already."""
        if self.is_disturbing or self.is_over or self.random.random() < 0.5:
            await asyncio.sleep(0)
            return
        self.is_disturbing = True
        self.calm.clear()
        try:
            for _ in range(self.random.choice((1, 3))):
                await self.random.choice((self.publish, self.copy, self.confirm, self.clean))()
            if self.trims and self.random.random() < 0.02:
                await self.trim()
        finally:
            self.is_disturbing = False
            self.calm.set()

    # -- steps --------------------------------------------------------------------------------------------------

    def topic(self) -> str:
        return self.random.choice(list(TOPICS))

    def end(self, topic: str) -> int:
        """How many records of a topic are visible by now."""
        return self.broker.statistics().topics[topic].end

    async def publish(self) -> None:
        topic, count = self.topic(), self.random.choice((1, 2, 10, 40))
        values = [b"%d" % number for number in range(self.number, self.number + count)]
        self.number += count
        self.published[topic] += values
        await self.broker.topic(topic).publish_many(values, keys=values)

    async def copy(self) -> None:
        """What the archive does: it reads on where its source ends, and adds that."""
        topic = self.topic()
        page = await self.broker.backend.history(topic, self.archived[topic], self.random.choice((1, 10, 100)), 1 << 20)
        news = [one for one in page.records if one.offset >= self.archived[topic]]  # another copied meanwhile
        if news:
            self.archived[topic] = news[-1].offset + 1
            self.source.add(news)

    async def confirm(self) -> None:
        """Confirm for several topics at once what the source has, or less."""
        places = {
            topic: Position(self.epochs[topic], self.archived[topic] - self.random.choice((0, 0, 1, 20)))
            for topic in self.random.sample(list(TOPICS), self.random.choice((1, 4)))
        }
        await self.broker.confirm_archived({name: place for name, place in places.items() if place.offset >= 0})

    async def clean(self) -> None:
        self.broker.backend.store.cleaner.wake()
        self.broker.backend.store.retention.sweep()
        await asyncio.sleep(0)

    async def trim(self) -> None:
        topic = self.topic()
        (found,) = await self.broker.floors(topic)
        place = min(self.end(topic), self.gone[topic] + self.random.choice((1, 5, 30)))
        self.gone[topic] = place  # a reader may miss them from now on
        self.archived[topic] = max(self.archived[topic], place)
        await self.broker.topic(topic).trim(place)
        assert (await self.broker.floors(topic))[0].gone == place >= found.gone

    async def begin(self) -> None:
        pattern = self.random.choice(PATTERNS)
        start: str | int = "earliest"
        if not is_pattern(pattern) and self.random.random() < 0.5:
            start = self.random.randrange(self.end(pattern) + 1)
        reader = Reader(pattern, start)
        await reader.open(self.broker, self.gone, self.archived)
        self.readers.append(reader)

    async def read(self) -> None:
        if self.readers:
            reader = self.random.choice(self.readers)
            last = reader.seen[-1].sequence if reader.seen else -1
            end = await self.broker.backend.end_sequence()
            await reader.read(min(self.random.choice((1, 5, 100)), await self.ahead(reader, last, end)))

    async def ahead(self, reader: Reader, last: int, end: int) -> int:
        """At least so many records will come: one in the journal's memory at the end, unless it was seen."""
        tails = [name for name in reader.first if len(self.published[name]) > self.gone[name]]
        if not tails or last >= end - 1:
            return 0
        seen = {(one.topic, one.offset) for one in reader.seen}
        left = [
            offset
            for name in tails
            for offset in range(max(self.gone[name], reader.first[name]), len(self.published[name]))
            if (name, offset) not in seen
        ]
        return 0 if self.trims and len(left) < 40 else len(left)

    async def page(self) -> None:
        """A page of history, as HTTP serves it."""
        topic = self.topic()
        start, before = self.random.randrange(self.end(topic) + 1), self.gone[topic]
        page = await self.broker.backend.history(topic, start, self.random.choice((1, 7, 60)), 1 << 20)
        offsets = [one.offset for one in page.records]
        assert all(one.value == self.published[topic][one.offset] for one in page.records)
        if offsets:
            assert before <= offsets[0] <= max(start, self.gone[topic])
            missing = set(range(offsets[0], offsets[-1] + 1)) - set(offsets)
            assert all(offset < self.gone[topic] for offset in missing)

    async def plan(self) -> None:
        """A cut of all topics at one sequence, as Spark plans it: also in what has left the journal."""
        sequence = self.random.randrange(await self.broker.backend.end_sequence() + 1)
        for one in await self.broker.bounds(sequence=sequence):
            assert one.at is not None
            around = await self.broker.backend.history(one.topic, max(0, one.at - 1), 2, 1 << 20)
            for record in around.records:
                if record.offset >= self.gone[one.topic]:
                    assert (record.offset >= one.at) == (record.sequence >= sequence), (record, one, sequence)

    async def finish(self) -> None:
        self.is_over = True  # nothing more happens beside readers, so that they come to an end
        if self.is_disturbing:
            await self.calm.wait()
        last: dict[str, bytes] = {}
        for topic in TOPICS:  # one that is surely there, in each topic
            last[topic] = b"last %d" % self.number
            self.number += 1
            self.published[topic].append(last[topic])
            await self.broker.topic(topic).publish(last[topic])
        for reader in self.readers:
            await reader.read_up_to(last[list(reader.first)[-1]])
            reader.judge(self.published, self.gone)
            await reader.stack.aclose()
        self.readers.clear()
        self.is_over = False
