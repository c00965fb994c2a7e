"""Tables in Spark's catalog: created with options, read, streamed and inserted into; dropped without harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from runnel.core.errors import InvalidOption, NotSupported
from runnel.spark.format import RunnelSource
from runnel.spark.options import SinkOptions
from runnel.spark.schema import as_table, options_of_table, spark_schema, without_brokers_columns
from runnel.spark.sink import BatchWriter
from runnel.spark.source import BatchReader, StreamReader
from tests.spark.rig import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "a journal") as made:
        made.publish_many("t", [b"%d" % at for at in range(20)])
        yield made


def test_a_table_is_read_inserted_into_and_dropped(spark: SparkSession, served: Served) -> None:
    options = f"OPTIONS (path '{served._folder}', topic '*') TBLPROPERTIES ('who' = 'me')"
    spark.sql(f"CREATE TABLE topics USING runnel {options}")
    try:
        spark.sql("INSERT INTO topics (topic, value) VALUES ('u', cast('there' AS binary))")
        read = "SELECT topic, count(*), max(offset) FROM topics GROUP BY topic ORDER BY topic"
        assert spark.sql(read).collect() == [("t", 20, 19), ("u", 1, 0)]
    finally:
        spark.sql("DROP TABLE topics")
    assert (served._folder / "MANIFEST").exists()
    served.publish_many("t", [b"x"])


def test_options_go_with_the_columns_of_a_table() -> None:
    given = {
        "provider": "runnel",
        "owner": "me",
        "location": "file:/a%20b",
        "option.topic": "t",
        "topic": "t",
        "a": "b",
    }
    columns = RunnelSource(given).schema()
    assert options_of_table(columns) == {"path": "file:/a%20b", "topic": "t"}
    assert all(field.nullable for field in columns.fields)
    assert columns.fieldNames() == spark_schema().fieldNames()
    assert options_of_table(RunnelSource({"path": "p", "topic": "t"}).schema()) == {}
    assert SinkOptions.of_table(options_of_table(columns)).location.path == "/a b"


def test_a_table_without_them_says_what_to_do() -> None:
    """One that was created with columns: Spark asks the source nothing then, and keeps the options to itself."""
    with pytest.raises(InvalidOption, match=r"created without columns"):
        RunnelSource({}).reader(spark_schema())
    with pytest.raises(InvalidOption, match=r"created without columns"):
        RunnelSource({}).writer(spark_schema(), False)


def test_readers_and_writers_of_a_table_have_its_options() -> None:
    columns = as_table(spark_schema(), {"path": "p", "topic": "t", "startingoffsets": "earliest"})
    assert isinstance(RunnelSource({}).reader(columns), BatchReader)
    assert isinstance(RunnelSource({"maxRecordsPerTrigger": "5"}).streamReader(columns), StreamReader)
    assert isinstance(RunnelSource({}).writer(columns, False), BatchWriter)
    with pytest.raises(InvalidOption, match="whole number"):
        RunnelSource({"minPartitions": "none"}).reader(columns)
    with pytest.raises(InvalidOption, match="the source has no such option"):
        RunnelSource({"provider": "runnel", "path": "p", "option.topc": "t"}).schema()


def test_rows_of_a_table_that_are_written_elsewhere_go_there() -> None:
    columns = as_table(spark_schema(), {"path": "p", "topic": "t"})
    rows = type(columns)([columns["topic"], columns["value"]])
    options = RunnelSource({"url": "runnel://h"})._sink(rows, False)
    assert (options.location.url, options.location.path, options.topic, options.table) == (
        "runnel://h",
        None,
        None,
        False,
    )


def test_what_the_broker_fills_in_is_not_inserted() -> None:
    value, nothing = pa.array([b"x"]), pa.nulls(1, pa.int64())
    kept = without_brokers_columns(pa.record_batch([nothing, value], ["offset", "value"]))
    assert kept.schema.names == ["value"]
    with pytest.raises(InvalidOption, match="the broker fills it in"):
        without_brokers_columns(pa.record_batch([pa.array([5]), value], ["offset", "value"]))


def test_a_table_of_several_topics_names_the_topic_in_each_row() -> None:
    options = {"path": "p", "startingOffsets": "earliest"}
    assert SinkOptions.of_table({**options, "topic": "a.*"}).topic is None
    assert SinkOptions.of_table({**options, "topic": "a,b"}).topic is None
    assert SinkOptions.of_table({**options, "topic": "a"}).topic == "a"
    with pytest.raises(NotSupported, match="typed"):
        SinkOptions.of_table({**options, "topic": "a", "valueFormat": "typed"})
