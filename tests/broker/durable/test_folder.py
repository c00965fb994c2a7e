"""Opening a folder: owned by one, let go of in every case, and what is odd about it is said."""

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runnel.api.broker import Broker
from runnel.broker.durable import folder
from runnel.broker.durable.folder import BrokerFolder
from runnel.broker.durable.store import Store
from runnel.core.errors import BrokerClosed, FolderInUse, FolderUnusable, JournalFailed, NotSupported
from runnel.journal.options import JournalOptions
from runnel.journal.write.journal import Journal
from runnel.testing.memory_storage import MemoryStorage
from tests.broker.durable_broker import Disk, commits_of, journal_of, open_on, turns
from tests.patience import PATIENCE


async def test_one_broker_owns_a_folder_until_it_is_closed(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path):
        with pytest.raises(FolderInUse):
            await open_on(Disk(), tmp_path).__aenter__()
    async with open_on(Disk(), tmp_path):
        pass


class Opening:
    """Holds the thread that opens a journal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.opened: list[Journal] = []
        real = Journal.open

        def held(*args: Any) -> Journal:
            self.began.set()
            assert self.go.wait(PATIENCE)
            if error is not None:
                raise error
            self.opened.append(real(*args))
            return self.opened[-1]

        monkeypatch.setattr(Journal, "open", held)

    async def cancelled(self, folder: Path, times: int = 1) -> None:
        """Open, and be cancelled so many times meanwhile."""
        task = asyncio.ensure_future(open_on(Disk(), folder).__aenter__())
        assert await asyncio.to_thread(self.began.wait, PATIENCE)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        if times == 1:
            assert not task.done(), "the thread cannot be stopped, so it is waited for"
            self.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelled_while_opening_it_lets_the_folder_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening(monkeypatch)
    await opening.cancelled(tmp_path)
    assert "closed" in repr(opening.opened[0])
    monkeypatch.undo()
    async with open_on(Disk(), tmp_path):
        pass


async def test_cancelled_once_more_it_lets_the_folder_go_when_the_thread_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Opening(monkeypatch)
    await opening.cancelled(tmp_path, times=2)
    opening.go.set()
    monkeypatch.undo()
    while True:  # until the thread is done, somebody owns it
        try:
            async with open_on(Disk(), tmp_path):
                break
        except FolderInUse:
            await asyncio.sleep(0)
    assert "closed" in repr(opening.opened[0])


async def test_cancelled_while_opening_fails_it_lets_the_folder_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Opening(monkeypatch, JournalFailed("no")).cancelled(tmp_path)
    monkeypatch.undo()
    async with open_on(Disk(), tmp_path):
        pass


async def test_a_folder_that_cannot_be_opened_is_let_go_and_can_be_tried_again(tmp_path: Path) -> None:
    disk, broken = Disk(), Disk()
    broken.fail_next("create", "")
    with pytest.raises((FolderUnusable, JournalFailed)):
        await open_on(broken, tmp_path).__aenter__()
    async with open_on(disk, tmp_path):
        pass


async def test_a_broker_that_is_not_open_yet_says_how_to_open_it(tmp_path: Path) -> None:
    broker = open_on(Disk(), tmp_path)
    with pytest.raises(NotSupported, match="async with"):
        await broker.publish("t", b"x")


async def test_an_unclean_start_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        await broker.publish("t", b"x")
        assert isinstance(disk.inner, MemoryStorage)
        left = disk.inner.after_kill()
    caplog.clear()
    caplog.set_level("INFO", logger="runnel")
    async with open_on(Disk(inner=left), tmp_path) as broker:
        assert broker.statistics().topics["t"].end == 1
        assert not journal_of(broker).report.clean
    assert "was not closed properly: recovered" in caplog.text
    assert "nothing that was synced is missing" in caplog.text
    assert "bytes that were written in part" not in caplog.text
    caplog.clear()
    async with open_on(Disk(inner=left), tmp_path):
        pass
    assert "was not closed" not in caplog.text


async def test_what_recovery_notes_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        journal = journal_of(broker)
        journal.report = msgspec.structs.replace(journal.report, notes=["a checkpoint was damaged"])
        BrokerFolder(tmp_path, JournalOptions()).report(journal)
    assert "a checkpoint was damaged" in caplog.text


@pytest.mark.parametrize("seconds", [0.019, 0.021])
async def test_a_slow_sync_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: float) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        journal = journal_of(broker)
        caplog.clear()
        journal.sync_seconds = seconds
        BrokerFolder(tmp_path, JournalOptions()).report(journal)
    assert ("a sync took 21 ms" in caplog.text) is (seconds > folder.SLOW_SYNC)


async def test_a_long_opening_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([0.0, 2.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks, 100.0))
    caplog.set_level(logging.INFO)
    async with open_on(Disk(), tmp_path):
        pass
    assert "took" in caplog.text


async def test_entering_opens_once(tmp_path: Path) -> None:
    broker: Broker = open_on(Disk(), tmp_path)
    async with broker:
        commits = commits_of(broker)
        await broker.__aenter__()
        assert commits_of(broker) is commits


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_broker_whose_store_could_not_begin_cannot_be_used_and_lets_the_folder_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        await broker.publish("t", b"x")
        async with broker.subscribe("t", group="g"):
            pass
    begin = Store.begin

    def broken(store: Store) -> None:
        if when == "after":
            begin(store)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Store, "begin", broken)
    broker = open_on(disk, tmp_path)
    with pytest.raises(RuntimeError, match="a bug"):
        await broker.__aenter__()
    await turns()
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(BrokerClosed):
            await broker.__aenter__()
        with pytest.raises(BrokerClosed):
            await broker.publish("t", b"in memory only")
    async with open_on(disk, tmp_path) as broker:
        assert broker.statistics().topics["t"].end == 1


async def test_a_broker_that_was_closed_before_it_was_entered_is_not_entered(tmp_path: Path) -> None:
    broker = open_on(Disk(), tmp_path)
    broker.close()
    for _ in range(2):
        with pytest.raises(BrokerClosed):
            await broker.__aenter__()
