"""Spark writing topics.

How fast does Spark write rows to a topic, next to writing them to Parquet and to nowhere? What do keys, headers
and many topics cost, and a stream that commits batch by batch? How long does the smallest write take?
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.disk import PER_SECOND, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.spark_read import CORES, DRIVER, ROW, Shop, _server
from benchmarks.spark_read import Loads as ReadLoads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE = 100
RATE = 0.5e6
PARTS = 4
TOPICS = 50
NOWHERE, PARQUET = "to nowhere", "to Parquet"
PLAIN, CARRYING, MANY = "to a topic", "with keys and headers", f"to {TOPICS} topics"
STREAM, SMALL = "a stream to a topic", "ten rows"
MILLISECONDS = "ms a write"


@dataclass(frozen=True, slots=True)
class Loads:
    """How many rows are written, and how many by each trigger of a stream."""

    rows: int = 4_000_000
    small: int = 10


QUICK = Loads(rows=400_000, small=3)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Batch writes of several kinds, a stream, and the smallest write there is."""
    loads = loads or (QUICK if quick else Loads())
    shop = Writes(folder / "spark-write", loads)

    def contender(
        name: str, measure: Callable[[], Awaitable[Figures]], call: str, league: str, *, peer: bool = False
    ) -> Contender:
        return Contender(name, measure, call, league, peer=peer, needs=("pyspark", "pyarrow"), programs=("java",))

    write = 'df.write.format("runnel").option("url").option("topic")'
    batch = f"{loads.rows:,} rows of {SIZE} B from Parquet, {PARTS} tasks or more"
    return Question(
        name="spark_write",
        text=asked(__doc__),
        ranked=ROW,
        contenders=[
            contender(NOWHERE, partial(shop.written, NOWHERE), 'df.write.format("noop")', batch, peer=True),
            contender(PARQUET, partial(shop.written, PARQUET), "df.write.parquet(...)", batch, peer=True),
            contender(PLAIN, partial(shop.written, PLAIN), write, batch),
            contender(CARRYING, partial(shop.written, CARRYING), f"{write}, with columns key and headers", batch),
            contender(MANY, partial(shop.written, MANY), "the same, by a column topic", batch),
            contender(STREAM, shop.streamed, 'writeStream.format("runnel"), two files a trigger', "streaming"),
            contender(SMALL, shop.small, write, "the smallest write: one task, staged and committed"),
        ],
        aims=[Aim(one, ROW, at_most=1e9 / RATE) for one in (PLAIN, STREAM)],
        notes=[
            where(folder),
            f"rows of {SIZE} B of hexadecimal digits, from a Parquet table in the page cache; {CORES}, 2 GB",
            'the server is a process of its own on the same two cores, fsync="commit"; its journal is on that disk',
            "a write has ended when its transaction is committed and every subscriber sees the rows",
        ],
    )


class Writes(Shop):
    """The same session and server as for reading, and a table to write from.

    All on the thread that made the session: on another one, where none is active, Spark looks for no Python format.
    """

    def __init__(self, home: Path, loads: Loads) -> None:
        super().__init__(home, ReadLoads(rows=loads.rows))
        self._loads = loads

    def rows(self) -> DataFrame:
        """The table, made when it is first asked for."""
        if "table" not in self._made:
            value = f"cast(substr(concat(uuid(), uuid(), uuid()), 1, {SIZE}) as binary) as value"
            made = self.spark.range(0, self._loads.rows, 1, PARTS).selectExpr("id", value)
            made.write.mode("overwrite").parquet(str(self.table))
            self._made.add("table")
        return self.spark.read.parquet(str(self.table))

    def shaped(self, kind: str) -> DataFrame:
        """The rows as one kind of write wants them."""
        if kind == CARRYING:
            return self.rows().selectExpr("value", "cast(id % 1000 as string) as key", "map('n', 'x') as headers")
        if kind == MANY:
            return self.rows().selectExpr("value", f"concat('many.', cast(id % {TOPICS} as string)) as topic")
        return self.rows().select("value")

    async def written(self, kind: str) -> Figures:
        """All rows, once."""
        with self.taken("journal") as folder:
            async with _server(folder) as url:
                return self._written(kind, url)

    def _written(self, kind: str, url: str) -> Figures:
        frame, writer = self.shaped(kind), self._to(url)
        if "warm" not in self._made:  # the first query pays for everything that Java has not compiled yet
            writer(self.shaped(PLAIN).limit(1000), PLAIN)
            self._drain(frame)
            self._made.add("warm")
        begun = time.perf_counter()
        if kind == NOWHERE:
            self._drain(frame)
        elif kind == PARQUET:
            frame.write.mode("overwrite").parquet(str(self.home / "written"))
        else:
            writer(frame, kind)
        return self._figures(time.perf_counter() - begun)

    def _to(self, url: str) -> Callable[[DataFrame, str], None]:
        def write(frame: DataFrame, kind: str) -> None:
            writer = frame.write.format("runnel").mode("append").option("url", url)
            (writer if kind == MANY else writer.option("topic", "rows")).save()

        return write

    def _figures(self, spent: float) -> Figures:
        count = self._loads.rows
        return {ROW: spent / count * 1e9, PER_SECOND: count / spent, DRIVER: self._driver()}

    async def streamed(self) -> Figures:
        """All rows through a stream, a file of the table at a time."""
        with self.taken("journal") as folder, self.taken("checkpoint") as checkpoint:
            async with _server(folder) as url:
                return self._streamed(url, checkpoint)

    def _streamed(self, url: str, checkpoint: Path) -> Figures:
        schema = self.rows().schema
        source = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(self.table))
        sink = source.select("value").writeStream.format("runnel").option("url", url).option("topic", "rows")
        begun = time.perf_counter()
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return self._figures(time.perf_counter() - begun)

    async def small(self) -> Figures:
        """Ten rows, again and again."""
        with self.taken("journal") as folder:
            async with _server(folder) as url:
                return self._small(url)

    def _small(self, url: str) -> Figures:
        frame: Any = self.spark.range(0, 10, 1, 1).selectExpr("cast(id as string) as value")
        write, taken = self._to(url), []
        for _ in range(self._loads.small):
            begun = time.perf_counter()
            write(frame, PLAIN)
            taken.append(time.perf_counter() - begun)
        middle = sorted(taken)[len(taken) // 2]
        return {ROW: middle / 10 * 1e9, MILLISECONDS: middle * 1e3}
