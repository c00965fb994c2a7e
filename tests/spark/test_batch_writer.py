"""`df.write.format("runnel")`: every row once, whatever becomes of the tasks on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.rig import Served
from tests.spark.test_staging import everything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", max_staged_bytes=4 << 20) as made:
        yield made


def write(frame: DataFrame, url: str, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("runnel").mode(mode).option("url", url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def numbers(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    return spark.range(0, count, 1, parts).select(F.col("id").cast("string").alias("value"))


def test_rows_are_written_to_a_topic_with_keys_and_headers(spark: SparkSession, served: Served) -> None:
    frame = spark.createDataFrame(
        [("a", b"1", {"x": "y"}), (None, b"2", None), ("c", b"3", {})],
        "key string, value binary, headers map<string,string>",
    )
    write(frame.coalesce(1), served.url, topic="t")
    found = everything(served, "t")
    assert [(one.key, one.value, dict(one.headers)) for one in found] == [
        (b"a", b"1", {"x": "y"}),
        (None, b"2", {}),
        (b"c", b"3", {}),
    ]


def test_many_tasks_write_many_topics_in_one_go(spark: SparkSession, served: Served) -> None:
    frame = numbers(spark, 10_000, 4).withColumn("topic", F.concat(F.lit("n."), F.col("value") % 10).cast("string"))
    frame = frame.withColumn("topic", F.regexp_replace("topic", r"\.0$", ""))
    write(frame, served.url)
    ends = {name: one.end for name, one in served.broker.statistics().topics.items()}
    assert sum(ends.values()) == 10_000
    assert set(ends.values()) == {1000}
    assert served.run(served.broker.stages()) == []
    (topic,) = {name for name in ends if name.startswith("n.7")}
    assert sorted(int(one.value) for one in everything(served, topic)) == [*range(7, 10_000, 10)]


def test_a_mark_makes_a_write_safe_to_repeat(spark: SparkSession, served: Served) -> None:
    for _ in range(2):
        write(numbers(spark, 10), served.url, topic="t", mark="nightly", markValue=5)
    assert served.broker.statistics().topics["t"].end == 10
    write(numbers(spark, 10), served.url, topic="t", mark="nightly", markValue=6)
    assert served.broker.statistics().topics["t"].end == 20


def failing_once(how: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows as they are, from a task that fails half way at its first attempt."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, len(batch) // 2)
            if context.attemptNumber() == 0 and context.partitionId() == 1:
                if how == "dies":
                    os._exit(1)
                raise RuntimeError("on purpose")
            yield batch.slice(len(batch) // 2)

    return rows


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_task_that_fails_is_done_again_and_leaves_nothing(spark: SparkSession, served: Served, how: str) -> None:
    wide = spark.range(0, 6000, 1, 3).select(F.lpad(F.col("id").cast("string"), 200, "0").alias("value"))
    write(wide.mapInArrow(failing_once(how), "value string"), served.url, topic="t")
    assert sorted(int(one.value) for one in everything(served, "t")) == [*range(6000)]
    assert served.run(served.broker.stages()) == []


def waiting_for_the_others(url: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows as they are; those of the last partition come when the other two are staged: then the job fails."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        import runnel.blocking

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 2:
            with runnel.blocking.open(url) as broker:
                while sum(one.records for one in broker.stages()) < 2000:
                    time.sleep(0.02)
        yield from batches

    return rows


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, served: Served) -> None:
    broken = numbers(spark, 3000).select(
        F.when(F.col("value") == "2999", None).otherwise(F.col("value")).alias("value")
    )
    broken = broken.mapInArrow(waiting_for_the_others(served.url), "value string")
    with pytest.raises(PySparkException, match="a row has none"):
        write(broken, served.url, topic="t")
    assert served.broker.statistics().topics["t"].end == 0
    assert served.run(served.broker.stages()) == []


def test_over_the_staging_bound_the_error_names_the_way_out(spark: SparkSession, served: Served) -> None:
    wide = spark.range(0, 8000, 1, 2).select(F.lpad(F.col("id").cast("string"), 1000, "0").alias("value"))
    with pytest.raises(PySparkException, match="maxBytesPerTrigger"):
        write(wide, served.url, topic="t")
    assert served.run(served.broker.stages()) == []


@pytest.mark.parametrize(
    ("options", "columns", "mode", "why"),
    [
        ({"topic": "t", "markvalu": "1"}, ["value"], "append", "did you mean 'markValue'"),
        ({"topic": "t", "mark": "m"}, ["value"], "append", "give markValue, too"),
        ({"topic": "t"}, ["value", "id"], "append", "no column 'id'"),
        ({}, ["value"], "append", "option topic, or give each row a column"),
        ({"topic": "t"}, ["value"], "overwrite", "a topic is a log"),
        ({"topic": "t", "path": "data"}, ["value"], "append", "not both"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    spark: SparkSession, served: Served, options: dict[str, Any], columns: list[str], mode: str, why: str
) -> None:
    frame = spark.range(3).withColumn("value", F.col("id").cast("string")).select(*columns)
    with pytest.raises(PySparkException, match=why):
        write(frame, served.url, mode, **options)
    assert served.run(served.broker.topics()) == []


def test_a_folder_is_written_beside_its_owner_and_without_one(spark: SparkSession, tmp_path: Path) -> None:
    import runnel.blocking

    folder = tmp_path / "folder"
    for count in (1, 2):
        numbers(spark, 100).write.format("runnel").mode("append").option("topic", "t").save(str(folder))
        with runnel.blocking.open(folder) as broker:
            assert broker.statistics().topics["t"].end == 200 * count - 100
            numbers(spark, 100).write.format("runnel").mode("append").option("topic", "t").save(str(folder))
            assert broker.statistics().topics["t"].end == 200 * count
