"""The relay against real servers: what applications write, and what subscribers get."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runnel
from runnel import Broker
from runnel.core.dead_letter import REASON
from runnel.core.errors import NotSupported
from runnel.postgres import Relay, changes, emit, session
from tests.nightly import nightly_beyond
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import (
    CREATE_CHAT,
    config,
    confirmed,
    events,
    relaying,
    run_sql,
    running,
    stored,
    streams,
    take,
    until,
)

ALL = ["insert", "update", "delete", "truncate"]
newest = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)


async def test_an_insert_is_a_publish(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
        with psycopg.connect(database.dsn) as connection:
            connection.execute("INSERT INTO chat (room, body) VALUES ('lobby', 'hi'), ('attic', 'ho'), ('lobby', 'he')")
            connection.commit()
            connection.execute("INSERT INTO chat (room, body) VALUES ('lobby', 'never')")
            connection.rollback()
            connection.execute("INSERT INTO chat (id, room, body) VALUES (9, 'lobby', 'bye')")
        records = await take(chat, 4)
        assert [(record.topic, record.key, record.value) for record in records] == [
            ("chat.lobby", b"1", b'{"id":1,"room":"lobby","body":"hi"}'),
            ("chat.attic", b"2", b'{"id":2,"room":"attic","body":"ho"}'),
            ("chat.lobby", b"3", b'{"id":3,"room":"lobby","body":"he"}'),
            ("chat.lobby", b"9", b'{"id":9,"room":"lobby","body":"bye"}'),
        ]
        headers = [record.headers for record in records]
        assert [(one["pg-op"], one["pg-table"], one["pg-index"]) for one in headers[:3]] == [
            ("insert", "public.chat", str(number)) for number in (1, 2, 3)
        ]
        assert len({one["pg-lsn"] for one in headers[:3]}) == len({one["pg-xid"] for one in headers[:3]}) == 1
        assert headers[0]["pg-lsn"] != headers[3]["pg-lsn"]
        assert headers[0]["pg-time"] <= headers[3]["pg-time"]
        found = relay.statistics()
        assert (found.rows, found.transactions, found.dead_letters, found.state) == (4, 2, 0, "streaming")


async def test_it_goes_on_where_it_was(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    insert = "INSERT INTO chat (room, body) SELECT 'r' || i % 3, i FROM generate_series(1, 50) i"
    async with broker.subscribe("chat.>", start="earliest") as chat:
        for _ in range(3):
            async with relaying(broker, database.dsn):
                run_sql(database.dsn, insert)
            run_sql(database.dsn, insert)
        async with relaying(broker, database.dsn):
            records = await take(chat, 300)
    assert [int(record.key or b"") for record in records] == list(range(1, 301))
    assert not [one for one in await stored(broker, "relay.s") if b"gap" in one.value]


async def test_rows_that_cannot_be_routed_are_dead_letters(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn), broker.subscribe("relay.s.dead", start="earliest") as dead:
        run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a.b'), (NULL), (''), ('ok')")
        letters = await take(dead, 3)
        assert [json.loads(letter.value)["id"] for letter in letters] == [1, 2, 3]
        assert "'.'" in letters[0].headers[REASON]
        assert [record.key for record in await stored(broker, "chat.>")] == [b"4"]


async def test_update_and_delete_with_tombstones_and_large_values(broker: Broker, database: Database) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE docs (id int PRIMARY KEY, room text, n int, doc text)",
        "ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL",
        "CREATE TABLE presence (id int, room text, state text, PRIMARY KEY (room, id))",
    )
    docs = {"table": "docs", "topic": "docs.{room}", "key": "id", "publish": ALL, "compact": True}
    presence = {"table": "presence", "topic": "presence.{room}", "key": "id", "publish": ["insert", "update", "delete"]}
    async with relaying(broker, database.dsn, config(docs, presence)), broker.subscribe(">") as everything:
        large = "x" * 3000
        run_sql(
            database.dsn,
            f"INSERT INTO docs VALUES (1, 'a', 1, '{large}')",
            "UPDATE docs SET n = 2",  # does not touch the large value, which the old row has
            "UPDATE docs SET room = 'b'",
            "DELETE FROM docs",
            "INSERT INTO presence VALUES (7, 'a', 'here')",
            "UPDATE presence SET state = 'away'",
            "UPDATE presence SET id = 8",
            "DELETE FROM presence",
            "TRUNCATE docs",
        )
        records = [one for one in await take(everything, 12) if one.topic != "relay.s"]
        told = [(one.topic, one.headers["pg-op"], one.key, one.value) for one in records]
        assert told[0][:3] == ("docs.a", "insert", b"1")
        assert json.loads(told[1][3]) == {"id": 1, "room": "a", "n": 2, "doc": large}
        assert [one[:3] for one in told[2:5]] == [
            ("docs.a", "delete", b"1"),
            ("docs.b", "insert", b"1"),
            ("docs.b", "delete", b"1"),
        ]
        assert told[2][3] == told[4][3] == b""
        assert told[5:] == [
            ("presence.a", "insert", b"7", b'{"id":7,"room":"a","state":"here"}'),
            ("presence.a", "update", b"7", b'{"id":7,"room":"a","state":"away"}'),
            ("presence.a", "delete", b"7", b'{"id":7,"room":"a"}'),
            ("presence.a", "insert", b"8", b'{"id":8,"room":"a","state":"away"}'),
            ("presence.a", "delete", b"8", b'{"id":8,"room":"a"}'),
        ]
        assert (await events(broker, "truncate"))[0]["table"] == "public.docs"
        assert (await broker.backend.describe("docs.b")) == {"compact": True}


async def test_partitions_filters_and_column_lists(broker: Broker, database: Database) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE logs (id int, day date, line text, secret text) PARTITION BY RANGE (day)",
        "CREATE TABLE logs_1 PARTITION OF logs FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE logs_2 PARTITION OF logs FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
    )
    logs = {"table": "logs", "topic": "logs", "columns": ["id", "day", "line"], "where": "id > 10"}
    async with relaying(broker, database.dsn, config(logs)), broker.subscribe("logs") as lines:
        run_sql(
            database.dsn,
            "INSERT INTO logs VALUES (1, '2026-01-01', 'a', 's'), (11, '2026-01-02', 'b', 's')",
            "CREATE TABLE logs_3 PARTITION OF logs FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')",
            "INSERT INTO logs VALUES (12, '2026-03-01', 'c', 's')",
        )
        assert [one.value for one in await take(lines, 2)] == [
            b'{"id":11,"day":"2026-01-02","line":"b"}',
            b'{"id":12,"day":"2026-03-01","line":"c"}',
        ]


async def test_one_column_is_the_value_and_a_pointer_stands_for_a_large_one(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, "CREATE TABLE frames (id int, room text, frame bytea, url text)")
    frames = {
        "table": "frames",
        "topic": "video.{room}",
        "value": "column:frame",
        "headers": {"url": "url"},
        "max_value": 100,
        "pointer": "url",
    }
    async with relaying(broker, database.dsn, config(frames)), broker.subscribe("video.*") as video:
        run_sql(
            database.dsn,
            r"INSERT INTO frames VALUES (1, 'a', '\x00ff', 'u1'), (2, 'a', decode(repeat('00', 101), 'hex'), 'u2'), "
            "(3, 'a', decode(repeat('00', 101), 'hex'), NULL)",
        )
        assert [(one.value, one.headers["url"]) for one in await take(video, 2)] == [(b"\0\xff", "u1"), (b"u2", "u2")]
        assert "more than max_value (100)" in (await events(broker, "too_large"))[0]["reason"]


async def test_emit_publishes_with_the_transaction_of_the_application(broker: Broker, database: Database) -> None:
    given = config(message=[{"prefix": "app", "topic": "app.messages"}], table=())
    async with relaying(broker, database.dsn, given), broker.subscribe(">") as everything:
        with psycopg.connect(database.dsn) as connection:
            emit(connection, "orders.paid", "7", key="k", headers={"a": "b"})
            connection.rollback()
            with connection.cursor() as cursor:
                emit(cursor, "orders.paid", "8", key="k", headers={"a": "b"})
                cursor.execute("SELECT pg_logical_emit_message(true, 'app', 'hello')")
            connection.commit()
        async with await psycopg.AsyncConnection.connect(database.dsn) as connection_:
            await emit(connection_, "orders.paid", b"\x00\xff")
        records = await take(everything, 3)
        assert [(one.topic, one.key, one.value) for one in records] == [
            ("orders.paid", b"k", b"8"),
            ("app.messages", None, b"hello"),
            ("orders.paid", None, b"\x00\xff"),
        ]
        assert records[0].headers["a"] == "b"
        assert records[0].headers["pg-op"] == "message"


async def test_emit_in_a_transaction_of_sqlalchemy(broker: Broker, database: Database) -> None:
    import sqlalchemy
    from sqlalchemy import orm

    engine = sqlalchemy.create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://"))
    given = config(message=[{"prefix": "app", "topic": "app"}], table=())
    async with relaying(broker, database.dsn, given), broker.subscribe("orders") as orders:
        with engine.begin() as connection:
            emit(connection, "orders", "1")
        with orm.Session(engine) as opened, opened.begin():
            emit(opened, "orders", "2")
        assert [one.value for one in await take(orders, 2)] == [b"1", b"2"]
    engine.dispose()


def test_emit_refuses_what_it_cannot_use() -> None:
    from runnel.core.errors import InvalidName, InvalidOption, InvalidValue

    with pytest.raises(InvalidOption, match="psycopg 3 or SQLAlchemy"):
        emit(object(), "t", "x")
    with pytest.raises(InvalidName):
        emit(None, "a..b", "x")
    with pytest.raises(InvalidValue):
        emit(None, "t", 7)  # type: ignore[arg-type]


async def test_notifications_of_channels_are_published(broker: Broker, database: Database) -> None:
    given = config(table=(), channel=[{"channel": "Mixed Case", "topic": "notes"}])
    async with relaying(broker, database.dsn, given), broker.subscribe("notes") as notes:
        listens = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%(listen)' AND query LIKE 'LISTEN%'"
        )
        await until(lambda: run_sql(database.dsn, listens))
        run_sql(database.dsn, """NOTIFY "Mixed Case", 'one'""", """NOTIFY "Mixed Case", 'two'""")
        records = await take(notes, 2)
        assert [(one.value, one.headers["pg-channel"]) for one in records] == [
            (b"one", "Mixed Case"),
            (b"two", "Mixed Case"),
        ]


# -- schemas -------------------------------------------------------------------------------------------------------


async def test_a_changed_table_is_reported_and_rows_continue_in_the_new_shape(
    broker: Broker, database: Database
) -> None:
    run_sql(database.dsn, CREATE_CHAT, "INSERT INTO chat (room) VALUES ('before')")
    row = "INSERT INTO chat (room) VALUES ('a')"
    async with broker.subscribe("chat.>", start="earliest") as chat:
        async with relaying(broker, database.dsn):
            run_sql(database.dsn, row, "ALTER TABLE chat ADD n int DEFAULT 5", row)
            run_sql(database.dsn, "ALTER TABLE chat RENAME n TO m", row, "ALTER TABLE chat ALTER m TYPE text", row)
            assert [json.loads(one.value) for one in await take(chat, 4)] == [
                {"id": 2, "room": "a", "body": None},
                {"id": 3, "room": "a", "body": None, "n": 5},
                {"id": 4, "room": "a", "body": None, "m": 5},
                {"id": 5, "room": "a", "body": None, "m": "5"},
            ]
        run_sql(database.dsn, "ALTER TABLE chat DROP m", row)  # while the relay is away
        async with relaying(broker, database.dsn):
            assert json.loads((await take(chat, 1))[0].value) == {"id": 6, "room": "a", "body": None}
    told = await events(broker, "schema", 5)
    assert [[name for name, _ in one["columns"]][3:] for one in told] == [[], ["n"], ["m"], ["m"], []]
    assert [one["before"] and [kind for _, kind in one["before"]][3:] for one in told] == [
        None,
        [],
        ["int4"],
        ["int4"],
        ["text"],
    ]
    keys = {one.key for one in await stored(broker, "relay.s")}
    assert keys == {b"public.chat"}


async def test_a_column_that_routing_needs_is_dropped_and_its_rows_are_dead_letters(
    broker: Broker, database: Database
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn), broker.subscribe("relay.s.dead", start="earliest") as dead:
        run_sql(database.dsn, "ALTER TABLE chat DROP room", "INSERT INTO chat (body) VALUES ('x')")
        (letter,) = await take(dead, 1)
        assert "has no published column 'room'" in letter.headers[REASON]


@newest
async def test_a_table_that_is_dropped_and_made_again_is_reported(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn), broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, "DROP TABLE chat")
        assert (await events(broker, "unpublished"))[0]["table"] == "public.chat"
        run_sql(database.dsn, CREATE_CHAT, "ALTER PUBLICATION p ADD TABLE chat")
        run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('again')")
        assert [one.topic for one in await take(chat, 1)] == ["chat.again"]
        await events(broker, "published")


# -- transactions that are large -----------------------------------------------------------------------------------


@newest
async def test_a_transaction_larger_than_an_entry_is_published_in_parts_where_that_is_asked_for(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PART_RECORDS", 700)
    run_sql(database.dsn, CREATE_CHAT)
    given = config(batch_records=500, large_transactions="parts")
    async with relaying(broker, database.dsn, given), broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, "INSERT INTO chat (room) SELECT 'r' || i % 7 FROM generate_series(1, 5000) i")
        records = await take(chat, 5000)
        assert [int(record.key or b"") for record in records] == list(range(1, 5001))
        assert [at for at, record in enumerate(records) if "pg-last" in record.headers] == [4999]


@newest
@pytest.mark.parametrize("rows", nightly_beyond(1, [6_400, 100_000]))  # of 10 kB: 64 MB, 1 GB
async def test_a_large_transaction_passes_in_flat_memory(broker: Broker, database: Database, rows: int) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
        large = f"SELECT 'r' || i % 7, repeat('x', 10000) FROM generate_series(1, {rows}) i"
        await asyncio.to_thread(run_sql, database.dsn, f"INSERT INTO chat (room, body) {large}")
        before, pending, grown, seen = resident(), 0, 0, 0
        async for batch in chat.batches():
            if not seen:
                assert sum(one.end for one in await broker.bounds("chat.>")) == rows, "it is seen at once"
            assert [int(record.key or b"") for record in batch] == list(range(seen + 1, seen + len(batch) + 1))
            seen += len(batch)
            assert relay._session is not None
            assert relay._session.changes is not None
            pending = max(pending, relay._session.changes.ready_size + relay._session.changes.open.size)
            grown = max(grown, resident() - before)
            if seen == rows:
                break
        assert pending <= 3 * changes.PART_BYTES
        assert grown < 600 << 20, grown >> 20


def resident() -> int:
    """Bytes of memory that this process has; 0 on a system that does not say."""
    told = Path("/proc/self/statm")
    return int(told.read_text().split()[1]) * 4096 if told.exists() else 0


# -- reports to PostgreSQL -----------------------------------------------------------------------------------------


async def test_an_idle_publication_does_not_hold_back_the_log(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "IDLE_MARK_SECONDS", 0.2)
    run_sql(database.dsn, CREATE_CHAT, "CREATE TABLE other (x text)")
    async with relaying(broker, database.dsn):
        run_sql(database.dsn, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
        target = run_sql(database.dsn, "SELECT pg_current_wal_lsn() - '0/0'")
        await until(lambda: confirmed(database.dsn) >= target)
    async with relaying(broker, database.dsn):
        pass
    assert not [one for one in await stored(broker, "relay.s") if b"gap" in one.value]


async def test_a_fast_shutdown_of_postgresql_does_not_wait_and_its_restart_is_survived(
    broker: Broker, database: Database
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    loop = asyncio.get_running_loop()
    async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a')")
        await take(chat, 1)
        began = loop.time()
        await asyncio.to_thread(database.server.stop)
        assert loop.time() - began < 20  # PostgreSQL waits without end for a relay that confirms nothing
        await until(lambda: relay.state == "waiting")
        await asyncio.to_thread(database.server.start)
        await streams(relay)
        run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('b')")
        assert [one.topic for one in await take(chat, 1)] == ["chat.b"]
        assert relay.last_error


@newest
@pytest.mark.parametrize("fsync", ["interval", "os"])
async def test_nothing_is_confirmed_before_it_is_on_disk(
    tmp_path: Path, database: Database, fsync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    synced = 0
    sync = Broker.sync

    async def noted(broker: Broker) -> None:
        nonlocal synced
        before = broker.statistics().journal
        assert before is not None
        await sync(broker)
        after = broker.statistics().journal
        assert after is not None
        synced += after.syncs - before.syncs

    monkeypatch.setattr(Broker, "sync", noted)
    async with runnel.open(tmp_path / "data", fsync=fsync, fsync_interval=1000.0) as broker:
        async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
            run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a')")
            (record,) = await take(chat, 1)
            lsn = run_sql(database.dsn, f"SELECT '{record.headers['pg-lsn']}'::pg_lsn - '0/0'")
            await until(lambda: confirmed(database.dsn) > lsn)
            assert synced
            assert relay.statistics().confirmed > lsn


async def test_a_broker_in_memory_is_refused(database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with runnel.open() as broker:
        with pytest.raises(NotSupported, match="open a folder"):
            await Relay(broker, database.dsn, config()).run()


# -- several relays ------------------------------------------------------------------------------------------------


async def test_a_standby_takes_over_in_less_than_a_second(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with broker.subscribe("chat.>") as chat:
        standby = Relay(broker, database.dsn, config())
        async with relaying(broker, database.dsn) as first, running(standby):
            await until(lambda: standby.state == "standby")
            run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a')")
            await take(chat, 1)
            assert (first.state, standby.state) == ("streaming", "standby")
            # The connections of the first one are cut, as when its process is killed.
            loop = asyncio.get_running_loop()
            began = loop.time()
            run_sql(
                database.dsn,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'runnel relay s%' "
                "AND pid <> (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted LIMIT 1)",
            )
            await until(lambda: "streaming" in (first.state, standby.state))
            run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('b')")
            assert [one.topic for one in await take(chat, 1)] == ["chat.b"]
            assert loop.time() - began < 20  # far less, on an idle machine: see benchmarks/relay.py


async def test_a_holder_that_hangs_is_ended(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    relay = Relay(broker, database.dsn, config(holder_timeout=0.5))
    await relay.setup()
    with psycopg.connect(database.dsn, autocommit=True) as hung:
        hung.execute("SELECT pg_advisory_lock(hashtextextended('runnel relay s', 0))")
        async with running(relay):
            await streams(relay)
        with pytest.raises(psycopg.OperationalError):
            hung.execute("SELECT 1")


# -- typed topics --------------------------------------------------------------------------------------------------


async def test_rows_that_do_not_fit_the_type_of_their_topic_are_dead_letters_in_their_place(
    tmp_path: Path, database: Database
) -> None:
    import msgspec

    from runnel.server.options import ServerOptions
    from runnel.server.server import Server

    class Line(msgspec.Struct):
        id: int
        room: str
        body: str

    run_sql(database.dsn, CREATE_CHAT)
    async with runnel.open(tmp_path / "data") as served, Server(served, ServerOptions(port=0)) as server:
        async with runnel.open(server.listeners[0].url) as broker:
            await broker.topic("chat.a", Line).declare()
            async with relaying(broker, database.dsn), broker.subscribe(">", start="earliest") as everything:
                rows = ", ".join(f"('a', {'NULL' if i in (3, 4, 9) else i})" for i in range(1, 13))
                run_sql(database.dsn, f"INSERT INTO chat (room, body) VALUES {rows}, ('b', NULL)")
                records: list[Any] = (await take(everything, 14))[1:]
    assert [(one.topic, json.loads(one.value)["id"]) for one in records] == [
        ("relay.s.dead" if i in (3, 4, 9) else "chat.b" if i == 13 else "chat.a", i) for i in range(1, 14)
    ]
    assert "body" in records[2].headers[REASON]
