"""A server of event streams, as the question about the web drives it: runnel's own, or a peer's.

Above: web, the peers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.processes import TO_START, running


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is, the processes it is made of, and its addresses."""

    port: int
    pids: tuple[int, ...]
    events: str
    publish: str
    many: bool = True  # whether one publish may hold many events, as lines


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Place]:
    """Our own server, on an empty folder, its journal synced before a publish is answered or delivered."""
    doors = ["--port", "off", "--json-port", "off", "--http-port", "0"]
    command = [sys.executable, "-m", "runnel", "serve", "--data", str(folder), *doors, "--json"]
    async with running([*command, "--log-level", "warning"]) as process:
        assert process.stdout is not None
        async with asyncio.timeout(TO_START):
            told = await process.stdout.readline()
        if not told:
            raise RuntimeError("the server ended before it was ready; what it said is above")
        port = msgspec.json.decode(told)["listeners"][0]["port"]
        yield Place(port, (process.pid,), "/events?topic=t", "/topics/t")
