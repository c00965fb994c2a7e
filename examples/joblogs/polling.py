"""What polling a database for every open page costs, against telling pages what is new. Counted, not guessed.

    python examples/joblogs/polling.py --pages 400 --jobs 100 --seconds 20

Both sides get the same load: so many jobs write so many lines, so many pages watch them, over HTTP and from a
process of their own. On one side each line is a row in SQLite (a file, WAL, a key of job and line), and each page asks
for new rows every half second (uvicorn, Starlette). On the other each line is a record in a runnel folder, and each
page has an event stream. SQLite does not wait for the disk here (`synchronous = NORMAL`), runnel does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import runnel
from runnel.server import Server, ServerOptions

if TYPE_CHECKING:
    from examples.joblogs.viewer import events
else:
    from viewer import events  # beside this file

PERIOD = 0.5  # seconds between two questions of a page


class Load(NamedTuple):
    """What both sides get."""

    pages: int
    jobs: int
    rate: float  # lines that a job writes in a second
    seconds: float

    @property
    def lines(self) -> int:
        return max(self.jobs, int(self.jobs * self.rate * self.seconds))


Publish = Callable[[int, int, str], Coroutine[object, object, None]]  # of a job, the number of a line, and its text


class Cost(NamedTuple):
    """What it took."""

    queries: int
    empty: int  # of these, those that found nothing
    rows: int  # that were read for pages
    cpu: float  # seconds, of the process that serves
    delays: list[float]  # seconds from written to seen, of each line at each page


async def write(load: Load, publish: Publish) -> None:
    """Write lines evenly over the time: the next job, its next line, and the text, which says when."""
    began = time.monotonic()
    for n in range(load.lines):
        await asyncio.sleep(max(0.0, began + n / load.lines * load.seconds - time.monotonic()))
        text = json.dumps({"level": "info", "text": f"line {n}", "at": time.time()})
        await publish(n % load.jobs, n // load.jobs, text)


async def polled(load: Load, folder: Path) -> Cost:
    """Every page asks, again and again."""
    database = sqlite3.connect(folder / "lines.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE lines (job INTEGER, n INTEGER, text TEXT, PRIMARY KEY (job, n)) WITHOUT ROWID")
    queries = empty = rows = 0

    async def lines(request: Request) -> Response:
        nonlocal queries, empty, rows
        asked = (int(request.query_params["job"]), int(request.query_params["after"]))
        found = database.execute("SELECT n, text FROM lines WHERE job = ? AND n > ? ORDER BY n", asked).fetchall()
        queries, empty, rows = queries + 1, empty + (not found), rows + len(found)
        return JSONResponse(found)

    async def publish(job: int, n: int, text: str) -> None:
        nonlocal queries, empty
        if job == n == 0:
            queries = empty = 0  # what pages asked while others were still being opened does not count
        database.execute("INSERT INTO lines VALUES (?, ?, ?)", (job, n, text))

    config = uvicorn.Config(Starlette(routes=[Route("/lines", lines)]), port=0, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # it has no event to wait for
        await asyncio.sleep(0.01)
    cpu, delays = await measure("ask", load, server.servers[0].sockets[0].getsockname()[1], publish)
    server.should_exit = True
    await serving
    database.close()
    return Cost(queries, empty, rows, cpu, delays)


async def told(load: Load, folder: Path) -> Cost:
    """Every page has a stream."""
    options = ServerOptions(port=None, json_port=None, http_port=0)
    async with runnel.open(folder / "data") as broker, Server(broker, options) as server:
        topics = [broker.topic(f"joblogs.{job}") for job in range(load.jobs)]

        async def publish(job: int, n: int, text: str) -> None:
            await topics[job].publish(text)

        cpu, delays = await measure("watch", load, server.listeners[0].port or 0, publish)
    return Cost(load.pages, 0, len(delays), cpu, delays)


async def measure(how: str, load: Load, port: int, publish: Publish) -> tuple[float, list[float]]:
    """Have pages in a process of their own, and write. CPU seconds of this process, and how long each line took."""
    given = [f"--{name}={value}" for name, value in load._asdict().items()]
    pages = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, f"--{how}", str(port), *given), stdout=asyncio.subprocess.PIPE, limit=1 << 28
    )
    assert pages.stdout is not None
    assert (await pages.stdout.readline()).strip() == b"ready"
    cpu = time.process_time()
    await write(load, publish)
    delays: list[float] = json.loads(await pages.stdout.readline())
    cpu = time.process_time() - cpu
    await pages.wait()
    return cpu, delays


class Pages:
    """All pages, in a process of their own: says when they are connected, and in the end how long each line took."""

    def __init__(self, load: Load, port: int) -> None:
        self.load, self.port = load, port
        self.delays: list[float] = []
        self.connected, self.everybody = 0, asyncio.Event()

    async def run(self, page: Callable[[int, int], Coroutine[object, object, None]]) -> None:
        async with asyncio.TaskGroup() as pages:
            for n in range(self.load.pages):
                job = n % self.load.jobs
                pages.create_task(page(job, len(range(job, self.load.lines, self.load.jobs))))
            await self.everybody.wait()
            print("ready", flush=True)
        print(json.dumps(self.delays), flush=True)

    def connect(self) -> None:
        self.connected += 1
        if self.connected == self.load.pages:
            self.everybody.set()

    def show(self, line: str) -> None:
        self.delays.append(time.time() - json.loads(line)["at"])

    async def ask(self, job: int, wanted: int) -> None:
        """Every half second: what is new? Over one connection, which is kept."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        seen, first = -1, True
        await asyncio.sleep(random.uniform(0, PERIOD))  # pages are opened at any time
        due = time.monotonic()
        end = due + self.load.seconds
        while seen < wanted - 1 or due < end:
            writer.write(f"GET /lines?job={job}&after={seen} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            for n, line in json.loads(await reader.readexactly(length)):
                seen = n
                self.show(line)
            if first:
                self.connect()
            first, due = False, due + PERIOD
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        writer.close()

    async def watch(self, job: int, wanted: int) -> None:
        """An event stream. Its first event says that it is there."""
        async for id, data in events(self.port, f"/events?topic=joblogs.{job}&start=earliest", ""):
            if data:
                self.show(json.loads(data)["value"])
                wanted -= 1
            elif id:
                self.connect()
            if not wanted:
                return


def table(load: Load, asked: Cost, streamed: Cost) -> str:
    """Both, side by side."""

    def at(delays: list[float], share: float) -> str:
        return f"{1000 * sorted(delays)[int(share * (len(delays) - 1))]:,.1f} ms"

    lines = [("", f"polling every {1000 * PERIOD:.0f} ms", "runnel")]
    facts: list[tuple[str, Callable[[Cost], str]]] = [
        ("queries or requests", lambda cost: f"{cost.queries:,}"),
        ("per second", lambda cost: f"{cost.queries / load.seconds:,.0f}" if cost is asked else "0, once connected"),
        ("that found nothing", lambda cost: f"{cost.empty:,} ({cost.empty / cost.queries:.0%})"),
        ("lines read for pages", lambda cost: f"{cost.rows:,}"),
        ("CPU of the server", lambda cost: f"{cost.cpu:.2f} s"),
        ("a line to a page, median", lambda cost: at(cost.delays, 0.5)),
        ("a line to a page, p99", lambda cost: at(cost.delays, 0.99)),
    ]
    lines += [(name, of(asked), of(streamed)) for name, of in facts]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    rows = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(rows)


async def main(load: Load) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asked = await polled(load, Path(folder))
        streamed = await told(load, Path(folder))
    print(f"{load.pages:,} pages watch {load.jobs:,} jobs, {load.lines:,} lines in {load.seconds:g} s\n")
    print(table(load, asked, streamed))
    assert asked.rows == streamed.rows, "both have shown every line on every page that watches its job"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What polling costs.")
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1.0, help="lines of each job in a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ask", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    load = Load(given.pages, given.jobs, given.rate, given.seconds)
    if given.ask or given.watch:
        pages = Pages(load, given.ask or given.watch)
        asyncio.run(pages.run(pages.ask if given.ask else pages.watch))
    else:
        asyncio.run(main(load))
