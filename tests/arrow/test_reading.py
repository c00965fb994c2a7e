"""`runnel.arrow.read` and `batches`: folder, server and lake as one topic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pytest

import runnel
import runnel.arrow
from runnel.arrow.columns import RecordBatchBuilder
from runnel.arrow.range_reader import with_offsets
from runnel.core.batch_format import pack, unpack
from runnel.core.errors import DataLost, InvalidOption, LakeMismatch, UnknownTopic
from runnel.core.record import Meta
from runnel.lake import Lake, LakeHistory
from runnel.lake.layout import record_schema
from tests.carried import columns_of
from tests.lake.test_history_model import batches_of
from tests.spark.rig import Served

COUNT, KEPT = 120, 40


class Order(msgspec.Struct):
    id: int
    price: float = 0.0


async def archived(folder: Path) -> Path:
    """A folder whose topic `orders` begins at COUNT - KEPT, and a lake that has what lies before and a little more."""
    lake = Lake(folder / "lake")
    lake.create()
    async with runnel.open(folder / "data", share=False, segment_bytes=4096, fsync="os") as broker:
        orders = broker.topic("orders", retention_count=KEPT)
        await broker.topic("quotes").publish(b"quote")
        await orders.declare()
        async with broker.subscribe("orders") as records:
            copied = aiter(records)
            for first in range(0, COUNT, 10):
                for number in range(first, first + 10):
                    await orders.publish(b"%d" % number, key=b"k" if number % 3 else None, headers={"n": f"{number}"})
                rows = [await anext(copied) for _ in range(10)]
                if first < COUNT - KEPT + 20:
                    written = lake.write(batches_of(rows))
                    lake.commit(written, application="archive", version=first)
    return folder


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await archived(tmp_path)


def offsets(table: pa.Table) -> list[int]:
    found: list[int] = table["offset"].to_pylist()
    return found


async def test_journal_and_lake_are_one_topic(folder: Path) -> None:
    table = runnel.arrow.read(folder / "data", "orders", lake=folder / "lake")
    assert table.schema.names == list(runnel.arrow.reading.COLUMNS)
    assert offsets(table) == list(range(COUNT))
    assert table["value"].to_pylist() == [b"%d" % number for number in range(COUNT)]
    assert table["key"].to_pylist() == [b"k" if number % 3 else None for number in range(COUNT)]
    assert table["headers"].to_pylist() == [[{"key": "n", "value": b"%d" % number}] for number in range(COUNT)]
    assert table["sequence"].to_pylist() == sorted(table["sequence"].to_pylist())
    parts = list(runnel.arrow.batches(folder / "data", "orders", lake=LakeHistory(folder / "lake")))
    assert pa.Table.from_batches(parts) == table


async def test_without_the_lake_there_is_what_the_journal_has(folder: Path) -> None:
    assert offsets(runnel.arrow.read(folder / "data", "orders")) == list(range(COUNT - KEPT, COUNT))
    assert offsets(runnel.arrow.read(None, "orders", lake=folder / "lake")) == list(range(COUNT - KEPT + 20))
    with pytest.raises(DataLost):
        runnel.arrow.read(folder / "data", "orders", start=5)
    skipped = runnel.arrow.read(folder / "data", "orders", start=5, fail_on_data_loss=False)
    assert offsets(skipped) == list(range(COUNT - KEPT, COUNT))


async def test_starts_and_ends(folder: Path) -> None:
    def read(start: Any = None, end: Any = None) -> list[int]:
        return offsets(runnel.arrow.read(folder / "data", "orders", start, end, lake=folder / "lake"))

    every = runnel.arrow.read(folder / "data", "orders", lake=folder / "lake")
    times, epoch = every["time"].to_pylist(), every["epoch"][0].as_py()
    for place in (0, 17, COUNT - KEPT - 1, COUNT - KEPT, COUNT - 5):
        assert read(place, place + 20) == list(range(place, min(place + 20, COUNT)))
        assert read(runnel.Position(epoch, place)) == list(range(place, COUNT))
        first = next(at for at, time in enumerate(times) if time >= times[place])
        assert read(times[place]) == list(range(first, COUNT))
        assert read(None, times[place]) == list(range(first))
    assert read(datetime.now(UTC) + timedelta(days=1)) == []
    assert read("earliest", "latest") == list(range(COUNT))
    assert read(COUNT + 5) == []


async def test_several_topics_and_chosen_columns(folder: Path) -> None:
    table = runnel.arrow.read(folder / "data", ">", lake=folder / "lake", columns=["topic", "offset", "priority"])
    assert table.schema.names == ["topic", "offset", "priority"]
    assert table["topic"].to_pylist() == ["orders"] * COUNT + ["quotes"]
    assert runnel.arrow.read(folder / "data", ["quotes"])["value"].to_pylist() == [b"quote"]
    assert len(runnel.arrow.read(folder / "data", "nothing.*")) == 0


async def test_a_server_is_read_as_a_folder_is(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        await _publish(served.url)
        from_server = runnel.arrow.read(served.url, "orders")
        assert from_server["value"].to_pylist() == [b"%d" % number for number in range(50)]
    assert runnel.arrow.read(tmp_path, "orders") == from_server


async def _publish(url: str) -> None:
    async with runnel.open(url) as broker:
        await broker.topic("orders").publish_many([b"%d" % number for number in range(50)])


async def test_what_was_trimmed_is_not_shown(folder: Path) -> None:
    async with runnel.open(folder / "data", share=False) as broker:
        await broker.topic("orders").trim(before=COUNT - 10)
    assert offsets(runnel.arrow.read(folder / "data", "orders", lake=folder / "lake")) == list(range(COUNT - 10, COUNT))


async def test_typed_values_are_columns(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    async with runnel.open(tmp_path / "data", share=False) as broker:
        for number in range(10):
            await broker.topic("orders", Order).publish(Order(number, number / 2), key="k")
    old = lake.write(runnel.arrow.batches(tmp_path / "data", "orders", end=5))
    lake.commit(old, application="archive", version=0)
    table = runnel.arrow.read(tmp_path / "data", "orders", typed=True, columns=["offset", "value"])
    assert table.schema.names == ["offset", "id", "price", "_corrupt_record"]
    assert table["price"].to_pylist() == [number / 2 for number in range(10)]
    both = runnel.arrow.read(tmp_path / "data", "orders", typed=True, lake=tmp_path / "lake")
    assert both["id"].to_pylist() == list(range(10))
    with pytest.raises(InvalidOption, match="'orders' is in the lake alone, which keeps no types"):
        runnel.arrow.read(None, "orders", typed=True, lake=tmp_path / "lake")


async def test_a_topic_that_cannot_be_typed_is_named_with_the_reason(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data", share=False) as broker:
        await broker.publish("plain", "text")
        await broker.topic("orders", Order).publish(Order(1, 0.5))
        await broker.topic("sizes", int).publish(1)
    for topics, why in (
        (["orders", "plain"], "topic 'plain' has no type"),
        (["orders", "sizes"], "topics 'orders' and 'sizes' have different types"),
        (["none.*"], "there is no topic of none"),
    ):
        with pytest.raises(InvalidOption, match=why):
            runnel.arrow.read(tmp_path / "data", topics, typed=True)


async def test_expired_records_are_not_shown(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    rows = pa.RecordBatch.from_pylist(
        [
            {
                "topic": "orders",
                "epoch": 1,
                "offset": at,
                "sequence": at,
                "time": datetime(2026, 3, 4, tzinfo=UTC),
                "value": b"v",
                "expires": expires,
            }
            for at, expires in enumerate((None, 1.0, 4e9))
        ]
    )
    lake.commit(lake.write([rows]), application="archive", version=0)
    assert offsets(runnel.arrow.read(None, "orders", lake=tmp_path / "lake")) == [0, 2]


def test_due_expires_and_priority_are_columns_on_request() -> None:
    metas = [None, Meta(due=5.5, priority=3), Meta(expires=4e9)]
    packed = pack([b"a", b"b", b"c"], columns_of(metas))
    builder = RecordBatchBuilder(record_schema())
    rows = builder.buffer("orders", 1)
    rows.add(with_offsets(unpack(packed), 10, 100, 1_790_000_000_000_000), now=0.0)
    rows.add(with_offsets(unpack(pack([b"d"])), 13, 103, 1_790_000_000_000_000), now=0.0)
    batch = builder.batch(rows)
    assert batch["due"].to_pylist() == [None, 5.5, None, None]
    assert batch["expires"].to_pylist() == [None, None, 4e9, None]
    assert [one or 0 for one in batch["priority"].to_pylist()] == [0, 3, 0, 0]


async def test_bad_calls_say_what_is_wrong(folder: Path) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"topic": "unknown"}, UnknownTopic, "no topic 'unknown'"),
        ({"where": None}, InvalidOption, "or a lake"),
        ({"columns": ["price"]}, InvalidOption, "records have topic, epoch"),
        ({"start": "first"}, InvalidOption, "expected 'earliest'"),
        ({"start": 5, "end": 3}, InvalidOption, "lies behind the end"),
        ({"start": -1}, InvalidOption, "0 or more"),
        ({"start": datetime(2026, 1, 1)}, InvalidOption, "time zone"),
        ({"topic": "orders.*", "start": 5}, InvalidOption, "of one topic"),
        ({"start": runnel.Position(77, 1)}, InvalidOption, "deleted and made again"),
    ]
    for arguments, error, words in cases:
        with pytest.raises(error, match=words):
            runnel.arrow.read(**{"where": folder / "data", "topic": "orders", **arguments})
    other = Lake(folder / "other")
    other.create("another journal")
    with pytest.raises(LakeMismatch, match="another journal"):
        runnel.arrow.read(folder / "data", "orders", lake=folder / "other")


async def test_polars_duckdb_and_pandas_take_it(folder: Path) -> None:
    table = runnel.arrow.read(folder / "data", "orders", lake=folder / "lake")
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    assert frame.filter(pl.col("key").is_null()).height == COUNT // 3
    reader = pa.RecordBatchReader.from_batches(
        table.schema, runnel.arrow.batches(folder / "data", "orders", lake=folder / "lake")
    )
    assert duckdb.from_arrow(reader).aggregate('count(*), max("offset")').fetchall() == [(COUNT, COUNT - 1)]
    assert table.to_pandas()["offset"].is_monotonic_increasing
