"""Trials that try to break a relay: what is too large, what changes under way, and what is gone at a bad moment."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psycopg
import pytest

import runnel
from runnel import Broker
from runnel.cli.main import main
from runnel.core.dead_letter import REASON
from runnel.core.errors import InvalidOption, TooLarge
from runnel.postgres import changes, emit
from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import (
    CREATE_CHAT,
    config,
    confirmed,
    events,
    relaying,
    run_sql,
    stored,
    streams,
    take,
    until,
)

newest = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
ROW = "INSERT INTO chat (room) VALUES ('{}')"


# -- what is too large ---------------------------------------------------------------------------------------------


@newest
async def test_keys_and_headers_of_any_size_neither_stop_the_relay_nor_fill_its_memory(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PART_BYTES", 2 << 20)
    run_sql(database.dsn, "CREATE TABLE notes (id int, key text, note text)")
    notes = {
        "table": "notes",
        "topic": "notes",
        "key": "key",
        "headers": {"note": "note"},
        "columns": ["id", "key", "note"],
    }
    async with (
        relaying(broker, database.dsn, config(notes | {"max_value": 16 << 20}, large_transactions="parts")),
        broker.subscribe("notes") as seen,
    ):
        run_sql(
            database.dsn,
            "INSERT INTO notes VALUES (1, repeat('k', 2000000), ''), (2, 'a', repeat('n', 17000000)), (3, 'b', '')",
            "INSERT INTO notes SELECT i, 'c', repeat('n', 500000) FROM generate_series(10, 29) i",
        )
        records = await take(seen, 21)
    assert [record.key for record in records] == [b"b", *[b"c"] * 20]
    assert records[-1].headers["pg-last"] == "true", "headers count, so that the transaction comes in parts"
    dead = await stored(broker, "relay.s.dead")
    assert ["key and headers have" in one.headers[REASON] for one in dead] == [True, True]


@newest
async def test_what_emit_cannot_publish_it_refuses_and_what_others_wrote_is_a_dead_letter(
    broker: Broker, database: Database
) -> None:
    headers = {f"h{number}": "x" for number in range(250)}
    given = config(message=[{"prefix": "app", "topic": "app"}], table=())
    async with relaying(broker, database.dsn, given), broker.subscribe("app") as app:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            with pytest.raises(InvalidOption, match="at most 240"):
                emit(connection, "app", "x", headers=headers)
            with pytest.raises(TooLarge):
                emit(connection, "app", "x" * (17 << 20))
            connection.execute("SELECT pg_logical_emit_message(true, 'app', repeat('x', 17000000))")
            connection.execute("SELECT pg_logical_emit_message(true, 'runnel', 'not from emit')")
            connection.execute("SELECT pg_logical_emit_message(true, 'app', 'last')")
        assert [one.value for one in await take(app, 1)] == [b"last"]
        assert len(await events(broker, "too_large")) == 1
        assert len(await stored(broker, "relay.s.dead")) == 1


# -- what changes under way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", ["whole", "parts"])
async def test_a_table_that_changes_within_a_large_transaction_keeps_order_and_shape(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    monkeypatch.setattr(changes, "PART_RECORDS", 100)
    run_sql(database.dsn, CREATE_CHAT)
    rows = "INSERT INTO chat (room) SELECT 'a' FROM generate_series(1, 450)"
    given = config(large_transactions=large)
    async with relaying(broker, database.dsn, given), broker.subscribe("chat.a") as chat:
        with psycopg.connect(database.dsn) as connection:
            connection.execute(rows)
            connection.execute("ALTER TABLE chat ADD n int DEFAULT 5")
            connection.execute(rows)
            connection.execute("SAVEPOINT here")
            connection.execute("ALTER TABLE chat RENAME n TO never")
            connection.execute(rows)
            connection.execute("ROLLBACK TO here")
            connection.execute("ALTER TABLE chat DROP body")
            connection.execute(rows)
        records = await take(chat, 1350)
    ids = [json.loads(record.value)["id"] for record in records]
    assert ids == sorted(ids)
    shapes = [sorted(json.loads(records[at].value)) for at in (0, 449, 450, 899, 900, 1349)]
    assert shapes == [["body", "id", "room"]] * 2 + [["body", "id", "n", "room"]] * 2 + [["id", "n", "room"]] * 2
    assert [at for at, one in enumerate(records) if "pg-last" in one.headers] == ([1349] if large == "parts" else [])
    assert len(await events(broker, "schema", 3)) == 3


@newest
async def test_a_row_that_moves_and_a_row_that_cannot_be_routed_any_more(broker: Broker, database: Database) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE docs (id int, room text, doc text, PRIMARY KEY (id, room))",
        "ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL",
    )
    docs = {"table": "docs", "topic": "docs.{room}", "key": "id", "publish": ["insert", "update", "delete"]}
    async with relaying(broker, database.dsn, config(docs)), broker.subscribe("docs.*") as seen:
        run_sql(
            database.dsn,
            "INSERT INTO docs VALUES (1, 'a', repeat('x', 3000))",
            "UPDATE docs SET room = 'b'",  # the large value is not sent
            "UPDATE docs SET room = 'c.d'",  # no topic
            "UPDATE docs SET room = 'e'",
        )
        records = await take(seen, 5)
    assert [(one.topic, one.headers["pg-op"]) for one in records] == [
        ("docs.a", "insert"),
        ("docs.a", "delete"),
        ("docs.b", "insert"),
        ("docs.b", "delete"),  # subscribers of the old topic learn that it is gone
        ("docs.e", "update"),
    ]
    assert records[2].headers["pg-unchanged"] == records[4].headers["pg-unchanged"] == "doc"
    assert "doc" not in json.loads(records[2].value)
    assert [json.loads(one.value)["room"] for one in await stored(broker, "relay.s.dead")] == ["c.d"]


# -- what is gone at a bad moment ----------------------------------------------------------------------------------


@newest
async def test_a_slot_that_is_dropped_while_it_streams_is_waited_for_and_a_gap(
    broker: Broker, database: Database
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, ROW.format("a"))
        await take(chat, 1)
        with psycopg.connect(database.dsn, autocommit=True) as connection:

            def drop() -> bool:
                """The relay comes back at once: drop the slot in the moment in which it does not hold it."""
                connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
                try:
                    connection.execute("SELECT pg_drop_replication_slot('s')")
                except psycopg.errors.ObjectInUse:
                    return False
                return True

            await until(drop)
        run_sql(database.dsn, ROW.format("missed"))
        await until(lambda: "there is no replication slot" in (relay.last_error or ""))
        assert relay.state in ("waiting", "starting")
        await relay.setup()
        (gap,) = await events(broker, "gap")
        assert "created anew" in gap["reason"]
        await streams(relay)
        run_sql(database.dsn, ROW.format("b"))
        assert [one.topic for one in await take(chat, 1)] == ["chat.b"]


@newest
async def test_a_full_disk_of_the_journal_stops_confirming_and_the_relay_goes_on_when_there_is_room(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runnel.journal import storage

    run_sql(database.dsn, CREATE_CHAT)
    free = storage.OsStorage.free
    async with runnel.open(tmp_path / "data", segment_bytes=1 << 20, min_free=1 << 20) as broker:
        async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>", start="earliest") as chat:
            run_sql(database.dsn, ROW.format("a"))
            await take(chat, 1)
            await until(lambda: relay.statistics().lag_bytes == 0)
            monkeypatch.setattr(storage.OsStorage, "free", lambda self: 0)
            before = confirmed(database.dsn)
            run_sql(
                database.dsn,
                "INSERT INTO chat (room, body) SELECT 'b', repeat('x', 10000) FROM generate_series(1, 300)",
            )
            await until(lambda: "0 bytes free" in (relay.last_error or ""))
            assert confirmed(database.dsn) == before
            monkeypatch.setattr(storage.OsStorage, "free", free)
            await take(chat, 300)
            await until(lambda: confirmed(database.dsn) > before)
        assert [one.topic for one in await stored(broker, "chat.>")] == ["chat.a", *["chat.b"] * 300]


@newest
def test_a_relay_that_is_killed_within_chunks_of_a_snapshot_misses_no_row(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE items (id int PRIMARY KEY, n int, filler text)",
        "ALTER TABLE items ALTER filler SET STORAGE PLAIN",
        "INSERT INTO items SELECT i, 0, repeat('x', 3000) FROM generate_series(1, 4000) i",  # more than a small table
    )
    file = tmp_path / "relay.toml"
    file.write_text(
        f'[relay]\ndsn = "{database.dsn}"\nslot = "s"\npublication = "p"\nsnapshot_rows = 50\n[[relay.table]]\n'
        'table = "items"\ntopic = "items"\nkey = "id"\npublish = ["insert", "update", "delete"]\nsnapshot = true\n'
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL_"))}
    command, where = (
        [sys.executable, "-m", "runnel", "relay"],
        ("--config", str(file), "--data", str(tmp_path / "data")),
    )
    assert main(["relay", "init", "--config", str(file), "--apply"]) == 0
    for kill in range(3):
        relay = subprocess.Popen([*command, "run", *where], env=env, stderr=subprocess.DEVNULL)
        try:
            if kill < 2:
                chunks = count()
                last = [confirmed(database.dsn)]
                wait_for(lambda: has_moved(database.dsn, last) and next(chunks) == 3)  # noqa: B023
                run_sql(database.dsn, f"UPDATE items SET n = n + 1 WHERE id % 7 = {kill}")
            else:
                behind = "SELECT pg_logical_emit_message(true, 'runnel', 'behind it') - '0/0'"
                end = int(run_sql(database.dsn, "DELETE FROM items WHERE id % 11 = 0", behind))
                wait_for(lambda: confirmed(database.dsn) >= end)  # noqa: B023 - and the snapshot may be complete before
                wait_for(lambda: "complete" in status(capsys, *where))
        finally:
            relay.kill()
            relay.wait()
    table = run_sql(database.dsn, "SELECT json_object_agg(id, n) FROM items")
    assert asyncio.run(last_versions(tmp_path / "data")) == table


def has_moved(dsn: str, last: list[int]) -> bool:
    """Whether the slot was confirmed anew: a chunk was published."""
    before, last[0] = last[0], confirmed(dsn)
    return last[0] > before


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def status(capsys: pytest.CaptureFixture[str], *where: str) -> str:
    capsys.readouterr()
    main(["relay", "status", *where])
    return capsys.readouterr().out


async def last_versions(folder: Path) -> dict[str, int]:
    """The last version of each row that was not deleted."""
    found: dict[str, int] = {}
    async with runnel.open(folder) as broker:
        for record in await stored(broker, "items"):
            value = json.loads(record.value)
            if record.headers["pg-op"] == "delete":
                found.pop(str(value["id"]), None)
            else:
                found[str(value["id"])] = value["n"]
    return found
