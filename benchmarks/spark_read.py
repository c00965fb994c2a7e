"""Spark reading topics.

How fast does Spark read a topic, from a folder and from a server, next to the same rows in Parquet? How fast does a
stream reach Parquet, how soon after its publish is a record there, and what does a running query cost live readers?
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import runnel
from benchmarks.disk import PER_SECOND, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.processes import free_port, listening, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 124
LIST = 1000
ROW = "ns a row"
P50 = "ms to the sink p50"
P99 = "ms to the sink p99"
DRIVER = "MB of the driver's Java in use"
LIVE = "ns a live delivery"
PARQUET, FOLDER, SERVER = "Parquet", "a folder", "a server"
ALONE, BESIDE, BESIDE_READER = "live readers alone", "live readers beside a query", "live readers beside a catch-up"
UNLIMITED = "live readers beside a query, history_share=1"
STREAM_RATE, LATENCY = 0.8e6, 500.0
CORES = "local[2]"


@dataclass(frozen=True, slots=True)
class Loads:
    """How many rows are read, and how many of them by each trigger of a stream."""

    rows: int = 4_000_000
    few: int = 1_000_000
    trigger: int = 1_000_000
    late: int = 30  # records whose way to the sink is timed
    live: int = 1_000_000


QUICK = Loads(rows=400_000, few=100_000, trigger=200_000, late=5, live=100_000)


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """Batch reads, streams, their latency, and their cost."""
    loads = loads or (QUICK if quick else Loads())
    shop = Shop(folder / "spark", loads)

    def contender(
        name: str, measure: Callable[[], Awaitable[Figures]], call: str, league: str, *, peer: bool = False
    ) -> Contender:
        return Contender(name, measure, call, league, peer=peer, needs=("pyspark", "pyarrow"), programs=("java",))

    read = 'spark.read.format("runnel").option({}).load().write.format("noop")'
    batch = f"{loads.rows:,} rows, all columns"
    stream = f"readStream, {loads.trigger:,} rows a trigger, availableNow, to Parquet"
    few = f"{loads.few:,} rows against {loads.rows:,}: a row costs the same"
    return Question(
        name="spark_read",
        text=asked(__doc__),
        ranked=ROW,
        contenders=[
            contender(PARQUET, partial(shop.batch, shop.parquet), "spark.read.parquet(...)", batch, peer=True),
            contender(FOLDER, partial(shop.batch, shop.folder_rows), read.format('"path"'), batch),
            contender(SERVER, partial(shop.batch, shop.server_rows), read.format('"url"'), batch),
            contender(f"{FOLDER}, few rows", shop.few, read.format('"path"') + ", endingOffsets", few),
            contender(f"{FOLDER}, streaming", partial(shop.stream, "path"), 'option("path")', stream),
            contender(f"{SERVER}, streaming", partial(shop.stream, "url"), 'option("url")', stream),
            contender(f"{FOLDER}, latency", partial(shop.late, "path"), "a record every 0.3 s or so", "latency"),
            contender(f"{SERVER}, latency", partial(shop.late, "url"), "a record every 0.3 s or so", "latency"),
            contender(ALONE, shop.live, "sub.batches() over TCP", "live"),
            contender(BESIDE, partial(shop.live, shop.query), "the same; a query reads a topic over TCP", "live"),
            contender(
                BESIDE_READER, partial(shop.live, shop.catch_up), 'the same; subscribe(start="earliest")', "live"
            ),
            contender(
                UNLIMITED, partial(shop.live, shop.query, share=1.0), "the same; history is not held back", "live"
            ),
        ],
        aims=[
            Aim(FOLDER, ROW, times_best_peer=0.5),
            Aim(SERVER, ROW, times_best_peer=0.5),
            Aim(f"{FOLDER}, streaming", ROW, at_most=1e9 / STREAM_RATE),
            Aim(f"{SERVER}, streaming", ROW, at_most=1e9 / STREAM_RATE),
            Aim(f"{FOLDER}, latency", P50, at_most=LATENCY),
            Aim(f"{SERVER}, latency", P50, at_most=LATENCY),
            Aim(BESIDE, ROW, times_best_peer=0.7, peer=ALONE),
            Aim(BESIDE_READER, ROW, times_best_peer=0.7, peer=ALONE),
        ],
        notes=[
            where(folder),
            f"random values of {SIZE} B, published by lists of {LIST:,}; {CORES}, 2 GB; all rows are in the page cache",
            "Parquet holds the same rows with the same columns, written by Spark from the topic (snappy)",
            "latency: from before the publish until foreachBatch has it, one record at a time, no trigger interval",
            "live: one publisher and one reader over TCP, in one process; beside them Spark, or a reader, reads",
            "all of the other topic's history over TCP, again and again; the server has its default history_share",
        ],
    )


@dataclass
class Shop:
    """What all measurements share, made when it is first needed: a folder, a server on it, a session, Parquet."""

    home: Path
    loads: Loads
    _spark: SparkSession | None = None
    _made: set[str] = field(default_factory=set)

    @property
    def journal(self) -> Path:
        return self.home / "journal"

    @property
    def table(self) -> Path:
        return self.home / "table"

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            from pyspark.sql import SparkSession

            import runnel.spark

            if (earlier := SparkSession.getActiveSession()) is not None:
                earlier.stop()  # another question's, whose folder is gone

            self._spark = runnel.spark.session(
                "benchmark",
                CORES,
                **{
                    "spark.ui.enabled": "false",
                    "spark.driver.memory": "2g",
                    "spark.ui.showConsoleProgress": "false",
                    "spark.log.level": "ERROR",
                    "spark.sql.warehouse.dir": str(self.home / "warehouse"),
                    "spark.local.dir": str(self.home / "local"),
                },
            )
        return self._spark

    # -- what there is ------------------------------------------------------------------------------------------

    def source(self, kind: str, url: str = "", **options: str) -> dict[str, str]:
        place = {"path": str(self.journal)} if kind == "path" else {"url": url}
        return {"topic": "rows", "startingOffsets": "earliest", **place, **options}

    async def fill(self) -> None:
        """The topic, once."""
        if "rows" in self._made:
            return
        made = random.Random(1)
        async with runnel.open(self.journal) as broker:
            topic = broker.topic("rows")
            for _ in range(self.loads.rows // LIST):
                await topic.publish_many([made.randbytes(SIZE) for _ in range(LIST)])
        self._made.add("rows")

    @contextmanager
    def taken(self, name: str) -> Iterator[Path]:
        """A folder for one measurement."""
        folder = self.home / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def parquet(self, _: str) -> DataFrame:
        if "table" not in self._made:
            read = self.spark.read.format("runnel").options(**self.source("path")).load()
            read.write.mode("overwrite").parquet(str(self.table))
            self._made.add("table")
        return self.spark.read.parquet(str(self.table))

    def folder_rows(self, _: str) -> DataFrame:
        return self.spark.read.format("runnel").options(**self.source("path")).load()

    def server_rows(self, url: str) -> DataFrame:
        return self.spark.read.format("runnel").options(**self.source("url", url)).load()

    # -- measurements -------------------------------------------------------------------------------------------

    async def batch(self, rows: Callable[[str], DataFrame]) -> Figures:
        """All rows, once."""
        await self.fill()
        async with _server(self.journal) as url:
            return await asyncio.to_thread(self._batch, partial(rows, url), self.loads.rows)

    async def few(self) -> Figures:
        """Fewer rows of the same topic."""
        await self.fill()
        ending = f'{{"rows": {self.loads.few}}}'
        options = self.source("path", endingOffsets=ending)

        def rows() -> DataFrame:
            return self.spark.read.format("runnel").options(**options).load()

        return await asyncio.to_thread(self._batch, rows, self.loads.few)

    def _batch(self, rows: Callable[[], DataFrame], count: int) -> Figures:
        if "warm" not in self._made:  # the first query pays for everything that Java has not compiled yet
            self._drain(rows())
            self._made.add("warm")
        frame = rows()
        begun = time.perf_counter()
        self._drain(frame)
        spent = time.perf_counter() - begun
        return {ROW: spent / count * 1e9, PER_SECOND: count / spent, DRIVER: self._driver()}

    @staticmethod
    def _drain(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _driver(self) -> float:
        """Memory that is in use after a collection."""
        java: Any = self.spark._jvm
        java.java.lang.System.gc()
        runtime = java.java.lang.Runtime.getRuntime()
        return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6

    async def stream(self, kind: str) -> Figures:
        """All rows through a stream, to Parquet."""
        await self.fill()
        async with _server(self.journal) as url:
            options = self.source(kind, url, maxRecordsPerTrigger=str(self.loads.trigger))
            with self.taken("streamed") as folder:
                return await asyncio.to_thread(self._stream, options, folder)

    def _stream(self, options: dict[str, str], folder: Path) -> Figures:
        source = self.spark.readStream.format("runnel").options(**options).load()
        sink = source.writeStream.format("parquet").option("path", str(folder / "out"))
        begun = time.perf_counter()
        query = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        spent = time.perf_counter() - begun
        count = sum(progress["numInputRows"] for progress in query.recentProgress)
        if count != self.loads.rows:
            raise RuntimeError(f"{count:,} rows of {self.loads.rows:,} came")
        return {ROW: spent / count * 1e9, PER_SECOND: count / spent, DRIVER: self._driver()}

    async def late(self, kind: str) -> Figures:
        """Single records, from their publish to the sink."""
        with self.taken("late") as folder:
            async with _server(folder) as url, runnel.open(url) as broker:
                await broker.publish("late", b"first")
                options = {"topic": "late", "path": str(folder)} if kind == "path" else {"topic": "late", "url": url}
                came: list[tuple[float, float]] = []

                def arrived(frame: DataFrame, _: int) -> None:
                    now = time.time()
                    came.extend((struct.unpack("<d", bytes(row.value))[0], now) for row in frame.collect())

                source = self.spark.readStream.format("runnel").options(**options).load()
                query = source.writeStream.foreachBatch(arrived).start()
                try:
                    while query.lastProgress is None:  # noqa: ASYNC110 - Spark tells nobody
                        await asyncio.sleep(0.05)
                    chance = random.Random(2)
                    for number in range(self.loads.late):
                        await asyncio.sleep(chance.uniform(0.1, 0.5))
                        await broker.publish("late", struct.pack("<d", time.time()))
                        while len(came) <= number:  # noqa: ASYNC110 - nor does its thread
                            await asyncio.sleep(0.005)
                finally:
                    await asyncio.to_thread(query.stop)
        waits = sorted((there - sent) * 1e3 for sent, there in came)
        return {ROW: statistics.median(waits) * 1e6, P50: statistics.median(waits), P99: waits[int(len(waits) * 0.99)]}

    async def live(self, beside: Beside | None = None, share: float | None = None) -> Figures:
        """A publisher and a reader over TCP, and perhaps a reader of the history of another topic."""
        await self.fill()
        async with _server(self.journal, share) as url, AsyncExitStack() as stack:
            if beside is not None:
                await stack.enter_async_context(beside(url))
            spent = await _delivered(url, self.loads.live)
        return {ROW: spent / self.loads.live * 1e9, PER_SECOND: self.loads.live / spent}

    @asynccontextmanager
    async def query(self, url: str) -> AsyncIterator[None]:
        """Spark reads the history again and again: a query with much behind it."""
        stop = False

        def busy() -> None:
            while not stop:
                self._drain(self.server_rows(url))

        reading = asyncio.create_task(asyncio.to_thread(busy))
        try:
            await asyncio.sleep(5.0)  # until it is in full swing
            yield
        finally:
            stop = True
            await reading

    @asynccontextmanager
    async def catch_up(self, url: str) -> AsyncIterator[None]:
        """Another process reads the history again and again."""
        command = [sys.executable, "-m", "benchmarks.history_reader", url, "rows", str(self.loads.rows)]
        async with running(command) as process:
            assert process.stdout is not None
            await process.stdout.readline()  # it is in full swing
            yield


Beside = Callable[[str], AbstractAsyncContextManager[None]]
"""Something that goes on while live readers are measured."""


async def _delivered(url: str, count: int) -> float:
    """Seconds in which so many records went from a publisher to a reader in this process."""
    values = [random.Random(3).randbytes(SIZE)] * LIST
    async with runnel.open(url) as publisher, runnel.open(url) as reader:
        topic = publisher.topic("live")
        async with reader.subscribe("live", start="latest") as records:

            async def read() -> None:
                seen = 0
                async for batch in records.batches():
                    seen += len(batch)
                    if seen >= count:
                        return

            reading = asyncio.create_task(read())
            begun = time.perf_counter()
            for _ in range(count // LIST):
                await topic.publish_many(values)
            await reading
            return time.perf_counter() - begun


class _server:  # noqa: N801  # reads as a function
    """A server of a folder, in a process of its own."""

    def __init__(self, folder: Path, share: float | None = None) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "runnel", "serve", "--data", str(folder), "--port", str(self._port)]
        command += [] if share is None else ["--journal-history-share", str(share)]
        self._held = listening([*command, "--json-port", "off", "--http-port", "off"], self._port)

    async def __aenter__(self) -> str:
        await self._held.__aenter__()
        return f"runnel://127.0.0.1:{self._port}"

    async def __aexit__(self, *how: Any) -> None:
        await self._held.__aexit__(*how)
