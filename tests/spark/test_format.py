"""The format `runnel`: found by its name, refused where it would not work, and silent about secrets."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.errors import AnalysisException

import pyspark_runnel
from runnel.core.errors import InvalidOption, NotSupported
from runnel.spark import format as module
from runnel.spark.format import RunnelSource
from runnel.spark.schema import spark_schema
from runnel.spark.source import BatchReader, StreamReader
from tests.journal.folders import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def source(**options: str) -> RunnelSource:
    return RunnelSource({"path": "data", "topic": "t", **options})


def test_spark_finds_it_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, batches=6)
    assert pyspark_runnel.DefaultSource is RunnelSource
    assert RunnelSource.name() == "runnel"
    frame = spark.read.format("runnel").option("topic", "orders").load(str(tmp_path))  # its path is the option
    assert frame.count() == 9


def test_what_is_wrong_with_the_options_is_said_when_the_query_is_made(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'topic'"):
        spark.read.format("runnel").options(path="data", topc="a").load()
    with pytest.raises(AnalysisException, match="name the topic to read"):
        spark.readStream.format("runnel").options(path="data").load()


def test_no_plan_shows_a_secret(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, batches=2)
    key = str(tmp_path / "s3cret.pem")
    frame = spark.read.format("runnel").options(url="runnels://127.0.0.1:1?name=s3cret", topic="t", tlsKey=key).load()
    assert "s3cret" not in frame._jdf.queryExecution().logical().toString()
    assert "s3cret" not in repr(source(url="runnels://h?name=s3cret"))


def test_readers_are_for_the_columns_that_were_asked_for() -> None:
    assert source().schema() == spark_schema()
    assert isinstance(source().reader(spark_schema()), BatchReader)
    assert isinstance(source().streamReader(spark_schema()), StreamReader)
    with pytest.raises(InvalidOption, match="no such column"):
        source().reader(spark_schema().add("price", "long"))


def test_a_version_that_was_never_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.10.0")
    with pytest.raises(NotSupported, match=r"pyspark 4\.10\.0.*4\.2 and 4\.3"):
        importlib.reload(module)
    monkeypatch.undo()
    assert pyspark.__version__.startswith(module.SUPPORTED)
