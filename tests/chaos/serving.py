"""A server in a process of its own, and crowds in theirs: started, asked, stopped, and ended whatever happens.

Below: crowd. Above: frozen, rush, browsers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[Process]:
    # A process that is killed has nothing to say about coverage, and is slower for being measured.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}
    command = (sys.executable, "-m", *arguments)
    made = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env, stdin=PIPE, stdout=PIPE, stderr=None)
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()
        assert made.stdin is not None
        made.stdin.close()


class Serving:
    """A server, and how much memory it takes."""

    def __init__(self, process: Process, port: int) -> None:
        self._process, self.port = process, port
        self.url = f"runnel://127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    async def stop(self) -> None:
        """Ask it to end, and wait until it has. Leaving its block kills it."""
        self._process.terminate()
        async with asyncio.timeout(PATIENCE):
            await self._process.wait()

    @property
    def memory(self) -> int:
        """The bytes of memory that it has for itself; 0 on a system that does not say."""
        told = Path(f"/proc/{self._process.pid}/smaps_rollup")
        lines = told.read_text().splitlines() if told.exists() else ()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:")), 0)


@asynccontextmanager
async def serving(folder: Path, *options: str) -> AsyncIterator[Serving]:
    """A server on a folder, at any free port."""
    where = ("--data", str(folder), "--port", "0", "--json-port", "off", "--http-port", "off")
    said_how = ("--json", "--log-level", "error")
    async with _process("runnel", "serve", *where, *said_how, *options) as process:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            said = json.loads(await process.stdout.readline())
        yield Serving(process, next(int(door["port"]) for door in said["listeners"] if door["name"] == "native"))


@asynccontextmanager
async def web_serving(folder: Path, port: int = 0, *options: str) -> AsyncIterator[Serving]:
    """A server on a folder with an HTTP door alone, at any free port if none is given."""
    where = ("--data", str(folder), "--port", "off", "--json-port", "off", "--http-port", str(port))
    async with _process("runnel", "serve", *where, "--json", "--log-level", "error", *options) as process:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            said = json.loads(await process.stdout.readline())
        yield Serving(process, int(said["listeners"][0]["port"]))


class Many:
    """A process that is many clients."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def ask(self, command: str) -> dict[str, Any]:
        """Have something done; what came of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command.encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, f"the crowd ended at {command!r}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def freeze(self) -> None:
        """It does nothing any more, and all its connections stay."""
        self._process.send_signal(signal.SIGSTOP)


@asynccontextmanager
async def crowds(port: int, *counts: int, **options: int | str) -> AsyncIterator[list[Many]]:
    """Processes that are so many clients each."""
    said = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    async with AsyncExitStack() as stack:
        made = []
        for count in counts:
            process = await stack.enter_async_context(_process("tests.chaos.crowd", str(port), str(count), *said))
            made.append(Many(process))
        yield made


def share(count: int) -> tuple[int, int]:
    """So many clients, over two processes."""
    return count // 2, count - count // 2
