"""The socket in a shared folder: made by the owner, found by the others, gone in the end."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import runnel
from runnel import Broker
from runnel.core.errors import FolderUnusable, InvalidOption, NotSupported
from runnel.opening.folder_listener import ELSEWHERE, SOCKET, FolderListener, listener_at, socket_of
from runnel.server import Server, ServerOptions
from runnel.server.unix_socket import MAX_PATH


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Broker]:
    async with runnel.open(tmp_path, share=False) as broker:
        yield broker


async def greeted(path: Path) -> None:
    async with runnel.open(f"runnel+unix://{path}") as broker:
        await broker.publish("t", b"x")


async def test_only_its_user_may_come_in_and_it_goes_with_the_owner(owner: Broker, tmp_path: Path) -> None:
    door = FolderListener(owner.backend, tmp_path)
    door.open()
    mode = (tmp_path / SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert listener_at(str(tmp_path / SOCKET)) is door
    assert "open" in repr(door)
    await door.close()
    assert not (tmp_path / SOCKET).exists()
    assert listener_at(str(tmp_path / SOCKET)) is None
    assert "closed" in repr(door)
    door.shut()


async def test_it_serves_from_the_first_connection_on(owner: Broker, tmp_path: Path) -> None:
    door = FolderListener(owner.backend, tmp_path)
    door.open()
    assert not owner.backend.timeline.keeps_packed, "nothing is kept for clients before there is one"
    await greeted(tmp_path / SOCKET)
    assert "served" in repr(door)
    await greeted(tmp_path / SOCKET)
    await door.close()
    assert not (tmp_path / SOCKET).exists()


async def test_what_a_dead_owner_left_is_replaced_even_if_it_seems_to_listen(owner: Broker, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET))
        left.listen()  # held open by a process that is just being ended
        door = FolderListener(owner.backend, tmp_path)
        door.open()
        await greeted(tmp_path / SOCKET)
        door.shut()


async def test_a_file_that_is_no_socket_is_left_alone(owner: Broker, tmp_path: Path) -> None:
    (tmp_path / SOCKET).write_text("precious")
    with pytest.raises(InvalidOption, match="not a socket"):
        FolderListener(owner.backend, tmp_path).open()
    assert (tmp_path / SOCKET).read_text() == "precious"


async def test_where_no_socket_can_be_made_the_error_says_what_to_do(owner: Broker, tmp_path: Path) -> None:
    with pytest.raises((FolderUnusable, InvalidOption)):
        FolderListener(owner.backend, tmp_path / "nowhere").open()


async def test_a_server_may_take_it_as_one_of_its_listeners(owner: Broker, tmp_path: Path) -> None:
    door = FolderListener(owner.backend, tmp_path)
    door.open()
    async with Server(owner, ServerOptions(port=None, json_port=None)) as server:
        assert server.listeners == []
        door.hand_to(server)
        assert [one.name for one in server.listeners] == ["unix"]
        async with runnel.open(server.listeners[0].url) as client:
            await client.publish("t", b"x")
            assert server.connections == 1
    assert not (tmp_path / SOCKET).exists()
    door.shut()


async def test_a_question_on_the_owners_thread_is_answered_without_waiting(owner: Broker, tmp_path: Path) -> None:
    door = FolderListener(owner.backend, tmp_path)
    door.open()
    with pytest.raises(NotSupported, match="there is no connection"):
        door.answer("statistics", {})
    async with runnel.open(f"runnel+unix://{tmp_path / SOCKET}") as client:
        await client.publish("t", b"x")
        assert door.answer("statistics", {})["topics"]["t"]["end"] == 1
        assert door.is_here()
        assert not await asyncio.to_thread(door.is_here)
        with pytest.raises(InvalidOption, match="no such call"):
            door.answer("dance", {})
        with pytest.raises(NotSupported, match="takes waiting"):
            door.answer("delete", {"topic": "t"})
    door.shut()


@pytest.mark.parametrize("end", ["closed", "killed"])
async def test_a_path_that_is_too_long_for_a_socket_names_one_elsewhere(tmp_path: Path, end: str) -> None:
    folder = tmp_path / ("long" * 20) / ("er" * 20)
    assert len(str(folder / SOCKET)) > MAX_PATH
    async with runnel.open(folder) as owner, runnel.open(folder) as joined:
        where = socket_of(folder)
        assert where.parent != folder
        assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
        await joined.publish("t", b"x")
        if end == "killed":
            left = (folder / ELSEWHERE).read_text()
        await owner.__aexit__(None, None, None)
        assert not where.exists()
        if end == "killed":  # an owner that was killed takes nothing away
            where.parent.mkdir()
            where.touch()
            (folder / ELSEWHERE).write_text(left)
        assert (await joined.publish("t", b"y")).offset == 1
        assert not where.parent.exists()
    assert not (folder / ELSEWHERE).exists()


@pytest.mark.parametrize("connected", [False, True])
async def test_the_child_of_a_fork_has_no_part_in_any_socket(owner: Broker, tmp_path: Path, connected: bool) -> None:
    door = FolderListener(owner.backend, tmp_path)
    door.open()

    def sockets() -> int:
        """How many sockets of the door, listening or accepted, this process holds."""
        path = str(tmp_path / SOCKET)
        kept = [line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(path)]
        links = [os.path.realpath(f"/proc/self/fd/{fd}").rpartition("/")[2] for fd in os.listdir("/proc/self/fd")]
        return sum(link in {f"socket:[{inode}]" for inode in kept} for link in links)

    async with runnel.open(f"runnel+unix://{tmp_path / SOCKET}") if connected else runnel.open():
        assert sockets() == 1 + connected
        child = os.fork()
        if child == 0:
            os._exit(sockets())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
        assert sockets() == 1 + connected
    door.shut()
