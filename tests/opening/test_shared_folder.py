"""Several brokers in one folder: the first owns it, the others join it, and a user sees no difference."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker, FolderInUse
from runnel.api.topic import Topic
from runnel.broker.backend import LocalBackend
from runnel.core.errors import InvalidOption, NotSupported, UnknownTopic
from runnel.journal.folder_lock import FolderLock, FolderOwner
from runnel.journal.options import JournalOptions
from runnel.journal.read.inspection import owner_of
from runnel.opening import shared_folder
from runnel.opening.shared_folder import SharedBackend
from runnel.opening.standby import JoinedBackend
from tests.held_time import held_time
from tests.patience import PATIENCE
from tests.server.native_client import until


async def first(broker: Broker, topic: str, count: int = 1) -> list[bytes]:
    """The first values of a topic."""
    values: list[bytes] = []
    async with broker.subscribe(topic, start="earliest") as records:
        async for record in records:
            values.append(record.value)
            if len(values) == count:
                return values
    return values


async def test_the_first_owns_the_folder_and_the_second_goes_through_it(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as owner, runnel.open(tmp_path) as joined:
        assert isinstance(owner, Broker)
        assert isinstance(joined.backend, JoinedBackend)
        assert (await owner.publish("t", b"one")).offset == 0
        assert (await joined.publish("t", b"two")).offset == 1
        assert await first(owner, "t", 2) == await first(joined, "t", 2) == [b"one", b"two"]
    assert not (tmp_path / "socket").exists()


async def test_of_many_who_come_at_once_one_owns_it(tmp_path: Path) -> None:
    brokers = [runnel.open(tmp_path) for _ in range(6)]
    await asyncio.gather(*(broker.__aenter__() for broker in brokers))
    assert sorted(type(broker.backend).__name__ for broker in brokers) == ["JoinedBackend"] * 5 + ["SharedBackend"]
    positions = await asyncio.gather(*(broker.publish("t", b"x") for broker in brokers))
    assert sorted(position.offset for position in positions) == list(range(6))
    for broker in brokers:
        await broker.__aexit__(None, None, None)


async def test_handles_made_before_entering_the_broker_work_with_every_backend(tmp_path: Path) -> None:
    for others in (0, 1):
        broker = runnel.open(tmp_path / "data")
        orders = broker.topic(f"orders{others}", int)
        assert orders.name == f"orders{others}"
        assert repr(orders) == f"<Topic 'orders{others}' of int>"
        got: asyncio.Queue[int] = asyncio.Queue()

        @broker.on(f"orders{others}", start="earliest")
        async def take(order: int, got: asyncio.Queue[int] = got) -> None:
            await got.put(order)

        with pytest.raises(NotSupported, match="async with"):
            await orders.publish(1)
        async with runnel.open(tmp_path / "data") if others else runnel.open():
            async with broker as entered:
                assert entered is broker
                assert isinstance(broker.backend, JoinedBackend) is bool(others)
                assert isinstance(orders, Topic)
                running = asyncio.create_task(broker.run(signals=False))
                await orders.publish(7)
                orders.publish_nowait(8)
                assert [await got.get(), await got.get()] == [7, 8]
                async with broker.transaction() as tx:
                    tx.publish(orders, 9)
                assert await got.get() == 9
                broker.stop()
                await running


async def test_not_shared_it_is_one_brokers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with runnel.open(tmp_path):
        with pytest.raises(FolderInUse) as refused:
            await runnel.open(tmp_path, share=False).__aenter__()
        assert refused.value.pid == os.getpid()
    monkeypatch.setattr(shared_folder, "ALONE", 0.05)
    async with runnel.open(tmp_path, share=False) as alone:
        assert type(alone.backend) is LocalBackend
        assert not (tmp_path / "socket").exists()
        with pytest.raises(FolderInUse):
            await runnel.open(tmp_path).__aenter__()


async def test_one_that_does_not_join_gets_the_name_of_the_owner(tmp_path: Path) -> None:
    async with runnel.open(tmp_path):
        with pytest.raises(FolderInUse, match=str(os.getpid())):
            await SharedBackend(tmp_path, JournalOptions(), joins=False).open()
    async with Broker(SharedBackend(tmp_path, JournalOptions(), joins=False)), runnel.open(tmp_path) as joined:
        await joined.publish("t", b"x")


async def test_an_owner_that_says_it_shares_and_cannot_be_reached_is_an_error_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "PATIENCE", 0.1)
    async with runnel.open(tmp_path):
        (tmp_path / "socket").unlink()
        with pytest.raises(FolderInUse):
            await runnel.open(tmp_path).__aenter__()


async def test_a_waiter_for_a_shared_folder_waits_for_an_exclusive_owner_for_a_moment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    shares = True

    def said(folder: Path) -> FolderOwner:
        seen.append(shares)
        return FolderOwner(None, shares)

    async def looks(count: int) -> None:
        while len(seen) < count:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)

    monkeypatch.setattr(shared_folder, "recorded_owner", said)
    monkeypatch.setattr(shared_folder, "PAUSE", (0.0, 0.0))
    lock = FolderLock(tmp_path, shares=True)
    lock.take()  # and cannot be reached
    with held_time() as later:
        late = runnel.open(tmp_path)
        entering = asyncio.create_task(late.__aenter__())
        await looks(2)
        await later(20 * shared_folder.ALONE)
        await looks(len(seen) + 2)
        shares = False  # a command has it, say
        await looks(len(seen) + 2)
        assert not entering.done()
        lock.release()
        assert await entering is late
    await late.__aexit__(None, None, None)


async def test_one_that_waits_for_the_listener_owns_the_folder_if_its_owner_gives_it_up(tmp_path: Path) -> None:
    owner = await runnel.open(tmp_path).__aenter__()
    (tmp_path / "socket").unlink()
    late = runnel.open(tmp_path)
    entering = asyncio.create_task(late.__aenter__())
    await asyncio.sleep(0.02)
    assert not entering.done()
    owner.close()
    await entering
    try:  # at once, or as the heir of one whom it was about to ask
        assert owner_of(tmp_path) is not None
        assert (await late.publish("t", b"x")).offset == 0
    finally:
        await late.__aexit__(None, None, None)


async def test_when_the_owner_closes_another_takes_over_and_everything_goes_on(tmp_path: Path) -> None:
    owner = await runnel.open(tmp_path).__aenter__()
    async with runnel.open(tmp_path) as heir, runnel.open(tmp_path) as other:
        async with heir.subscribe("t") as here, other.subscribe("t") as there:
            await other.publish("t", b"one")
            publishing = [asyncio.create_task(other.publish("t", f"{n}".encode())) for n in range(50)]
            await owner.__aexit__(None, None, None)
            assert [(await one).offset for one in publishing] == list(range(1, 51))
            await heir.publish("t", b"last")
            for records in (here, there):
                seen = []
                async for record in records:
                    seen.append(record.offset)
                    if record.value == b"last":
                        break
                assert seen == list(range(52))
        assert sorted(["succession" in repr(heir), "succession" in repr(other)]) == [False, True]


async def test_an_owner_that_is_closed_without_a_word_is_followed_too(tmp_path: Path) -> None:
    owner = await runnel.open(tmp_path).__aenter__()
    async with runnel.open(tmp_path) as heir:
        assert (await owner.publish("t", b"one")).offset == 0
        owner.close()
        assert (await heir.publish("t", b"two")).offset == 1
        assert await first(heir, "t", 2) == [b"one", b"two"]


async def test_options_of_a_joining_process_count_once_it_takes_over(tmp_path: Path) -> None:
    owner = await runnel.open(tmp_path).__aenter__()
    async with runnel.open(tmp_path, auto_create=False, fsync="os") as heir:
        await heir.publish("old", b"x")
        await owner.__aexit__(None, None, None)
        assert (await heir.publish("old", b"y")).offset == 1
        with pytest.raises(UnknownTopic):
            await heir.publish("new", b"x")
        assert heir.backend.link.welcome.fsync == "os"


def test_without_asyncio_it_is_shared_as_well(tmp_path: Path) -> None:
    with runnel.blocking.open(tmp_path) as owner, runnel.blocking.open(tmp_path) as joined:
        assert owner.publish("t", b"one").offset == 0
        assert joined.publish("t", b"two").offset == 1
        assert joined.statistics().topics["t"].end == 2


@pytest.mark.parametrize("share", [1, "yes", None])
def test_sharing_is_yes_or_no(share: Any) -> None:
    with pytest.raises(InvalidOption, match="share"):
        runnel.open("data/", share=share)


ALONE = """
import asyncio, sys, runnel
async def main():
    async with runnel.open(sys.argv[1]) as broker:
        await broker.publish("t", b"x")
asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith(("runnel.client", "runnel.server.s"))))
"""


def test_a_program_that_is_alone_loads_neither_client_nor_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout == "[]\n"


FORKS = """
import asyncio, os, sys, time, runnel
async def main():
    async with runnel.open(sys.argv[1]) as broker:
        await broker.publish("t", b"x")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # somebody is connected
        child = os.fork()
        if child == 0:
            try:
                broker.statistics()
                await broker.publish("t", b"by the child")
            except runnel.Forked as error:
                print(error.code, flush=True)
            sys.stdin.readline()  # lives on
            os._exit(0)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def test_a_child_that_outlives_the_owner_does_not_prevent_a_takeover(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    owner = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)  # noqa: ASYNC220
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert await asyncio.to_thread(owner.stdout.readline) == "ready\n"
        async with runnel.open(tmp_path) as heir, asyncio.timeout(PATIENCE):
            assert isinstance(heir.backend, JoinedBackend)
            owner.stdin.write("go\n")
            owner.stdin.flush()
            assert await asyncio.to_thread(owner.stdout.readline) == "forked\n"
            await until(lambda: heir.backend._standby.is_owner)
            assert (await heir.publish("t", b"y")).offset == 1
    finally:
        owner.stdin.close()  # the child ends
        owner.stdout.close()
        owner.wait()


# In a mount namespace of its own: the folder turns read-only under its owner, whose block then raises.
READ_ONLY = """
import asyncio, subprocess, sys
import runnel

async def main(folder):
    async with runnel.open(folder) as broker:
        await broker.publish("t", b"x")
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        raise LookupError("of the user")

try:
    asyncio.run(main(sys.argv[1]))
except LookupError as error:
    print(error, error.__context__)
"""


def test_closing_on_a_read_only_file_system_keeps_the_error_of_the_user(tmp_path: Path) -> None:
    namespace = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    command = [*namespace, sys.executable, "-c", READ_ONLY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "of the user None\n", done.stderr
