"""What subscribers are told when rows may be missing: slots lost, moved and made anew, and servers restored."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import runnel
from runnel import Broker
from runnel.postgres import Relay, SetupIncomplete
from runnel.postgres.config import relay_config
from runnel.postgres.setup import SetupFacts, examine, warnings
from tests.ports import free_port
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import (
    CREATE_CHAT,
    DROP_SLOT,
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
from tools.postgres import PostgresServer, installations

newest = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
ROW = "INSERT INTO chat (room, body) VALUES ('a', '{}')"


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that the test may change and restore."""
    with PostgresServer(installations()[NEWEST], port=free_port(), settings={"wal_keep_size": "512MB"}) as server:
        yield server


async def bodies(broker: Broker) -> list[str]:
    return [json.loads(record.value)["body"] for record in await stored(broker, "chat.*")]


async def test_a_slot_that_was_made_anew_is_a_gap(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn), broker.subscribe("chat.*") as chat:
        run_sql(database.dsn, ROW.format(1))
        await take(chat, 1)
    run_sql(database.dsn, *DROP_SLOT, ROW.format("missed"))
    async with relaying(broker, database.dsn), broker.subscribe("chat.*") as chat:
        run_sql(database.dsn, ROW.format(2))
        await take(chat, 1)
        (gap,) = await events(broker, "gap")
        assert "created anew or moved" in gap["reason"]
        assert gap["generation"] == 2
    async with relaying(broker, database.dsn):
        pass
    assert await bodies(broker) == ["1", "2"]
    assert len([one for one in await stored(broker, "relay.s") if b'"gap"' in one.value]) == 1


async def test_a_slot_that_was_moved_is_a_gap(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn):
        pass
    run_sql(
        database.dsn,
        ROW.format("skipped"),
        "SELECT pg_replication_slot_advance('s', pg_current_wal_lsn())",
        ROW.format(1),
    )
    async with relaying(broker, database.dsn):
        await events(broker, "gap")
        await until_bodies(broker, ["1"])


async def until_bodies(broker: Broker, expected: list[str]) -> None:
    async with asyncio.timeout(60):
        while await bodies(broker) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@newest
async def test_a_broker_that_was_restored_is_a_gap(broker: Broker, database: Database, tmp_path: Path) -> None:
    """Its markers are older than the slot: what was confirmed since then is not in it."""
    run_sql(database.dsn, CREATE_CHAT)
    async with runnel.open(tmp_path / "one") as first:
        async with relaying(first, database.dsn):
            run_sql(database.dsn, ROW.format(1))
            await until_bodies(first, ["1"])
    shutil.copytree(tmp_path / "one", tmp_path / "old")
    async with runnel.open(tmp_path / "one") as first:
        async with relaying(first, database.dsn) as relay:
            run_sql(database.dsn, ROW.format(2))
            await until_bodies(first, ["1", "2"])
            await until(lambda: relay.statistics().lag_bytes == 0)
    async with runnel.open(tmp_path / "old") as old, relaying(old, database.dsn):
        (gap,) = await events(old, "gap")
        assert "this broker was restored" in gap["reason"]


async def test_a_server_restored_from_a_copy_of_its_folder_is_not_skipped(broker: Broker, own: PostgresServer) -> None:
    run_sql(own.dsn, CREATE_CHAT)
    async with relaying(broker, own.dsn) as relay:
        run_sql(own.dsn, ROW.format(1))
        await until_bodies(broker, ["1"])
        await until(lambda: relay.statistics().lag_bytes == 0)
    own.stop()
    shutil.copytree(own.data, own.folder / "copy")
    own.start()
    async with relaying(broker, own.dsn) as relay:
        run_sql(own.dsn, *[ROW.format(f"lost{number}") for number in range(20)], "SELECT pg_switch_wal()")
        run_sql(own.dsn, ROW.format("lost20"))
        await until_bodies(broker, ["1", *(f"lost{number}" for number in range(21))])
        await until(lambda: relay.statistics().lag_bytes == 0)
    own.kill()
    shutil.rmtree(own.data)
    shutil.move(own.folder / "copy", own.data)
    shutil.chown(own.data, *own_user(own))
    own.start()
    run_sql(own.dsn, ROW.format(2))
    async with relaying(broker, own.dsn):
        (gap,) = await events(broker, "gap")
        assert "restored from a copy" in gap["reason"]
        await until_bodies(broker, ["1", *(f"lost{number}" for number in range(21)), "2"])


def own_user(server: PostgresServer) -> tuple[int, int]:
    found = server.folder.stat()
    for path in server.data.rglob("*"):
        shutil.chown(path, found.st_uid, found.st_gid)
    return found.st_uid, found.st_gid


async def test_a_server_restored_to_an_earlier_time_is_not_skipped(broker: Broker, own: PostgresServer) -> None:
    """Recovery to a point in time begins a new timeline, whose rows have LSNs that were published before."""
    run_sql(own.dsn, CREATE_CHAT)
    own.run("pg_basebackup", "-D", str(own.folder / "backup"), "-d", own.dsn, "-c", "fast", "-X", "none")
    async with relaying(broker, own.dsn) as relay:
        run_sql(own.dsn, ROW.format("kept"), "SELECT pg_create_restore_point('here')")
        run_sql(own.dsn, *[ROW.format(f"undone{number}") for number in range(10)])
        await until_bodies(broker, ["kept", *(f"undone{number}" for number in range(10))])
        await until(lambda: relay.statistics().lag_bytes == 0)
    own.stop()
    log = own.folder / "archive"
    shutil.copytree(own.data / "pg_wal", log)
    shutil.rmtree(own.data)
    shutil.move(own.folder / "backup", own.data)
    (own.data / "recovery.signal").touch()
    shutil.chown(own.data, *own_user(own))
    for path in (log, *log.rglob("*")):
        shutil.chown(path, *own_user(own))
    own.settings |= {
        "restore_command": f"cp {log}/%f %p",
        "recovery_target_name": "here",
        "recovery_target_action": "promote",
    }
    own.start()
    async with asyncio.timeout(60):
        while run_sql(own.dsn, "SELECT pg_is_in_recovery()"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert run_sql(own.dsn, "SELECT string_agg(body, ' ') FROM chat") == "kept"
    with pytest.raises(SetupIncomplete, match="there is no replication slot 's'"):
        await Relay(broker, own.dsn, config()).run()
    async with relaying(broker, own.dsn):
        (gap,) = await events(broker, "gap")
        assert "left timeline 1" in gap["reason"]
        run_sql(own.dsn, ROW.format("new"))
        await until_bodies(broker, ["kept", *(f"undone{number}" for number in range(10)), "new"])


async def test_a_lost_slot_stops_or_reads_the_tables_again(broker: Broker, own: PostgresServer) -> None:
    own.settings |= {"max_slot_wal_keep_size": "1MB", "wal_keep_size": "0"}
    own.restart()
    run_sql(own.dsn, CREATE_CHAT)
    async with relaying(broker, own.dsn):
        run_sql(own.dsn, ROW.format(1))
        await until_bodies(broker, ["1"])
    run_sql(own.dsn, ROW.format("away"), *["SELECT pg_switch_wal()", ROW.format("later"), "CHECKPOINT"] * 4)
    status = "SELECT wal_status FROM pg_replication_slots"
    assert run_sql(own.dsn, status) == "lost"
    with pytest.raises(SetupIncomplete, match="is lost: PostgreSQL removed log"):
        await Relay(broker, own.dsn, config()).run()
    relay = Relay(broker, own.dsn, config(on_lost_slot="snapshot"))
    async with running(relay):
        await streams(relay)
        await until_bodies(broker, ["1", "1", "away", *["later"] * 4])
        (gap,) = await events(broker, "gap")
        assert "created anew" in gap["reason"]
        read = [one for one in await stored(broker, "chat.*") if one.headers["pg-op"] == "read"]
        assert len(read) == 6
        await until(lambda: relay.statistics().snapshots and relay.statistics().snapshots[0].is_done)


async def test_another_cluster_is_a_gap(broker: Broker, database: Database, own: PostgresServer) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    run_sql(own.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn):
        pass
    async with relaying(broker, own.dsn):
        (gap,) = await events(broker, "gap")
        assert "another PostgreSQL cluster" in gap["reason"]
        run_sql(own.dsn, ROW.format(1))
        await until_bodies(broker, ["1"])


# -- set-up --------------------------------------------------------------------------------------------------------


async def refused(broker: Broker, dsn: str, given: dict[str, object] | None = None) -> str:
    with pytest.raises(SetupIncomplete) as caught:
        await Relay(broker, dsn, given or config()).run()
    return str(caught.value)


async def test_a_server_without_logical_replication_is_refused_with_the_sql(broker: Broker) -> None:
    with PostgresServer(installations()[NEWEST], settings={"wal_level": "replica"}) as server:
        run_sql(server.dsn, CREATE_CHAT)
        assert "ALTER SYSTEM SET wal_level = 'logical';" in await refused(broker, server.dsn)


@newest
async def test_everything_that_is_missing_is_reported_at_once(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, "DROP ROLE IF EXISTS nobody_special", "CREATE ROLE nobody_special LOGIN", CREATE_CHAT)
    run_sql(database.dsn, "CREATE UNLOGGED TABLE gone (id int)", "CREATE VIEW seen AS SELECT 1 AS id")
    dsn = database.dsn.replace("postgres@", "nobody_special@")
    tables = [
        {"table": "chat", "topic": "chat.{channel}"},
        {"table": "gone", "topic": "gone"},
        {"table": "seen", "topic": "seen"},
        {"table": "absent", "topic": "absent"},
    ]
    said = await refused(broker, dsn, config(*tables))
    for sentence in (
        'ALTER ROLE "nobody_special" REPLICATION;',
        "public.chat has no column 'channel'; it has id, room, body",
        "public.gone is unlogged",
        'ALTER TABLE "public"."gone" SET LOGGED;',
        "public.seen is not an ordinary or partitioned table",
        "there is no table public.absent",
        'CREATE PUBLICATION "p" FOR TABLE',
        "pg_create_logical_replication_slot('s', 'pgoutput'",
    ):
        assert sentence in said
    run_sql(database.dsn, "DROP ROLE nobody_special")


async def test_a_replica_identity_that_says_too_little_is_refused(broker: Broker, database: Database) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE keyed (id int PRIMARY KEY, room text)",
        "CREATE TABLE bare (id int)",
        "CREATE TABLE parts (id int, room text, PRIMARY KEY (room, id)) PARTITION BY LIST (room)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a')",
        "ALTER TABLE part_a REPLICA IDENTITY NOTHING",
    )
    changing = ["insert", "update", "delete"]
    given = config(
        {"table": "keyed", "topic": "keyed.{room}", "publish": changing},
        {"table": "bare", "topic": "bare"},
        {"table": "parts", "topic": "parts.{room}", "publish": changing},
    )
    said = await refused(broker, database.dsn, given)
    assert "UPDATE and DELETE of keyed do not say the old room" in said
    assert "ALTER TABLE keyed REPLICA IDENTITY FULL;" in said
    assert "PostgreSQL would refuse UPDATE and DELETE of bare" in said
    assert "ALTER TABLE part_a REPLICA IDENTITY FULL;" in said
    assert "ALTER TABLE parts " not in said
    async with relaying(broker, database.dsn, given):
        pass


async def test_a_key_that_is_none_for_replication_is_refused(broker: Broker, database: Database) -> None:
    run_sql(
        database.dsn,
        "CREATE TABLE covering (id int, room text, PRIMARY KEY (id) INCLUDE (room))",
        "CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE, room text)",
        "CREATE TABLE listed (id int, room text, PRIMARY KEY (id, room))",
        "CREATE TABLE whole (id int PRIMARY KEY, room text, more text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
    )
    changing = ["insert", "update", "delete"]
    given = config(
        {"table": "covering", "topic": "covering.{room}", "publish": changing},
        {"table": "deferred", "topic": "deferred", "publish": changing},
        {"table": "listed", "topic": "listed", "publish": changing, "columns": ["id"]},
        {"table": "whole", "topic": "whole", "publish": changing, "columns": ["id", "room"]},
    )
    said = await refused(broker, database.dsn, given)
    assert "UPDATE and DELETE of covering do not say the old room" in said
    assert "PostgreSQL would refuse UPDATE and DELETE of deferred, which has no replica identity" in said
    assert "PostgreSQL would refuse UPDATE and DELETE of listed: its replica identity has room" in said
    assert "PostgreSQL would refuse UPDATE and DELETE of whole: REPLICA IDENTITY FULL needs all columns" in said


async def test_a_partition_that_is_not_logged_is_refused_and_reported_if_it_comes_later(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runnel.postgres import session

    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    run_sql(
        database.dsn,
        "CREATE TABLE logs (id int) PARTITION BY RANGE (id)",
        "CREATE UNLOGGED TABLE logs_1 PARTITION OF logs FOR VALUES FROM (0) TO (10)",
    )
    given = config({"table": "logs", "topic": "logs"})
    assert "logs_1 is a partition of public.logs that is not logged" in await refused(broker, database.dsn, given)
    async with relaying(broker, database.dsn, given), broker.subscribe("logs") as logs:  # set up by its SQL
        run_sql(database.dsn, "INSERT INTO logs VALUES (1)")
        await take(logs, 1)
        run_sql(database.dsn, "CREATE UNLOGGED TABLE logs_2 PARTITION OF logs FOR VALUES FROM (10) TO (20)")
        assert (await events(broker, "unpublished"))[0]["table"] == "logs_2"


@newest
async def test_what_works_and_hurts_later_is_warned_about(
    broker: Broker, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    run_sql(
        database.dsn,
        CREATE_CHAT,
        f"ALTER DATABASE {database.name} SET synchronous_commit = off",
        "SELECT pg_create_physical_replication_slot('standby_1')",
    )
    try:
        async with relaying(broker, database.dsn):
            assert "synchronous_commit is off" in caplog.text
            assert "max_slot_wal_keep_size has no bound" in caplog.text
            assert ("synchronized_standby_slots is empty" in caplog.text) == (NEWEST >= 17)
            facts = await examined(database.dsn)
            statements = [line for warning in warnings(facts) for line in warning.sql]
            assert ("ALTER SYSTEM SET synchronized_standby_slots = 'standby_1';" in statements) == (NEWEST >= 17)
    finally:
        run_sql(database.dsn, "SELECT pg_drop_replication_slot('standby_1')")


async def examined(dsn: str) -> SetupFacts:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        return await examine(connection, relay_config(config()))


@newest
async def test_a_publication_that_differs_is_refused_and_setup_makes_it_right(
    broker: Broker, database: Database
) -> None:
    run_sql(database.dsn, CREATE_CHAT, "CREATE TABLE other (id int PRIMARY KEY)")
    run_sql(database.dsn, "CREATE PUBLICATION p FOR TABLE chat (id) WITH (publish = 'update')")
    given = config({"table": "chat", "topic": "chat.{room}", "where": "id > 1"}, {"table": "other", "topic": "other"})
    said = await refused(broker, database.dsn, given)
    assert "does not publish insert" in said
    assert "public.other is not in the publication" in said
    async with relaying(broker, database.dsn, given), broker.subscribe("chat.*") as chat:
        run_sql(database.dsn, ROW.format(1), ROW.format(2))
        assert [one.key for one in await take(chat, 1)] == [None]
    assert len(await stored(broker, "chat.*")) == 1


@newest
async def test_a_publication_that_is_dropped_under_way_is_waited_for(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runnel.postgres import session

    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn) as relay:
        run_sql(database.dsn, "DROP PUBLICATION p")
        await events(broker, "unpublished")
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's'"
            )
        await until(lambda: "there is no publication" in (relay.last_error or ""))
        run_sql(database.dsn, "CREATE PUBLICATION p FOR TABLE chat")
        await streams(relay)
        run_sql(database.dsn, ROW.format(1))
        await until_bodies(broker, ["1"])


# -- failover ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly  # the standby looks at slots every 30 seconds
@pytest.mark.skipif(NEWEST < 17, reason="slots survive a failover from 17 on")
async def test_a_promoted_standby_goes_on_without_a_gap(broker: Broker, own: PostgresServer) -> None:
    own.settings |= {"synchronized_standby_slots": "standby", "hot_standby": "on"}
    run_sql(own.dsn, "SELECT pg_create_physical_replication_slot('standby', true)", CREATE_CHAT)
    own.restart()
    standby = PostgresServer(own.binaries, port=free_port())
    try:
        where = f"host=127.0.0.1 port={own.port} user=postgres dbname=postgres"
        own.run("pg_basebackup", "-D", str(own.folder / "standby"), "-d", where, "-c", "fast", "-X", "stream")
        shutil.move(own.folder / "standby", standby.data)
        (standby.data / "standby.signal").touch()
        shutil.chown(standby.data, *own_user(standby))
        standby.settings |= {
            "primary_conninfo": where,
            "primary_slot_name": "standby",
            "hot_standby_feedback": "on",
            "sync_replication_slots": "on",
        }
        standby.start()
        both = f"postgresql://postgres@127.0.0.1:{own.port},127.0.0.1:{standby.port}/postgres?target_session_attrs=read-write"
        relay = Relay(broker, both, config())
        await relay.setup()
        async with running(relay):
            await streams(relay)
            run_sql(own.dsn, ROW.format(1), ROW.format(2))
            await until_bodies(broker, ["1", "2"])
            ready = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 's' AND synced AND NOT temporary"
            await until(lambda: run_sql(standby.dsn, ready))
            await asyncio.to_thread(own.kill)
            run_sql(standby.dsn, "SELECT pg_promote()")
            await streams(relay)
            run_sql(standby.dsn, ROW.format(3))
            await until_bodies(broker, ["1", "2", "3"])
        assert not [one for one in await stored(broker, "relay.s") if b'"gap"' in one.value]
    finally:
        standby.close()
