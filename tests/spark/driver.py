"""A driver in a process of its own: a query from one topic to another, to be killed and started again.

Run as a program: url, folder of the checkpoint, and options of the source as name=value.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[2]


def without_coverage(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment whose processes are not measured: Spark gives each of its many only ten seconds to start."""
    return {name: value for name, value in environ.items() if not name.startswith("COVERAGE_")}


class Driver:
    """Such a process, with all that Spark starts for it: killed together, as when the machine loses power."""

    def __init__(self, script: str, *arguments: object, log: Path, **environ: str) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._log = log
        with log.open("ab") as written:
            self.process = subprocess.Popen(
                [sys.executable, "-m", script, *map(str, arguments)],
                cwd=log.parent,
                env={**without_coverage(os.environ), "PYTHONPATH": path, **environ},
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9, of all of it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def told(self) -> str:
        """The last that it wrote."""
        return self._log.read_text(errors="replace")[-4000:]


def copy(spark: SparkSession, url: str, checkpoint: str, *options: str) -> StreamingQuery:
    """Start to copy the offsets of topic `in` to topic `out`, until there are no more."""
    source = spark.readStream.format("runnel").option("url", url).option("topic", "in")
    for one in ("startingOffsets=earliest", "minPartitions=2", *options):
        source = source.option(*one.split("=", 1))
    frame = source.load().selectExpr("cast(offset as string) as value", "key")
    sink = frame.writeStream.format("runnel").option("url", url).option("topic", "out")
    return sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main(url: str, checkpoint: str, *options: str) -> None:
    """Copy in a session of this process's own, or in that of `spark-submit`. DRIVER_CONF: more settings, as JSON."""
    import runnel.spark
    from tests.spark.conftest import QUICK

    where = os.environ.get("DRIVER_MASTER", "local[2,2]")
    more = json.loads(os.environ.get("DRIVER_CONF", "{}"))
    quick = {} if where == "submitted" else {**QUICK, **more}
    spark = runnel.spark.session("driver", None if where == "submitted" else where, **quick)
    copy(spark, url, checkpoint, *options).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
