"""`broker.sync()`: what was published before is on disk, whatever `fsync` says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import runnel
from runnel.core.errors import BrokerClosed, JournalFailed
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.broker.durable_broker import Disk, journal_of, open_on


@pytest.mark.parametrize("fsync", ["commit", "interval", "os"])
async def test_what_was_published_before_is_synced(tmp_path: Path, fsync: str) -> None:
    async with open_on(Disk(), tmp_path / "a", fsync=fsync, fsync_interval=1000.0) as broker:
        before = journal_of(broker).syncs
        await broker.publish("t", b"1")
        broker.topic("t").publish_nowait(b"2")
        await broker.sync()
        assert journal_of(broker).syncs > before
        assert journal_of(broker)._unsynced == 0


async def test_a_journal_that_fails_to_sync_says_so(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path / "a", fsync="os") as broker:
        await broker.publish("t", b"1")
        disk.fail_next("sync")
        for _ in range(2):
            with pytest.raises(JournalFailed):
                await broker.sync()


async def test_a_task_that_stops_waiting_leaves_the_journal_as_it_is(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path / "a", fsync="os") as broker:
        await broker.publish("t", b"1")
        disk.hold("sync")
        waiting = asyncio.create_task(broker.sync())
        await disk.reached()
        waiting.cancel()
        disk.go_on()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await broker.publish("t", b"2")
        await broker.sync()
        assert journal_of(broker)._unsynced == 0


async def test_without_a_disk_there_is_nothing_to_wait_for_and_a_closed_broker_refuses() -> None:
    async with runnel.open() as broker:
        await broker.publish("t", b"1")
        await broker.sync()
    with pytest.raises(BrokerClosed):
        await broker.sync()


async def test_a_server_syncs_for_its_clients(tmp_path: Path) -> None:
    options = ServerOptions(port=0, json_port=None, http_port=None)
    async with runnel.open(tmp_path, fsync="os") as served, Server(served, options) as server:
        async with runnel.open(server.listeners[0].url) as broker:
            await broker.publish("t", b"1")
            before = journal_of(served).syncs
            await broker.sync()
            assert journal_of(served).syncs > before
