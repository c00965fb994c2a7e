"""Servers in a process of their own, so that a client may block while it waits for them.

`python -m benchmarks.matrix.host` reads commands in JSON, a line each, and answers each with a line. One process holds
the servers of all cells, one after the other: to start a process for each would take longer than to measure.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.harness import loop_factory
from benchmarks.processes import running

MANY = 1_000_000


class Served:
    """A server of the host."""

    def __init__(self, host: Host, told: dict[str, Any]) -> None:
        self._host, self._id = host, told["id"]
        self.url: str = told["url"]
        self.ports: dict[str, int] = told["ports"]

    async def fill(self, thing: str, first: int, end: int) -> None:
        """Make things in the broker of the server."""
        await self._host.ask({"do": "fill", "id": self._id, "thing": thing, "first": first, "end": end})


class Host:
    """The process, as its user sees it. It is started when it is first needed."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process that servers run in."""
        assert self._process is not None
        return self._process.pid

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command."""
        if self._process is None:
            self._process = await self._stack.enter_async_context(
                running([sys.executable, "-m", "benchmarks.matrix.host"])
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        if not (line := await self._process.stdout.readline()):
            raise RuntimeError("the process of the servers ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    @asynccontextmanager
    async def served(self, listener: str = "native") -> AsyncIterator[Served]:
        """A new broker in memory, its native listener, and the one that is named."""
        told = await self.ask({"do": "serve", "listener": listener})
        try:
            yield Served(self, told)
        finally:
            await self.ask({"do": "close", "id": told["id"]})


async def _hosting() -> None:
    import runnel
    from benchmarks.matrix.growth import THINGS
    from runnel.server import Server, ServerOptions

    open_ones: dict[int, tuple[AsyncExitStack, Any]] = {}

    async def done(command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "serve":
            stack, listener = AsyncExitStack(), command["listener"]
            options = ServerOptions(
                port=0,
                json_port=0 if listener == "json" else None,
                http_port=0 if listener == "http" else None,
                accept_rate=MANY,
            )
            broker = await stack.enter_async_context(runnel.open())
            server = await stack.enter_async_context(Server(broker, options))
            number = max(open_ones, default=0) + 1
            open_ones[number] = stack, broker
            ports = {one.name: one.port for one in server.listeners}
            return {"id": number, "url": server.listeners[0].url, "ports": ports}
        if command["do"] == "fill":
            await THINGS[command["thing"]].fill(open_ones[command["id"]][1], command["first"], command["end"])
        else:
            await open_ones.pop(command["id"])[0].aclose()
        return {}

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = await done(json.loads(line))
        except Exception as error:  # told to the user, who names the cell that it belongs to
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    for stack, _ in open_ones.values():
        await stack.aclose()


if __name__ == "__main__":
    logging.getLogger("runnel").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_hosting())
