"""Spark archiving topics in a lake.

How fast does a stream of all records reach the lake, from a folder and from a server, next to Spark's own Parquet sink
with the same columns? How soon after its publish is a record committed there? And how fast does a subscription read
records that only the lake has any more?
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import runnel
from benchmarks.disk import PER_SECOND, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.spark_read import CORES, DRIVER, LIST, ROW, SIZE, Loads, Shop, _server
from runnel import Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from runnel.spark.pipelines import Context

FOLDER, SERVER = "a folder", "a server"
LAKE, PARQUET = "the lake", "Spark's Parquet sink"
AT_ONCE, BY_DEFAULT = "micro-batches without a pause", "a micro-batch every second, as by default"
ENDLESS = "subscribe, from the lake"
P50, P99 = "ms to the lake p50", "ms to the lake p99"
RATE, SHARE, LATENCY, READ_RATE = 0.6e6, 0.8, 1000.0, 1e6
QUICK = Loads(rows=400_000, trigger=200_000, late=5)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Streams into the lake and into Parquet, and the way of single records."""
    loads = loads or (QUICK if quick else Loads())
    shop = Archives(folder / "spark-lake", loads)

    def contender(
        name: str, measure: Callable[[], Awaitable[Figures]], call: str, league: str, *, peer: bool = False
    ) -> Contender:
        needs = ("pyspark", "pyarrow", "deltalake")
        return Contender(name, measure, call, league, peer=peer, needs=needs, programs=("java",))

    def streams(place: str, kind: str) -> list[Contender]:
        league = f"{loads.rows:,} rows from {place}, {loads.trigger:,} a trigger, availableNow"
        written = 'the same source and columns, writeStream.format("parquet")'
        archive = "the query of `runnel pipeline run archive --once`"
        return [
            contender(f"{PARQUET}, from {place}", partial(shop.streamed, PARQUET, kind), written, league, peer=True),
            contender(f"{LAKE}, from {place}", partial(shop.streamed, LAKE, kind), archive, league),
        ]

    late = "one record at a time, about every 0.3 s, over TCP"
    follow = "the query of `runnel pipeline run archive --interval {}`"
    return Question(
        name="spark_lake",
        text=asked(__doc__),
        ranked=ROW,
        contenders=[
            *streams(FOLDER, "path"),
            *streams(SERVER, "url"),
            contender(AT_ONCE, partial(shop.followed, 0.0), follow.format("0s"), late),
            contender(BY_DEFAULT, partial(shop.followed, 1.0), follow.format("1s"), late),
            Contender(
                ENDLESS,
                shop.endless,
                'broker.subscribe("rows", start="earliest").batches(), in the broker\'s process',
                f"{loads.rows:,} rows that the journal has dropped",
                needs=("pyarrow", "deltalake"),
            ),
        ],
        aims=[
            *(Aim(f"{LAKE}, from {one}", ROW, at_most=1e9 / RATE) for one in (FOLDER, SERVER)),
            *(Aim(f"{LAKE}, from {one}", ROW, times_best_peer=SHARE) for one in (FOLDER, SERVER)),
            Aim(BY_DEFAULT, P50, at_most=LATENCY),
            Aim(ENDLESS, ROW, at_most=1e9 / READ_RATE),
        ],
        notes=[
            where(folder),
            f"random values of {SIZE} B, published by lists of {LIST:,}; {CORES}, 2 GB; all rows are in the page cache",
            "the lake is a folder on that disk; its batch is over when files and commit are synced and read back",
            "latency: from before the publish until a reader of the Delta log finds the record's offset archived",
        ],
    )


class Archives(Shop):
    """The same session, topic and server as for reading, and lakes.

    Queries are started on the thread that made the session: on another one Spark looks for no Python format.
    """

    def _context(self, folder: Path, broker: dict[str, str], topic: str) -> Context:
        from runnel.spark.pipelines import Context
        from runnel.spark.pipelines.archive import PIPELINE

        options = PIPELINE.values({"topic": (topic,), "batch_records": self.loads.trigger})
        return Context(self.spark, "archive", broker, str(folder / "lake"), options)

    def _to_lake(self, context: Context) -> DataStreamWriter:
        from runnel.spark.pipelines import Stream
        from runnel.spark.pipelines.archive import PIPELINE

        (stream,) = [one for one in PIPELINE.build(context) if isinstance(one, Stream)]
        return stream.writer

    def _to_parquet(self, context: Context, folder: Path) -> DataStreamWriter:
        from runnel.spark.pipelines.lake_rows import LAKE_COLUMNS

        limit = self.loads.trigger
        rows = context.source("rows", columns=LAKE_COLUMNS, headersFormat="array", maxRecordsPerTrigger=limit)
        return rows.writeStream.format("parquet").option("path", str(folder / "out"))

    def _start(self, writer: DataStreamWriter, folder: Path) -> StreamingQuery:
        return writer.option("checkpointLocation", str(folder / "checkpoint")).start()

    async def streamed(self, sink: str, kind: str) -> Figures:
        """All rows through a stream."""
        await self.fill()
        async with _server(self.journal) as url:
            broker = {"path": str(self.journal)} if kind == "path" else {"url": url}
            for name in ("warm", "streamed") if f"warm {sink}" not in self._made else ("streamed",):
                with self.taken(name) as folder:  # the first query pays for what Java has not compiled yet
                    figures = self._streamed(sink, broker, folder)
            self._made.add(f"warm {sink}")
        return figures

    def _streamed(self, sink: str, broker: dict[str, str], folder: Path) -> Figures:
        from runnel.lake import Lake

        context, rows = self._context(folder, broker, "rows"), self.loads.rows
        writer = self._to_lake(context) if sink == LAKE else self._to_parquet(context, folder)
        begun = time.perf_counter()
        query = self._start(writer.trigger(availableNow=True), folder)
        query.awaitTermination()
        spent = time.perf_counter() - begun
        if sink == LAKE:
            written = sum(Lake(context.lake).next_offsets(None).values())
        else:
            written = sum(progress["numInputRows"] for progress in query.recentProgress)
        if written != rows:
            raise RuntimeError(f"of {rows:,} rows {written:,} were written")
        return {ROW: spent / rows * 1e9, PER_SECOND: rows / spent, DRIVER: self._driver()}

    async def followed(self, interval: float) -> Figures:
        """Single records, from their publish to the lake."""
        from runnel.lake import Lake

        waits: list[float] = []
        with self.taken("late") as data, self.taken("followed") as folder:
            async with _server(data) as url, runnel.open(url) as broker:
                await broker.publish("late", b"first")
                context = self._context(folder, {"url": url}, "late")
                writer = self._to_lake(context).trigger(processingTime=f"{interval:g} seconds")
                query, lake = self._start(writer, folder), Lake(context.lake)

                async def committed(offset: int) -> None:
                    while sum(lake.next_offsets(None).values()) <= offset:
                        if (failed := query.exception()) is not None:
                            raise failed
                        await asyncio.sleep(0.005)

                try:
                    await committed(0)
                    chance = random.Random(2)
                    for number in range(1, self.loads.late + 1):
                        await asyncio.sleep(chance.uniform(0.1, 0.5))
                        begun = time.perf_counter()
                        await broker.publish("late", b"x" * SIZE)
                        await committed(number)
                        waits.append((time.perf_counter() - begun) * 1e3)
                finally:
                    await asyncio.to_thread(query.stop)
        waits.sort()
        middle = statistics.median(waits)
        return {ROW: middle * 1e6, P50: middle, P99: waits[int(len(waits) * 0.99)]}

    async def endless(self) -> Figures:
        """One subscription to a topic whose records are in the lake, and no longer in the journal."""
        from runnel.lake.history_source import LakeHistory

        folder, rows = self.home / "endless", self.loads.rows
        if "endless" not in self._made:
            async with runnel.open(folder / "journal", history=LakeHistory(folder / "lake")) as broker:
                await self._move(broker, folder)
            self._made.add("endless")
        async with runnel.open(folder / "journal", history=LakeHistory(folder / "lake")) as broker:  # nothing in memory
            seen, begun = 0, time.perf_counter()
            async with broker.subscribe("rows", start="earliest") as records:
                async for batch in records.batches():
                    seen += len(batch)
                    if seen == rows:
                        break
            spent = time.perf_counter() - begun
            read = broker.statistics().history
            if read is None or read.records < rows * 0.9:
                raise RuntimeError(f"of {rows:,} rows {0 if read is None else read.records:,} came from the lake")
        return {ROW: spent / rows * 1e9, PER_SECOND: rows / spent}

    async def _move(self, broker: runnel.Broker, folder: Path) -> None:
        """Publish all rows, archive them, and wait until the journal has dropped nearly all of them."""
        import runnel.arrow
        from runnel.lake import Lake

        rows, chance, lake = self.loads.rows, random.Random(4), Lake(folder / "lake")
        topic = broker.topic("rows", retention_until="archived", retention_count=LIST)
        for _ in range(rows // LIST):
            await topic.publish_many([chance.randbytes(SIZE) for _ in range(LIST)])

        def archive() -> dict[tuple[str, int], int]:
            lake.create()
            done = lake.commit(lake.write(runnel.arrow.batches(folder / "journal", "rows")), application="a", version=0)
            return dict(done.next_offsets)

        found = await asyncio.to_thread(archive)
        await broker.confirm_archived({name: Position(epoch, end) for (name, epoch), end in found.items()})
        while (await broker.floors("rows"))[0].moved < rows * 0.9:  # noqa: ASYNC110 - the cleaner does it
            await asyncio.sleep(0.1)
