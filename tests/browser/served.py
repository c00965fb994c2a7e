"""`runnel serve` on a folder, in a process of its own, that can be killed and comes back at the same address."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


class Served:
    """A server with an HTTP door. Its ports are free ones at the first start, and the same ones after each other."""

    def __init__(self, folder: Path, *options: str, command: tuple[str, ...] = ("runnel", "serve")) -> None:
        self.folder, self._options, self._command = folder, options, command
        self._ports = {"http": 0, "native": 0}
        self._process: subprocess.Popen[str] | None = None
        self._errors = folder / "serve.err"

    @property
    def url(self) -> str:
        """The address of the HTTP door."""
        return f"http://127.0.0.1:{self._ports['http']}"

    @property
    def native(self) -> str:
        """The address of the native door."""
        return f"runnel://127.0.0.1:{self._ports['native']}"

    def told(self) -> str:
        """What it wrote to the error stream, over all its lives."""
        return self._errors.read_text()

    async def start(self) -> None:
        """Have it run; it is ready when this returns."""
        assert self._process is None, "it runs already"
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        where = ("--data", str(self.folder / "data"), "--json-port", "off")
        ports = ("--http-port", str(self._ports["http"]), "--port", str(self._ports["native"]))
        # A process that is killed has nothing to say about coverage, and is slower for being measured.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}
        path = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command, *where, *ports, "--json", *self._options],
                cwd=self.folder,
                env={**env, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.told()
        for door in json.loads(line)["listeners"]:
            self._ports[door["name"]] = door["port"]

    async def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None
        self._process.kill()
        await self._gone()

    async def stop(self) -> None:
        """Have it stop properly, if it runs."""
        if self._process is not None:
            self._process.terminate()
            try:
                assert await self._gone() == 0, self.told()
            finally:
                assert "Traceback" not in self.told(), self.told()

    async def restart(self) -> None:
        """Kill -9, and have it run again at the same address."""
        await self.kill()
        await self.start()

    async def _gone(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        try:
            return await asyncio.to_thread(process.wait, PATIENCE)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    async def publish(self, topic: str, *values: str, **headers: str) -> dict[str, Any]:
        """Publish these, a record each; where they are."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = {"content-type": "application/x-ndjson"} if len(values) != 1 else {"content-type": "text/plain"}
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE) as client:
            answer = await client.post(f"/topics/{topic}", content="\n".join(values).encode(), headers=kind | named)
        assert answer.status_code == 201, answer.text
        told: dict[str, Any] = answer.json()
        return told
