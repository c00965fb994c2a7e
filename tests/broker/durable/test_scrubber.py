"""The scrubber's thread: reads slowly, says what is damaged, and is in nobody's way."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.broker.durable import scrubber
from runnel.broker.durable.scrubber import Scrubber
from runnel.journal.check.scrub import Scrub
from runnel.testing.memory_storage import MemoryStorage
from tests.broker.durable_broker import Disk, journal_of, open_on, until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "BYTES_PER_SECOND", 1 << 40)
    monkeypatch.setattr(scrubber, "REST", 0.0)


def scrubber_of(broker: Broker) -> Scrubber:
    assert broker.backend.store is not None
    found: Scrubber = broker.backend.store.scrubber
    return found


async def life(disk: Disk, folder: Path, count: int = 30) -> None:
    """Leave a few sealed segments behind."""
    async with open_on(disk, folder, segment_bytes=4096) as broker:
        for _ in range(count):
            await broker.publish("t", bytes(500))


async def test_damage_is_reported_before_the_first_read_and_shown_in_statistics(
    disk: Disk, tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    await life(disk, tmp_path)
    assert isinstance(disk.inner, MemoryStorage)
    name = "000000000002.seg"
    disk.inner._names[name].content[700] ^= 1
    async with open_on(disk, tmp_path, scrub_interval=1e-6) as broker:
        await until(lambda: scrubber_of(broker).scrub.damage)
        await until(lambda: scrubber_of(broker).scrub.segments > 3)
        journal = broker.statistics().journal
        assert journal is not None
        (told,) = journal.damage
        assert name in told
        assert "runnel log verify" in told
        assert journal.scrubbed_bytes > 4096
        await broker.publish("t", b"goes on")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1, "once, however often it is read"
    assert str(tmp_path) in errors[0].getMessage()


async def test_it_rests_long_enough_that_the_disk_and_the_processor_are_free(disk: Disk, tmp_path: Path) -> None:
    await life(disk, tmp_path)
    async with open_on(disk, tmp_path, scrub_interval=0) as broker:
        journal = journal_of(broker)
        one = Scrubber(journal, "here")
        one.scrub._due = dict.fromkeys(one.scrub._due, 0.0)
        assert one._step() >= 64 / scrubber.BYTES_PER_SECOND
        assert one.scrub.bytes > 0


async def test_without_an_interval_nothing_is_read(disk: Disk, tmp_path: Path, quick: None) -> None:
    await life(disk, tmp_path)
    async with open_on(disk, tmp_path, scrub_interval=0) as broker:
        for _ in range(20):
            await broker.publish("t", b"x")
        assert scrubber_of(broker).scrub.bytes == 0
        assert scrubber_of(broker)._thread is None


async def test_nothing_due_is_looked_for_again_within_the_hour(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        one = Scrubber(journal_of(broker), "here")
        assert one._step() == scrubber.LONGEST


async def test_closing_ends_the_thread_at_once(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        thread = scrubber_of(broker)._thread
        assert thread is not None
        await until(thread.is_alive)
    assert not thread.is_alive()


async def test_a_bug_in_it_costs_nothing_but_the_scrubbing(
    disk: Disk, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Scrub, "step", broken)
    async with open_on(disk, tmp_path, scrub_interval=1e-6) as broker:
        await until(lambda: "the scrubber failed" in caplog.text)
        await broker.publish("t", b"x")
