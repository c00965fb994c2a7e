"""Kills backups under load: `python -m tests.operations.backup_kills --runs 60`.

A broker here rolls, cleans and retains while it is published to. Its backups run in processes of their own, one or two
at a time, and most of them are killed (kill -9) at some moment. Whatever happened, every restore succeeds, and has all
that was acknowledged before the last run began that ended well. In the end single bytes of the backup are changed: a
restore names what is damaged, or is not affected. Exit code 0: all of it was so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

import runnel
from runnel.core.errors import ArchiveDamaged, NoArchive, RunnelError
from runnel.journal.backup.archive_catalog import FolderArchive
from runnel.journal.backup.object_store import ObjectStore, is_store
from runnel.journal.backup.remote_archive import stored_archive
from runnel.journal.backup.restore import Restored, restore
from runnel.journal.check.verify import verify
from tests.operations.object_storage import served

FINE = (0, 3)  # 3: something was missed, and a base was taken


class Outcome(msgspec.Struct):
    """What a trial found."""

    runs: int = 0
    killed: int = 0
    busy: int = 0
    restores: int = 0
    records: int = 0
    damaged: int = 0  # restores that named a changed byte
    wrong: list[str] = []


class Load:
    """Publishes to a topic that keeps everything and to one that does not, and moves a marker with each record."""

    def __init__(self, broker: runnel.Broker) -> None:
        self.acked = 0
        self._broker = broker

    async def run(self) -> None:
        """Until cancelled."""
        short = self._broker.topic("short", retention_count=50)
        while True:
            async with self._broker.transaction() as tx:
                tx.publish("kept", b"%d" % self.acked)
                tx.mark("count", self.acked)
            self.acked += 1
            await short.publish(random.Random(self.acked).randbytes(2000))


async def trial(folder: Path, target: str, runs: int, seed: int) -> Outcome:
    """So many runs of `runnel backup` into `target`, and a judgement after each that was killed."""
    rng, found = random.Random(seed), Outcome()
    options: dict[str, Any] = {"segment_bytes": 1 << 20, "min_free": 0}
    async with runnel.open(folder / "data", share=False, **options) as broker:
        load = Load(broker)
        loading = asyncio.ensure_future(load.run())
        safe = 0  # so many records are in the backup
        for number in range(runs):
            before, several = load.acked, rng.choice((1, 1, 2))
            processes = [await _begin(folder / "data", target, rng) for _ in range(several)]
            if rng.random() < 0.7:
                await asyncio.sleep(rng.uniform(0.1, 0.8))
                for one in processes:
                    with suppress(ProcessLookupError):
                        one.kill()
            for one in processes:
                said = (await one.communicate())[1].decode()
                found.runs += 1
                if one.returncode == -9:
                    found.killed += 1
                elif one.returncode in FINE:
                    safe = max(safe, before)
                elif "archive_busy" in said:
                    found.busy += 1
                else:
                    found.wrong.append(f"run {number} ended with {one.returncode}: {said[-500:]}")
            await _judge(folder, target, safe, found)
        loading.cancel()
        await asyncio.wait([loading])
        if (error := None if loading.cancelled() else loading.exception()) is not None:
            found.wrong.append(f"publishing failed: {error!r}")
    found.records = load.acked
    await asyncio.to_thread(_spoil, folder, target, rng, found)
    return found


async def _begin(data: Path, target: str, rng: random.Random) -> Process:
    said = ["--hold"] if rng.random() < 0.3 else []
    said += ["--new-base"] if rng.random() < 0.2 else []
    command = (sys.executable, "-m", "runnel", "backup", str(data), target, *said)
    return await asyncio.create_subprocess_exec(
        *command, env=dict(os.environ), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )


def restored(target: str, place: Path) -> Restored:
    """Restore all of it."""
    if not is_store(target):
        return restore(FolderArchive(Path(target)), place)
    with stored_archive(target, place) as source:
        return restore(source, place)


async def _judge(folder: Path, target: str, safe: int, found: Outcome) -> None:
    place = folder / "restored"
    try:
        await asyncio.to_thread(restored, target, place)
    except NoArchive:
        if safe:
            found.wrong.append("there is no archive, and a run had ended well")
        return
    except RunnelError as error:
        found.wrong.append(f"a restore failed: {error}")
        return
    found.restores += 1
    try:
        if not (await asyncio.to_thread(verify, place)).whole:
            found.wrong.append("what was restored is not whole")
        values = await contents(place)
        if values != [b"%d" % number for number in range(len(values) - 1)] + [b"the end"]:
            found.wrong.append("what was restored has records out of place")
        if len(values) - 1 < safe:
            found.wrong.append(f"{len(values) - 1} records were restored, and {safe} were safe")
    finally:
        shutil.rmtree(place)


async def contents(place: Path) -> list[bytes]:
    """The records that are kept; the marker says the same."""
    async with runnel.open(place, share=False, min_free=0) as broker:
        count, values = await broker.mark("count"), list[bytes]()
        last = await broker.publish("kept", b"the end")
        async with broker.subscribe("kept", start="earliest") as records:
            async for record in records:
                values.append(record.value)
                if record.offset == last.offset:
                    break
        assert count is None or count == len(values) - 2, f"the marker says {count!r}, and there are {len(values) - 1}"
        return values


def _spoil(folder: Path, target: str, rng: random.Random, found: Outcome) -> None:
    """Change a byte of each file of the backup in turn."""
    for name in _files(target):
        data = _read(target, name)
        at = rng.randrange(len(data))
        _write(target, name, data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        try:
            restored(target, folder / "spoilt")
        except (ArchiveDamaged, RunnelError) as error:
            if not isinstance(error, ArchiveDamaged):
                found.wrong.append(f"byte {at} of {name} was changed: {error!r}")
            found.damaged += 1
            if (folder / "spoilt").exists():
                found.wrong.append(f"byte {at} of {name} was changed: a folder was made")
        else:
            if not verify(folder / "spoilt").whole:
                found.wrong.append(f"byte {at} of {name} was changed: what was restored is not whole")
            shutil.rmtree(folder / "spoilt")
        _write(target, name, data)


def _files(target: str) -> Sequence[str]:
    if not is_store(target):
        return sorted(
            str(one.relative_to(target)) for one in Path(target).rglob("*") if one.is_file() and one.stat().st_size
        )
    store: Any = ObjectStore(target)
    return sorted(one["path"] for page in store._library.list(store._store) for one in page if one["size"])


def _read(target: str, name: str) -> bytes:
    return ObjectStore(target).read(name)[0] if is_store(target) else (Path(target) / name).read_bytes()


def _write(target: str, name: str, data: bytes) -> None:
    if is_store(target):
        store: Any = ObjectStore(target)
        store._library.put(store._store, name, data)
        return
    file = Path(target) / name
    file.unlink()  # it may be a link to a file of the journal
    file.write_bytes(data)


def main() -> int:
    """Run trials on a folder and on object storage, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", action="store_true", help="into object storage, and not into a folder")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if chosen.store:
            os.environ.update(stack.enter_context(served()))
        target = "s3://backups/trial" if chosen.store else f"{folder}/archive"
        found = asyncio.run(trial(Path(folder), target, chosen.runs, chosen.seed))
        left = sorted(one.name for one in Path(folder).iterdir())
    sys.stdout.write(f"{found}\nleft behind: {', '.join(left)}\n")
    return int(bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main())
