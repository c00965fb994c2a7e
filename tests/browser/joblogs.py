"""The job-log example in a process of its own, that can be killed and comes back; and a worker that outlives it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.patience import PATIENCE

EXAMPLE = Path(__file__).parents[2] / "examples" / "joblogs"


def free_port() -> int:
    """One that nobody has right now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class JobLogs:
    """The pages, the broker behind them, and a worker."""

    def __init__(self, folder: Path, app_options: Sequence[str] = (), worker_options: Sequence[str] = ()) -> None:
        self._app_options, self._worker_options = app_options, worker_options
        self._folder, self._port, self._native_port = folder, free_port(), free_port()
        self._app: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._errors = folder / "joblogs.err"
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Have the pages served; they are when this returns. At the first time a worker comes, too."""
        where = (
            "--folder",
            str(self._folder / "data"),
            "--port",
            str(self._port),
            "--native-port",
            str(self._native_port),
        )
        self._app = self._run("app.py", *where, "--workers", "0", *self._app_options)
        async with asyncio.timeout(PATIENCE), httpx.AsyncClient() as client:
            while True:
                try:
                    if (await client.get(f"{self.url}/bus/readyz")).status_code == 200:
                        break
                except httpx.TransportError:
                    assert self._app.poll() is None, self._errors.read_text()
                    await asyncio.sleep(0.05)
        if self._worker is None:
            self._worker = self._run("worker.py", "--native-port", str(self._native_port), *self._worker_options)

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}
        with self._errors.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, str(EXAMPLE / program), *arguments],
                cwd=self._folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    async def kill(self) -> None:
        """Kill -9 of all but the worker, which waits for them."""
        assert self._app is not None
        self._app.kill()
        await asyncio.to_thread(self._app.wait)

    async def close(self) -> None:
        """Everything ends."""
        for one in (self._worker, self._app):
            if one is not None:
                one.kill()
                await asyncio.to_thread(one.wait)

    async def ask_for(self, job: str, lines: int, rate: float, title: str = "A job") -> None:
        """A job that writes so many lines, so many in a second."""
        told = {"id": job, "title": title, "lines": lines, "rate": rate}
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE) as client:
            answer = await client.post("/bus/topics/jobs.queue", content=json.dumps(told))
            assert answer.status_code == 201, answer.text
