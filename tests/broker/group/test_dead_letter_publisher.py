"""Dead letters on their way to their topic, also when the disk has no room for them."""

import asyncio
import os
from pathlib import Path

import pytest

from runnel.api.broker import Broker
from runnel.broker.durable.folder import BrokerFolder
from runnel.broker.group import dead_letter_publisher as subject
from runnel.broker.topic.pending_batch import PendingBatch
from runnel.core.errors import DiskFull, TooLarge
from runnel.journal.options import JournalOptions
from runnel.testing import MemoryStorage
from tests.brokers import local_broker
from tests.patience import PATIENCE

OPTIONS = JournalOptions(segment_bytes=64 * 1024, min_free=0)


def opened(path: Path, storage: MemoryStorage) -> Broker:
    return local_broker(folder=BrokerFolder(path, OPTIONS, storage))


def used(storage: MemoryStorage) -> int:
    return sum(storage.open(name).size() for name in storage.names())


async def fill(broker: Broker) -> None:
    """Publish until there is no room for another record."""
    for size in (4096, 64):
        try:
            while True:
                await broker.publish("filler", os.urandom(size))
        except DiskFull:
            pass


async def letters_of(broker: Broker, count: int) -> list[bytes]:
    async with broker.subscribe("dead-letters.workers", start="earliest") as dead:
        return [(await anext(dead)).value for _ in range(count)]


async def test_a_letter_and_its_settlement_are_there_after_reopening(tmp_path: Path) -> None:
    storage = MemoryStorage()
    async with opened(tmp_path, storage) as broker:
        await broker.publish("jobs", b"bad")
        async with broker.subscribe("jobs", group="workers") as deliveries:
            await (await anext(deliveries)).reject("no")
    async with opened(tmp_path, storage) as broker:
        assert await letters_of(broker, 1) == [b"bad"]
        assert broker.group("workers", "jobs").statistics().lag == 0


async def test_a_letter_that_finds_no_room_waits_and_its_record_is_not_settled_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subject, "RETRY", 0.01)
    storage = MemoryStorage()
    async with opened(tmp_path, storage) as broker:
        for value in (b"bad", b"good"):
            await broker.publish("jobs", value)
        storage.capacity = used(storage)
        await fill(broker)
        async with broker.subscribe("jobs", group="workers") as deliveries:
            await (await anext(deliveries)).reject("no")
            await (await anext(deliveries)).ack(durable=True)
        assert "is kept" in caplog.text
        copy = storage.after_kill()
        copy.capacity = None
        async with opened(tmp_path / "copy", copy) as other:
            assert other.group("workers", "jobs").statistics().lag == 1, "it would be worked on again, not lost"
        storage.capacity = None
        assert await asyncio.wait_for(letters_of(broker, 1), PATIENCE) == [b"bad"]
    async with opened(tmp_path, storage) as broker:
        assert await letters_of(broker, 1) == [b"bad"]
        assert broker.group("workers", "jobs").statistics().lag == 0
        assert (await broker.publish("dead-letters.workers", b"next")).offset == 1, "the letter is there once"


async def test_a_letter_that_is_refused_when_its_commit_is_made_keeps_its_record_unsettled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subject, "RETRY", 0.01)
    refuses, pack = True, PendingBatch.pack

    def refusing(batch: PendingBatch) -> bytes:
        if refuses and batch.log.name == "dead-letters.workers":
            raise TooLarge("a batch in bytes", 2, "MAX_RAW", 1)
        return pack(batch)

    monkeypatch.setattr(PendingBatch, "pack", refusing)
    storage = MemoryStorage()
    async with opened(tmp_path, storage) as broker:
        for value in (b"bad", b"good"):
            await broker.publish("jobs", value)
        async with broker.subscribe("jobs", group="workers") as deliveries:
            bad, good = [await anext(deliveries) for _ in range(2)]
            await bad.reject("no")
            await good.ack(durable=True)
        assert "is kept" in caplog.text
        async with opened(tmp_path / "copy", storage.after_kill()) as other:
            assert other.group("workers", "jobs").statistics().lag == 1, "it would be worked on again, not lost"
        refuses = False
        assert await asyncio.wait_for(letters_of(broker, 1), PATIENCE) == [b"bad"]
    async with opened(tmp_path, storage) as broker:
        assert await letters_of(broker, 1) == [b"bad"]
        assert broker.group("workers", "jobs").statistics().lag == 0
