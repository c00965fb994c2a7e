"""A folder has one owner: one that has lost it acknowledges nothing more, and leaves the files to the next one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import runnel
from runnel import Broker, JournalFailed, NotWritten, OutcomeUnknown
from runnel.journal.folder_lock import LOCK
from tests.broker.durable_broker import journal_of, until
from tests.patience import PATIENCE

# Publishes one record after the other, and prints the offset of each that was acknowledged; then what stopped it.
PUBLISHER = """
import asyncio, sys
import runnel

async def main():
    async with runnel.open(sys.argv[1], share=False) as broker:
        try:
            for number in range(5000):
                position = await broker.publish("orders", f"old {number}")
                print(position.offset, number, flush=True)
            print("stopped by itself")
        except runnel.RunnelError as error:
            print("stopped", type(error).__name__, error, flush=True)

asyncio.run(main())
"""


def removed(lock: Path) -> None:
    lock.unlink()


def replaced(lock: Path) -> None:
    new = lock.with_name("LOCK.new")
    new.touch()
    new.replace(lock)


async def stored(folder: Path) -> dict[int, bytes]:
    async with runnel.open(folder, share=False) as broker:
        end = (await broker.bounds("orders"))[0].end
        async with broker.subscribe("orders", start="earliest", strict=True) as records:
            found: dict[int, bytes] = {}
            while len(found) < end:
                record = await anext(records)
                found[record.offset] = record.value
            return found


@pytest.mark.parametrize("lose", [removed, replaced])
async def test_two_processes_never_both_acknowledge_a_position(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    folder = tmp_path / "data"
    command = [sys.executable, "-c", PUBLISHER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:  # noqa: ASYNC220
        assert first.stdout is not None
        try:
            lines = [first.stdout.readline() for _ in range(20)]
            lose(folder / LOCK)
            async with runnel.open(folder, share=False) as broker:
                told = {(await broker.publish("orders", f"new {n}")).offset: b"new %d" % n for n in range(20)}
                lines += await asyncio.wait_for(asyncio.to_thread(first.stdout.readlines), PATIENCE)
        finally:
            first.kill()
    *acknowledged, last = lines
    assert last.startswith("stopped OutcomeUnknown"), last
    assert "LOCK" in last
    old = {int(offset): f"old {number}".encode() for offset, number in (line.split() for line in acknowledged)}
    assert not old.keys() & told.keys()
    found = await stored(folder)
    assert {offset: found.get(offset) for offset in old | told} == old | told


async def test_an_owner_that_lost_its_folder_leaves_it_as_it_is_when_it_closes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with runnel.open(folder, share=False) as lost:
        await lost.publish("orders", b"first")
        (folder / LOCK).unlink()
        async with runnel.open(folder, share=False) as owner:
            await owner.publish("orders", b"second")
    assert list((await stored(folder)).values()) == [b"first", b"second"]


async def _refused(broker: Broker, names: str) -> None:
    with pytest.raises((OutcomeUnknown, NotWritten, JournalFailed), match=names):  # or an idle look came before
        await broker.publish("orders", b"lost")
    with pytest.raises(JournalFailed, match=names):
        await broker.publish("orders", b"lost")


@pytest.mark.parametrize("fsync", ["commit", "os"])
async def test_nothing_is_acknowledged_into_a_segment_that_was_removed(tmp_path: Path, fsync: str) -> None:
    async with runnel.open(tmp_path, share=False, fsync=fsync) as broker:
        await broker.publish("orders", b"kept")
        (tmp_path / "000000000001.seg").unlink()
        await _refused(broker, r"000000000001\.seg was removed")


async def test_nothing_is_acknowledged_into_a_folder_that_was_removed_or_moved(tmp_path: Path) -> None:
    for lose in (shutil.rmtree, lambda folder: folder.rename(folder.with_name("elsewhere"))):
        async with runnel.open(tmp_path / "data", share=False) as broker:
            await broker.publish("orders", b"kept")
            lose(tmp_path / "data")
            await _refused(broker, "LOCK is gone|was removed")  # a look may come while the files are being removed
        assert not (tmp_path / "data").exists()


async def test_an_idle_owner_notices_at_its_next_look(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with runnel.open(tmp_path, share=False) as broker:
        await broker.publish("orders", b"kept")
        (tmp_path / LOCK).unlink()
        broker.backend.store.disk_monitor.look()
        await asyncio.wait_for(until(lambda: journal_of(broker).failed), PATIENCE)
        with pytest.raises((JournalFailed, NotWritten), match="LOCK is gone"):
            await broker.publish("orders", b"lost")
    assert "LOCK is gone" in caplog.text


async def test_an_owner_may_change_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with runnel.open("data", share=False, segment_bytes=4096, min_free=0) as broker:
        os.chdir("/")
        for _ in range(50):  # over several segments
            await broker.publish("orders", bytes(500))
    assert len(await stored(tmp_path / "data")) == 50


def test_a_new_folder_is_its_users_alone(tmp_path: Path) -> None:
    with runnel.blocking.open(tmp_path / "new" / "data"):
        pass
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700
