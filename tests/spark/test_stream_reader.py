"""A streaming read through Spark: each record once, as fast as was asked for, and its lag shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import window
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from runnel.core.errors import InvalidOption
from runnel.spark.options import SourceOptions
from runnel.spark.schema import spark_schema
from runnel.spark.source import StreamReader
from tests.patience import PATIENCE
from tests.spark.rig import Served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


TOO_SLOW = "Python worker failed to connect back"
"""Spark waits 10 seconds for a Python to start, whatever else the machine has to do. Then nothing was read yet."""


def nightly_from(which: str) -> pytest.MarkDecorator:
    """From a folder and from a server, `which` at night only: what they differ in is tried without Spark."""
    places = [pytest.param(one, marks=[pytest.mark.nightly] * (one == which)) for one in ("path", "url")]
    return pytest.mark.parametrize("place", places, indirect=True)


def stream(
    spark: SparkSession, tmp_path: Path, place: dict[str, str], topic: str = "t", **options: str
) -> DataStreamWriter:
    options = {"startingOffsets": "earliest", **options}
    source = spark.readStream.format("runnel").options(topic=topic, **place, **options).load()
    return (
        source.select("topic", "offset", "value")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )


def now(writer: DataStreamWriter) -> list[dict[str, Any]]:
    """Read what is there, and end; the progress of each trigger that read something."""
    for _ in range(3):
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error):
                raise
        else:
            break
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def read(spark: SparkSession, tmp_path: Path) -> list[tuple[str, int]]:
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    return sorted((row.topic, row.offset) for row in rows)


def wait(query: StreamingQuery, done: Callable[[], bool]) -> None:
    end = monotonic() + PATIENCE
    while not done():
        if (error := query.exception()) is not None:
            raise error
        assert monotonic() < end, query.status
        sleep(0.05)


@nightly_from("url")
def test_each_record_comes_once_over_several_lives(
    spark: SparkSession, served: Served, place: dict[str, str], tmp_path: Path
) -> None:
    writer = stream(spark, tmp_path, place, ">", maxRecordsPerTrigger="60")
    served.publish_many("a", [b"%d" % at for at in range(100)])
    first = now(writer)
    assert [progress["numInputRows"] for progress in first] == [60, 40]
    source = first[0]["sources"][0]
    end, latest = json.loads(source["endOffset"]), json.loads(source["latestOffset"])
    assert (end["topics"]["a"][1], latest["topics"]["a"][1]) == (60, 100)
    assert latest["behind"] == {"records": 40, "topics": {"a": 40}}
    served.publish_many("a", [b"%d" % at for at in range(100, 130)])
    served.publish_many("b", [b"x"] * 5)  # a topic that comes later
    assert [progress["numInputRows"] for progress in now(writer)] == [35]
    assert now(writer) == []
    assert read(spark, tmp_path) == [("a", at) for at in range(130)] + [("b", at) for at in range(5)]


@nightly_from("path")
def test_a_query_that_goes_on_reads_what_comes(
    spark: SparkSession, served: Served, place: dict[str, str], tmp_path: Path
) -> None:
    seen: list[int] = []
    served.publish_many("t", [b"before"] * 3)
    source = spark.readStream.format("runnel").options(topic="t", **place).load()  # from the end on
    query = source.writeStream.foreachBatch(lambda frame, _: seen.extend(row.offset for row in frame.collect())).start()
    try:
        wait(query, lambda: query.lastProgress is not None)
        for batch in range(3):
            served.publish_many("t", [b"x"] * 10)
            wait(query, lambda: len(seen) == 10 * (batch + 1))  # noqa: B023
    finally:
        query.stop()
    assert sorted(seen) == list(range(3, 33))


@nightly_from("path")
def test_a_trigger_takes_no_more_bytes_than_it_may(
    spark: SparkSession, served: Served, place: dict[str, str], tmp_path: Path
) -> None:
    served.publish_many("t", [bytes(1000)] * 40)
    found = now(stream(spark, tmp_path, place, maxBytesPerTrigger="10k", minPartitions="3"))
    assert [progress["numInputRows"] for progress in found] == [10, 10, 10, 10]
    assert len(read(spark, tmp_path)) == 40


@nightly_from("url")
def test_what_is_lost_ends_a_query_or_is_passed_over(
    spark: SparkSession, served: Served, place: dict[str, str], tmp_path: Path
) -> None:
    served.publish_many("t", [b"x"] * 10)
    now(stream(spark, tmp_path, place))
    served.publish_many("t", [b"x"] * 20)
    served.run(served.broker.topic("t").trim(15))
    with pytest.raises(StreamingQueryException, match=r"offsets \[10, 15\) of topic 't'.*failOnDataLoss=false"):
        now(stream(spark, tmp_path, place))
    now(stream(spark, tmp_path, place, failOnDataLoss="false"))
    assert read(spark, tmp_path) == [("t", at) for at in [*range(10), *range(15, 30)]]
    served.run(served.broker.delete("t"))
    served.publish_many("t", [b"y"] * 3)
    with pytest.raises(StreamingQueryException, match="deleted and made again"):
        now(stream(spark, tmp_path, place))
    now(stream(spark, tmp_path, place, failOnDataLoss="false"))
    assert len(read(spark, tmp_path)) == 28


def reader(folder: Path, **options: str) -> StreamReader:
    return StreamReader(SourceOptions.parse({"path": str(folder), "topic": "t", **options}), spark_schema())


def test_the_limit_of_a_trigger_is_what_was_said(tmp_path: Path) -> None:
    assert reader(tmp_path).getDefaultReadLimit() == ReadAllAvailable()
    assert reader(tmp_path, maxRecordsPerTrigger="5").getDefaultReadLimit() == ReadMaxRows(5)
    assert reader(tmp_path, maxBytesPerTrigger="5").getDefaultReadLimit() == ReadMaxBytes(5)
    both = reader(tmp_path, maxBytesPerTrigger="7", maxRecordsPerTrigger="5")
    assert both.getDefaultReadLimit() == ReadMaxRows(5)


def test_both_limits_hold(served: Served) -> None:
    served.publish_many("t", [bytes(1000)] * 40)
    both = reader(served._folder, maxBytesPerTrigger="3k", maxRecordsPerTrigger="5", startingOffsets="earliest")
    start = both.initialOffset()
    end = both.latestOffset(start, both.getDefaultReadLimit())
    assert end["topics"]["t"][1] == 3
    assert both.latestOffset(start, ReadAllAvailable())["topics"]["t"][1] == 40
    assert both.reportLatestOffset()["topics"]["t"][1] == 40  # type: ignore[index]
    assert both.partitions(end, end) == []
    both.stop()
    both.stop()


def test_a_stream_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="a stream has no end"):
        reader(tmp_path, endingOffsets="latest")


def windows(spark: SparkSession, tmp_path: Path, place: dict[str, str], run: str, **options: str) -> dict[int, int]:
    """How many records each window of ten seconds has, by what they say themselves, and how many triggers it took."""
    found: dict[int, int] = {}
    read = spark.readStream.format("runnel").options(topic="*", startingOffsets="earliest", **place, **options).load()
    timed = read.selectExpr("timestamp_seconds(cast(cast(value as string) as bigint)) as at")
    counted = timed.withWatermark("at", "20 seconds").groupBy(window("at", "10 seconds")).count()
    counts = counted.selectExpr("unix_seconds(window.start) as start", "count")

    def keep(frame: DataFrame, batch: int) -> None:
        found.update((row.start, row["count"]) for row in frame.collect())

    writer = counts.writeStream.outputMode("update").foreachBatch(keep)
    triggers = now(writer.option("checkpointLocation", str(tmp_path / run)))
    assert len(triggers) > 3 or not options
    return found


def test_a_limit_makes_nothing_late(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    """Topics of very different rates, and a watermark: with a share for each, the busy one would come too late."""
    for second in range(100):
        served.publish_many("busy", [b"%d" % second] * 50)
        served.publish_many("calm", [b"%d" % second] * 5)
        if second % 5 == 0:
            served.publish_many("quiet", [b"%d" % second])
    expected = dict.fromkeys(range(0, 100, 10), 10 * 55 + 2)
    folder, server = {"path": str(served._folder)}, {"url": served.url}
    assert windows(spark, tmp_path, folder, "all") == expected
    for run, place in (("folder", folder), ("server", server)):
        assert windows(spark, tmp_path, place, run, maxRecordsPerTrigger="1200") == expected
