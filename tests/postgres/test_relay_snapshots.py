"""Tables that have rows before the relay, or are read again: nothing is missing, and the newest comes last."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import psycopg
import pytest

import runnel
from runnel import Broker, Record
from runnel.postgres import Relay, expiry, snapshot_reader
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import (
    CREATE_CHAT,
    config,
    events,
    relaying,
    run_sql,
    running,
    stored,
    streams,
    take,
    until,
)

newest = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
ITEMS = {"table": "items", "topic": "items", "key": "id", "publish": ["insert", "update", "delete"], "snapshot": True}


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of these tests count as large, and are read in chunks."""
    monkeypatch.setattr(snapshot_reader, "SMALL_BYTES", 0)


def is_read(relay: Relay) -> bool:
    return bool((found := relay.statistics().snapshots) and found[0].is_done)


def latest(records: list[Record[bytes]]) -> dict[str, int]:
    """The last version of each row that is not deleted."""
    found: dict[str, int] = {}
    for record in records:
        value = json.loads(record.value)
        if record.headers["pg-op"] == "delete":
            found.pop(value["id"], None)
        else:
            found[value["id"]] = value["n"]
    return found


async def test_rows_before_the_relay_are_read_in_chunks_beside_writers(broker: Broker, database: Database) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE items (id text PRIMARY KEY, n int)",
        "INSERT INTO items SELECT i, 0 FROM generate_series(1, 3000) i",
    )
    stop = threading.Event()

    def write(seed: int) -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                id = str((number * 7919 + seed * 31) % 3200)
                connection.execute("UPDATE items SET n = n + 1 WHERE id = %s", [id])
                connection.execute("INSERT INTO items VALUES (%s, 0) ON CONFLICT DO NOTHING", [f"{seed}-{number}"])
                connection.execute("DELETE FROM items WHERE id = %s", [f"{seed}-{number - 5}"])

    writers = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    relay = Relay(broker, database.dsn, config(ITEMS, snapshot_rows=300))
    await relay.setup()
    for writer in writers:
        writer.start()
    try:
        async with running(relay):
            await until(lambda: is_read(relay))
            stop.set()
            for writer in writers:
                await asyncio.to_thread(writer.join)
            rows = run_sql(database.dsn, "SELECT json_object_agg(id, n) FROM items")
            run_sql(database.dsn, "INSERT INTO items VALUES ('last', 1)")
            async with broker.subscribe("items", start="earliest") as items:
                records: list[Record[Any]] = []
                while not records or records[-1].key != b"last":
                    records += await take(items, 1)
    finally:
        stop.set()
    assert latest(records[:-1]) == rows
    assert {record.headers["pg-op"] for record in records} == {"read", "insert", "update", "delete"}
    reads = [record.key for record in records if record.headers["pg-op"] == "read"]
    assert len(reads) == len(set(reads)), "no row is read twice"
    assert run_sql(database.dsn, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%(snapshot)'") == 0


@newest
async def test_a_snapshot_goes_on_after_a_crash_with_the_chunk_that_was_not_stored(
    broker: Broker, database: Database
) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE items (id int, part text, n int, PRIMARY KEY (part, id))",
        "INSERT INTO items SELECT i, 'p' || i % 3, i FROM generate_series(1, 2000) i",
    )
    given = config({"table": "items", "topic": "items", "snapshot": True}, snapshot_rows=100)
    relay = Relay(broker, database.dsn, given)
    await relay.setup()
    for end in (300, 900, 1500):
        async with running(relay), broker.subscribe("items", start="earliest") as items:
            await take(items, end)
    async with running(relay):
        await until(lambda: is_read(relay))
    records = await stored(broker, "items")
    assert sorted(json.loads(record.value)["id"] for record in records) == list(range(1, 2001))
    async with running(Relay(broker, database.dsn, given)):  # it is read once
        run_sql(database.dsn, "INSERT INTO items VALUES (0, 'p0', 0)")
        await until(lambda: True)
        async with broker.subscribe("items", start="earliest") as items:
            assert [record.headers["pg-op"] for record in await take(items, 2001)][-1] == "insert"


@newest
async def test_a_small_table_becomes_visible_as_a_whole(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_reader, "SMALL_BYTES", 8 << 20)
    run_sql(
        database.dsn,
        "CREATE TABLE items (id int, part text, note text, PRIMARY KEY (part, id) INCLUDE (note))",
        "INSERT INTO items SELECT i, 'p' || i % 3, NULL FROM generate_series(1, 2000) i",
    )
    given = config({"table": "items", "topic": "items.{part}", "snapshot": True}, snapshot_rows=100)
    async with relaying(broker, database.dsn, given), broker.subscribe("items.*", start="earliest") as items:
        records = await take(items, 2000)
    assert {record.headers["pg-op"] for record in records} == {"read"}
    assert len({record.headers["pg-lsn"] for record in records}) == 1, "one transaction"


@newest
async def test_columns_that_an_index_includes_are_not_of_the_key_of_a_snapshot(
    broker: Broker, database: Database
) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE items (id int, note text, PRIMARY KEY (id) INCLUDE (note))",
        "INSERT INTO items SELECT i, NULL FROM generate_series(1, 500) i",
    )
    given = config({"table": "items", "topic": "items", "snapshot": True}, snapshot_rows=100)
    async with relaying(broker, database.dsn, given), broker.subscribe("items", start="earliest") as items:
        assert [json.loads(one.value)["id"] for one in await take(items, 500)] == list(range(1, 501))


@newest
async def test_a_table_is_read_again_on_request(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT, "INSERT INTO chat (room) VALUES ('before'), ('Ω')")
    filtered = {"table": "chat", "topic": "chat.{room}", "where": "room <> 'hidden'"}
    async with relaying(broker, database.dsn, config(filtered)) as relay, broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('after'), ('hidden'), ('a.b')")
        assert [one.topic for one in await take(chat, 1)] == ["chat.after"]
        for _ in range(2):
            await relay.snapshot("chat")
            records = await take(chat, 3)
            assert [(one.topic, one.headers["pg-op"]) for one in records] == [
                ("chat.before", "read"),
                ("chat.Ω", "read"),
                ("chat.after", "read"),
            ]
        await until(lambda: is_read(relay))
        (found,) = relay.statistics().snapshots
        assert (found.table, found.rows) == ("public.chat", 4)
        with pytest.raises(runnel.InvalidOption, match="expected one of"):
            await relay.snapshot("other")


@newest
async def test_a_table_that_the_role_may_not_read_waits_and_changes_go_on(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshot_reader, "RETRY_SECONDS", 0.2)
    role = f"reader_{database.name}"
    run_sql(database.dsn, CREATE_CHAT, "INSERT INTO chat (room) VALUES ('a'), ('b')")
    await Relay(broker, database.dsn, config()).setup()
    run_sql(database.dsn, f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        relay = Relay(broker, database.dsn.replace("postgres@", f"{role}@"), config())
        async with running(relay), broker.subscribe("chat.*", start="earliest") as chat:
            await streams(relay)
            await relay.snapshot("chat")
            await until(lambda: "permission denied for table chat. The relay's role" in caplog.text)
            run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('c')")
            assert [one.topic for one in await take(chat, 1)] == ["chat.c"]
            run_sql(
                database.dsn,
                "ALTER TABLE chat ENABLE ROW LEVEL SECURITY",  # hides all rows from others than the owner
                f"GRANT SELECT ON chat TO {role}",
            )
            await until(lambda: "row-level security policy" in caplog.text)
            run_sql(database.dsn, "ALTER TABLE chat DISABLE ROW LEVEL SECURITY")
            found = await take(chat, 3)
            assert [(one.topic, one.headers["pg-op"]) for one in found] == [
                ("chat.a", "read"),
                ("chat.b", "read"),
                ("chat.c", "read"),
            ]
            assert relay.errors == 0
    finally:
        run_sql(database.dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@newest
async def test_a_table_without_a_primary_key_is_not_read(
    broker: Broker, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    run_sql(database.dsn, "CREATE TABLE bare (id int)", "INSERT INTO bare VALUES (1)")
    async with relaying(broker, database.dsn, config({"table": "bare", "topic": "bare"})) as relay:
        await relay.snapshot("bare")
        await until(lambda: "no published primary key" in caplog.text)
        run_sql(database.dsn, "INSERT INTO bare VALUES (2)")
        async with broker.subscribe("bare", start="earliest") as bare:
            assert [one.value for one in await take(bare, 1)] == [b'{"id":2}']


@newest
async def test_chunks_are_bounded_by_bytes(broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_reader, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(snapshot_reader, "FETCH_ROWS", 3)
    run_sql(
        database.dsn,
        CREATE_CHAT,
        "INSERT INTO chat (room, body) SELECT 'a', repeat('x', 20000) FROM generate_series(1, 30)",
    )
    given = config({"table": "chat", "topic": "chat", "snapshot": True})
    async with relaying(broker, database.dsn, given), broker.subscribe("chat", start="earliest") as chat:
        records = await take(chat, 30)
        assert len({record.headers["pg-lsn"] for record in records}) == 5


# -- rows past their time ------------------------------------------------------------------------------------------


async def test_rows_past_their_time_are_deleted_and_subscribers_are_not_notified(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "BATCH_ROWS", 7)
    monkeypatch.setattr(expiry, "SHORTEST_ROUND", 0.02)
    monkeypatch.setattr(expiry, "LONGEST_ROUND", 0.02)
    run_sql(database.dsn, "CREATE TABLE frames (id int PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())")
    frames = {
        "table": "frames",
        "topic": "frames",
        "key": "id",
        "publish": ["insert", "delete"],
        "keep": 3600,
        "keep_column": "at",
    }
    async with relaying(broker, database.dsn, config(frames)), broker.subscribe("frames") as seen:
        run_sql(
            database.dsn,
            "INSERT INTO frames (id, at) SELECT i, now() - '2 hours'::interval FROM generate_series(1, 20) i",
            "INSERT INTO frames (id) VALUES (21), (22)",
        )
        await until(lambda: run_sql(database.dsn, "SELECT count(*) FROM frames") == 2)
        run_sql(database.dsn, "DELETE FROM frames WHERE id = 21")
        records = await take(seen, 23)
        assert [record.headers["pg-op"] for record in records] == ["insert"] * 22 + ["delete"]
        assert records[-1].key == b"21"
    asked = frames | {"publish_expired": True}
    async with relaying(broker, database.dsn, config(asked)), broker.subscribe("frames") as seen:
        run_sql(database.dsn, "INSERT INTO frames VALUES (23, now() - '2 hours'::interval)")
        assert [record.headers["pg-op"] for record in await take(seen, 2)] == ["insert", "delete"]


async def test_partitions_past_their_time_are_dropped(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LONGEST_ROUND", 0.02)
    run_sql(
        database.dsn,
        "CREATE TABLE frames (id int, at timestamptz) PARTITION BY RANGE (at)",
        "CREATE TABLE frames_old PARTITION OF frames FOR VALUES FROM (MINVALUE) TO ('2026-01-01')",
        "CREATE TABLE frames_new PARTITION OF frames FOR VALUES FROM ('2026-01-01') TO (MAXVALUE)",
        "CREATE TABLE others (LIKE frames)",
    )
    frames = {"table": "frames", "topic": "frames", "publish": ["insert"], "keep": 3600}
    async with relaying(broker, database.dsn, config(frames)), broker.subscribe("frames", start="earliest") as seen:
        run_sql(database.dsn, "INSERT INTO frames VALUES (2, now())")
        await take(seen, 1)
        await until(lambda: run_sql(database.dsn, "SELECT to_regclass('frames_old')") is None)
        assert run_sql(database.dsn, "SELECT count(*) FROM frames") == 1
        assert run_sql(database.dsn, "SELECT to_regclass('frames_new')") is not None


@newest
async def test_rows_that_may_not_be_deleted_stay_and_the_relay_goes_on(
    broker: Broker, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE frames (id int PRIMARY KEY, at timestamptz)",
        "CREATE RULE kept AS ON DELETE TO frames DO INSTEAD SELECT 1 / 0",
        "INSERT INTO frames VALUES (1, '2020-01-01')",
    )
    frames = {"table": "frames", "topic": "frames", "keep": 1, "keep_column": "at"}
    async with relaying(broker, database.dsn, config(frames)) as relay, broker.subscribe("frames") as seen:
        await until(lambda: "past their time and stay" in caplog.text)
        run_sql(database.dsn, "INSERT INTO frames VALUES (2, '2020-01-01')")
        await take(seen, 1)
        assert relay.state == "streaming"


# -- figures -------------------------------------------------------------------------------------------------------


@newest
async def test_statistics_say_how_far_it_is(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    relay = Relay(broker, database.dsn, config())
    assert relay.statistics().state == "starting"
    await relay.setup()
    async with running(relay):
        await streams(relay)
        relay.statistics()
        run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a'), ('b'), ('c.d')")
        await until(lambda: relay.statistics().lag_bytes == 0 and relay.statistics().rows == 3)
        found = relay.statistics()
        assert (found.rows, found.transactions, found.dead_letters) == (3, 1, 1)
        assert found.rows_per_second > 0
        assert found.wal_status == "reserved"
        assert found.retained_bytes is not None
        assert found.safe_wal_bytes is None, "PostgreSQL does not bound what it keeps"
        run_sql(database.dsn, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's'")
        await until(lambda: relay.last_error is not None)
        await streams(relay)
        assert relay.statistics().rows == 3, "counters do not go back"
        assert await events(broker, "schema")
