"""A JSON listener on a free port, and clients of it with real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import runnel
from runnel.server.json_lines.listener import JsonLinesListener
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker


class Client:
    """Speaks lines, and reads events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._rest = b""

    def send(self, *lines: dict[str, Any] | bytes) -> None:
        """Send commands; bytes as they are."""
        self.writer.write(
            b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines)
        )

    async def event(self) -> dict[str, Any]:
        """The next line."""
        line = await self.reader.readline()
        assert line.endswith(b"\n"), f"the connection ended: {line!r}"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    async def long_event(self) -> dict[str, Any]:
        """The next line, however long it is."""
        line = b""
        while not line.endswith(b"\n"):
            piece = await self.reader.read(65_536) if not self._rest else self._rest
            assert piece, "the connection ended"
            head, end, self._rest = piece.partition(b"\n")
            line += head + end
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    async def events(self, count: int) -> list[dict[str, Any]]:
        """So many lines."""
        return [await self.event() for _ in range(count)]

    async def ask(self, **command: Any) -> dict[str, Any]:
        """A command, and the next line."""
        self.send(command)
        return await self.event()

    async def rest(self) -> list[dict[str, Any]]:
        """All lines up to the end of the connection."""
        return [json.loads(line) for line in (await self.reader.read()).splitlines()]

    def close(self) -> None:
        """Go, as a program does that ends."""
        self.writer.close()

    def vanish(self) -> None:
        """Go without a word."""
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Go, and wait until that is done."""
        self.vanish()
        with suppress(OSError):
            await self.writer.wait_closed()


class Place:
    """A broker with a JSON listener."""

    def __init__(self, served: ServedBroker, port: int, stack: AsyncExitStack) -> None:
        self.broker, self.connections, self.memory = served.broker, served.connections, served.memory
        self.port, self._stack = port, stack

    async def client(self, **options: Any) -> Client:
        """A new connection."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, **options))
        self.adopt(client)
        return client

    def adopt(self, client: Client) -> None:
        """Have a client gone at the end."""
        self._stack.push_async_callback(client.gone)

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Return when what a connection says of itself is so."""
        # Nobody tells when a socket has taken something.
        while not any(map(condition, self.connections.describe())):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def json_listener(broker: runnel.Broker | None = None, **options: Any) -> AsyncIterator[Place]:
    """A listener on `broker`, or on a new one in memory."""
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(runnel.open()) if broker is None else broker
        served = ServedBroker(ours, ServerOptions(**options))
        connections = served.connections
        factory = partial(JsonLinesListener, served)
        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        try:
            yield Place(served, server.sockets[0].getsockname()[1], stack)
        finally:
            server.close()
            connections.abort()
            await connections.emptied()
            await asyncio.sleep(0)
