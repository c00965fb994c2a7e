"""`df.writeStream.format("runnel")`: each batch once, whoever commits it, and however often."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.spark.rig import Served
from tests.spark.test_staging import everything

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, url: str, checkpoint: Path, **options: Any) -> Any:
    """A query from topic `in` to topic `out` that reads what is there, 100 records a batch; its last progress."""
    source = spark.readStream.format("runnel").option("url", url).option("topic", "in")
    source = source.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", 100)
    for name, value in options.items():
        source = source.option(name, value)
    sink = source.load().select("key", "value", "headers").writeStream.format("runnel").option("url", url)
    query = sink.option("topic", "out").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query.lastProgress


def fill(served: Served, first: int, end: int) -> None:
    served.publish_many("in", [b"%d" % number for number in range(first, end)])


def out(served: Served) -> list[int]:
    return [int(one.value) for one in everything(served, "out")]


def marks(served: Served) -> list[Any]:
    return [*served.run(served.broker.marks("spark:")).values()]


def test_a_stream_is_written_batch_by_batch_and_goes_on_where_it_was(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    fill(served, 0, 250)
    run(spark, served.url, tmp_path / "check", cursor="copy", holdRetention="true")
    assert out(served) == [*range(250)]
    assert marks(served) == [2]
    (cursor,) = served.broker.statistics().cursors
    assert (cursor.name, cursor.place, cursor.lag, cursor.hold) == ("copy/in", 250, 0, True)
    fill(served, 250, 300)
    assert served.broker.statistics().cursors[0].lag == 50
    run(spark, served.url, tmp_path / "check", cursor="copy", holdRetention="true")
    assert out(served) == [*range(300)]
    assert served.run(served.broker.stages()) == []


def test_a_batch_whose_commit_spark_did_not_note_is_repeated_and_nothing_is_written_twice(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    fill(served, 0, 200)
    check = tmp_path / "check"
    run(spark, served.url, check)
    for name in ("commits/1", "commits/.1.crc"):  # as if the driver had died between the two commits
        (check / name).unlink(missing_ok=True)
    fill(served, 200, 250)
    run(spark, served.url, check)
    assert out(served) == [*range(250)]
    assert marks(served) == [2]


def test_of_two_drivers_the_one_that_is_behind_is_stopped(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    fill(served, 0, 50)
    run(spark, served.url, tmp_path / "check")
    shutil.copytree(tmp_path / "check", tmp_path / "zombie")
    fill(served, 50, 200)
    run(spark, served.url, tmp_path / "check")
    assert marks(served) == [2]
    with pytest.raises(PySparkException, match="another driver runs this query"):
        run(spark, served.url, tmp_path / "zombie")
    assert out(served) == [*range(200)]
    fill(served, 200, 250)
    run(spark, served.url, tmp_path / "check")  # the one that is ahead does not mind
    assert out(served) == [*range(250)]


def test_two_drivers_at_the_same_batch_write_it_once(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    fill(served, 0, 150)
    run(spark, served.url, tmp_path / "check")
    shutil.copytree(tmp_path / "check", tmp_path / "zombie")
    fill(served, 150, 230)
    run(spark, served.url, tmp_path / "zombie")
    run(spark, served.url, tmp_path / "check")
    assert out(served) == [*range(230)]


def test_a_stream_takes_no_mark_of_its_own(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("cast(value as string) value").writeStream.format("runnel")
    sink = rate.option("url", served.url).option("topic", "t").option("mark", "m").option("markValue", "1")
    with pytest.raises(PySparkException, match="a stream has a mark of its own"):
        sink.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start().awaitTermination()
