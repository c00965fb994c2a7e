"""Pipelines in a test: run in the session of the tests, and the lake that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.spark.pipelines import Finding, RunOptions, StateFolder, find_pipeline, run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_once(spark: SparkSession, name: str, folder: Path, broker: dict[str, str], **options: Any) -> list[Finding]:
    """Run a built-in pipeline once, with its lake in `folder`; what its checks found."""
    findings: list[Finding] = []
    chosen = RunOptions(
        broker=broker,
        lake=str(folder / "lake"),
        state=StateFolder(folder / "lake" / "pipelines" / name),
        options=options,
        once=True,
    )
    run_pipeline(find_pipeline(name), chosen, tell=findings.append, spark=spark)
    return findings


def in_lake(folder: Path, topic: str | None = None) -> list[dict[str, Any]]:
    """The records of a lake, by topic and offset: what any reader of Delta sees."""
    import deltalake

    rows = deltalake.DeltaTable(str(folder / "lake" / "records")).to_pyarrow_table().to_pylist()
    chosen = [row for row in rows if topic in (None, row["topic"])]
    return sorted(chosen, key=lambda row: (row["topic"], row["epoch"], row["offset"]))
