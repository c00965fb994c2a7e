"""Websockets before a server's HTTP listener, or before an application that has the routes mounted. For tests."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

import runnel
from runnel.api.broker import Broker
from runnel.server import ServerOptions, http
from tests.server.http.browser import on_uvicorn, serving
from tests.server.native_client import Raw

PLACES = ("listener", "mounted")


class Page:
    """Speaks JSON, as a script in a page does."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, **command: Any) -> None:
        await self.socket.send(json.dumps(command))

    async def event(self) -> dict[str, Any]:
        """The next event."""
        said = await self.socket.recv()
        assert isinstance(said, str), said
        found = json.loads(said)
        assert isinstance(found, dict)
        return found

    async def events(self, count: int) -> list[dict[str, Any]]:
        return [await self.event() for _ in range(count)]

    async def ask(self, **command: Any) -> dict[str, Any]:
        """A command, and the next event."""
        await self.send(**command)
        return await self.event()

    async def closed(self) -> int:
        """The code that the server closes it with; what else comes is not looked at."""
        try:
            while True:
                await self.socket.recv()
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd is not None else 1006


class _Writer:
    """As much of a stream's writer as `Raw` uses."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._last: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        self._last = asyncio.ensure_future(self._send(data, self._last))

    async def _send(self, data: bytes, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        await self.socket.send(data)

    def close(self) -> None:
        """It is closed in `wait_closed`."""

    async def wait_closed(self) -> None:
        if self._last is not None:
            await asyncio.wait([self._last])
        await self.socket.close()


class NativeSocket(Raw):
    """The client of the native listener, over a websocket."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(asyncio.StreamReader(), cast(asyncio.StreamWriter, _Writer(socket)))
        self.socket = socket
        self.code: int | None = None  # that the server closed it with

    async def _more(self) -> bool:
        try:
            said = await self.socket.recv()
        except ConnectionClosed as error:
            self.code = error.rcvd.code if error.rcvd is not None else 1006
            self.reader.feed_eof()
        else:
            assert isinstance(said, bytes), said
            self.reader.feed_data(said)
        return await super()._more()


class Place:
    """A broker, and where its websockets are."""

    def __init__(self, broker: Broker, url: str) -> None:
        self.broker, self.url = broker, url

    @asynccontextmanager
    async def page(self, **options: Any) -> AsyncIterator[Page]:
        async with connect(self.url, **({"proxy": None} | options)) as socket:
            yield Page(socket)

    @asynccontextmanager
    async def native(self, *, hello: bool = True, **options: Any) -> AsyncIterator[NativeSocket]:
        async with connect(self.url, **({"proxy": None} | options)) as socket:
            native = NativeSocket(socket)
            if hello:
                await native.hello()
            yield native
            await native.close()


@asynccontextmanager
async def mounted(broker: Broker, **options: Any) -> AsyncIterator[str]:
    """The routes below /bus of an application, served by uvicorn; the URL of its websockets."""
    outer = Starlette(routes=[Mount("/bus", http.app(broker, ServerOptions(**options)))])
    async with on_uvicorn(broker, outer) as address:
        yield f"ws://{address}/bus/ws"


@asynccontextmanager
async def place(kind: str, broker: Broker | None = None, **options: Any) -> AsyncIterator[Place]:
    """One of `PLACES`."""
    if kind == "listener":
        async with serving(broker, **options) as server:
            url = next(listener.url for listener in server.listeners if listener.name == "http")
            yield Place(server.broker, f"{url.replace('http', 'ws', 1)}/ws")
    else:
        async with broker or runnel.open() as served:
            assert isinstance(served, Broker)
            async with mounted(served, **options) as url:
                yield Place(served, url)


async def by_hand(url: str, receive_buffer: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A websocket whose frames are made by hand, and that reads nothing by itself."""
    where = urlsplit(url)
    connection = socket.socket()
    connection.setblocking(False)
    if receive_buffer is not None:  # before it connects, or the system has promised more
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(connection, (where.hostname, where.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    lines = [f"GET {where.path} HTTP/1.1", "host: localhost", "connection: upgrade", "upgrade: websocket"]
    lines += ["sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    writer.write("\r\n".join(lines).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


def masked(data: bytes, opcode: int = 1, *, fin: bool = True) -> bytes:
    """A frame of a client, with a mask that changes nothing."""
    head = bytes([opcode | (0x80 if fin else 0)])
    size = len(data)
    if size < 126:
        head += bytes([0x80 | size])
    else:
        head += bytes([0x80 | 126]) + size.to_bytes(2, "big") if size < 1 << 16 else b"\xff" + size.to_bytes(8, "big")
    return head + bytes(4) + data
