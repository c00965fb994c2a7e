"""The lake as a source of history, call by call, beside a source in memory that holds the same records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import runnel
from runnel.config.history import HistoryTable, check_sources, open_sources
from runnel.core.batch import Slice
from runnel.core.columns import DUE, EXPIRES, PRIORITIES
from runnel.core.record import Record
from runnel.lake import Lake, LakeHistory, files, history_source
from runnel.testing import MemoryHistory
from tests.lake.rows import batch, created
from tests.lake.test_history_model import FilledLake
from tests.patience import PATIENCE

START = datetime(2026, 3, 4, 22, tzinfo=UTC)


def records_of(slices: Sequence[Slice]) -> list[Record[bytes]]:
    for one in slices:
        assert one.start + len(one) == one.end
        assert [record.offset for record in one.records] == list(range(one.start, one.end))
    return [record for one in slices for record in one.records]


def published(chance: random.Random, count: int) -> Iterator[Record[bytes]]:
    """Records of several topics and epochs, in the order of a broker, with holes, over two days."""
    topics, time = [("a.one", 1), ("a.one", 2), ("a.two", 1), ("b", 1)], START
    nexts = dict.fromkeys(topics, 0)
    sequence = 0
    topic = topics[0]
    for number in range(count):
        topic = chance.choice(topics) if chance.random() < 0.2 else topic
        nexts[topic] += 5 if chance.random() < 0.05 else 1
        sequence += 3 if chance.random() < 0.05 else 1
        time += timedelta(seconds=chance.choice((0, 0, 0, 1, 3000)))
        headers = {"n": str(number), "text": "é"} if chance.random() < 0.3 else {}
        key = b"%d" % number if chance.random() < 0.3 else None
        yield Record(topic[0], nexts[topic] - 1, sequence - 1, topic[1], key, b"value %d" % number, headers, time)


async def all_of(ask: Any, start: int, end: int, *, by_sequence: bool) -> list[Record[bytes]]:
    """Page after page, as a reader asks."""
    found: list[Record[bytes]] = []
    while page := records_of(await ask(start, end)):
        found += page
        start = (page[-1].sequence if by_sequence else page[-1].offset) + 1
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_it_answers_as_a_source_in_memory_does(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(history_source, "PAGE_RECORDS", chance.choice((4, 50, 1 << 15)))
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", chance.choice((3, 20, 1 << 15)))
    memory, lake = MemoryHistory(chunk=10_000), FilledLake(tmp_path / "lake")
    everything = list(published(chance, 400))
    place = 0
    while place < len(everything):  # one commit after the other; now and then some are compacted
        step = chance.choice((1, 10, 100))
        memory.add(everything[place : place + step])
        lake.add(everything[place : place + step])
        place += step
        if chance.random() < 0.2:
            lake.lake.maintain(min_files=2)
    last = everything[-1].sequence + 1
    for topic, epoch in (("a.one", 1), ("a.one", 2), ("a.two", 1), ("b", 1), ("b", 2), ("unknown", 1)):
        bounds = await memory.bounds(topic, epoch)
        assert await lake.bounds(topic, epoch) == bounds
        for _ in range(5):
            start, end = sorted(chance.randint(0, bounds.end + 3 if bounds else 5) for _ in range(2))
            due = records_of(await memory.read(topic, epoch, start, end))
            assert await all_of(lambda *places: lake.read(topic, epoch, *places), start, end, by_sequence=False) == due  # noqa: B023
            time = START + timedelta(seconds=chance.randint(-10, 200_000))
            assert await lake.offset_at(topic, epoch, time) == await memory.offset_at(topic, epoch, time)
    for patterns in (["a.*"], [">"], ["b", "a.one"], ["c.>"]):
        for _ in range(5):
            start, end = sorted(chance.randint(0, last) for _ in range(2))
            due = records_of(await memory.read_sequences(patterns, start, end))
            found = await all_of(lambda *places: lake.read_sequences(patterns, *places), start, end, by_sequence=True)  # noqa: B023
            assert found == due
            time = START + timedelta(seconds=chance.randint(-10, 200_000))
            assert await lake.sequence_at(patterns, time) == await memory.sequence_at(patterns, time)
    await lake.close()


async def test_records_carry_what_they_did(tmp_path: Path) -> None:
    lake = created(tmp_path)
    rows = batch("orders", range(3))
    for name, kind, values in (
        ("due", pa.float64(), [None, 1.25, None]),
        ("expires", pa.float64(), [1790000000.123456, None, None]),
        ("priority", pa.int32(), [0, 0, 9]),
    ):
        rows = rows.append_column(pa.field(name, kind), pa.array(values, kind))
    lake.commit(lake.write([rows]), application="archive", version=0)
    history = LakeHistory(tmp_path / "lake")
    (part,) = await history.read("orders", 1, 0, 3)
    assert part.columns == {
        DUE: [None, 1.25, None],
        EXPIRES: [1790000000.123456, None, None],
        PRIORITIES: [0, 0, 9],
    }
    assert part.metas[2].priority == 9
    await history.close()


async def test_a_commit_is_seen_by_the_next_call(tmp_path: Path) -> None:
    lake, history = created(tmp_path), LakeHistory(tmp_path / "lake")
    for number in range(3):
        assert await history.read("orders", 1, 10 * number, 100) == []
        files_ = lake.write([batch("orders", range(10 * number, 10 * number + 10))])
        assert await history.read("orders", 1, 10 * number, 100) == [], "what is not committed is not served"
        lake.commit(files_, application="archive", version=number)
        assert len(records_of(await history.read("orders", 1, 10 * number, 100))) == 10
        assert len(records_of(await history.read_sequences(["orders"], 0, 1000))) == 10 * number + 10
    await history.close()


async def test_files_that_are_gone_are_looked_for_in_a_newer_snapshot(tmp_path: Path) -> None:
    lake, history = created(tmp_path), LakeHistory(tmp_path / "lake", cache_bytes=0)
    for number in range(4):
        files_ = lake.write([batch("orders", range(10 * number, 10 * number + 10))])
        lake.commit(files_, application="archive", version=number)
    assert len(records_of(await history.read("orders", 1, 0, 10))) == 10  # it knows this snapshot
    old = {file.path for file in lake.snapshot().files}
    lake.maintain(min_files=2)
    for path in old:
        lake.records.delete(path)
    assert len(records_of(await history.read("orders", 1, 5, 40))) == 35
    await history.close()


async def test_files_of_another_writer_are_read_too(tmp_path: Path) -> None:
    lake = created(tmp_path)
    for number in range(4):
        rows = [batch(f"topic.{at}", range(10 * number, 10 * number + 10)) for at in range(20)]
        lake.commit(lake.write(rows), application="archive", version=number)
    DeltaTable(lake.records.uri).optimize.compact()  # has no index in its footers
    history = LakeHistory(tmp_path / "lake")
    for at in range(20):
        found = records_of(await history.read(f"topic.{at}", 1, 5, 40))
        assert [record.value for record in found] == [b"topic.%d %d" % (at, offset) for offset in range(5, 40)]
    assert lake.maintain({("topic.3", 1): 40}).erased_rows == 40
    assert await history.bounds("topic.3", 1) is None
    await history.close()


async def test_without_a_lake_there_is_nothing_yet(tmp_path: Path) -> None:
    history = LakeHistory(tmp_path / "lake", "orders.>")
    assert history.covers("orders.eu")
    assert not history.covers("quotes")
    assert await history.bounds("orders.eu", 1) is None
    assert await history.read("orders.eu", 1, 0, 10) == []
    assert await history.read_sequences([">"], 0, 10) == []
    assert await history.offset_at("orders.eu", 1, START) is None
    assert await history.sequence_at([">"], START) is None
    await history.close()
    with pytest.raises(OSError, match="is closed"):
        await history.bounds("orders.eu", 1)


async def test_a_broker_reads_on_from_the_lake_into_its_journal(tmp_path: Path) -> None:
    lake = FilledLake(tmp_path / "lake")
    async with runnel.open(tmp_path / "data", share=False, segment_bytes=4096, fsync="os") as broker:
        orders = broker.topic("orders", retention_count=20)
        await orders.declare()
        async with asyncio.timeout(PATIENCE), broker.subscribe("orders") as archive:
            copied = aiter(archive)
            for first in range(0, 500, 10):
                await orders.publish_many([b"%d" % number for number in range(first, first + 10)])
                lake.add([await anext(copied) for _ in range(10)])
    async with runnel.open(tmp_path / "data", share=False, history=LakeHistory(tmp_path / "lake")) as broker:
        async with asyncio.timeout(PATIENCE), broker.subscribe("orders", start="earliest") as records:
            values = []
            async for record in records:
                assert record.gap is None
                values.append(record.value)
                if len(values) == 500:
                    break
        read = broker.statistics().history
        assert read is not None
        assert read.records == 480, "the journal has the last 20"
    assert values == [b"%d" % number for number in range(500)]
    await lake.close()


def test_a_configuration_names_a_lake(tmp_path: Path) -> None:
    options = {"location": str(tmp_path), "pattern": "orders.>", "storage_options": {"AWS_REGION": "eu-1"}}
    (source,) = open_sources([HistoryTable("lake", options, "[history]")], {})
    assert source.covers("orders.eu")
    assert not source.covers("quotes")
    (problem,) = check_sources([HistoryTable("lake", {"pattern": ">"}, "[history]")])
    assert "'location' is missing" in str(problem)
    assert Lake(tmp_path).exists is False
