"""A pipeline in a process of its own, to be killed and started again: the archive, an aggregation, and a copy.

Run as a program: the broker as name=value, the folder of lake and state, the names of the streams, records per batch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.spark.pipelines import Check, Context, Pipeline, RunOptions, StateFolder, Stream, run_pipeline
from runnel.spark.pipelines.archive import PIPELINE as ARCHIVE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, COPY, TABLE = "in", "out", "counts"


def counts(records: DataFrame) -> DataFrame:
    """How many records each second has, and the sum of their offsets: a record that is lost or counted twice shows."""
    from pyspark.sql import functions as F  # noqa: N812

    by_second = records.withWatermark("time", "0 seconds").groupBy(F.window("time", "1 second").alias("w"))
    found = by_second.agg(F.count("*").alias("records"), F.sum("offset").alias("offsets"))
    return found.select(F.unix_seconds("w.start").alias("second"), "records", "offsets")


def build(names: Sequence[str], limit: int, context: Context) -> list[Stream | Check]:
    """The streams with these names."""
    options = {**ARCHIVE.values({}), "topic": (TOPIC,), "batch_records": limit, "maintain_every": 2.0}
    archive = Context(context.spark, context.name, context.broker, context.lake, options)
    found: list[Stream | Check] = [*ARCHIVE.build(archive)] if "archive" in names else []
    source = partial(context.source, TOPIC, maxRecordsPerTrigger=limit)
    if TABLE in names:
        found.append(Stream(TABLE, context.to_table(counts(source()), TABLE), counts=False))
    if COPY in names:
        rows = source().selectExpr("cast(offset as string) as value")
        found.append(Stream(COPY, context.to_topic(rows, COPY), counts=False))
    return found


def run(spark: SparkSession, place: str, folder: Path, names: str, limit: int, *, once: bool) -> None:
    """Run it in a session, to the end or until it is stopped."""
    name, _, value = place.partition("=")
    options = RunOptions(
        broker={name: value},
        lake=str(folder / "lake"),
        state=StateFolder(folder / "state"),
        once=once,
        interval=0.0,
    )
    run_pipeline(Pipeline("kills", "to be killed", partial(build, names.split(","), limit)), options, spark=spark)


def main(place: str, folder: str, names: str, limit: str) -> None:
    """Run it in a session of this process's own, or in that of `spark-submit`, until it is killed."""
    import runnel.spark
    from tests.spark.conftest import QUICK

    where = os.environ.get("DRIVER_MASTER", "local[2,2]")
    more = json.loads(os.environ.get("DRIVER_CONF", "{}"))
    is_submitted = where == "submitted"
    settings = {} if is_submitted else {**QUICK, **more}
    spark = runnel.spark.session("kills", None if is_submitted else where, **settings)
    run(spark, place, Path(folder), names, int(limit), once=False)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
