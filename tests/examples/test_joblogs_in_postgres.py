"""Job logs in PostgreSQL, in both shapes: no line is lost or repeated by a restart of either, and nothing polls."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from examples.joblogs.viewer import follow
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.project.project import ROOT
from tools.postgres import PostgresServer, installations

pytestmark = pytest.mark.skipif(not (find_spec("psycopg") and installations()), reason="no psycopg or no PostgreSQL")

LINES, RATE, VIEWERS = 60, 40, 3
# Who reads lines for pages, as PostgreSQL's log names it, and the statement that does.
READERS = {"relay": ("joblogs page", "SELECT n, at, line FROM"), "archive": ("runnel history", "archive_p")}


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A server that logs every statement."""
    settings = {"log_statement": "all", "log_line_prefix": "<%a> ", "max_slot_wal_keep_size": "1GB"}
    with PostgresServer(installations()[max(installations())], port=free_port(), settings=settings) as server:
        yield server


class App:
    """The example with its worker, in processes of their own."""

    def __init__(self, shape: str, dsn: str, folder: Path) -> None:
        self.port = free_port()
        where = ("--port", str(self.port), "--native-port", str(free_port()), "--folder", str(folder / "data"))
        self._command = (str(ROOT / "examples/joblogs/app.py"), "--shape", shape, "--dsn", dsn, *where, "--until-eof")

    @asynccontextmanager
    async def running(self, *, killed: bool = True) -> AsyncIterator[None]:
        """Until it is killed (-9) at the end; otherwise until Ctrl-C, which it takes without a word."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *self._command),
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=None if killed else asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(PATIENCE), httpx.AsyncClient() as client:
                while True:
                    try:
                        if (await client.get(f"http://127.0.0.1:{self.port}/bus/readyz")).status_code == 200:
                            break
                    except httpx.TransportError:
                        assert process.returncode is None
                        await asyncio.sleep(0.05)
            yield
            if not killed:
                assert process.stderr is not None
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its worker gets it, too
                async with asyncio.timeout(PATIENCE):
                    said = (await process.stderr.read()).decode()
                assert "Traceback" not in said, said
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()

    async def queue(self, job: str) -> None:
        asked = {"id": job, "lines": LINES, "rate": RATE}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE) as client:
            assert (await client.post("/bus/topics/jobs.queue", content=json.dumps(asked))).status_code == 201

    async def view(self, job: str, seen: list[int]) -> None:
        """What a page does: the past, then live, and back after a broken line. Until the job has ended."""
        async for record in follow(self.port, f"/lines/events?topic=joblogs.{job}&start=earliest"):
            seen.append(record["offset"])
            if "state" in json.loads(record["value"]):
                return
        raise AssertionError("it never stops following")


async def until(seen: list[int], count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(seen) < count:  # noqa: ASYNC110  # a viewer that goes on
            await asyncio.sleep(0.02)


def statements(log: str, reader: str) -> list[str]:
    """What it asked PostgreSQL, in order."""
    return [entry for entry in re.split(r"^(?=<)", log, flags=re.MULTILINE) if re.match(f"<{reader}.*> LOG:  ", entry)]


@pytest.mark.parametrize("shape", READERS)
async def test_restarts_cost_no_line_and_nothing_polls(shape: str, postgres: PostgresServer, tmp_path: Path) -> None:
    reader, read = READERS[shape]
    app = App(shape, postgres.dsn, tmp_path)
    seen: list[list[int]] = [[] for _ in range(VIEWERS)]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as viewers:
        async with app.running():
            await app.queue("a")
            views = [viewers.create_task(app.view("a", one)) for one in seen]
            for one in seen:
                await until(one, 5)
            before = len(postgres.log.read_text())
            await until(seen[0], LINES // 3)
            assert (
                statements(postgres.log.read_text()[before:], reader) == []
            )  # pages are live, and nothing asks for them
        async with app.running(killed=False):
            for one in seen:
                await until(one, LINES // 2)
            await asyncio.to_thread(postgres.restart)
            await asyncio.gather(*views)
            late: list[int] = []
            await app.view("a", late)
    assert [*seen, late] == [list(range(LINES))] * (VIEWERS + 1)
    asked = [one for one in statements(postgres.log.read_text(), reader) if read in one]
    assert asked  # the past came from PostgreSQL
    if shape == "relay":
        assert len(asked) == VIEWERS * 2 + 1  # once for every time that a page connected, and a line costs nothing
