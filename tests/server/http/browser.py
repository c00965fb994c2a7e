"""A server's HTTP listener and a browser before it, for tests: the browser reads events as the standard says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from runnel.api.broker import Broker
from runnel.server import http
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.brokers import local_broker
from tests.patience import PATIENCE


@asynccontextmanager
async def serving(broker: Broker | None = None, **options: Any) -> AsyncIterator[Server]:
    """A server with an HTTP listener alone, of a broker in memory if none is given."""
    given: dict[str, Any] = {"port": None, "json_port": None, "http_port": 0} | options
    async with broker or local_broker() as served, Server(served, ServerOptions(**given)) as server:
        yield server


@asynccontextmanager
async def web(broker: Broker | None = None, **options: Any) -> AsyncIterator[tuple[Broker, httpx.AsyncClient]]:
    """The broker behind an HTTP listener, and a client of the listener."""
    async with serving(broker, **options) as server:
        async with httpx.AsyncClient(base_url=server.listeners[0].url, timeout=PATIENCE) as client:
            yield server.broker, client


@asynccontextmanager
async def on_uvicorn(broker: Broker, application: ASGIApp) -> AsyncIterator[str]:
    """An application over the broker, served by uvicorn itself; its host and port.

    Without `Server.serve`, which checks ten times a second whether it should end.
    """
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="critical", lifespan="off"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        broker.close()  # which ends the streams
        await server.shutdown()


@asynccontextmanager
async def mounted(broker: Broker, **options: Any) -> AsyncIterator[str]:
    """The same routes as an application on uvicorn; their URL."""
    async with on_uvicorn(broker, http.app(broker, ServerOptions(**options))) as address:
        yield f"http://{address}"


async def raw(server: Server, request: bytes) -> bytes:
    """All that is answered to these bytes, until the server closes."""
    reader, writer = await asyncio.open_connection(server.listeners[0].host, server.listeners[0].port)
    writer.write(request)
    try:
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


class Browser:
    """Reads an event stream, loses it, and comes back with the last id."""

    def __init__(self, url: str, query: str) -> None:
        self.url, self.query = f"{url}/events?{query}", query
        self.last_id = ""
        self.records: list[dict[str, Any]] = []
        self.gaps: list[dict[str, Any]] = []
        self.readies: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []
        self.retries: list[int] = []
        self.comments = 0
        self.headers: httpx.Headers = httpx.Headers()

    @property
    def payloads(self) -> list[str]:
        return [record["value"] for record in self.records]

    async def read(self, enough: Callable[[Browser], object], most: int | None = None) -> bool:
        """Read until that is enough, or `most` bytes have come, or the server ends it; whether the server did."""
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        timeout = httpx.Timeout(10, read=None)
        async with asyncio.timeout(PATIENCE), httpx.AsyncClient(timeout=timeout) as client:
            async with client.stream("GET", self.url, headers=headers) as response:
                assert response.status_code == 200, await response.aread()
                self.headers = response.headers
                buffer, seen = b"", 0
                async for chunk in response.aiter_raw():
                    chunk = chunk if most is None else chunk[: max(0, most - seen)]
                    seen += len(chunk)
                    *blocks, buffer = (buffer + chunk).split(b"\n\n")
                    for block in blocks:
                        self._dispatch(block)
                        if enough(self):
                            return False
                    if most is not None and seen >= most:
                        return False
        return True

    def _dispatch(self, block: bytes) -> None:
        name, data = "message", ""
        for line in block.decode().split("\n"):
            field, _, value = line.partition(": ")
            if not field or line.startswith(":"):
                self.comments += 1
            elif field == "id":
                assert value.isascii(), value
                self.last_id = value
            elif field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "retry":
                self.retries.append(int(value))
        if data:
            into = {"message": self.records, "gap": self.gaps, "ready": self.readies, "end": self.ends}[name]
            into.append(json.loads(data))
