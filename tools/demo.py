"""`make demo`: a server with traffic, the pipelines `archive` and `analytics`, and a console whose plots move.

The server is up at once. Spark takes seconds to start, and minutes to install where it is missing; until its first
batch the console says that it is starting. Ctrl-C stops all of it, the server last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import runnel
from runnel.core.errors import RunnelError
from runnel.core.statistics import PipelineStatistics
from tests.browser.demo import Traffic

PIPELINES = {
    "archive": ("--interval", "2s"),
    "analytics": ("--interval", "1s", "--window", "10s", "--late", "2s", "--copy-every", "30s"),
}
STOP_SECONDS = 60.0  # that a process has to end its batch in
RUNNEL = (sys.executable, "-m", "runnel")


class Process:
    """A command in a session of its own: Ctrl-C on the terminal comes here alone, and it is stopped in order."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self.process = name, process

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path, **more: Any) -> Process:
        """Start it; what it says goes to the file `log`."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stderr=errors, start_new_session=True, **more
            )
        return cls(name, process)

    async def stop(self) -> None:
        """Ask it to end, and end it with all that it started if it takes too long."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
            except TimeoutError:
                os.killpg(self.process.pid, signal.SIGKILL)
                await self.process.wait()


@asynccontextmanager
async def serving(folder: Path, http_port: str) -> AsyncIterator[dict[str, str]]:
    """A server on the folder; the addresses of its listeners by name."""
    command = [*RUNNEL, "serve", "--data", str(folder / "data"), "--port", "0", "--json-port", "off", "--json"]
    command += ["--http-port", http_port, "--telemetry", "1s"]
    server = await Process.start("server", command, folder / "server.log", stdout=asyncio.subprocess.PIPE)
    try:
        assert server.process.stdout is not None
        line = await server.process.stdout.readline()
        if not line:
            sys.exit(f"The server did not start:\n{(folder / 'server.log').read_text()}")
        yield {one["name"]: one["url"] for one in json.loads(line)["listeners"]}
    finally:
        await server.stop()


@asynccontextmanager
async def traffic(broker: runnel.Broker) -> AsyncIterator[None]:
    """Publishers, readers and groups, some of which are slow or fail."""
    async with AsyncExitStack() as stack:
        load = Traffic(broker, random.Random(), hostile=False)
        await load.prepare(0)
        await load.subscribe(stack)
        tasks = [asyncio.ensure_future(one) for one in load.works(reports=False)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Pipelines:
    """The pipelines, from the installation of Spark to their end."""

    def __init__(self, broker: runnel.Broker, url: str, folder: Path, prepare: str | None) -> None:
        self._broker, self._url, self._folder, self._prepare = broker, url, folder, prepare
        self.running: list[Process] = []

    async def run(self) -> None:
        """Install Spark if that is asked for, then start them; say when each has had its first batch."""
        if self._prepare is not None:
            installing = await Process.start(
                "install", shlex.split(self._prepare), self._folder / "install.log", stdout=asyncio.subprocess.DEVNULL
            )
            self.running.append(installing)
            if await installing.process.wait():
                print(f"Spark could not be installed; see {self._folder / 'install.log'}")
                return
        for name, options in PIPELINES.items():
            command = [*RUNNEL, "pipeline", "run", name, "--server", self._url, "--lake", str(self._folder / "lake")]
            log = self._folder / f"{name}.log"
            self.running.append(await Process.start(name, [*command, *options], log, stdout=asyncio.subprocess.DEVNULL))

    async def tell(self) -> None:
        """Report to the console that Spark is starting, until the pipelines report otherwise themselves."""
        waiting = set(PIPELINES)
        while waiting:
            with contextlib.suppress(RunnelError):
                known = {one.name: one for one in (await self._broker.backend.snapshot(limit=0)).pipelines}
                for name in sorted(waiting):
                    found = known.get(name)
                    if found is not None and found.state == "failed":
                        waiting.discard(name)
                        print(f"  {name} has failed; see {self._folder / name}.log")
                    elif found is not None and found.batch >= 0:
                        waiting.discard(name)
                        print(f"  {name} has processed its first batch", flush=True)
                    elif found is None or found.state in ("starting", "silent"):
                        await self._broker.backend.report_pipeline(PipelineStatistics(name=name, state="starting"))
            await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """End them; each ends the batch that it is in."""
        await asyncio.gather(*(one.stop() for one in self.running))


async def demo(folder: Path, http_port: str, prepare: str | None) -> None:
    """Run all of it until a signal comes."""
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with serving(folder, http_port) as urls:
        console = f"{urls['http'].rstrip('/')}/#/analytics"
        print(f"The console is at {console}\n\nSpark is starting; plots move without it. Ctrl-C stops all.", flush=True)
        async with runnel.open(urls["native"]) as broker, traffic(broker):
            pipelines = Pipelines(broker, urls["native"], folder, prepare)
            beside = [asyncio.ensure_future(one) for one in (pipelines.run(), pipelines.tell())]
            await over.wait()
            print("\nStopping: the pipelines first, then the server.", flush=True)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await pipelines.stop()
    print("All has stopped.")


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data, lake and logs go (default: removed at the end)")
    parser.add_argument("--http-port", default="7780", help="where the console is; 0: any free port")
    parser.add_argument("--prepare", metavar="COMMAND", help="installs Spark, before pipelines start")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runnel-demo-") as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(demo(folder, given.http_port, given.prepare))


if __name__ == "__main__":
    main()
