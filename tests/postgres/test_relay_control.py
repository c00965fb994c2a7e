"""What an operator does with a relay: pause, skip, give up a place, several relays with one name, and its figures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.cli.main import main
from runnel.observe.prometheus import render
from runnel.postgres import Relay, RelayStatistics, expiry, session
from runnel.postgres import relay as relay_module
from runnel.postgres.progress import MarkerNames, RowPlace
from runnel.postgres.session import RelaySession
from runnel.wire.pgoutput import parse_lsn
from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import (
    CHAT,
    CREATE_CHAT,
    DROP_SLOT,
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

pytestmark = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
ROW = "INSERT INTO chat (room) VALUES ('{}')"


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.05)
    async with runnel.open(tmp_path / "data") as opened:
        yield opened


def config_file(folder: Path, dsn: str, *tables: dict[str, Any], **options: Any) -> Path:
    """The same as `config`, in a file."""
    given = config(*tables, dsn=dsn, **options)
    lines = ["[relay]", *(f"{name} = {json.dumps(value)}" for name, value in given.items() if name != "table")]
    for table in given["table"]:
        lines += ["[[relay.table]]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    file = folder / "relay.toml"
    file.write_text("\n".join(lines))
    return file


async def command(*arguments: str | Path) -> int:
    """`runnel relay`, beside the event loop of the test."""
    return await asyncio.to_thread(main, ["relay", *map(str, arguments)])


async def test_a_paused_relay_publishes_nothing_until_it_is_resumed(
    broker: Broker, database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    told = ("--config", config_file(tmp_path, database.dsn), "--data", tmp_path / "data")
    async with relaying(broker, database.dsn) as relay, broker.subscribe("chat.>") as chat:
        assert await command("pause", *told) == 0
        await until(lambda: relay.state == "paused")
        active = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'runnel relay s%'"
        await until(lambda: run_sql(database.dsn, active) == 0)  # PostgreSQL can be stopped
        run_sql(database.dsn, ROW.format("a"))
        await until(lambda: relay.statistics().retained_bytes)
        assert await command("pause", *told) == 0
        assert "it was so already" in capfd.readouterr().out
        assert await command("status", *told) == 0
        assert "paused" in capfd.readouterr().out
    async with running(relay):  # it stays paused when it is started again
        await until(lambda: relay.state == "paused")
        assert await stored(broker, "chat.>") == []
        async with broker.subscribe("chat.>") as chat:
            assert await command("resume", *told) == 0
            assert [one.topic for one in await take(chat, 1)] == ["chat.a"]


async def test_a_transaction_that_cannot_be_published_is_named_and_skipped(
    broker: Broker, database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_sql(database.dsn, CREATE_CHAT, "ALTER TABLE chat REPLICA IDENTITY FULL")
    await broker.topic("chat.kept", compact=False, retention_count=5).declare()  # not what the relay declares
    table = CHAT | {"compact": True}
    told = ("--config", config_file(tmp_path, database.dsn, table), "--data", tmp_path / "data")
    async with relaying(broker, database.dsn, config(table)) as relay:
        assert await command("skip", *told, "--lsn", "FF/0") == 0  # a mistake, which the next one mends
        run_sql(database.dsn, ROW.format("a"), ROW.format("kept"), ROW.format("b"))
        await until(lambda: "cannot be published" in (relay.last_error or ""))
        lsn = (relay.last_error or "").rsplit("--lsn ", 1)[1]
        assert [one.topic for one in await stored(broker, "chat.>")] == ["chat.a"]
        assert await command("skip", *told, "--lsn", lsn) == 0
        async with broker.subscribe("chat.b", start="earliest") as chat:
            await take(chat, 1)
        (gap,) = await events(broker, "gap")
        assert gap["lsn"] == lsn
        assert relay.statistics().errors >= 1
    assert await stored(broker, "chat.kept") == []
    assert await command("skip", *told, "--lsn", "first") == 2
    assert "such as 0/16B3748" in capfd.readouterr().err


async def test_a_slot_beyond_the_bound_is_created_anew_with_a_gap(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn, config()):
        run_sql(database.dsn, ROW.format("a"))
        async with broker.subscribe("chat.a", start="earliest") as chat:
            await take(chat, 1)
    run_sql(database.dsn, "INSERT INTO chat (room, body) SELECT 'b', repeat('x', 1000) FROM generate_series(1, 5000)")
    bounded = config(max_retained=1 << 20, on_lost_slot="snapshot")
    relay = Relay(broker, database.dsn, bounded)
    async with running(relay):
        (gap,) = await events(broker, "gap")
        assert "created anew" in gap["reason"]
        await until(lambda: bool(relay.statistics().snapshots) and relay.statistics().snapshots[0].is_done)
        assert "max_retained" in (relay.last_error or "")
        retained = "SELECT pg_current_wal_lsn() - restart_lsn < 5000000 FROM pg_replication_slots WHERE slot_name = 's'"
        assert run_sql(database.dsn, retained)
    read = [one for one in await stored(broker, "chat.b") if one.headers["pg-op"] == "read"]
    assert len(read) == 5000


async def test_relays_with_one_name_and_a_slot_each_publish_each_row_once(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "IDLE_MARK_SECONDS", 0.05)
    run_sql(database.dsn, CREATE_CHAT)
    first = Relay(broker, database.dsn, config(slot="one", name="chat"))
    second = Relay(broker, database.dsn, config(slot="two", name="chat"))
    await first.setup()
    await second.setup()
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(running(first))
        await streams(first)
        await stack.enter_async_context(running(second))
        chat = await stack.enter_async_context(broker.subscribe("chat.>"))
        await until(lambda: second.state == "standby")
        run_sql(database.dsn, *[ROW.format(number) for number in range(5)])
        await take(chat, 5)
        behind = (
            "SELECT pg_wal_lsn_diff(max(confirmed_flush_lsn), min(confirmed_flush_lsn)) = 0 "
            "FROM pg_replication_slots WHERE slot_name IN ('one', 'two')"
        )
        await until(lambda: run_sql(database.dsn, behind))  # the slot of the standby holds back nothing
        run_sql(database.dsn, *[ROW.format(number) for number in range(5, 8)])  # published, and still in that slot
        await take(chat, 3)
        holder.cancel()
        await streams(second)
        run_sql(database.dsn, ROW.format(8))
        await take(chat, 1)
    assert [one.topic for one in await stored(broker, "chat.>")] == [f"chat.{number}" for number in range(9)]
    assert {one.topic for one in await stored(broker, "relay.>")} == {"relay.chat"}
    assert not [one for one in await stored(broker, "relay.chat") if b'"gap"' in one.value]


async def test_two_relays_that_stream_at_once_publish_each_row_once(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two servers of PostgreSQL, which do not share the lock: the markers decide."""

    async def owns(self: RelaySession) -> None:
        return None

    monkeypatch.setattr(RelaySession, "_own_slot", owns)
    run_sql(database.dsn, CREATE_CHAT)
    relays = [Relay(broker, database.dsn, config(slot=slot, name="chat")) for slot in ("one", "two")]
    for relay in relays:
        await relay.setup()
    async with AsyncExitStack() as stack:
        for relay in relays:
            await stack.enter_async_context(running(relay))
        for number in range(30):
            run_sql(database.dsn, ROW.format(number))
        chat = await stack.enter_async_context(broker.subscribe("chat.>", start="earliest"))
        records = await take(chat, 30)
        for relay in relays:
            await until(lambda: relay.statistics().published[0] >= lsn_of(records[-1]))  # noqa: B023
    assert [one.topic for one in await stored(broker, "chat.>")] == [f"chat.{number}" for number in range(30)]


async def test_a_generation_begins_behind_what_another_relay_published_meanwhile(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn, config()), broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, ROW.format("a"))
        await take(chat, 1)
    begin, calls = RelaySession._begin_generation, 0

    async def published_meanwhile(self: RelaySession, names: MarkerNames, *rest: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            run_sql(database.dsn, ROW.format("b"))
            end = run_sql(database.dsn, "SELECT pg_current_wal_lsn() - '0/0'")
            async with broker.transaction() as tx:  # as the other relay does, with the row
                tx.mark(names.place(1), RowPlace(int(end), 1).pack())
        await begin(self, names, *rest)

    monkeypatch.setattr(RelaySession, "_begin_generation", published_meanwhile)
    run_sql(
        database.dsn,
        *DROP_SLOT,
        ROW.format("lost"),
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
    )
    async with relaying(broker, database.dsn, config()), broker.subscribe("chat.>") as chat:
        run_sql(database.dsn, ROW.format("c"))
        (record,) = await take(chat, 1)
        assert record.topic == "chat.c"
    assert calls == 2


def lsn_of(record: runnel.Record[bytes]) -> int:
    return parse_lsn(record.headers["pg-lsn"])


async def test_a_subscriber_that_does_not_read_never_holds_back_the_log(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn), broker.subscribe("chat.a", start="earliest") as chat:
        run_sql(database.dsn, ROW.format("a"))
        run_sql(
            database.dsn, "INSERT INTO chat (room, body) SELECT 'a', repeat('x', 1000) FROM generate_series(1, 3000)"
        )
        end = run_sql(database.dsn, "SELECT pg_current_wal_lsn() - '0/0'")
        run_sql(database.dsn, ROW.format("b"))
        await until(lambda: confirmed(database.dsn) >= end)
        assert len(await take(chat, 3001)) == 3001, "a durable topic drops nothing"


async def test_a_slot_that_holds_back_much_is_warned_about(
    broker: Broker, database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn, config(warn_retained=1)):
        run_sql(database.dsn, ROW.format("a"))
        await until(lambda: "its slot holds back" in caplog.text)


async def test_retain_removes_rows_past_their_time_once(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "BATCH_ROWS", 7)
    run_sql(
        database.dsn,
        "CREATE TABLE frames (id int PRIMARY KEY, at timestamptz)",
        "INSERT INTO frames SELECT i, now() - '2 hours'::interval FROM generate_series(1, 20) i",
        "INSERT INTO frames VALUES (21, now())",
        "CREATE TABLE days (id int, at timestamptz) PARTITION BY RANGE (at)",
        "CREATE TABLE days_old PARTITION OF days FOR VALUES FROM (MINVALUE) TO ('2026-01-01')",
        CREATE_CHAT,
    )
    frames = {"table": "frames", "topic": "frames", "keep": 3600, "keep_column": "at"}
    days = {"table": "days", "topic": "days", "keep": 3600}
    file = config_file(tmp_path, database.dsn, CHAT, frames, days)
    assert await command("retain", "--config", file, "--table", "days") == 0
    assert run_sql(database.dsn, "SELECT count(*) FROM frames") == 21
    assert await command("retain", "--config", file) == 0
    assert capfd.readouterr().out.splitlines() == [
        "public.days: 1 partitions dropped, 0 rows deleted",
        "public.frames: 20 rows deleted",
        "public.days: 0 rows deleted",
    ]
    assert run_sql(database.dsn, "SELECT count(*) FROM frames") == 1
    assert await command("retain", "--config", file, "--table", "chat") == 2


async def test_a_broker_shows_the_figures_of_its_relays(broker: Broker, database: Database) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    async with relaying(broker, database.dsn):
        run_sql(database.dsn, ROW.format("a"), ROW.format("b.c"))
        await until(lambda: any(one.rows == 2 and one.wal_status for one in broker.statistics().relays))
        (found,) = broker.statistics().relays
        assert (found.slot, found.state, found.dead_letters, found.wal_status) == ("s", "streaming", 1, "reserved")
        text = render(broker.statistics())
        assert 'runnel_relay_rows_total{slot="s"} 2\n' in text
        assert 'runnel_relay_state{slot="s",state="streaming",wal_status="reserved"} 1\n' in text
    assert broker.statistics().relays == ()
    assert "runnel_relay" not in render(broker.statistics())


def test_serve_runs_the_relay_of_its_configuration(database: Database, tmp_path: Path) -> None:
    run_sql(database.dsn, CREATE_CHAT)
    file = config_file(tmp_path, database.dsn)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL_"))}
    ports = ("--port", "0", "--json-port", "off", "--http-port", "0", "--json")
    server = subprocess.Popen(
        [sys.executable, "-m", "runnel", "serve", "--config", str(file), "--data", str(tmp_path / "data"), *ports],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        listeners = {one["name"]: one["url"] for one in json.loads(server.stdout.readline())["listeners"]}
        asyncio.run(served(database, file, listeners))
    finally:
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=PATIENCE)
    assert server.returncode == 0, errors
    assert "there is no replication slot" in errors, "it was set up only later"
    assert "Traceback" not in errors


async def served(database: Database, file: Path, listeners: dict[str, str]) -> None:
    async with runnel.open(listeners["native"]) as broker, broker.subscribe("chat.>", start="earliest") as chat:
        (found,) = await reported(broker, lambda one: one.state == "failed")
        assert "there is no replication slot" in (found.last_error or "")
        assert await command("init", "--config", file, "--apply") == 0
        run_sql(database.dsn, ROW.format("a"))
        assert [one.topic for one in await take(chat, 1)] == ["chat.a"]
        await reported(broker, lambda one: one.state == "streaming" and one.rows == 1)
        text = await asyncio.to_thread(get, listeners["http"] + "/metrics")
        assert 'runnel_relay_rows_total{slot="s"} 1\n' in text
        assert 'runnel_relay_lag_bytes{slot="s"}' in text
        assert 'runnel_relay_retained_wal_bytes{slot="s"}' in text


async def reported(broker: Broker, is_so: Callable[[RelayStatistics], bool]) -> list[RelayStatistics]:
    """What the server shows of relays, once there is one of the kind."""
    async with asyncio.timeout(PATIENCE):
        while not (found := list(filter(is_so, (await broker.backend.snapshot()).relays))):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())
