"""An archive that runs while a test does, and what is in its table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg.rows import dict_row

from runnel import Broker, Record
from runnel.postgres import Archive
from tests.postgres.relaying import stored, until

COLUMNS = 'topic, epoch, "offset", sequence, "time", key, value, headers'


@asynccontextmanager
async def archiving(broker: Broker, dsn: str, pattern: str = ">", **options: Any) -> AsyncIterator[Archive]:
    """An archive that writes every record at once."""
    archive = Archive(broker, dsn, pattern, "events", **{"batch_seconds": 0.0} | options)
    task = asyncio.create_task(archive.run())
    try:
        await until(lambda: archive.state != "starting" or task.done())
        yield archive
    finally:
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def caught_up(archive: Archive, rows: int) -> None:
    """Wait until the archive has written so many rows."""
    await until(lambda: archive.rows >= rows)
    assert archive.rows == rows


def rows_of(dsn: str, what: str = "*") -> list[dict[str, Any]]:
    """The rows of the table, in the order of their sequences."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute(f"SELECT {what} FROM events ORDER BY sequence, epoch").fetchall()


def table_records(dsn: str) -> list[Record[bytes]]:
    """The rows of the table, as records."""
    found = []
    for row in rows_of(dsn, COLUMNS):
        headers = row.pop("headers") or {}
        found.append(Record(**row, headers=headers))
    return found


async def assert_copied(broker: Broker, dsn: str, pattern: str = ">") -> list[Record[bytes]]:
    """The table holds what the topics hold: each record once, with all that it carries."""
    records, rows = await stored(broker, pattern), table_records(dsn)
    assert rows == records
    return rows
