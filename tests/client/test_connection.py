"""One connection to one server."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from runnel.client.address import parse_url
from runnel.client.connection import connect
from runnel.client.options import ClientOptions
from runnel.core.errors import ConnectionLost, ProtocolError, Unreachable, WrongListener
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import Welcome, encode_message
from tests.client.scripted_server import Peer, a_peer
from tests.server.certificates import Authority


def nothing(*_: Any) -> None:
    pass


def dialing(peer: Peer, **options: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(connect(parse_url(peer.url).addresses[0], ClientOptions.of(options), nothing))


async def test_frames_come_whole_and_in_order(peer: Peer) -> None:
    seen: list[tuple[int, int, bytes]] = []
    address = parse_url(peer.url).addresses[0]
    task = asyncio.create_task(
        connect(address, ClientOptions(), lambda kind, flags, extra, id, payload: seen.append((kind, id, payload)))
    )
    caller = await peer.accept(max_frame=1 << 21)
    connection = await task
    large = bytes(1 << 20)
    caller.send(
        frame(FrameKind.REPLY, 1, b"a") + frame(FrameKind.REPLY, 2, large) + frame(FrameKind.GOODBYE, 0, b"\x80")
    )
    caller.close()
    error = await connection.over
    assert seen == [(FrameKind.REPLY, 1, b"a"), (FrameKind.REPLY, 2, large), (FrameKind.GOODBYE, 0, b"\x80")]
    assert isinstance(error, ConnectionLost)
    assert connection.why == "the server closed it"


async def test_a_server_of_another_version_is_refused(peer: Peer) -> None:
    task = dialing(peer)
    caller = await peer.meet()
    await caller.next()
    caller.send(frame(FrameKind.WELCOME, 0, encode_message(Welcome(version=2))))
    with pytest.raises(ProtocolError, match="version 2"):
        await task


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP listener at runnel://.* connect to the native one"),
        (b'{"event":"error","code":"protocol_error"}\n', "the JSON lines listener at .* port 7788"),
        (
            b'{"event":"error","code":"wrong_listener","message":"this is x; the native listener is at runnel://h:1"}\n',
            "the JSON lines listener at .*; the native listener is at runnel://h:1",
        ),
        (b'INFO {"server_id":"x"}\r\n', "a NATS listener at .* nats:// address"),
    ],
)
async def test_a_listener_of_another_protocol_is_named(peer: Peer, greeting: bytes, said: str) -> None:
    task = dialing(peer)
    caller = await peer.meet()
    caller.send(greeting)
    with pytest.raises(WrongListener, match=said):
        await task


async def test_something_unknown_on_that_port_is_refused(peer: Peer) -> None:
    task = dialing(peer)
    caller = await peer.meet()
    caller.send(b"SSH-2.0-OpenSSH_9.2\r\n")
    with pytest.raises(ProtocolError):
        await task


async def test_a_server_that_does_not_greet_first_is_refused(peer: Peer) -> None:
    task = dialing(peer)
    caller = await peer.meet()
    caller.send(frame(FrameKind.PING, 0))
    with pytest.raises(ProtocolError, match="PING instead of WELCOME"):
        await task


async def test_a_server_that_hangs_up_is_unreachable(peer: Peer) -> None:
    task = dialing(peer)
    caller = await peer.meet()
    caller.close()
    with pytest.raises(Unreachable, match=r"before the server greeted.* use runnels:"):
        await task


async def test_a_host_that_there_is_not_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"runnel://nowhere\.invalid:7788"):
        await connect(parse_url("runnel://nowhere.invalid").addresses[0], ClientOptions(), nothing)


async def test_a_unix_socket_is_as_good(tmp_path: Path) -> None:
    async with a_peer(path=tmp_path / "s") as peer:
        task = dialing(peer)
        await peer.accept()
        connection = await task
        connection.close()
        await connection.over
        assert connection.welcome.server == "a peer"


async def test_a_slow_server_stops_the_writing(peer: Peer) -> None:
    task = dialing(peer)
    await peer.accept()
    connection = await task
    woken = asyncio.Event()
    connection.on_writable = woken.set
    while connection.is_writable:
        connection.write([bytes(1 << 20)])
        await asyncio.sleep(0)
    assert not woken.is_set()
    connection.fail(ConnectionLost("a", "enough"))
    assert str(await connection.over).startswith("the connection to a was lost: enough")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def server_context(authority: Authority, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue(name))
    return context


async def test_tls_asks_who_the_server_is(authority: Authority) -> None:
    async with a_peer(tls=server_context(authority, "localhost")) as peer:
        with pytest.raises(Unreachable, match="not trusted"):
            await dialing(peer)
        task = dialing(peer, ca=authority.cert, server_hostname="localhost")
        await peer.accept()
        (await task).close()
        with pytest.raises(Unreachable, match="not trusted"):
            await dialing(peer, ca=authority.cert, server_hostname="elsewhere.example")
        task = dialing(peer, verify=False)
        await peer.accept()
        (await task).close()
