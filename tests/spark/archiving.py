"""A driver in a process of its own: a query from a topic to Parquet, to be killed and started again.

Run as a program: the source as name=value, the folder of the checkpoint, the folder of the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIGGER = 120


def archive(spark: SparkSession, place: str, checkpoint: str, table: str) -> None:
    """Archive topic `in`: what is there now, and what comes while that lasts."""
    source = spark.readStream.format("runnel").options(
        topic="in", startingOffsets="earliest", maxRecordsPerTrigger=str(TRIGGER), minPartitions="2"
    )
    frame = source.option(*place.split("=", 1)).load().selectExpr("epoch", "offset", "cast(value as string) as value")
    sink = frame.writeStream.format("parquet").option("path", table).option("checkpointLocation", checkpoint)
    sink.trigger(availableNow=True).start().awaitTermination()


def main(place: str, checkpoint: str, table: str) -> None:
    """Archive in a session of this process's own."""
    import runnel.spark
    from tests.spark.conftest import QUICK

    spark = runnel.spark.session("archiving", "local[2,3]", **QUICK)
    archive(spark, place, checkpoint, table)
    spark.stop()


def committed(table: Path) -> list[Path]:
    """The files that a Spark table consists of. Others lie beside them: of tasks that were killed."""
    found: set[Path] = set()
    for log in (table / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            found.add(Path(unquote(urlparse(json.loads(line)["path"]).path)))
    return sorted(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
