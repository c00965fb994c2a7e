"""Backups in object storage: incremental, verified, restored; and what a store does wrong."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.cli.main import main
from runnel.core.errors import ArchiveBusy, ArchiveDamaged, BackupStoreFailed, InvalidOption, NoArchive, NotSupported
from runnel.journal.backup import remote_archive
from runnel.journal.backup.object_store import ObjectStore, is_store
from runnel.journal.backup.remote_archive import back_up, load_catalog, stored_archive
from runnel.journal.backup.restore import Point, Restored, restore
from runnel.journal.storage import OsStorage
from runnel.journal.write import archive_holds
from tests.docs.pages import marked_for
from tests.docs.shell import Block, reader
from tests.journal.folder_contents import held, sequences, time_of
from tests.journal.folders import BEGAN, Owner, fill, publish_numbered
from tests.operations.backup_kills import trial


def restored(url: str, target: Path | None, point: Point | None = None) -> Restored:
    with stored_archive(url, target) as source:
        return restore(source, target, point)


def objects(url: str) -> dict[str, int]:
    """Sizes by name."""
    store: Any = ObjectStore(url)
    return {one["path"]: one["size"] for page in store._library.list(store._store) for one in page}


def records(folder: Path) -> int:
    return len(sequences(folder))


async def test_a_restore_drill_from_object_storage(s3: str, tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data", segment_bytes=1 << 20) as broker:  # it goes on meanwhile
        for part in range(3):
            for number in range(5):
                await broker.publish("orders", f"{part}.{number}".encode() + bytes(300_000), key=str(number))
            async with broker.transaction() as tx:
                tx.mark("imported", part)
            done = back_up(tmp_path / "data", s3)
            assert done.archive == s3
            assert (done.base is not None, done.missed) == (part == 0, None)
        async with broker.subscribe("orders", group="billing") as deliveries:
            async for delivery in deliveries:
                await delivery.ack(durable=True)
                break
        back_up(tmp_path / "data", s3)
    made = restored(s3, tmp_path / "restored")
    assert made.source == load_catalog(ObjectStore(s3))[0].journal
    async with runnel.open(tmp_path / "restored") as again:
        async with again.subscribe("orders", start="earliest") as subscription:
            found = [(await anext(subscription)).value[:3].decode() for _ in range(15)]
        assert found == [f"{part}.{number}" for part in range(3) for number in range(5)]
        assert await again.mark("imported") == 2
        async with again.subscribe("orders", group="billing") as deliveries:
            assert (await anext(aiter(deliveries))).value[:3] == b"0.1", "the first one was acknowledged"
        await again.publish("orders", b"next")


def test_each_run_writes_what_is_new_and_a_growing_segment_is_one_object(s3: str, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20)
        back_up(tmp_path / "data", s3)
        first = objects(s3)
        publish_numbered(owner, 20, 40)
        written: list[str] = []
        write = ObjectStore.write

        def noted(self: ObjectStore, name: str, *more: Any) -> None:
            written.append(name)
            write(self, name, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ObjectStore, "write", noted)
            done = back_up(tmp_path / "data", s3)
        second = objects(s3)
    growing = [name for name in second if name[-1].isdigit()]
    assert len(growing) == 1, "the shorter one of the run before is gone"
    assert {name for name in first if not name[-1].isdigit()} <= set(second)
    assert set(written) == set(second) - set(first), "no segment is written twice"
    assert len(done.segments) >= 1
    assert restored(s3, tmp_path / "restored").entries
    assert records(tmp_path / "restored") == 120


def test_any_point_in_time_is_restored_and_a_dry_run_leaves_nothing_behind(s3: str, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        back_up(tmp_path / "data", s3, now=BEGAN)
        publish_numbered(owner, 0, 60)
    back_up(tmp_path / "data", s3, now=time_of(60))
    restored(s3, tmp_path / "restored", Point(time=time_of(10)))
    assert records(tmp_path / "restored") == 33
    before = set(tmp_path.iterdir())
    assert restored(s3, None).dry_run
    assert set(tmp_path.iterdir()) == before


def test_what_is_damaged_or_gone_is_named_and_nothing_is_made(s3: str, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    back_up(tmp_path / "data", s3)
    store: Any = ObjectStore(s3)
    name = next(name for name in sorted(objects(s3)) if name.endswith(".seg"))
    data = bytearray(store.read(name)[0])
    data[len(data) // 2] ^= 1
    store._library.put(store._store, name, bytes(data))
    with pytest.raises(ArchiveDamaged, match=name):
        restored(s3, tmp_path / "restored")
    store.delete(name)
    with pytest.raises(ArchiveDamaged, match=f"{name} is damaged at 0: it is missing"):
        restored(s3, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    with pytest.raises(NoArchive):
        restored(f"{s3}/elsewhere", tmp_path / "restored")


@pytest.mark.parametrize("fault", ["changed", "shorter"])
def test_a_store_that_keeps_other_bytes_than_it_was_given_is_caught(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    fill(tmp_path / "data")
    stream = ObjectStore.stream

    def wrong(self: ObjectStore, name: str) -> Any:
        pieces = b"".join(stream(self, name))
        yield pieces[:-1] + (bytes([pieces[-1] ^ 1]) if fault == "changed" else b"")

    monkeypatch.setattr(ObjectStore, "stream", wrong)
    with pytest.raises(BackupStoreFailed, match="written to it"):
        back_up(tmp_path / "data", s3)
    assert "CATALOG" not in objects(s3), "nothing counts that was not read back"


def test_a_run_that_another_one_overtook_changes_nothing(s3: str, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 10)
        back_up(tmp_path / "data", s3)
        publish_numbered(owner, 10, 12)
        overtaken = False
        fetch = remote_archive._Upload.fetch

        def slowly(self: Any) -> None:
            nonlocal overtaken
            fetch(self)
            if not overtaken:
                overtaken = True
                publish_numbered(owner, 12, 14)
                back_up(tmp_path / "data", s3)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remote_archive._Upload, "fetch", slowly)
            with pytest.raises(ArchiveBusy):
                back_up(tmp_path / "data", s3)
        restored(s3, tmp_path / "restored")
        assert records(tmp_path / "restored") == 42
        publish_numbered(owner, 14, 16)
        back_up(tmp_path / "data", s3)
    restored(s3, tmp_path / "again")
    assert records(tmp_path / "again") == 48


KILLED = """
import os, sys
from runnel.journal.backup import remote_archive
from runnel.journal.backup.object_store import ObjectStore
write, left = ObjectStore.write, [int(sys.argv[3])]
def dying(self, *args):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    return write(self, *args)
ObjectStore.write = dying
remote_archive.back_up(sys.argv[1], sys.argv[2])
"""


def test_a_run_that_is_killed_leaves_the_backup_as_it_was(s3: str, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 10)
        back_up(tmp_path / "data", s3)
        publish_numbered(owner, 10, 40)
        code = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "data", s3, "2"], check=False).returncode
        assert code == -9
        restored(s3, tmp_path / "restored")
        assert records(tmp_path / "restored") == 30
        back_up(tmp_path / "data", s3)
    restored(s3, tmp_path / "again")
    assert records(tmp_path / "again") == 120


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["folder", "store"])
async def test_backups_are_killed_under_load_again_and_again(s3: str, tmp_path: Path, where: str) -> None:
    found = await trial(tmp_path, s3 if where == "store" else str(tmp_path / "archive"), 50, 1)
    assert not found.wrong, found
    assert found.killed > 5


def test_what_a_killed_run_left_goes_with_the_next_and_a_running_one_keeps_its_own(s3: str, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    left, running, just_made = (tmp_path / f"{remote_archive.MARK}{name}" for name in ("left", "running", "made"))
    for one in (left, running, just_made):
        one.mkdir()
        os.utime(one, (0, 0) if one is not just_made else None)
    lock = os.open(running, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    back_up(tmp_path / "data", s3)
    assert set(tmp_path.iterdir()) == {tmp_path / "data", running, just_made}
    os.close(lock)
    restored(s3, tmp_path / "restored")
    assert set(tmp_path.iterdir()) == {tmp_path / "data", tmp_path / "restored", just_made}


def test_a_restore_goes_on_with_the_run_that_came_between(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 1)
        back_up(tmp_path / "data", s3)
        load, runs = remote_archive.load_catalog, iter((True,))

        def and_then_another_run(store: ObjectStore) -> Any:
            found = load(store)
            if next(runs, False):
                publish_numbered(owner, 1, 2)
                back_up(tmp_path / "data", s3)
            return found

        monkeypatch.setattr(remote_archive, "load_catalog", and_then_another_run)
        restored(s3, tmp_path / "restored")
        assert records(tmp_path / "restored") == 6


def test_two_first_runs_of_one_second_do_not_mix_their_bases(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.journal.backup.archive._ArchiveRun._new_name", lambda self: "20260501T120000Z")
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 10)
        write, runs = ObjectStore.write, iter((True,))

        def and_another_run(self: ObjectStore, name: str, *more: Any) -> None:
            if next(runs, False):
                publish_numbered(owner, 10, 40)
                with pytest.raises(ArchiveBusy):
                    back_up(tmp_path / "data", s3)
            write(self, name, *more)

        monkeypatch.setattr(ObjectStore, "write", and_another_run)
        back_up(tmp_path / "data", s3)
    restored(s3, tmp_path / "restored")
    assert records(tmp_path / "restored") == 30


def test_what_is_not_in_the_store_stays_in_the_folder_with_hold(s3: str, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    back_up(tmp_path / "data", s3, hold=True)
    assert [one.place for one in archive_holds.load(OsStorage(tmp_path / "data"))] == [s3]
    assert [one.place for one in remote_archive.release(tmp_path / "data", s3)] == [s3]


def test_the_commands_take_an_address_and_show_no_secret(
    s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "data")
    data, target = str(tmp_path / "data"), str(tmp_path / "restored")
    assert main(["backup", data, s3]) == 0
    assert main(["restore", s3, "--list"]) == 0
    assert main(["restore", s3, "--dry-run"]) == 0
    assert main(["restore", s3, target]) == 0
    assert held(tmp_path / "restored") == held(tmp_path / "data")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("runnel.journal.backup.object_store.RETRIES", 0)
    assert main(["backup", data, s3]) == 1
    said = capsys.readouterr()
    assert "(backup_store_failed)" in said.err
    assert "not-to-be-shown" not in said.out + said.err


def test_an_address_holds_no_credentials_and_needs_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption) as refused:
        ObjectStore("s3://key:secret@bucket/x")
    assert "secret" not in str(refused.value)
    assert not is_store("backups/s3")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NotSupported, match="pip install"):
        ObjectStore("s3://bucket/x")


def test_the_block_of_the_page_runs(s3: str, tmp_path: Path) -> None:
    with reader(tmp_path) as shell:
        shell.names = {"s3://backups/orders": s3, "AWS_REGION=eu-central-1": "AWS_REGION=us-east-1"}
        (block,) = marked_for(__file__)["back-up-and-restore"]
        assert isinstance(block, Block)
        shell.run("runnel backup /srv/app/data s3://backups/orders")
        shell.names["2026-05-01T12:00"] = datetime.now(UTC).isoformat()
        with runnel.blocking.open(tmp_path / "data") as broker:
            broker.publish("orders", "after that moment")
        shell.run_block(block)
    assert records(tmp_path / "restored") == 3
