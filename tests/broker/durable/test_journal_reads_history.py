"""Readers of history wait for their turn; live readers, and those that only fell behind, do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import runnel
from runnel.broker.durable.history_pace import WINDOW, HistoryPace, LiveTraffic
from runnel.broker.durable.journal_reads import ChunkListener, JournalReads
from runnel.journal.read.journal_reader import ReadPlan
from tests.contract.reading import read
from tests.patience import PATIENCE

VALUES = [f"{number:04}".encode() * 25 for number in range(3000)]


async def publish(broker: runnel.Broker) -> None:
    """All values, by several commits: what the newest one wrote stays in memory."""
    for at in range(0, len(VALUES), 300):
        await broker.topic("t").publish_many(VALUES[at : at + 300])


class Closed(HistoryPace):
    """Lets no reader of history read before it is opened."""

    def __init__(self) -> None:
        super().__init__(0.2, LiveTraffic(0, 0, 0), 0.0)
        self.is_open = False
        self.asked = asyncio.Event()
        self.bytes = 0

    def wait(self, traffic: LiveTraffic, now: float) -> float:
        self.asked.set()
        return 0.0 if self.is_open else WINDOW

    def read(self, size: int, now: float) -> None:
        self.bytes += size


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[runnel.Broker, JournalReads, Closed]]:
    """A broker whose records are on disk as soon as they were read, and whose history is closed."""
    async with runnel.open(folder, tail_bytes=1024, scrub_interval=0) as broker:
        store = broker.backend.store
        assert store is not None
        pace = store.reads.pace = Closed()
        yield broker, store.reads, pace


async def test_history_waits_while_live_records_go_on_and_then_comes_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as (broker, _, pace):
        await publish(broker)
        async with broker.subscribe("t", start="earliest") as old, broker.subscribe("t") as live:
            async with asyncio.timeout(PATIENCE):
                history = asyncio.create_task(read(old, len(VALUES)))
                await pace.asked.wait()
                await broker.publish("t", b"now")
                assert [record.value for record in await read(live, 1)] == [b"now"]
                assert not history.done()
                pace.is_open = True
                assert [record.value for record in await history] == VALUES
        assert pace.bytes > len(b"".join(VALUES)) / 2


async def test_a_subscriber_that_fell_behind_is_not_held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as (broker, reads, pace):
        came: list[ReadPlan] = []
        real = reads.read

        def counted(plan: ReadPlan, then: ChunkListener) -> None:
            came.append(plan)
            real(plan, then)

        monkeypatch.setattr(reads, "read", counted)
        for pattern in ("t", ">"):
            came.clear()
            async with broker.subscribe(pattern) as live, asyncio.timeout(PATIENCE):
                await broker.publish("t", b"first")
                await read(live, 1)
                await publish(broker)
                assert [record.value for record in await read(live, len(VALUES))] == VALUES
            assert came  # from disk
        assert not pace.bytes


async def test_what_another_reader_had_read_counts_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as (broker, reads, pace):
        pace.is_open = True
        await publish(broker)
        sizes = []
        for _ in range(2):
            async with broker.subscribe("t", start="earliest") as old, asyncio.timeout(PATIENCE):
                await read(old, len(VALUES))
            sizes.append(pace.bytes)
        assert len(reads.chunk_cache)
        assert sizes[1] >= 2 * sizes[0] > 0


async def test_a_broker_closes_though_history_waits(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        async with opened(tmp_path) as (broker, _, pace):
            await publish(broker)
            old = broker.subscribe("t", start="earliest")
            await old.__aenter__()
            history = asyncio.create_task(read(old, len(VALUES)))
            await pace.asked.wait()
        await asyncio.wait([history])
        history.exception()  # it ended: with the broker, one way or the other
