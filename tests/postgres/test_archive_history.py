"""The table of an archive as a `HistorySource`: the same records as the topics, by offset, sequence and time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import runnel
from runnel import Broker, Record
from runnel.core.batch import Slice
from runnel.core.columns import EXPIRES
from runnel.core.history import HistorySource
from runnel.core.pattern import matches
from runnel.postgres import ArchiveHistory, archive_history, history
from runnel.testing import JumpingClock
from tests.patience import PATIENCE
from tests.postgres.archiving import archiving, caught_up
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import run_sql, stored, take, until

newest = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
TOPICS = ("a.x", "a.y", "b", "b.c.d")
START = datetime(2026, 3, 1, 22, tzinfo=UTC)


class Point(msgspec.Struct):
    x: int


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with runnel.open(tmp_path / "data", clock=JumpingClock(START.timestamp())) as broker:
        yield broker


async def filled(broker: Broker, database: Database, count: int = 200) -> list[Record[bytes]]:
    """Records of several topics over several partitions, in the table; some of a topic that is not archived."""
    rng, clock = random.Random(1), broker.clock
    assert isinstance(clock, JumpingClock)
    typed = broker.topic("b", Point)
    await broker.publish("b.c.d", "short-lived", expires=1e9, key="e")
    for number in range(count):
        topic = rng.choice(TOPICS)
        if topic == "b":
            await typed.publish(Point(number), key=f"{number % 3}")
        elif topic == "a.x":
            await broker.publish(topic, f"{number}", headers={"n": f"{number}"})
        else:
            await broker.publish(topic, b"\xff" * rng.randrange(60))
        if rng.random() < 0.1:
            await broker.publish("other", "of no interest")
        if rng.random() < 0.5:
            await clock.advance(rng.choice((0.001, 60.0, 1800.0)))
    return [record for record in await stored(broker, ">") if record.topic != "other"]


def records_of(slices: Sequence[Slice]) -> list[Record[bytes]]:
    return [record for part in slices for record in part.records]


def same(found: Iterable[Record[bytes]], expected: Iterable[Record[bytes]]) -> bool:
    def facts(record: Record[bytes]) -> tuple[object, ...]:
        return (
            *(getattr(record, name) for name in record.__struct_fields__ if name != "headers"),
            dict(record.headers),
        )

    return [facts(one) for one in found] == [facts(one) for one in expected]


async def test_every_question_is_answered_as_the_records_say(
    broker: Broker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = await filled(broker, database)
    monkeypatch.setattr(archive_history, "PAGE_RECORDS", 17)
    monkeypatch.setattr(archive_history, "PAGE_BYTES", 400)
    monkeypatch.setattr(archive_history, "SCANNED", 23)
    async with archiving(broker, database.dsn, ">", batch_records=30) as archive:
        await caught_up(archive, len(await stored(broker, ">")))
    source: HistorySource = ArchiveHistory(database.dsn, "events")
    rng = random.Random(2)
    end = records[-1].sequence + 1
    times = [
        records[0].time - timedelta(hours=1),
        *(one.time for one in records),
        records[-1].time + timedelta(hours=1),
    ]
    for topic in TOPICS:
        own = [record for record in records if record.topic == topic]
        epoch = own[0].epoch
        assert await source.bounds(topic, epoch) == (own[0].offset, own[-1].offset + 1)
        assert await source.bounds(topic, epoch + 1) is None
        found: list[Record[bytes]] = []
        while page := records_of(await source.read(topic, epoch, found[-1].offset + 1 if found else 0, 10**9)):
            assert len(page) <= 17
            assert sum(len(record.value) for record in page[:-1]) < 400
            found += page
        assert same(found, own)
        for _ in range(5):
            first, last = sorted(rng.sample(range(len(own) + 5), 2))
            page = records_of(await source.read(topic, epoch, first, last))
            expected = [record for record in own if first <= record.offset < last]
            assert same(page, expected[: len(page)])
            assert bool(page) == bool(expected)
        for time in rng.sample(times, 8):
            asked = time + rng.choice((timedelta(), timedelta(microseconds=1), -timedelta(microseconds=1)))
            later = [record.offset for record in own if record.time >= asked]
            assert await source.offset_at(topic, epoch, asked) == (later[0] if later else None)
        for sequence in (0, *(one.sequence + rng.choice((0, 1)) for one in rng.sample(own, 8)), 10**9):
            behind = [one.offset for one in own if one.sequence >= sequence]
            assert await source.offset_at_sequence(topic, epoch, sequence) == (behind[0] if behind else None)
    for patterns in ([">"], ["a.*"], ["b"], ["b", "a.y"], ["b.>"], ["none.*"]):
        own = [record for record in records if any(matches(one, record.topic) for one in patterns)]
        found = []
        while page := records_of(await source.read_sequences(patterns, found[-1].sequence + 1 if found else 0, 10**9)):
            assert len(page) <= 17
            found += [record for record in page if record.topic != "other"]
        assert same(found, own)
        for time in rng.sample(times, 6):
            later = [record.sequence for record in own if record.time >= time]
            at = await source.sequence_at(patterns, time)
            assert (at is None) == (not later)
            if at is not None:
                assert [record.sequence for record in own if record.sequence >= at] == later
    assert await source.read_sequences([">"], end, end + 10) == []
    await source.close()


@newest
async def test_expiry_dropped_partitions_and_a_server_that_is_down(broker: Broker, database: Database) -> None:
    records = await filled(broker, database, 60)
    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, len(await stored(broker, ">")))
    source = history(database.dsn, "public.events", "b.>")
    assert [source.covers(topic) for topic in ("b.c.d", "b", "$internal")] == [True, False, False]
    first = next(record for record in records if record.topic == "b.c.d")
    (part, *_) = await source.read("b.c.d", first.epoch, 0, 1000)
    assert part.columns is not None
    assert part.columns[EXPIRES][0] == pytest.approx(START.timestamp() + 1e9)
    topic, epoch = records[0].topic, records[0].epoch
    before = await source.read(topic, epoch, 0, 1000)
    parts = run_sql(database.dsn, "SELECT string_agg(part, ', ' ORDER BY part) FROM runnel_archive_part WHERE rows > 0")
    oldest = parts.split(", ")[0]
    run_sql(database.dsn, f"DROP TABLE {oldest}")  # what is said of it is still there
    after = await source.read(topic, epoch, 0, 1000)
    assert len(records_of(after)) < len(records_of(before)) or records_of(after)[0].offset > 0
    assert await source.sequence_at([">"], START) is not None
    database.server.kill()
    with pytest.raises(OSError, match="cannot be read"):
        await source.bounds(topic, epoch)
    database.server.start()
    assert await source.bounds(topic, epoch) is not None
    await source.close()
    with pytest.raises(OSError, match="closed"):
        await source.bounds(topic, epoch)


@newest
async def test_subscribers_read_the_table_and_go_on_in_the_journal_while_both_move(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics and patterns, from the oldest record to those that are published meanwhile; PostgreSQL is away once."""
    monkeypatch.setattr(archive_history, "PAGE_RECORDS", 40)
    source = ArchiveHistory(database.dsn, "events")
    options: dict[str, Any] = {"segment_bytes": 16_384, "tail_bytes": 1, "share": False, "fsync": "os"}
    published: list[tuple[str, bytes]] = []

    async def publish(broker: Broker, count: int) -> None:
        for _ in range(count):
            topic, number = f"a.{'xxy'[len(published) % 3]}", b"%d" % len(published)
            await broker.publish(topic, number, key=number, headers={"n": number.decode()})
            published.append((topic, number))

    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(runnel.open(tmp_path / "data", history=source, **options))
        for topic in ("a.x", "a.y"):
            await broker.topic(topic, retention_count=10).declare()
        archive = await stack.enter_async_context(archiving(broker, database.dsn, "a.>"))
        await publish(broker, 600)
        await caught_up(archive, 600)
        readers = {
            pattern: await stack.enter_async_context(broker.subscribe(pattern, start="earliest"))
            for pattern in ("a.x", "a.y", "a.*", ">")
        }
        found = {pattern: await take(reader, 30) for pattern, reader in readers.items()}
        database.server.stop()
        reading = {
            pattern: asyncio.create_task(take(reader, expected - 30))
            for pattern, reader in readers.items()
            for expected in [sum(matches(pattern, f"a.{'xxy'[number % 3]}") for number in range(900))]
        }
        await publish(broker, 100)  # publishing goes on
        await until(lambda: broker.statistics().history.waiting == len(readers))  # type: ignore[union-attr]
        database.server.start()
        await publish(broker, 200)
        for pattern, task in reading.items():
            found[pattern] += await task
        await caught_up(archive, 900)
        for pattern, records in found.items():
            expected = [(topic, value) for topic, value in published if matches(pattern, topic)]
            assert [(record.topic, record.value) for record in records] == expected, pattern
            assert [record.gap for record in records if record.gap is not None] == []
            assert all(record.headers == {"n": record.value.decode()} for record in records)
        again = await stack.enter_async_context(broker.subscribe(">", start=found[">"][450].time))
        (first,) = await take(again, 1)
        assert first.time == found[">"][450].time


@newest
async def test_every_query_uses_an_index(broker: Broker, database: Database) -> None:
    """Of a large partition, no query reads more than it returns."""
    await broker.publish("a", "x")
    async with archiving(broker, database.dsn) as archive:
        await caught_up(archive, 1)
    epoch = (await broker.bounds("a"))[0].epoch
    part = run_sql(database.dsn, "SELECT part FROM runnel_archive_part WHERE rows > 0")
    run_sql(
        database.dsn,
        f'INSERT INTO {part} (topic, epoch, "offset", sequence, time, value) '
        f"SELECT CASE WHEN i % 100 = 0 THEN 'b' ELSE 'a' END, {epoch}, i, i, "
        f"'{START.isoformat()}'::timestamptz + i * interval '1 ms', 'x' "
        "FROM generate_series(1, 50000) i",
        "UPDATE runnel_archive_part SET end_sequence = 50001 WHERE rows > 0",
        'UPDATE runnel_archive_range SET "end" = 50001, end_sequence = 50001',
        "ANALYZE",
    )
    source = ArchiveHistory(database.dsn, "events")
    with psycopg.connect(database.dsn, autocommit=True) as connection:

        def scanned() -> tuple[int, int]:
            row = connection.execute(
                "SELECT coalesce(seq_tup_read, 0), coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables "
                "WHERE relname = %s",
                (part,),
            ).fetchone()
            assert row is not None
            return row

        await source.close()
        before = scanned()
        source = ArchiveHistory(database.dsn, "events")
        assert len(records_of(await source.read("a", epoch, 25_000, 25_100))) == 99
        assert len(records_of(await source.read_sequences([">"], 30_000, 30_100))) == 100
        at = START + timedelta(milliseconds=40_001)
        assert await source.offset_at("a", epoch, at) == 40_001
        assert await source.sequence_at([">"], at) == 40_001
        await source.close()  # its processes report what they read when they end
        connection.execute("SELECT pg_stat_force_next_flush()")
        async with asyncio.timeout(PATIENCE):
            while (after := scanned()) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert after[0] == before[0]
        assert after[1] - before[1] < 1000
