"""Transactions that are larger than an entry of the journal: seen at once, or in parts; each row once in any case."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, Record
from runnel.broker.tx import stage
from runnel.core.dead_letter import REASON
from runnel.postgres import Relay, changes
from runnel.postgres.publisher import RelayPublisher
from runnel.postgres.staged import drop_stages
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import CREATE_CHAT, config, relaying, run_sql, stored, take, until

pytestmark = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)

INTERLEAVED = "INSERT INTO chat (room) SELECT 'r' || i % {rooms} FROM generate_series(1, {rows}) i"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PART_RECORDS", 700)


async def visible(broker: Broker) -> int:
    return sum(one.end - one.first for one in await broker.bounds("chat.>"))


def ids(records: list[Record[bytes]]) -> list[int]:
    return [int(record.key or b"") for record in records]


def by_topic(records: list[Record[bytes]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in records:
        found.setdefault(record.topic, []).append(int(record.key or b""))
    return found


def last_of_parts(records: list[Record[bytes]]) -> list[int]:
    return [at for at, record in enumerate(records) if "pg-last" in record.headers]


# -- at once -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over_tcp", [False, True])
async def test_a_large_transaction_is_seen_at_once_and_in_the_order_of_its_rows(
    broker: Broker, database: Database, over_tcp: bool
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with Server(broker, ServerOptions(port=0)) as server, broker.subscribe("chat.>") as chat:
        async with runnel.open(server.listeners[0].url) as remote:
            async with relaying(remote if over_tcp else broker, database.dsn):
                run_sql(database.dsn, INTERLEAVED.format(rooms=7, rows=5000))
                first = await take(chat, 1)
                assert await visible(broker) == 5000
                records = [*first, *await take(chat, 4999)]
                run_sql(database.dsn, "INSERT INTO chat (id, room) VALUES (9000, 'r1')")
                assert ids(await take(chat, 1)) == [9000]
    assert ids(records) == list(range(1, 5001))
    assert by_topic(records) == {f"chat.r{room}": list(range(room or 7, 5001, 7)) for room in range(7)}
    assert not last_of_parts(records)
    assert not await broker.stages()


async def test_a_hundred_thousand_rows_whose_topic_changes_with_each_keep_their_order(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PART_RECORDS", 30_000)
    run_sql(database.dsn, CREATE_CHAT)
    rows = 100_001
    async with runnel.open(tmp_path / "data") as broker, broker.subscribe("chat.>") as chat:
        async with relaying(broker, database.dsn):
            run_sql(database.dsn, INTERLEAVED.format(rooms=200, rows=rows))
            first = await take(chat, 1)
            assert await visible(broker) == rows
            assert ids([*first, *await take(chat, rows - 1)]) == list(range(1, rows + 1))
    async with runnel.open(tmp_path / "data") as broker:
        assert ids(await stored(broker, "chat.r7")) == list(range(7, rows + 1, 200))


async def test_what_is_staged_is_invisible_and_begun_anew_after_a_restart(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(publisher: RelayPublisher) -> None:
        del publisher
        await asyncio.Event().wait()

    run_sql(database.dsn, CREATE_CHAT)
    async with runnel.open(tmp_path / "data") as broker:
        with monkeypatch.context() as patched:
            patched.setattr(RelayPublisher, "_commit_staged", hang)
            async with relaying(broker, database.dsn) as relay:
                run_sql(database.dsn, INTERLEAVED.format(rooms=3, rows=2000))
                await until(lambda: has_staged(relay, 2001))
        assert await visible(broker) == 0
        assert sum(one.records for one in await broker.stages()) == 2001  # with the schema event
    async with runnel.open(tmp_path / "data") as broker, broker.subscribe("chat.>", start="earliest") as chat:
        assert len(await broker.stages()) == 1
        async with relaying(broker, database.dsn):
            records = await take(chat, 2000)
            assert await visible(broker) == 2000
        assert ids(records) == list(range(1, 2001))
        assert not await broker.stages()


def has_staged(relay: Relay, records: int) -> bool:
    assert relay._session is not None
    assert relay._session.publisher is not None
    return relay._session.publisher._staged.records == records


async def test_stages_that_are_gone_are_written_again(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, dropped = RelayPublisher._commit_staged, 0

    async def after_a_drop(publisher: RelayPublisher) -> None:
        nonlocal dropped
        if not dropped:
            dropped = len(await broker.stages())
            await drop_stages(broker, "relay")
        await commit(publisher)

    monkeypatch.setattr(RelayPublisher, "_commit_staged", after_a_drop)
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, INTERLEAVED.format(rooms=2, rows=2000))
        records = await take(chat, 2000)
        assert "cannot be committed" in (relay.last_error or "")
    assert dropped == 1
    assert ids(records) == list(range(1, 2001))
    assert await visible(broker) == 2000


async def test_a_relay_that_is_killed_while_it_stages(broker: Broker, database: Database, tmp_path: Path) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    file, rows = tmp_path / "relay.toml", 4000
    file.write_text(
        f'[relay]\ndsn = "{database.dsn}"\nslot = "s"\npublication = "p"\n'
        '[[relay.table]]\ntable = "chat"\ntopic = "chat.{room}"\nkey = "id"\n'
    )
    await Relay(broker, database.dsn, config()).setup()
    large = f"SELECT 'r' || i % 2, repeat('x', 10000) FROM generate_series(1, {rows}) i"  # three parts of 16 MiB
    await asyncio.to_thread(run_sql, database.dsn, f"INSERT INTO chat (room, body) {large}")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL_"))}
    async with Server(broker, ServerOptions(port=0)) as server:
        command = ["relay", "run", "--config", str(file), "--server", server.listeners[0].url]
        for life in range(3):
            relay = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "runnel", *command, env=env, stderr=subprocess.DEVNULL
            )
            try:
                async with asyncio.timeout(PATIENCE):
                    while await visible(broker) < rows and not (life < 2 and await staged_parts(broker) > life):
                        assert await visible(broker) in (0, rows)
                        await asyncio.sleep(0.002)
                    while life == 2 and await broker.stages():  # noqa: ASYNC110 - the relay drops what was left
                        await asyncio.sleep(0.01)
            finally:
                relay.kill()
                await relay.wait()
            assert await visible(broker) in (0, rows)
    records = await stored(broker, "chat.>")
    assert ids(records) == list(range(1, rows + 1))


async def staged_parts(broker: Broker) -> int:
    """How many parts of about 1,600 rows the last relay has staged."""
    return max((one.records for one in await broker.stages()), default=0) // 1000


async def test_rows_that_do_not_fit_and_deletes_of_compacted_topics_are_staged_too(
    broker: Broker, database: Database
) -> None:
    class Line(msgspec.Struct):
        id: int
        room: str
        body: str

    run_sql(database.dsn, CREATE_CHAT, "ALTER TABLE chat REPLICA IDENTITY FULL")
    await broker.topic("chat.r0", Line, compact=True).declare()
    table = {"table": "chat", "topic": "chat.{room}", "key": "id", "publish": ["insert", "delete"], "compact": True}
    many = "INSERT INTO chat (room, body) SELECT 'r' || i / 1001, nullif('x', left('x', (i % 500 = 0)::int))"
    statement = f"{many} FROM generate_series(1, 2000) i; DELETE FROM chat WHERE id <= 1000;"
    async with relaying(broker, database.dsn, config(table)) as relay, broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, f"DO $$ BEGIN {statement} END $$")
        first: list[Record[Any]] = await take(chat, 1)
        assert await visible(broker) == 2998
        records = [*first, *await take(chat, 2997)]
        assert relay.statistics().dead_letters == 2
    dead = await stored(broker, "relay.s.dead")
    assert [(json.loads(one.value)["id"], "body" in one.headers[REASON]) for one in dead] == [
        (id, True) for id in (500, 1000)
    ]
    assert not last_of_parts(records)
    assert [int(record.headers["pg-index"]) for record in records] == sorted(
        int(record.headers["pg-index"]) for record in records
    )
    deleted = [record for record in records if record.headers["pg-op"] == "delete"]
    assert ids(deleted) == list(range(1, 1001))
    assert not any(record.value for record in deleted)


# -- in parts ------------------------------------------------------------------------------------------------------


async def test_a_transaction_of_too_many_topics_comes_in_parts_and_nothing_changes_its_order(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "MAX_TOPICS", 8)
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn), broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, INTERLEAVED.format(rooms=9, rows=2000))
        records = await take(chat, 2000)
    assert ids(records) == list(range(1, 2001))
    assert last_of_parts(records) == [1999]


async def test_deletes_never_overtake_what_they_delete(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT, "ALTER TABLE chat REPLICA IDENTITY FULL")
    table = {"table": "chat", "topic": "chat.{room}", "key": "id", "publish": ["insert", "update", "delete"]}
    moves = f"{INTERLEAVED.format(rooms=2, rows=1000)}; UPDATE chat SET room = 'r' || (id + 1) % 2;"
    async with relaying(broker, database.dsn, config(table)), broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, f"DO $$ BEGIN {moves} END $$")
        records = await take(chat, 3000)
    rooms: dict[bytes | None, str] = {}
    for record in records:
        if record.headers["pg-op"] == "insert":
            rooms[record.key] = record.topic
        else:
            assert rooms.pop(record.key) == record.topic
    assert rooms == {str(id).encode(): f"chat.r{(id + 1) % 2}" for id in range(1, 1001)}
    assert not last_of_parts(records)


async def test_a_transaction_that_was_begun_in_parts_goes_on_in_parts(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, calls = RelayPublisher._commit, 0

    async def failing(publisher: RelayPublisher, *said: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("the connection is lost")
        await commit(publisher, *said)

    monkeypatch.setattr(RelayPublisher, "_commit", failing)
    monkeypatch.setattr(stage, "MAX_TOPICS", 8)
    run_sql(database.dsn, CREATE_CHAT)
    many = INTERLEAVED.format(rooms=9, rows=1000)
    few = "INSERT INTO chat (room) SELECT 'r0' FROM generate_series(1, 1000)"  # could be staged, from there on
    async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, f"DO $$ BEGIN {many}; {few}; END $$")
        records = await take(chat, 2000)
        assert relay.last_error == "the connection is lost"
    assert ids(records) == list(range(1, 2001))
    assert last_of_parts(records) == [1999]


async def test_beyond_the_staging_limit_it_comes_in_parts(tmp_path: Path, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    noise = "string_agg(md5(i || '.' || j), '') FROM generate_series(1, 3000) i, generate_series(1, 10) j"
    async with runnel.open(tmp_path / "data", max_staged_bytes=1 << 20) as broker:
        async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
            run_sql(database.dsn, f"INSERT INTO chat (room, body) SELECT 'a' || i % 3, {noise} GROUP BY i ORDER BY i")
            first = await take(chat, 1)
            assert await visible(broker) > 700  # what was staged, and a part of a part with it
            records = [*first, *await take(chat, 2999)]
            assert relay.last_error is None
        assert ids(records) == list(range(1, 3001))
        assert last_of_parts(records) == [2999]
        assert not await broker.stages()


async def test_topics_in_memory_cannot_be_staged(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    await broker.topic("chat.r0", durable=False).declare()
    async with broker.subscribe("chat.>", policy="block") as chat, relaying(broker, database.dsn):
        run_sql(database.dsn, INTERLEAVED.format(rooms=2, rows=2000))
        records = await take(chat, 2000)
    assert sorted(ids(records)) == list(range(1, 2001))
    assert not await broker.stages()
