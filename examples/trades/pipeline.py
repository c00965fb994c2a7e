"""The pipeline: plain functions, each from a DataFrame to a DataFrame. None of them knows where its rows come from.

    ticks ─ clean ─┬─ candles ─ as_records ─ topic trades.candles   (a candle that grows is written again)
                   ├─ candles ─────────────── lake/candles, Delta   (a candle once, when no tick can change it)
                   └─ alerts ── named ─ as_records ─ topic trades.alerts
                                  └ companies, from PostgreSQL

`run` puts them together into three streaming queries, on whatever session it is given.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from runnel.spark.pipelines.delta_sink import DeltaSink

WIDTH = "5 seconds"  # of a candle
LATENESS = "10 seconds"  # a tick that comes later than this is left out, and counted by Spark
JUMP = 0.03  # a price that moved by this much since the last alert is worth one

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: dict[str, Any] = {
    "spark.sql.streaming.stateStore.providerClass": ROCKS,  # what `alerts` remembers
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "UTC",
}


def clean(ticks: DataFrame) -> DataFrame:
    """The ticks that make sense. One that could not be decoded has no symbol."""
    return ticks.where("symbol is not null and price > 0 and size > 0").select("symbol", "price", "size", "at")


def candles(ticks: DataFrame, width: str = WIDTH, lateness: str = LATENESS) -> DataFrame:
    """Open, high, low, close and volume of each symbol, window by window, by the time in the ticks."""
    within = ticks.withWatermark("at", lateness).groupBy("symbol", F.window("at", width).alias("w"))
    return within.agg(
        F.min_by("price", "at").alias("open"),
        F.max("price").alias("high"),
        F.min("price").alias("low"),
        F.max_by("price", "at").alias("close"),
        F.sum("size").alias("volume"),
        F.count("*").alias("ticks"),
    ).select("symbol", F.col("w.start").alias("start"), "open", "high", "low", "close", "volume", "ticks")


class Jumps(StatefulProcessor):
    """Remembers, of each symbol, the price of its last alert, and tells when it has moved by `JUMP` since."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """What is remembered."""
        self._known = handle.getValueState("price", "price double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """The ticks of one symbol that have come."""
        found = self._known.get()
        before = found[0] if found is not None else None
        for row in sorted(rows, key=lambda row: row.at):
            if before is None:
                before = row.price
            change = row.price / before - 1
            if abs(change) >= JUMP:
                yield Row(symbol=key[0], at=row.at, before=before, price=row.price, change=change)
                before = row.price
        self._known.update((before,))

    def close(self) -> None:
        """Nothing is held."""


# Workers need not have this file: what of it they run travels to them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def alerts(ticks: DataFrame) -> DataFrame:
    """A row for each jump of a price."""
    schema = "symbol string, at timestamp, before double, price double, change double"
    return ticks.groupBy("symbol").transformWithState(Jumps(), schema, "append", "None")


COMPANIES = {"ACME": "Acme Anvils", "BOLT": "Bolt & Nut", "CORK": "Cork Floats", "DUNE": "Dune Sands"}


def companies(spark: SparkSession, dsn: str | None) -> DataFrame:
    """The dimension: the name of each symbol. From a table of PostgreSQL as it is now, if `dsn` says where."""
    rows = list(COMPANIES.items())
    if dsn is not None:
        import psycopg

        with psycopg.connect(dsn) as connection:
            rows = connection.execute("SELECT symbol, name FROM companies").fetchall()
    return spark.createDataFrame(rows, "symbol string, name string")


def named(rows: DataFrame, companies: DataFrame) -> DataFrame:
    """Rows with a column symbol, and the name of the company. One that has no name stays."""
    return rows.join(F.broadcast(companies), "symbol", "left")


def as_records(rows: DataFrame, key: str) -> DataFrame:
    """Rows as records: each a JSON object, with one of its columns as the key."""
    return rows.select(F.col(key).alias("key"), F.to_json(F.struct("*")).alias("value"))


def run(
    spark: SparkSession, url: str, folder: Path, dsn: str | None = None, trigger: str = "1 second"
) -> list[StreamingQuery]:
    """Start all of it, from topic `trades.ticks` on the server at `url`. What each query knows lies in `folder`.

    Each query shows on the broker as a cursor with its name and its lag: `runnel cursor list`.
    """

    def ticks(reader: str) -> DataFrame:
        source = spark.readStream.format("runnel").option("url", url).option("topic", "trades.ticks")
        source = source.option("valueFormat", "typed").option("startingOffsets", "earliest").option("cursor", reader)
        return clean(source.load())

    def start(name: str, writer: DataStreamWriter) -> StreamingQuery:
        writer = writer.queryName(name).option("checkpointLocation", str(folder / "checkpoints" / name))
        query = writer.trigger(processingTime=trigger).start()
        query.processAllAvailable()  # it runs, or says why not; one by one, for each starts processes of its own
        return query

    def write_candles(rows: DataFrame, number: int) -> None:
        """Candles that grew. Spark gives updates to no Python sink: so it is a batch write, with a mark: once only."""
        writer = as_records(rows, "symbol").write.format("runnel").mode("append").option("url", url)
        writer.option("topic", "trades.candles").option("mark", "candles").option("markValue", number).save()

    grown = candles(ticks("candles")).writeStream.outputMode("update").foreachBatch(write_candles)
    done = candles(ticks("lake")).writeStream.foreachBatch(DeltaSink(str(folder / "lake" / "candles"), {}))
    jumps = as_records(named(alerts(ticks("alerts")), companies(spark, dsn)), "symbol").writeStream.format("runnel")
    jumps = jumps.option("url", url).option("topic", "trades.alerts")
    return [start("candles", grown), start("lake", done), start("alerts", jumps)]
