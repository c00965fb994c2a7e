"""Processes of a measurement: servers that run meanwhile, and workers that are told when to begin.

A worker is `python -m benchmarks.worker PLAN`. It says `ready`, waits for a line, works, and says what it came to. All
processes of one machine read one clock, `time.monotonic_ns`, so that what one stamped another can compare.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
TO_START = 120.0  # seconds: on a busy machine a Python that imports peers takes long
TO_WORK = 300.0
TO_END = 10.0
LINE = 1 << 28  # bytes that a worker may say: it tells how old each value was

Found = dict[str, Any]


@asynccontextmanager
async def running(command: Sequence[str], *, quiet: bool = False) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is asked to end when the block does, and made to if it does not."""
    silent = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=silent if quiet else asyncio.subprocess.PIPE,
        stderr=silent if quiet else None,
        limit=LINE,
    )
    try:
        yield process
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(TO_END):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def listening(command: Sequence[str], port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server that says nothing itself; returns when it accepts connections at `port`."""
    async with running(command, quiet=True) as process:
        begun = time.monotonic()
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                if process.returncode is not None or time.monotonic() - begun > TO_START:
                    raise RuntimeError(f"{command[0]} does not listen at port {port}") from None
                await asyncio.sleep(0.02)
        yield process


def free_port() -> int:
    """A port that nobody listens at just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def worked(plans: Sequence[Found]) -> list[Found]:
    """What workers of these plans came to. All begin when the last of them is ready: readers have subscribed then."""
    async with AsyncExitStack() as stack:
        crew = [
            await stack.enter_async_context(running([sys.executable, "-m", "benchmarks.worker", json.dumps(plan)]))
            for plan in plans
        ]
        for worker in crew:
            await _said(worker, TO_START)
        for worker in crew:
            assert worker.stdin is not None
            worker.stdin.write(b"go\n")
        return list(await asyncio.gather(*(_said(worker, TO_WORK) for worker in crew)))


async def _said(worker: asyncio.subprocess.Process, patience: float) -> Found:
    assert worker.stdout is not None
    async with asyncio.timeout(patience):
        line = await worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker ended with {await worker.wait()}; what it said is above")
    said: Found = json.loads(line)
    return said
