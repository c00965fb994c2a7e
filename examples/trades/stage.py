"""Spark, as the program around it sees it: started and stopped, waited for, and asked what it has done.

Every call takes its time: from asyncio, call them in a thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

import runnel.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.trades import pipeline
    from examples.trades.plain import Candle
else:
    import pipeline
    from plain import Candle

QUIET: dict[str, Any] = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": False,
    "spark.ui.enabled": False,
    "spark.driver.memory": "1g",
}


class Stage:
    """A session in which the pipeline runs."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None
        self._queries: list[StreamingQuery] = []
        self._folder = Path()

    def start(self, url: str, folder: Path, dsn: str | None = None) -> str:
        """Start Spark and the queries. The version of Spark."""
        self._spark = runnel.spark.session("trades", **QUIET, **pipeline.SETTINGS)
        self._folder = folder.absolute()
        self._queries = pipeline.run(self._spark, url, self._folder, dsn)
        return str(self._spark.version)

    def settle(self) -> None:
        """Wait until everything that was published is through. A query that failed raises here."""
        for query in self._queries:
            query.processAllAvailable()

    def _table(self) -> DeltaTable | None:
        folder = str(self._folder / "lake" / "candles")
        return DeltaTable(folder) if DeltaTable.is_deltatable(folder) else None

    def rows(self) -> int:
        """How many candles are in the lake. A query that failed raises here."""
        for query in self._queries:
            if (error := query.exception()) is not None:
                raise error
        found = self._table()
        return 0 if found is None else found.count()

    def candles(self) -> list[Candle]:
        """The candles in the lake, in order."""
        found = self._table()
        return [] if found is None else sorted(Candle(**row) for row in found.to_pyarrow_table().to_pylist())

    def dropped(self) -> int:
        """How many ticks were left out because they came too late for their candle."""
        told = [progress for query in self._queries if query.name == "lake" for progress in query.recentProgress]
        return sum(one["numRowsDroppedByWatermark"] for progress in told for one in progress["stateOperators"])

    def stop(self) -> None:
        """End everything. Harmless twice."""
        if self._spark is not None:
            for query in self._queries:
                query.stop()
            self._spark.stop()
            self._spark = None
