"""A table read by SELECT, then live: `since` skips what the SELECT saw, and nothing else."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.rows import dict_row

import runnel
from runnel import Broker, Record
from runnel.core.errors import InvalidOption, NotSupported
from runnel.postgres import since
from runnel.postgres.since import Since
from runnel.postgres.snapshot import PgSnapshot
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import CREATE_CHAT, relaying, run_sql, take, until

ROOM = "chat.a"
ALL = "SELECT id FROM chat ORDER BY id"


class Writer(threading.Thread):
    """Inserts rows until it is stopped; some transactions stay open for a while, some are rolled back."""

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__()
        self._dsn, self._rng, self.stopping, self.rows = dsn, random.Random(seed), threading.Event(), 0

    def run(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self.stopping.is_set():
                count = self._rng.randint(1, 3)
                for _ in range(count):
                    connection.execute("INSERT INTO chat (room, body) VALUES ('a', 'x')")
                    if self._rng.random() < 0.2:
                        self.stopping.wait(0.01)
                if self._rng.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    self.rows += count


def page(dsn: str) -> tuple[list[int], Since]:
    """What a page reads of the table, and where it goes on."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        start: Since = since(connection, ROOM)
        return [row[0] for row in connection.execute(ALL).fetchall()], start


def ids(records: list[Record[bytes]]) -> list[int]:
    return [json.loads(record.value)["id"] for record in records]


@asynccontextmanager
async def writing(dsn: str) -> AsyncIterator[list[Writer]]:
    """Eight writers, until the block ends."""
    writers = [Writer(dsn, seed) for seed in range(8)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            await asyncio.to_thread(writer.join)


async def test_nothing_is_missing_and_nothing_comes_twice_with_eight_writers(
    broker: Broker, database: Database
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with (
        relaying(broker, database.dsn),
        Server(broker, ServerOptions(port=0)) as server,
        runnel.open(server.listeners[0].url) as far,
        AsyncExitStack() as stack,
    ):
        pages = []
        async with writing(database.dsn) as writers:
            for number in range(12):
                await until(lambda: sum(writer.rows for writer in writers) >= 15 * number)  # noqa: B023
                past, start = await asyncio.to_thread(page, database.dsn)
                subscription = (far if number % 2 else broker).subscribe(ROOM, start=start)
                pages.append((past, await stack.enter_async_context(subscription)))
        with psycopg.connect(database.dsn) as connection:
            table = [row[0] for row in connection.execute(ALL).fetchall()]
        assert len(table) == sum(writer.rows for writer in writers)
        run_sql(database.dsn, "INSERT INTO chat (id, room) VALUES (-1, 'a')")
        for past, subscription in pages:
            live: list[int] = []
            async with asyncio.timeout(PATIENCE):
                while -1 not in live:
                    live += ids([await anext(subscription)])
            assert sorted([*past, *live[:-1]]) == table
        assert any(0 < len(past) < len(table) for past, _ in pages)


@pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
async def test_a_transaction_that_was_open_comes_and_one_that_was_seen_does_not(
    broker: Broker, database: Database
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn), broker.subscribe(ROOM) as everything:
        with psycopg.connect(database.dsn, autocommit=True) as early:
            for _ in range(300):  # further back than the first look
                early.execute("INSERT INTO chat (room) VALUES ('a')")
        with psycopg.connect(database.dsn) as late:
            late.execute("INSERT INTO chat (room) VALUES ('a')")
            run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a')")
            past, start = await asyncio.to_thread(page, database.dsn)
            late.commit()
        assert past == [*range(1, 301), 302]
        await take(everything, 302)
        async with broker.subscribe(ROOM, start=start) as live:
            run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a')")
            assert ids(await take(live, 2)) == [301, 303]
            await broker.publish(ROOM, '{"id": 9}')  # not relayed
            assert ids(await take(live, 1)) == [9]
        async with broker.subscribe(ROOM, start=start) as live:
            batch = await anext(live.batches())
            assert ids(list(batch))[:2] == [301, 303]


@pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
async def test_with_every_kind_of_connection(broker: Broker, database: Database) -> None:
    repeatable = "BEGIN ISOLATION LEVEL REPEATABLE READ"
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
        await connection.execute(repeatable)
        assert (await since(connection, ROOM)).topic == ROOM
        assert (await since(connection.cursor(), ROOM)).snapshot.xmax > 0
        connection.row_factory = dict_row  # type: ignore[assignment]
        assert (await since(connection, ROOM)).topic == ROOM
    with psycopg.connect(database.dsn, row_factory=dict_row) as one:
        one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert since(one, ROOM).topic == since(one.cursor(), ROOM).topic == ROOM
    sqlalchemy = pytest.importorskip("sqlalchemy")
    aio = pytest.importorskip("sqlalchemy.ext.asyncio")
    url = database.dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        assert since(connection, ROOM).topic == ROOM
    with sqlalchemy.orm.Session(engine) as session:
        assert since(session, ROOM).topic == ROOM
    engine.dispose()
    far = aio.create_async_engine(url, isolation_level="REPEATABLE READ")
    async with far.connect() as connection:
        assert (await since(connection, ROOM)).topic == ROOM
    await far.dispose()
    async with broker.subscribe(
        ROOM, start=Since(ROOM, PgSnapshot(1, frozenset()), 0, datetime.now(UTC), datetime.now(UTC))
    ):
        pass  # there is no topic yet


@pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
def test_a_snapshot_per_statement_is_refused(database: Database) -> None:
    with psycopg.connect(database.dsn) as connection, pytest.raises(NotSupported, match="READ COMMITTED"):
        since(connection, ROOM)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        with pytest.raises(NotSupported, match="autocommit"):
            since(connection, ROOM)
        connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        assert since(connection, ROOM).topic == ROOM
        with pytest.raises(InvalidOption):
            since(connection, ROOM, margin=0)
    with pytest.raises(InvalidOption, match="psycopg 3 or SQLAlchemy"):
        since(object(), ROOM)


async def test_groups_names_and_other_topics_are_refused() -> None:
    start = Since(ROOM, PgSnapshot(1, frozenset()), 0, datetime.now(UTC), datetime.now(UTC))
    async with runnel.open() as broker:
        for pattern, options in ((ROOM, {"group": "g"}), (ROOM, {"name": "n"}), ("chat.b", {}), ("chat.*", {})):
            with pytest.raises(InvalidOption):
                broker.subscribe(pattern, start=start, **options)  # type: ignore[call-overload]


async def test_retention_that_removed_what_came_after_the_snapshot_is_a_gap() -> None:
    taken = datetime.now(UTC) - timedelta(minutes=5)
    start = Since(ROOM, PgSnapshot(10, frozenset()), 100, taken, taken)
    async with runnel.open() as broker:
        topic = broker.topic(ROOM, retention_count=2)
        for number in range(5):
            headers = {"pg-time": datetime.now(UTC).isoformat(), "pg-xid": str(20 + number), "pg-lsn": "0/200"}
            await topic.publish(f"{number}", headers=headers)
        async with broker.subscribe(ROOM, start=start) as live:
            record = await anext(live)
            assert (record.value, record.gap is not None and "retention" in record.gap.reason) == (b"3", True)


def test_transaction_ids_wrap_around() -> None:
    start = Since(
        ROOM, PgSnapshot((5 << 32) + 10, frozenset({(5 << 32) + 8})), 100, datetime.now(UTC), datetime.now(UTC)
    )
    for xid, seen in ((2**32 - 5, True), (9, True), (8, False), (10, False), (2**31, False)):
        assert start.seen({"pg-xid": str(xid), "pg-lsn": "0/50"}) is seen
    assert start.seen({"pg-xid": "9", "pg-lsn": "0/64"}) is None
    assert start.seen({"other": "header"}) is False
