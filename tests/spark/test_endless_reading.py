"""Reading that begins in the lake and goes on into the journal: planned and read alike from a folder and a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import runnel.arrow
from runnel import Broker, Position
from runnel.arrow.folder_reader import FolderReader
from runnel.arrow.layout import ColumnLayout
from runnel.arrow.location import BrokerLocation, open_range_reader
from runnel.arrow.range_reader import DataLossPolicy, FoundPart, LakeRows, RangeReader
from runnel.arrow.ranges import OffsetRange
from runnel.arrow.record_batches import RangeBatches
from runnel.core.errors import DataLost, LakeMismatch
from runnel.journal.read.segment_reader import LostRange
from runnel.lake import Lake, LakeHistory
from runnel.lake.layout import record_schema
from runnel.spark.options import SourceOptions
from runnel.spark.planning import PushedFilters, StreamPlanner, plan_batch
from tests.lake.test_history_model import batches_of
from tests.patience import PATIENCE
from tests.spark.rig import Row, Served, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, KEPT, LIMIT = 120, 10, 25
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker of a folder with a lake: of two topics all but the last records have left the journal."""
    Lake(tmp_path / "lake").create()
    history = LakeHistory(tmp_path / "lake")
    with Served(tmp_path / "data", history=history, tail_bytes=1, segment_bytes=1 << 13) as made:
        made.run(fill(made.broker, Lake(tmp_path / "lake")))
        yield made


async def fill(broker: Broker, lake: Lake) -> None:
    async with broker.subscribe("*", start="earliest") as records:
        for number in range(COUNT):
            for name in ("a", "b", "b"):
                topic = broker.topic(name, retention_until="archived", retention_count=KEPT)
                headers = {"n": f"{number}", "traceparent": TRACE} if number % 3 == 0 else None
                await topic.publish(b"%d" % number, key=b"k" if number % 2 else None, headers=headers)
        copied = [await anext(records) for _ in range(3 * COUNT)]
    lake.commit(lake.write(batches_of(copied)), application="test", version=0)
    epochs = {record.topic: record.epoch for record in copied}
    await broker.confirm_archived({"a": Position(epochs["a"], COUNT), "b": Position(epochs["b"], 2 * COUNT)})
    assert [one.moved for one in await broker.floors()] == [COUNT - KEPT, 2 * COUNT - KEPT]
    await broker.sync()


@pytest.fixture(params=["server", "folder"])
def reading(served: Served, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RangeReader]:
    folder = BrokerLocation(path=str(tmp_path / "data"), lake=str(tmp_path / "lake"))
    made = open_range_reader(BrokerLocation(served.url) if request.param == "server" else folder)
    yield made
    made.close()


def options(**more: str) -> SourceOptions:
    return SourceOptions.parse({"path": "p", "topic": "*", **more})


def batch(reading: RangeReader, **more: str) -> list[Row | LostRange]:
    """What a batch read reads."""
    found = plan_batch(reading, options(**more), PushedFilters())
    return [row for one in found.ranges for row in rows_of(reading.read(one), one)]


def test_a_batch_is_every_record_once_with_its_place(served: Served, reading: RangeReader) -> None:
    rows = [row for row in batch(reading) if isinstance(row, Row)]
    assert sorted(row.sequence for row in rows) == list(range(3 * COUNT))
    assert [row.offset for row in rows] == [*range(COUNT), *range(2 * COUNT)]
    assert [row.value for row in rows[:COUNT]] == [b"%d" % number for number in range(COUNT)]
    assert {row.key for row in rows} == {None, b"k"}
    assert rows[3].headers == {"n": "3", "traceparent": TRACE}
    # By an offset, and by a time, in the lake and in the journal.
    for place in (7, COUNT - KEPT - 1, COUNT - KEPT, COUNT - 3):
        begin = f'{{"a": {place}, "*": "latest"}}'
        assert [row.offset for row in batch(reading, startingOffsets=begin) if isinstance(row, Row)] == [
            *range(place, COUNT)
        ]
        millisecond = str(rows[place].time // 1000 + 1)
        late = [row for row in batch(reading, startingOffsets=millisecond) if isinstance(row, Row)]
        assert late == [row for row in rows if row.time >= int(millisecond) * 1000]


def test_a_limited_stream_is_cut_in_the_lake_too(served: Served, reading: RangeReader) -> None:
    query = StreamPlanner(reading, options(startingOffsets="earliest", maxRecordsPerTrigger=str(LIMIT)))
    place, seen, triggers = query.initial(), list[Row | LostRange](), 0
    while (end := query.latest(place)) != place:
        rows = [row for one in query.ranges(place, end) for row in rows_of(reading.read(one), one)]
        assert 0 < len(rows) <= LIMIT
        seen += sorted(rows, key=lambda row: row.sequence)  # type: ignore[union-attr]
        place, triggers = end, triggers + 1
    assert triggers >= 3 * COUNT // LIMIT
    assert [row.sequence for row in seen] == list(range(3 * COUNT))  # type: ignore[union-attr]


def test_no_range_passes_what_is_gone(served: Served, reading: RangeReader) -> None:
    served.run(served.broker.topic("a").trim(30))
    served.run(served.broker.sync())
    (bounds,) = reading.bounds(["a"])
    floors = reading.floors(["a", "b", "none"])
    assert bounds.first == floors["a"].gone == 30
    assert (floors["b"].gone, sorted(floors)) == (0, ["a", "b"])
    wanted = OffsetRange("a", bounds.epoch, 20, 50)
    lost, *rows = rows_of(reading.read(wanted), wanted)
    assert isinstance(lost, LostRange)
    assert (lost.first, lost.end, lost.reason) == (20, 30, "no longer kept (trimmed)")
    assert [row.offset for row in rows if isinstance(row, Row)] == list(range(30, 50))
    served.run(served.broker.delete("a"))
    served.run(served.broker.sync())
    (nothing,) = rows_of(reading.read(wanted), wanted)
    assert isinstance(nothing, LostRange), "the lake still has it, and shows nothing of a topic that was deleted"
    assert (nothing.first, nothing.end) == (20, 50)


def test_what_retention_takes_while_the_lake_is_read_comes_from_the_lake(served: Served, tmp_path: Path) -> None:
    reading = open_range_reader(BrokerLocation(path=str(tmp_path / "data"), lake=str(tmp_path / "lake")))
    (bounds,) = reading.bounds(["a"])
    wanted = OffsetRange("a", bounds.epoch, 0, COUNT)
    parts, found = list[FoundPart](), reading.read(wanted)
    parts.append(next(found))
    assert isinstance(parts[0], LakeRows)
    topic, watching = served.broker.topic("a"), FolderReader(str(tmp_path / "data"))
    deadline = monotonic() + PATIENCE
    while watching.floors(["a"])["a"].moved < COUNT:  # until the records of the range have left the journal
        assert monotonic() < deadline
        served.run(topic.publish_many([b"later"] * KEPT))
    watching.close()
    parts += found
    assert [row.offset for row in rows_of(parts, wanted) if isinstance(row, Row)] == list(range(COUNT))
    assert all(isinstance(part, LakeRows) for part in parts)
    reading.close()


def test_what_no_lake_has_is_lost_and_a_lake_of_another_journal_is_refused(served: Served, tmp_path: Path) -> None:
    Lake(tmp_path / "empty").create()
    reading = open_range_reader(BrokerLocation(path=str(tmp_path / "data"), lake=str(tmp_path / "empty")))
    (bounds,) = reading.bounds(["a"])
    assert bounds.first == COUNT - KEPT
    wanted = OffsetRange("a", bounds.epoch, 5, COUNT)
    with pytest.raises(DataLost, match="the lake does not have them"):
        list(RangeBatches(record_schema(), DataLossPolicy(fail=True)).of(reading.read(wanted), wanted))
    reading.close()
    Lake(tmp_path / "other").create("another journal")
    reading = open_range_reader(BrokerLocation(path=str(tmp_path / "data"), lake=str(tmp_path / "other")))
    with pytest.raises(LakeMismatch, match="another journal"):
        reading.bounds(["a"])
    reading.close()


@pytest.mark.parametrize("headers", ["map", "list"])
def test_rows_of_lake_and_journal_have_the_same_columns(served: Served, tmp_path: Path, headers: str) -> None:
    pair = pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)])
    kind = pa.map_(pa.string(), pa.string()) if headers == "map" else pa.list_(pa.field("element", pair, False))
    plain = [record_schema().field(name) for name in ("topic", "offset", "time", "key", "value", "priority")]
    schema = pa.schema([*plain, pa.field("headers", kind), pa.field("traceparent", pa.string())])
    found = []
    for where in (
        BrokerLocation(path=str(tmp_path / "data"), lake=str(tmp_path / "lake")),
        BrokerLocation(served.url),
    ):
        reading = open_range_reader(where)
        (bounds,) = reading.bounds(["a"])
        wanted = OffsetRange("a", bounds.epoch, 0, COUNT)
        layout = ColumnLayout(header_list=headers == "list")
        batches = RangeBatches(schema, DataLossPolicy(fail=True), layout).of(reading.read(wanted), wanted)
        found.append(pa.Table.from_batches(list(batches), schema).combine_chunks())
        reading.close()
    from_folder, from_server = found
    assert from_folder.to_pylist() == from_server.to_pylist()
    assert from_folder["traceparent"].to_pylist()[:4] == [TRACE, None, None, TRACE]
    whole = runnel.arrow.read(tmp_path / "data", "a", lake=tmp_path / "lake")
    assert whole["offset"].to_pylist() == list(range(COUNT))


def test_spark_reads_a_folder_and_its_lake_as_one(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    where = {"path": str(tmp_path / "data"), "lake": str(tmp_path / "lake"), "topic": "*"}
    rows = spark.read.format("runnel").options(**where).load().select("topic", "offset", "sequence").collect()
    assert sorted(row.sequence for row in rows) == list(range(3 * COUNT))
    stream = spark.readStream.format("runnel").options(**where, startingOffsets="earliest", maxRecordsPerTrigger=200)
    writer = stream.load().select("topic", "offset", "sequence").writeStream.format("parquet")
    writer = writer.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE))
    assert [progress.numInputRows > 0 for progress in query.recentProgress] == [True, True]
    seen = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(seen) == sorted(rows)
