"""The log of a job in a table: a row for each line. An INSERT is all that a job does; the relay publishes the rows."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

PAUSE = 0.2  # seconds before PostgreSQL is tried again


class TableLog:
    """Lines are rows, and readers follow the topic that the relay makes of the table."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._connecting = asyncio.Lock()

    async def write(self, job: str, number: int, line: bytes) -> int:
        while True:
            try:
                return await self._insert(await self._connected(), job, number, line.decode())
            except (
                psycopg.OperationalError,
                psycopg.InterfaceError,
            ):  # PostgreSQL is away: the line may be there or not
                await asyncio.sleep(PAUSE)

    async def _insert(self, connection: psycopg.AsyncConnection[Any], job: str, number: int, line: str) -> int:
        insert = "INSERT INTO joblogs.lines (job, n, line) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        if (await connection.execute(insert, (job, number, line))).rowcount:
            return number + 1
        found = await connection.execute("SELECT max(n) + 1 FROM joblogs.lines WHERE job = %s", (job,))
        return int((await found.fetchall())[0][0])

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True, application_name="joblogs worker"
                )
            return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
