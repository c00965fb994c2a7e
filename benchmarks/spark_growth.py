"""Spark with a hundred times as many rows.

Does a row cost the same, and does the driver's memory stay the same, when Spark reads 1, 10 and 100 million rows from a
folder, and when it archives them in a lake?
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import runnel
from benchmarks.disk import PER_SECOND, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.spark_lake import Archives
from benchmarks.spark_read import CORES, DRIVER, ROW, Loads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE, LIST = 16, 10_000
LARGE, SMALL = (1_000_000, 10_000_000, 100_000_000), (20_000, 40_000)
READ, LAKE = "a batch", "to the lake"
LINEAR = 0.8


def question(*, quick: bool = False, folder: Path, sizes: Sequence[int] | None = None) -> Question:
    """Batch reads and archives of topics of different sizes."""
    sizes = sizes or (SMALL if quick else LARGE)
    growth = Growth(folder / "spark-growth", Loads(rows=sizes[0]), sizes)
    needs = ("pyspark", "pyarrow", "deltalake")

    def contenders(what: str, league: str, call: str) -> list[Contender]:
        measure = growth.read if what == READ else growth.archived
        return [
            Contender(named(what, rows), partial(measure, rows), call, league, needs=needs, programs=("java",))
            for rows in sizes
        ]

    least, most = sizes[0], sizes[-1]
    return Question(
        name="spark_growth",
        text=asked(__doc__),
        ranked=ROW,
        contenders=[
            *contenders(READ, "batch read, all columns", 'spark.read.format("runnel").option("path").load()'),
            *contenders(LAKE, "stream to the lake, availableNow", "the query of `runnel pipeline run archive --once`"),
        ],
        aims=[
            Aim(named(what, most), figure, times_best_peer=LINEAR, peer=named(what, least))
            for what in (READ, LAKE)
            for figure in (ROW, DRIVER)
        ],
        notes=[
            where(folder),
            f"random values of {SIZE} B, published by lists of {LIST:,}, a topic for each size; {CORES}, 2 GB of heap",
            "the driver's memory is what its heap holds after a collection, right after the query",
        ],
    )


def named(what: str, rows: int) -> str:
    """The name of a contender."""
    return f"{what} of {rows:,}"


class Growth(Archives):
    """The same session, with a topic for each size in one folder."""

    def __init__(self, home: Path, loads: Loads, sizes: Sequence[int]) -> None:
        super().__init__(home, loads)
        self._sizes = sizes

    async def fill(self) -> None:
        """The topics, once, and a first query of each kind: it pays for what Java has not compiled yet."""
        if "rows" in self._made:
            return
        made = random.Random(1)
        async with runnel.open(self.journal) as broker:
            for rows in self._sizes:
                topic = broker.topic(f"rows-{rows}")
                for _ in range(rows // LIST):
                    await topic.publish_many([made.randbytes(SIZE) for _ in range(LIST)])
        self._made.add("rows")
        await self.read(self._sizes[0])
        await self.archived(self._sizes[0])

    async def read(self, rows: int) -> Figures:
        """A batch read of one topic."""
        await self.fill()
        options = self.source("path", topic=f"rows-{rows}")

        def frame() -> DataFrame:
            return self.spark.read.format("runnel").options(**options).load()

        begun = time.perf_counter()
        await asyncio.to_thread(self._drain, frame())
        return self._figures(rows, time.perf_counter() - begun)

    async def archived(self, rows: int) -> Figures:
        """All of one topic to a lake of its own."""
        from runnel.lake import Lake

        await self.fill()
        with self.taken("grown") as folder:
            context = self._context(folder, {"path": str(self.journal)}, f"rows-{rows}")
            begun = time.perf_counter()
            self._start(self._to_lake(context).trigger(availableNow=True), folder).awaitTermination()
            spent = time.perf_counter() - begun
            if (found := sum(Lake(context.lake).next_offsets(None).values())) != rows:
                raise RuntimeError(f"of {rows:,} rows {found:,} were archived")
        return self._figures(rows, spent)

    def _figures(self, rows: int, spent: float) -> Figures:
        return {ROW: spent / rows * 1e9, PER_SECOND: rows / spent, DRIVER: self._driver()}
