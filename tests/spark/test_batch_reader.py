"""A batch read through Spark: from a folder and from a server, whole and in part, with filters pushed down or not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSourceReader, EqualTo

from runnel.core.errors import DataLost
from runnel.spark.options import SourceOptions
from runnel.spark.planning import PushedFilters
from runnel.spark.schema import spark_schema
from runnel.spark.source import BatchReader, RangePartition
from tests.spark.rig import Served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("journal")) as made:
        for batch in range(10):
            made.publish_many("numbers", [b"%d" % (batch * 100 + at) for at in range(100)])
        made.run(made.broker.publish("orders.eu", b"first", key="k", headers={"a": "b", "traceparent": TRACE}))
        made.run(made.broker.publish("orders.us", b"second"))
        yield made


def frame(spark: SparkSession, place: dict[str, str], topic: str = "numbers", **options: str) -> DataFrame:
    return spark.read.format("runnel").options(topic=topic, **place, **options).load()


def test_every_record_comes_once_with_all_that_it_has(
    spark: SparkSession, served: Served, place: dict[str, str]
) -> None:
    rows = frame(spark, place, minPartitions="7").collect()
    assert sorted((row.offset, row.value) for row in rows) == [(at, b"%d" % at) for at in range(1000)]
    (bounds,) = served.run(served.broker.bounds("numbers"))
    assert {(row.topic, row.epoch, row.key, row.traceparent) for row in rows} == {("numbers", bounds.epoch, None, None)}
    assert all(row.headers == {} and row.sequence == row.offset for row in rows)
    first, second = frame(spark, place, "orders.*").orderBy("topic").collect()
    assert (first.value, first.key, first.headers) == (b"first", b"k", {"a": "b", "traceparent": TRACE})
    assert first.traceparent == TRACE
    assert (second.topic, second.value, second.offset) == ("orders.us", b"second", 0)
    assert first.time <= second.time


def test_a_part_of_a_topic_is_read(spark: SparkSession, place: dict[str, str]) -> None:
    part = frame(spark, place, startingOffsets='{"numbers": 990}', endingOffsets='{"numbers": 995}')
    assert sorted(row.offset for row in part.collect()) == [990, 991, 992, 993, 994]
    (first, *_), *_ = (
        frame(spark, place, startingOffsets="2020-01-01T00:00:00Z").orderBy("offset").select("offset").collect(),
        None,
    )
    assert first.offset == 0
    assert frame(spark, place, startingOffsets="latest").count() == 0


def test_filters_on_topic_and_offset_are_not_spark_s_to_check(spark: SparkSession, place: dict[str, str]) -> None:
    found = frame(spark, place, ">").where("topic = 'numbers' and offset >= 10 and offset < 13")
    assert sorted(row.value for row in found.collect()) == [b"10", b"11", b"12"]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    timed = frame(spark, place).where("time >= timestamp'2020-01-01 00:00:00'")
    assert timed.count() == 1000
    assert frame(spark, place).where("time < timestamp'2020-01-01 00:00:00'").count() == 0


def test_a_session_without_pushdown_reads_as_well(spark: SparkSession, place: dict[str, str]) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        found = frame(spark, place).where("offset >= 990")
        assert found.count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_columns_that_a_query_does_not_name_are_not_made(spark: SparkSession, place: dict[str, str]) -> None:
    reader = spark.read.format("runnel").schema("value binary, offset bigint").options(topic="orders.eu", **place)
    assert [tuple(row) for row in reader.load().collect()] == [(b"first", 0)]
    with pytest.raises(Exception, match="a record has no such column"):
        spark.read.format("runnel").schema("price bigint").options(topic="orders.eu", **place).load().collect()


def test_what_is_gone_is_an_error_with_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    with Served(tmp_path) as made:
        made.publish_many("t", [b"x"] * 50)
        made.run(made.broker.topic("t").trim(20))
        asked = {"startingOffsets": '{"t": 10}'}
        for place in ({"path": str(tmp_path)}, {"url": made.url}):
            with pytest.raises(AnalysisException, match=r"offsets \[10, 20\) of topic 't'.*failOnDataLoss=false"):
                frame(spark, place, "t", **asked).count()
            assert frame(spark, place, "t", failOnDataLoss="false", **asked).count() == 30


def test_what_goes_between_plan_and_task_is_an_error_too(tmp_path: Path) -> None:
    with Served(tmp_path) as made:
        made.publish_many("t", [b"x"] * 50)
        for place in ({"path": str(tmp_path)}, {"url": made.url}):
            reader = BatchReader(SourceOptions.parse({**place, "topic": "t"}), spark_schema())
            (partition,) = reader.partitions()
            made.publish_many("t", [b"x"] * 50)
            (bounds,) = made.run(made.broker.bounds("t"))
            made.run(made.broker.topic("t").trim(bounds.end - 60))
            with pytest.raises(DataLost, match=f"of topic 't'.*lost: .*{bounds.end - 60}|trimmed"):
                list(reader.read(partition))


def test_a_reader_travels_without_what_is_only_the_driver_s(served: Served) -> None:
    options = SourceOptions.parse({"path": str(served._folder), "topic": "numbers"})
    reader = BatchReader(options, spark_schema())
    assert reader.pushFilters([EqualTo(("offset",), 5)]) == []
    assert reader.filters == PushedFilters(first=5, end=6)
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters  # or a session without pushdown refuses it
    (partition,) = reader.partitions()
    assert isinstance(partition, RangePartition)
    assert [(one.first, one.end) for one in partition.ranges] == [(5, 6)]
    again: Any = pickle.loads(pickle.dumps(reader))
    (batch,) = again.read(partition)
    assert batch.column("value").to_pylist() == [b"5"]


def test_nothing_to_read_is_one_empty_task(served: Served) -> None:
    options = SourceOptions.parse({"path": str(served._folder), "topic": "nobody.*"})
    reader = BatchReader(options, spark_schema())
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == []
