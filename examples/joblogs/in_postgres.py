"""Lines in PostgreSQL: two shapes of the same application. Pages do not notice.

- `relay`: the job only INSERTs lines into a table, and the relay publishes them. A page reads its past by SELECT and
  goes on live right behind it: `runnel.postgres.since`.
- `archive`: the job publishes. The archive copies the lines into a table, which serves what the folder has let go.

PostgreSQL keeps the history and runnel tells pages what is new; nothing asks PostgreSQL again and again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

import runnel
from runnel.postgres import Archive, ArchiveHistory, Relay, since
from runnel.server import http

READERS = 8  # connections of PostgreSQL that read the past of pages, at most
MOST = 10_000  # lines of the past that a page gets
HEARTBEAT = 15.0  # seconds after which a page hears something, even if there is no line
RETAINED = 40  # lines of a job that the folder keeps in the shape `archive`: the others are in the table
BATCH_SECONDS = 0.2  # that a line waits for others before the archive writes it

CREATE_TABLE = """
CREATE SCHEMA IF NOT EXISTS joblogs;
CREATE TABLE IF NOT EXISTS joblogs.lines (
    job text, n integer, line text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (job, n)
)
"""
SELECT_LINES = "SELECT n, at, line FROM joblogs.lines WHERE job = %s AND n > %s ORDER BY n DESC LIMIT %s"
RELAY = {
    "slot": "joblogs",
    "publication": "joblogs",
    "table": [{"table": "joblogs.lines", "topic": "joblogs.{job}", "value": "column:line", "headers": {"n": "n"}}],
}


class ArchiveShape:
    """Jobs publish, the archive writes the table, and the broker reads old lines from there: pages ask as before."""

    worker_options = ("--retained", str(RETAINED))

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[runnel.Broker]:
        await run_sql(self._dsn, "CREATE SCHEMA IF NOT EXISTS joblogs")
        history = ArchiveHistory(self._dsn, "joblogs.archive", "joblogs.>")
        async with runnel.open(folder, history=history) as broker:
            archive = Archive(broker, self._dsn, "joblogs.>", "joblogs.archive", batch_seconds=BATCH_SECONDS)
            async with beside(archive.run()):
                yield broker

    def lines(self, broker: runnel.Broker) -> ASGIApp:
        return http.app(broker)  # type: ignore[no-any-return]


class RelayShape:
    """Jobs INSERT, and the relay publishes. The table is the history, and a line's number is its primary key."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._room = asyncio.Semaphore(READERS)
        self.worker_options = ("--dsn", dsn)

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[runnel.Broker]:
        await run_sql(self._dsn, CREATE_TABLE)
        async with runnel.open(folder) as broker:
            relay = Relay(broker, self._dsn, RELAY)
            await relay.setup()
            async with beside(relay.run()):
                yield broker

    def lines(self, broker: runnel.Broker) -> ASGIApp:
        async def events(request: Request) -> Response:
            topic = request.query_params["topic"]
            after = request.headers.get("last-event-id", "")
            try:
                past, start = await self._past(topic, int(after) if after.isdigit() else -1)
            except psycopg.OperationalError:  # PostgreSQL restarts: the page comes back
                return Response(status_code=503, headers={"retry-after": "1"})
            headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
            return StreamingResponse(
                follow(broker, topic, past, start), headers=headers, media_type="text/event-stream"
            )

        return Starlette(routes=[Route("/events", events)])

    async def _past(self, topic: str, after: int) -> tuple[list[tuple[int, datetime, str]], Any]:
        """The lines behind `after`, and where live ones go on: both of one snapshot, so that no line is in neither."""
        async with self._room, await connect(self._dsn) as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            start = await since(connection, topic)
            rows = await connection.execute(SELECT_LINES, (topic.removeprefix("joblogs."), after, MOST))
            return (await rows.fetchall())[::-1], start


async def follow(
    broker: runnel.Broker, topic: str, past: list[tuple[int, datetime, str]], start: Any
) -> AsyncIterator[bytes]:
    """Server-sent events as `runnel.js` reads them. The id of an event is the number of its line."""
    yield b"retry: 500\n\nevent: ready\ndata: {}\n\n"
    for number, at, line in past:
        yield event(topic, number, at, line)
    async with broker.subscribe(topic, start=start) as live:
        waiting = asyncio.ensure_future(anext(live))
        try:
            while True:
                await asyncio.wait([waiting], timeout=HEARTBEAT)
                if not waiting.done():
                    yield b": \n\n"
                    continue
                record = waiting.result()
                yield event(topic, int(record.headers["n"]), record.time, record.value.decode())
                waiting = asyncio.ensure_future(anext(live))
        except (StopAsyncIteration, runnel.BrokerClosed):  # the application stops
            pass
        finally:
            waiting.cancel()


def event(topic: str, number: int, at: datetime, line: str) -> bytes:
    facts = {"topic": topic, "offset": number, "payload": line, "time": at.isoformat()}
    return f"id: {number}\ndata: {json.dumps(facts)}\n\n".encode()


async def connect(dsn: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(dsn, application_name="joblogs page")  # as its log names it


async def run_sql(dsn: str, statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(statements)


@asynccontextmanager
async def beside(work: Any) -> AsyncIterator[None]:
    """Something that runs meanwhile; if it fails, so does this. It may end with the broker, which closes first."""

    async def until_closed() -> None:
        with suppress(runnel.BrokerClosed):
            await work

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(until_closed())
        yield
        running.cancel()
