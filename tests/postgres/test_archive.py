"""The archive: records become rows, each once, with columns, partitions and retention."""

from __future__ import annotations

import asyncio
import logging
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import psycopg
import pytest

import runnel
from runnel import Broker
from runnel.cli.main import main
from runnel.core.errors import InvalidOption, NotSupported
from runnel.postgres import Archive, ArchiveTableMismatch, archive_table
from runnel.postgres.archive import ArchiveStatistics, render
from runnel.postgres.archive_rows import partition_at
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from runnel.testing import JumpingClock
from tests.postgres.archiving import archiving, assert_copied, caught_up, rows_of
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import run_sql, until

newest = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
DAY = 86_400.0


class Item(msgspec.Struct):
    sku: str


class Order(msgspec.Struct):
    id: int
    name: str
    price: float
    paid: bool
    total: Decimal
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    day: date
    ref: UUID
    blob: bytes
    items: list[Item]
    first: Item | None
    offset: int  # as a column of the archive


class Longer(Order):
    note: str | None = None


ORDER: dict[str, Any] = {
    "id": -(1 << 63),
    "name": "añb",
    "price": 0.1,
    "paid": True,
    "total": Decimal("-12345678901234567890.000120"),
    "at": datetime(1969, 12, 31, 23, 59, 59, 123456, UTC),
    "day": date(1, 1, 1),
    "ref": UUID(int=7),
    "blob": b"\0\xff",
    "items": [Item("x")],
    "first": None,
    "offset": 9,
}


async def test_raw_and_typed_records_become_rows_and_go_on_after_a_restart(broker: Broker, database: Database) -> None:
    orders = broker.topic("orders", Order)
    await orders.publish(Order(**ORDER), key="k", headers={"h": "ü"})
    await broker.publish("raw.a", b"\0\x01", headers={"x": "1", "y": "2"})
    await broker.topic("packed", Order, encoding="msgpack").publish(Order(**ORDER))
    await broker.topic("compacted", compact=True).publish(None, key="gone")
    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, 4)
        await broker.publish("raw.b", b"")
        await caught_up(archive, 5)
    for number in range(3):
        await broker.publish("raw.a", f"{number}")
    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, 3)
        assert archive.statistics().place == archive.place.place  # type: ignore[union-attr]
    records = await assert_copied(broker, database.dsn)
    assert len(records) == 8
    rows = {row["topic"]: row for row in rows_of(database.dsn)}
    for topic in ("orders", "packed"):
        found = {name: rows[topic][name] for name in ORDER if name != "offset"}
        assert found == {**{k: v for k, v in ORDER.items() if k != "offset"}, "items": [{"sku": "x"}]}
        assert rows[topic]["offset_"] == 9
    assert rows["raw.a"]["id"] is None
    assert run_sql(database.dsn, "SELECT rows FROM runnel_archive") == 8
    assert run_sql(database.dsn, "SELECT count(*) FROM runnel_archive_gap") == 0


@newest
async def test_added_fields_become_columns_and_misfits_are_null(
    broker: Broker, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.topic("orders", Order).publish(Order(**ORDER))

    class Other(msgspec.Struct):
        name: int
        text: str = ""
        nested: dict[str, str] = {}

    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, 1)
        await broker.topic("orders", Longer).publish(Longer(**ORDER, note="new"))
        await caught_up(archive, 2)
        other = broker.topic("other", Other)
        await other.publish(Other(1, "a\0b", {"x": "\0"}))
        await other.publish(Other(2, "good", {"x": "y"}))
        late = broker.topic("late")
        await late.publish("raw")
        await caught_up(archive, 5)
        assert archive.misfits == 2
    rows = rows_of(database.dsn)
    assert [row["note"] for row in rows] == [None, "new", None, None, None]
    assert [row["text"] for row in rows[2:]] == [None, "good", None]
    assert [row["nested"] for row in rows[2:]] == [None, {"x": "y"}, None]
    assert [row["name"] for row in rows[2:]] == [None, None, None]
    assert "the field 'name' of 'other' is bigint, and the column has another type" in caplog.text
    await assert_copied(broker, database.dsn)


@newest
async def test_a_column_that_refuses_a_value_does_not_stop_it(
    broker: Broker, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    class Small(msgspec.Struct):
        id: int

    topic = broker.topic("small", Small)
    await topic.publish(Small(1))
    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, 1)
        run_sql(database.dsn, "ALTER TABLE events ALTER COLUMN id TYPE smallint")  # by another hand
        await topic.publish(Small(2))
        await caught_up(archive, 2)
        assert "without their fields" in caplog.text
        run_sql(database.dsn, "ALTER TABLE events ADD CHECK (length(value) > 100) NOT VALID")
        await topic.publish(Small(3))
        await until(lambda: archive.last_error is not None)
        assert "violates check constraint" in (archive.last_error or "")
        run_sql(database.dsn, "ALTER TABLE events DROP CONSTRAINT events_value_check")
        await caught_up(archive, 3)
    assert [row["id"] for row in rows_of(database.dsn)] == [1, None, None]
    await assert_copied(broker, database.dsn)


async def test_partitions_by_time_and_retention(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_table, "LOCK_SECONDS", 0.2)
    clock = JumpingClock(datetime(2026, 12, 30, 12, tzinfo=UTC).timestamp())
    async with runnel.open(tmp_path / "data", clock=clock) as broker:
        for _ in range(4):
            await broker.publish("a", "x")
            await clock.advance(DAY)
        options: dict[str, Any] = {"retention": 3.5 * DAY}
        async with archiving(broker, database.dsn, **options) as archive:
            await until(lambda: archive.batches)
            assert (archive.rows, archive.expired) == (3, 1)
        names = [f"{part[0]}" for part in parts(database)]
        assert names == [f"events_p{day}" for day in (20261231, 20270101, 20270102, 20270103, 20270104, 20270105)]
        assert [row["time"].day for row in rows_of(database.dsn)] == [31, 1, 2]
        with psycopg.connect(database.dsn) as reading:
            reading.execute("SELECT * FROM events_p20261231")
            await clock.advance(DAY)
            async with archiving(broker, database.dsn, **options) as archive:
                await until(lambda: archive.state == "copying")
        assert parts(database)[0][0] == "events_p20261231"  # a query held it
        async with archiving(broker, database.dsn, **options) as archive:
            await broker.publish("a", "y")
            await caught_up(archive, 1)
        assert parts(database)[0][0] == "events_p20270101"
        assert run_sql(database.dsn, "SELECT min(first) FROM runnel_archive_range") == 2
        run_sql(database.dsn, "DROP TABLE events_p20270101")  # by the operator
        async with archiving(broker, database.dsn, **options) as archive:
            await until(lambda: archive.state == "copying")
        assert run_sql(database.dsn, "SELECT min(first) FROM runnel_archive_range") == 3


def parts(database: Database) -> list[tuple[str]]:
    query = (
        "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON oid = inhparent "
        "WHERE relname = 'events' AND relkind = 'p' ORDER BY 1"
    )
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(query).fetchall()


def test_the_times_that_partitions_cover() -> None:
    at = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    for kind, start, stop, suffix in (
        ("hour", datetime(2026, 12, 31, 23, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), "_p20261231_23"),
        ("day", datetime(2026, 12, 31, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), "_p20261231"),
        ("month", datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), "_p202612"),
        ("year", datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), "_p2026"),
    ):
        assert partition_at(kind, at) == (start, stop, suffix)
        assert partition_at(kind, stop).start == stop


@newest
async def test_it_waits_while_postgresql_is_down_and_publishers_do_not(broker: Broker, database: Database) -> None:
    async with archiving(broker, database.dsn, batch_records=7) as archive:
        await broker.publish("a", "0")
        await caught_up(archive, 1)
        database.server.kill()
        for number in range(1, 30):
            await broker.publish("a", f"{number}")
        await until(lambda: archive.state == "waiting")
        assert archive.statistics().last_error
        database.server.start()
        await caught_up(archive, 30)
        assert archive.batches >= 5
    await assert_copied(broker, database.dsn)


async def test_it_reports_to_its_broker_until_it_ends(broker: Broker, database: Database) -> None:
    async with Server(broker, ServerOptions(port=0)) as server, runnel.open(server.listeners[0].url) as far:
        async with archiving(far, database.dsn) as archive:
            await broker.publish("a", "1")
            await caught_up(archive, 1)
            await until(lambda: [one.rows for one in broker.statistics().relays] == [1])
            (report,) = broker.statistics().relays
            assert (report.kind, report.slot, report.state) == ("archive", archive.config.name, "copying")
        assert broker.statistics().relays == ()
        failing = Archive(far, database.dsn, "other.>", "events")
        with pytest.raises(ArchiveTableMismatch):
            await failing.run()
        (report,) = broker.statistics().relays
        assert report.state == "failed"
        assert "the table holds '>'" in (report.last_error or "")


async def test_a_second_archive_waits_and_takes_over(broker: Broker, database: Database, tmp_path: Path) -> None:
    async with Server(broker, ServerOptions(port=0)) as server, runnel.open(server.listeners[0].url) as far:
        async with archiving(broker, database.dsn) as first:
            await broker.publish("a", "1")
            await caught_up(first, 1)
            second = Archive(far, database.dsn, ">", "events", batch_seconds=0.0)
            waiting = asyncio.create_task(second.run())
            await until(lambda: second.state == "standby")
        await broker.publish("a", "2")
        await caught_up(second, 1)
        # The position moves under it: the next transaction is rolled back, and the position read again.
        await broker.publish("a", "3")
        await caught_up(second, 2)
        run_sql(database.dsn, "UPDATE runnel_archive SET place = place - 1")
        run_sql(database.dsn, "DELETE FROM events WHERE value = '3'")
        await broker.publish("a", "4")
        await until(lambda: second.last_error is not None and second.rows == 4)
        assert "another archive has moved the position" in (second.last_error or "")
        waiting.cancel()
        await asyncio.wait([waiting])
        await assert_copied(broker, database.dsn)


@newest
async def test_what_does_not_belong_together_is_refused(broker: Broker, database: Database, tmp_path: Path) -> None:
    async def refused(other: Broker, pattern: str = ">", table: str = "events", **options: Any) -> str:
        with pytest.raises((ArchiveTableMismatch, NotSupported)) as caught:
            await Archive(other, database.dsn, pattern, table, **options).run()
        return str(caught.value)

    await broker.publish("a", "1")
    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, 1)
    assert "holds '>', not 'a.*'" in await refused(broker, "a.*")
    assert "cover a day" in await refused(broker, partition="month")
    run_sql(database.dsn, "CREATE TABLE plain (id int)")
    assert "no archive" in await refused(broker, table="plain")
    async with runnel.open() as memory:
        assert "in memory" in await refused(memory)
    async with runnel.open(tmp_path / "other") as other:
        await other.publish("a", "1")
        assert "shares no topic" in await refused(other)
    for options, option in (({"batch_records": 0}, "batch_records"), ({"retention": -1}, "retention")):
        with pytest.raises(InvalidOption, match=option):
            Archive(broker, database.dsn, ">", "events", **options)
    for pattern, table in ((">.x", "t"), (">", "t;drop"), (">", "t" * 50)):
        with pytest.raises(runnel.UsageError):
            Archive(broker, database.dsn, pattern, table)
    with pytest.raises(InvalidOption, match="RUNNEL_ARCHIVE_DSN"):
        Archive(broker, None, ">", "events")


@newest
@pytest.mark.parametrize("pattern", ["a", "*"])
async def test_an_older_copy_of_the_folder_is_refused_and_a_restored_one_goes_on(
    tmp_path: Path, database: Database, pattern: str
) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with runnel.open(data) as broker:
        await broker.publish("a", "1")
    assert main(["backup", str(data), str(backup)]) == 0
    shutil.copytree(data, tmp_path / "older")
    async with runnel.open(data) as broker:
        await broker.publish("a", "2")
        async with archiving(broker, database.dsn, pattern) as archive:
            await caught_up(archive, 2)
    async with runnel.open(tmp_path / "older") as older:
        with pytest.raises(ArchiveTableMismatch, match="older copy"):
            await Archive(older, database.dsn, pattern, "events").run()
    assert main(["restore", str(backup), str(tmp_path / "restored")]) == 0
    async with runnel.open(tmp_path / "restored") as restored:
        async with archiving(restored, database.dsn, pattern) as archive:
            await restored.publish("a", "3")
            await caught_up(archive, 1)
    assert [row["value"] for row in rows_of(database.dsn)] == [b"1", b"2", b"3"]
    assert "was restored" in run_sql(database.dsn, "SELECT reason FROM runnel_archive_gap")


@newest
@pytest.mark.parametrize("pattern", ["a", "*"])
async def test_records_that_are_gone_are_a_gap(broker: Broker, database: Database, pattern: str) -> None:
    topic = broker.topic("a")
    for number in range(10):
        await topic.publish(f"{number}")
    async with archiving(broker, database.dsn, pattern, hold=False) as archive:
        await caught_up(archive, 10)
    for number in range(10):
        await topic.publish(f"{number}")
    await topic.trim(15)
    async with archiving(broker, database.dsn, pattern, hold=False) as archive:
        await caught_up(archive, 5)
        assert archive.missed == 5
        assert run_sql(database.dsn, "SELECT count FROM runnel_archive_gap") == 5
        await broker.delete("a")
        await broker.publish("a", "again")
        await caught_up(archive, 6)
    assert run_sql(database.dsn, "SELECT count(DISTINCT epoch) FROM events") == 2
    with psycopg.connect(database.dsn) as connection:
        reasons = [row[0] for row in connection.execute("SELECT reason FROM runnel_archive_gap").fetchall()]
    # A pattern goes on by sequence: it has missed nothing of the topic that was deleted.
    assert ["deleted" in reason for reason in reasons] == ([False, True] if pattern == "a" else [False])


@newest
async def test_the_broker_keeps_what_is_not_archived(broker: Broker, database: Database) -> None:
    topic = broker.topic("a", retention_count=3)
    async with archiving(broker, database.dsn) as archive:
        await topic.publish("0")
        await caught_up(archive, 1)
    for number in range(1, 20):
        await topic.publish(f"{number}")
    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, 19)
    assert [row["value"] for row in rows_of(database.dsn)] == [f"{number}".encode() for number in range(20)]


@newest
async def test_a_table_that_was_dropped_is_filled_again(
    broker: Broker, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await broker.publish("a", "1")
    async with archiving(broker, database.dsn, "a") as archive:
        await caught_up(archive, 1)
    run_sql(database.dsn, "DROP TABLE events")
    async with archiving(broker, database.dsn, "a") as archive:
        await caught_up(archive, 1)
    await assert_copied(broker, database.dsn)
    assert "the table is gone" in caplog.text


def test_metrics() -> None:
    text = render(ArchiveStatistics(table="public.events", state="copying", rows=7, lag_seconds=0.5))
    assert 'runnel_archive_copying{table="public.events"} 1\n' in text
    assert 'runnel_archive_rows_total{table="public.events"} 7\n' in text
    assert 'runnel_archive_lag_seconds{table="public.events"} 0.5\n' in text
