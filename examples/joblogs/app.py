"""Live logs of jobs in the browser: a page of jobs, and a page for each job. Nothing polls.

    python examples/joblogs/app.py                    # then open http://127.0.0.1:8000
    python examples/joblogs/app.py --shape relay      # the lines are in PostgreSQL: see `in_postgres.py`

That is all there is on the server: four files to hand out, and runnel's own routes mounted at /bus. The pages follow
topics and publish to them with `runnel.js`; jobs run in other processes, see `worker.py`. Everything is in the folder
`joblogs-data`: stop this, kill it, start it again, and every page goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

import runnel
from runnel.server import Server, ServerOptions, http

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))  # the repository: its tools start a PostgreSQL where none is named

from tools.postgres import database  # noqa: E402

if TYPE_CHECKING:
    from examples.joblogs.in_postgres import ArchiveShape, RelayShape

PAGES = HERE / "pages"
SAFE = {
    # What a job prints is shown and never run: there is no inline script, and nothing from elsewhere.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Shape(Protocol):
    """Where lines are kept."""

    @property
    def worker_options(self) -> tuple[str, ...]:
        """What workers have to know."""

    def opened(self, folder: Path) -> AbstractAsyncContextManager[runnel.Broker]:
        """The broker, with what runs beside it."""

    def lines(self, broker: runnel.Broker) -> ASGIApp:
        """Serves `/events?topic=joblogs.…` to pages: past lines, then live ones."""


class JournalShape:
    """In runnel's folder."""

    worker_options = ()

    def opened(self, folder: Path) -> AbstractAsyncContextManager[runnel.Broker]:
        return runnel.open(folder)

    def lines(self, broker: runnel.Broker) -> ASGIApp:
        return http.app(broker)  # type: ignore[no-any-return]


def application(folder: Path, native_port: int, workers: int, shape: Shape) -> Starlette:
    """The pages, and the broker's routes beside them. Workers connect at the port `native_port`; some are started."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with (
            shape.opened(folder) as broker,
            Server(broker, ServerOptions(port=native_port, json_port=None)) as server,
        ):
            await broker.topic("jobs.states", compact=True).declare()  # of each job the newest state is enough
            app.mount("/bus", http.app(broker))
            app.mount("/lines", shape.lines(broker))
            app.state.broker = broker
            with started(server.listeners[0].port, workers, shape.worker_options):
                yield

    pages = [Route("/", index), Route("/jobs/{id}", job), Mount("/static", StaticFiles(directory=PAGES))]
    return Starlette(routes=pages, lifespan=lifespan)


@contextmanager
def started(native_port: int, workers: int, options: tuple[str, ...]) -> Iterator[None]:
    """Workers in processes of their own. They end when their standard input does: with us, however we end."""
    command = [sys.executable, str(HERE / "worker.py"), "--native-port", str(native_port), "--until-eof", *options]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(workers)]
    yield
    for process in processes:
        process.communicate()


async def index(request: Request) -> Response:
    return FileResponse(PAGES / "index.html", headers=SAFE)


async def job(request: Request) -> Response:
    """The same page for every job: it reads the address to know whose lines to follow."""
    return FileResponse(PAGES / "job.html", headers=SAFE)


class WebServer(uvicorn.Server):
    """Before it stops, uvicorn waits for all requests to end; event streams end with the broker. So that goes first."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.broker.close()  # type: ignore[union-attr]
        await super().shutdown(sockets)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Live logs of jobs in the browser.")
    parser.add_argument(
        "--shape", choices=["journal", "relay", "archive"], default="journal", help="where lines are kept"
    )
    parser.add_argument("--dsn", help="of relay and archive: your PostgreSQL; default: one for as long as this runs")
    parser.add_argument("--folder", type=Path, help="where runnel keeps topics; default: joblogs-data")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--native-port", type=int, default=7788, help="where workers connect; 0: anywhere")
    parser.add_argument("--workers", type=int, default=1, help="how many to start")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    given = parser.parse_args()
    if given.until_eof:
        threading.Thread(target=lambda: os._exit(len(sys.stdin.read())), daemon=True).start()
    with ExitStack() as held:
        shape: Shape = JournalShape()
        folder = given.folder or Path("joblogs-data")
        if given.shape != "journal":
            if not TYPE_CHECKING:
                from in_postgres import ArchiveShape, RelayShape  # beside this file; needs psycopg
            dsn = held.enter_context(database(given.dsn))
            shape = RelayShape(dsn) if given.shape == "relay" else ArchiveShape(dsn)
            if given.dsn is None:  # topics belong to a database, and go with it
                folder = given.folder or Path(held.enter_context(tempfile.TemporaryDirectory()))
        app = application(folder, given.native_port, given.workers, shape)
        print(f"http://127.0.0.1:{given.port}", flush=True)
        with suppress(KeyboardInterrupt):
            WebServer(uvicorn.Config(app, port=given.port, log_level="warning")).run()
