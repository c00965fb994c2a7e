"""The archive: every record of every topic in the lake once, whatever happens to its checkpoint; and its audit."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import deltalake

import runnel
from runnel.core.topic_bounds import TopicBounds
from runnel.lake import Lake
from runnel.spark.pipelines.archive import gone_below, starting_offsets
from tests.spark.pipeline_rig import in_lake, run_once
from tests.spark.rig import clean, live_through

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def fill(folder: Path) -> None:
    small: dict[str, Any] = {"segment_bytes": 1 << 13, "clean_bytes_per_second": 1 << 30, "tombstone_age": 0}
    async with runnel.open(folder, **small) as broker:
        await live_through(broker, Random(3))
        await broker.publish("headers", b"h", key=b"k", headers={"name": "value"})
        await broker.publish("short", b"gone soon", expires=0.001)
        await broker.publish("short", b"stays")
        await clean(broker)


async def publish_more(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        await broker.topic("many").publish_many([b"more"] * 7)
        await broker.publish("later", b"new")


def test_an_archive_has_every_record_once_and_an_audit_judges_it(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = {"path": str(data)}
    asyncio.run(fill(data))
    run_once(spark, "archive", tmp_path, broker, batch_records=1500)
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
    assert {"trimmed", "expired"} <= holes <= {"trimmed", "expired", "compacted by key"}  # as far as the cleaner came

    table = deltalake.DeltaTable(str(tmp_path / "lake" / "records"))  # three things go wrong in the lake
    at = [row["offset"] for row in rows if row["topic"] == "many"]
    missing, doubled, changed = at[3], at[5], at[7]
    table.delete(f"topic = 'many' and offset = {missing}")
    twice = table.to_pyarrow_table(filters=[("topic", "=", "many"), ("offset", "=", doubled)])
    deltalake.write_deltalake(table, twice, mode="append")
    table.update({"value": "X'00'"}, predicate=f"topic = 'many' and offset = {changed}")
    (found,) = run_once(spark, "audit", tmp_path, broker)
    assert not found.is_fine
    kinds = {(one.kind, one.first) for one in found.facts["report"].problems}
    assert kinds == {("missing", missing), ("doubled", doubled), ("different", changed)}, found.text


def test_an_archive_without_a_checkpoint_begins_behind_what_the_lake_holds(tmp_path: Path) -> None:
    class Held(Lake):
        def next_offsets(self, topics: object = None) -> dict[tuple[str, int], int]:
            return {("a", 1): 5, ("a", 3): 2, ("other", 1): 9}

    assert starting_offsets(Held(tmp_path), ["a", "b.>"]) == ('{"a": {"epoch": 3, "offset": 2}, "b.>": "earliest"}')


def test_only_what_a_user_removed_is_erased_from_the_lake() -> None:
    archived = {("kept", 1): 9, ("trimmed", 1): 9, ("again", 1): 9, ("again", 2): 4, ("unread", 1): 9}
    bounds = [
        TopicBounds("kept", 1, 5, 9, removed=((0, 5, "retention_age"),)),
        TopicBounds("trimmed", 1, 3, 9, removed=((0, 3, "trimmed"),)),
        TopicBounds("again", 2, 0, 4),
    ]
    found = gone_below(archived, bounds, ["kept", "trimmed", "again"])
    assert found == {("trimmed", 1): 3, ("again", 1): 9}
