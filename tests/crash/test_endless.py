"""The power goes, or the process is killed, at every storage call while topics are archived, confirmed and retained.

After each, a broker opens what is left beside the source as it was at that moment: every acknowledged record is read
once, from the source or the journal; what was acknowledged as confirmed is confirmed, and nothing that the source does
not have; what was acknowledged as trimmed does not come back.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import runnel
from runnel import Position
from runnel.broker.durable import cleaner
from runnel.broker.durable.folder import BrokerFolder
from runnel.core.record import Record
from runnel.journal.options import JournalOptions
from runnel.testing import MemoryHistory, power_loss
from runnel.testing.memory_storage import MemoryStorage
from tests.brokers import local_broker
from tests.crash.watching import Watched
from tests.nightly import nightly_beyond
from tests.patience import PATIENCE

TOPICS: dict[str, dict[str, Any]] = {
    "alone": {"retention_until": "archived"},
    "counted": {"retention_until": "archived", "retention_count": 5},
}
FATES = (power_loss.keep_nothing, power_loss.keep_everything, power_loss.keep_names, power_loss.keep_data)


class Promises(NamedTuple):
    """What was acknowledged of each topic, and how much the source had of it, when the power went."""

    published: dict[str, int]
    confirmed: dict[str, int]
    gone: dict[str, int]
    asked: dict[str, int]  # to be trimmed, acknowledged or not
    archived: dict[str, int]


class Life:
    """One life of a broker, looked at before every call of its storage."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder = Random(seed), folder
        self.storage = Watched(256, sector=64)
        self.source = MemoryHistory()
        self.records: dict[str, list[Record[bytes]]] = {name: [] for name in TOPICS}  # that the source has
        self.published, self.confirmed, self.gone, self.asked = (dict.fromkeys(TOPICS, 0) for _ in range(4))
        self.ends: list[tuple[str, MemoryStorage, Promises]] = []

    def look(self) -> None:
        archived = {name: len(records) for name, records in self.records.items()}
        kept = Promises(*map(dict, (self.published, self.confirmed, self.gone, self.asked, archived)))
        call = f"{len(self.storage.trace)} {self.storage.trace[-1:]}"
        if self.random.random() < 0.3:
            self.ends.append((f"killed at {call}", self.storage.after_kill(), kept))
        fate = self.random.choice(FATES)
        self.ends.append((f"{fate.__name__} at {call}", self.storage.after_power_loss(fate), kept))

    async def live(self) -> None:
        async with opened(self.folder, self.storage, self.source) as broker:
            for name, options in TOPICS.items():
                await broker.topic(name, **options).declare()
            self.storage.watch = self.look
            for _ in range(4):
                await self.publish(broker)
                await self.archive(broker)
                await self.confirm(broker)
                await self.trim(broker)
                broker.backend.store.cleaner.wake()
            self.storage.watch = None

    async def publish(self, broker: runnel.Broker) -> None:
        for name in TOPICS:
            for _ in range(6):
                first = self.published[name]
                await broker.topic(name).publish_many([value(offset) for offset in range(first, first + 8)])
                self.published[name] = first + 8

    async def archive(self, broker: runnel.Broker) -> None:
        for name in TOPICS:
            begin = self.records[name][-1].offset + 1 if self.records[name] else 0
            page = await broker.backend.history(name, begin, self.random.randint(20, 48), 1 << 20)
            self.source.add(page.records)
            self.records[name] += page.records

    async def confirm(self, broker: runnel.Broker) -> None:
        places = {name: Position(found[-1].epoch, found[-1].offset + 1) for name, found in self.records.items()}
        await broker.confirm_archived(places)
        self.confirmed = {name: place.offset for name, place in places.items()}

    async def trim(self, broker: runnel.Broker) -> None:
        name = self.random.choice(list(TOPICS))
        self.asked[name] += 5
        await broker.topic(name).trim(self.asked[name])
        self.gone[name] = self.asked[name]


def value(offset: int) -> bytes:
    return b"%d " % offset + bytes(40)


def opened(folder: Path, storage: MemoryStorage, source: MemoryHistory) -> runnel.Broker:
    options = JournalOptions(segment_bytes=4096, min_free=0, tail_bytes=1)
    return local_broker(folder=BrokerFolder(folder, options, storage), history=[source])


async def judge(folder: Path, found: MemoryStorage, kept: Promises, archived: dict[str, list[Record[bytes]]]) -> None:
    source = MemoryHistory(chunk=10)
    for name, records in archived.items():
        source.add(records[: kept.archived[name]])
    async with opened(folder, found, source) as broker:
        for name in TOPICS:
            (floors,) = await broker.floors(name)
            held = await source.bounds(name, floors.epoch)
            assert kept.confirmed[name] <= floors.confirmed <= (0 if held is None else held.end)
            assert kept.gone[name] <= floors.gone <= kept.asked[name]
            assert floors.end >= kept.published[name]
            async with asyncio.timeout(PATIENCE), broker.subscribe(name, start="earliest") as subscription:
                seen: list[Record[bytes]] = [await anext(subscription) for _ in range(floors.end - floors.gone)]
            assert [one.offset for one in seen] == list(range(floors.gone, floors.end))
            assert all(one.value == value(one.offset) and one.gap is None for one in seen)


@pytest.mark.parametrize("seed", nightly_beyond(1, range(10)))
async def test_a_crash_at_any_call_loses_nothing_and_brings_nothing_back(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "SETTLE", 0.001)
    monkeypatch.setattr(cleaner, "REST", 0.0)
    life = Life(tmp_path, seed)
    await life.live()
    assert len(life.ends) > 100
    assert "remove" in {operation for operation, _ in life.storage.trace}, "segments went"
    assert any(kept.confirmed["alone"] for _, _, kept in life.ends)
    for what, found, kept in life.ends:
        try:
            await judge(tmp_path, found, kept, life.records)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {what}: {error!r}, promised {kept}") from error
