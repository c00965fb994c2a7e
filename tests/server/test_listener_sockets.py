"""The sockets of a server: all listeners open or none, and connections end in time."""

import asyncio
import socket
from pathlib import Path

import pytest

from runnel.core.errors import AddressInUse
from runnel.server.connections import Connections
from runnel.server.listener import ServerSockets
from runnel.server.options import ServerOptions
from runnel.server.unix_socket import UnixSocket
from tests.server.native_client import until


class Guest(asyncio.Protocol):
    """Stays until it is thrown out; `polite`: until it is asked to leave."""

    def __init__(self, connections: Connections, *, polite: bool) -> None:
        self.connections, self.polite, self.said = connections, polite, ""
        self.peer_address = "127.0.0.1"
        self.raw_socket = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.remove(self)

    def describe(self) -> dict[str, object]:
        return {}

    def drain(self, reason: str, retry: float | None) -> None:
        self.said = reason
        if self.polite:
            self.transport.close()

    def abort(self) -> None:
        self.transport.close()


def entrance(polite: bool = True, **options: object) -> tuple[ServerSockets, Connections, list[Guest]]:
    connections, guests = Connections(10), []

    def made() -> Guest:
        guests.append(Guest(connections, polite=polite))
        return guests[-1]

    given = ServerOptions(**{"port": 0, "json_port": None} | options)  # type: ignore[arg-type]
    return ServerSockets(given, connections, made, made), connections, guests


async def test_it_opens_the_listeners_that_are_configured(tmp_path: Path) -> None:
    way_in, _, _ = entrance(port=None, json_port=0, unix=tmp_path / "s")
    await way_in.open()
    assert [listener.name for listener in way_in.listeners] == ["unix", "json"]
    assert len(way_in.sockets) == 2
    way_in.stop()
    assert way_in.sockets == []
    assert not (tmp_path / "s").exists()


async def test_one_listener_that_cannot_be_opened_leaves_none_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        way_in, _, _ = entrance(unix=tmp_path / "s", json_port=taken.getsockname()[1])
        with pytest.raises(AddressInUse):
            await way_in.open()
    assert way_in.sockets == []
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("polite", [True, False])
async def test_everybody_is_asked_to_leave_and_thrown_out_at_the_deadline(polite: bool) -> None:
    way_in, connections, guests = entrance(polite)
    await way_in.open()
    _, writer = await asyncio.open_connection("127.0.0.1", way_in.listeners[0].port)
    await until(lambda: len(connections))
    await way_in.close(0.05, "it is late", None)
    assert (len(connections), guests[0].said) == (0, "it is late")
    writer.close()


async def test_a_second_call_throws_them_out_at_once() -> None:
    way_in, connections, _ = entrance(polite=False)
    await way_in.open()
    _, writer = await asyncio.open_connection("127.0.0.1", way_in.listeners[0].port)
    await until(lambda: len(connections))
    first = asyncio.ensure_future(way_in.close(3600.0, "slowly", None))
    await asyncio.sleep(0)
    await way_in.close(3600.0, "now", None)
    await first
    writer.close()


async def test_a_socket_that_listens_already_is_one_more_listener(tmp_path: Path) -> None:
    way_in, connections, _ = entrance(port=None)
    await way_in.open()
    way_in.adopt(UnixSocket(tmp_path / "s", 10))
    _, writer = await asyncio.open_unix_connection(way_in.listeners[0].host)
    await until(lambda: len(connections))
    way_in.abort()
    await connections.emptied()
    assert connections.draining
    assert not (tmp_path / "s").exists()
    writer.close()
