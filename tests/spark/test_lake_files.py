"""Ranges to files of a lake: what a task of the archive does, as a function from DataFrame to DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import msgspec
import pytest
from pyspark.errors import PythonException

import runnel.blocking
from runnel.arrow.location import BrokerLocation, open_range_reader
from runnel.lake import Lake, LakeFile
from runnel.spark.options import SourceOptions
from runnel.spark.pipelines.lake_sink import record_files
from runnel.spark.pipelines.range_source import RANGE_COLUMNS, RangeStreamReader, ranges_of
from tests.lake.conftest import s3_options as s3_options  # a fixture
from tests.spark.pipeline_rig import in_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with runnel.blocking.open(tmp_path / "data") as broker:
        for topic in ("a", "b"):
            broker.topic(topic).publish_many([b"%d" % number for number in range(10)])
        broker.topic("b").trim(4)
    return tmp_path


def ranges(spark: SparkSession, folder: Path, *wanted: tuple[str, int, int]) -> DataFrame:
    """Rows of ranges (topic, first, end)."""
    reader = open_range_reader(BrokerLocation(path=str(folder / "data")))
    epochs = {one.topic: one.epoch for one in reader.bounds(["a", "b"])}
    rows = [(reader.journal, topic, epochs[topic], first, end) for topic, first, end in wanted]
    reader.close()
    return spark.createDataFrame(rows, ", ".join(f"{name} {kind} not null" for name, kind in RANGE_COLUMNS.items()))


def test_ranges_become_files_that_hold_their_records(spark: SparkSession, folder: Path) -> None:
    location, lake = BrokerLocation(path=str(folder / "data")), Lake(folder / "lake")
    lake.create()
    wanted = ranges(spark, folder, ("a", 2, 7), ("b", 4, 10))
    made = record_files(wanted, lake, location, fail=True).collect()
    assert sum(row["records"] for row in made) == 11
    lake.commit([msgspec.json.decode(row["file"], type=LakeFile) for row in made], application="test", version=0)
    found = [(row["topic"], row["offset"], row["value"]) for row in in_lake(folder)]
    assert found == [(t, n, b"%d" % n) for t, first, end in (("a", 2, 7), ("b", 4, 10)) for n in range(first, end)]


def test_tasks_write_to_object_storage(spark: SparkSession, folder: Path, s3_options: dict[str, str]) -> None:
    location, lake = BrokerLocation(path=str(folder / "data")), Lake("s3://lake/files", s3_options)
    lake.create()
    made = record_files(ranges(spark, folder, ("a", 0, 6), ("a", 6, 10)), lake, location, fail=True).collect()
    lake.commit([msgspec.json.decode(row["file"], type=LakeFile) for row in made], application="test", version=0)
    table = deltalake.DeltaTable("s3://lake/files/records", storage_options=s3_options).to_pyarrow_table()
    assert sorted(table.column("offset").to_pylist()) == list(range(10))


def test_a_range_that_is_gone_is_an_error_or_left_out(spark: SparkSession, folder: Path) -> None:
    location, lake = BrokerLocation(path=str(folder / "data")), Lake(folder / "lake")
    lake.create()
    wanted = ranges(spark, folder, ("b", 0, 10))
    with pytest.raises(PythonException, match="DataLost"):
        record_files(wanted, lake, location, fail=True).collect()
    assert [row["records"] for row in record_files(wanted, lake, location, fail=False).collect()] == [6]


def test_a_task_yields_the_ranges_that_were_planned_for_it(spark: SparkSession, folder: Path) -> None:
    given = {"path": str(folder / "data"), "topic": "a,b", "startingOffsets": "earliest", "minPartitions": "3"}
    schema = spark.createDataFrame([], ", ".join(f"{name} {kind} not null" for name, kind in RANGE_COLUMNS.items()))
    reader = RangeStreamReader(SourceOptions.parse(given), schema.schema)
    try:
        start = reader.initialOffset()
        tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
        found = [[one for batch in reader.read(task) for _, one in ranges_of(batch)] for task in tasks]
    finally:
        reader.stop()
    assert len(found) >= 3
    offsets = [(one.topic, offset) for task in found for one in task for offset in range(one.first, one.end)]
    assert sorted(offsets) == [("a", n) for n in range(10)] + [("b", n) for n in range(4, 10)]
