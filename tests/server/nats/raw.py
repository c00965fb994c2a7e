"""A NATS listener on a free port, and clients of it that speak the protocol by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import runnel
from runnel.server import Server, ServerOptions


class RawClient:
    """Sends lines, and reads what comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def connect(self, **options: Any) -> dict[str, Any]:
        """Read INFO, and say CONNECT; neither verbose nor pedantic unless that is asked for."""
        line = await self.reader.readline()
        assert line.startswith(b"INFO "), line
        said = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True} | options
        self.send(b"CONNECT " + json.dumps(said).encode())
        found: dict[str, Any] = json.loads(line[5:])
        return found

    def send(self, *lines: bytes) -> None:
        """Send lines."""
        self.writer.write(b"".join(line + b"\r\n" for line in lines))

    async def line(self) -> bytes:
        """The next line; b"" at the end of the connection."""
        with suppress(ConnectionResetError):
            return await self.reader.readline()
        return b""

    async def lines(self, count: int) -> list[bytes]:
        """So many lines."""
        return [await self.line() for _ in range(count)]

    async def lines_before_pong(self) -> list[bytes]:
        """What came before the answer to a PING."""
        self.send(b"PING")
        found: list[bytes] = []
        while (line := await self.line()) != b"PONG\r\n":
            assert line, f"the connection ended after {found}"
            found.append(line)
        return found

    async def rest(self) -> bytes:
        """All up to the end of the connection."""
        found = b""
        with suppress(ConnectionResetError):
            while piece := await self.reader.read(65_536):
                found += piece
        return found


def port_of(server: Server, name: str = "nats") -> int:
    """The port of a listener."""
    return next(one.port for one in server.listeners if one.name == name)


@asynccontextmanager
async def served(broker: runnel.Broker | None = None, **options: Any) -> AsyncIterator[tuple[runnel.Broker, Server]]:
    """A broker, in memory unless one is given, behind a NATS listener."""
    given: dict[str, Any] = {"port": None, "json_port": None, "nats_port": 0} | options
    async with broker or runnel.open() as opened, Server(opened, ServerOptions(**given)) as server:
        yield opened, server


@asynccontextmanager
async def raw(server: Server, **options: Any) -> AsyncIterator[RawClient]:
    """A client; `connected=False`: one that has said nothing yet."""
    connected = options.pop("connected", True)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    client = RawClient(reader, writer)
    try:
        if connected:
            await client.connect(**options)
        yield client
    finally:
        writer.close()
