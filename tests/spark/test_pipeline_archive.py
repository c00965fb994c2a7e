"""The archive: every record of every topic in the lake once, whatever happens to its checkpoint; and its audit."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import runnel
from tests.spark.pipeline_rig import in_lake, run_once
from tests.spark.rig import live_through

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def fill(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        await live_through(broker, Random(3))
        await broker.publish("headers", b"h", key=b"k", headers={"name": "value"})


async def publish_more(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        await broker.topic("many").publish_many([b"more"] * 7)
        await broker.publish("later", b"new")


def test_an_archive_has_every_record_once_and_an_audit_agrees(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = {"path": str(data)}
    asyncio.run(fill(data))
    run_once(spark, "archive", tmp_path, broker, batch_records=500)
    first = in_lake(tmp_path)
    assert first[0]["headers"] == [{"key": "name", "value": b"value"}]
    shutil.rmtree(tmp_path / "lake" / "pipelines")  # with its checkpoint: the lake knows how far it is
    asyncio.run(publish_more(data))
    run_once(spark, "archive", tmp_path, broker)
    rows = in_lake(tmp_path)
    assert len({(row["topic"], row["epoch"], row["offset"]) for row in rows}) == len(rows) == len(first) + 8
    (found,) = run_once(spark, "audit", tmp_path, broker)
    assert found.is_fine, found.text
    report = found.facts["report"]
    assert sum(one.rows for one in report.topics) == len(rows)
    holes = {reason for one in report.topics for reason in one.holes}
    assert holes == {"trimmed", "compacted by key"}, found.text
