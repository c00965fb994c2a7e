"""`analytics`: windows over the broker's telemetry, to topics and to tables of the lake.

Plain functions from a DataFrame to a DataFrame: `figures` reads telemetry, `windows` adds it up by event time, and
`topics`, `subscribers` and `dead_letters` say what a window means. Counts add up exactly: a window of an hour has the
sums of its minutes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.pattern import ANALYTICS_PREFIX, TELEMETRY_PREFIX
from runnel.core.telemetry import DROP_WARNING, KINDS, LATENCY_BOUNDS, SLOW_LAG, analytics_topic, latency_quantile
from runnel.spark.pipelines.pipeline import Check, Context, Finding, Option, Pipeline, Stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

WINDOW, LATE = 60.0, 10.0  # seconds
TABLE_PREFIX = "analytics_"

DESCRIPTION = """\
examples:
  runnel pipeline run analytics                                of data/, until Ctrl-C
  runnel pipeline run analytics --once
  runnel pipeline run analytics --window 10s --server runnel://127.0.0.1:7788
  runnel pipeline report                                       the results on a page of HTML

Reads $runnel.telemetry.*, which a server publishes every 10 s (`runnel serve --telemetry`). Each window of each topic
and subscriber has throughput, latency from publish to delivery and from there to the ack (p50, p95, p99), drop rate,
lag and its trend, redeliveries, and dead letters by reason. Results go to $runnel.analytics.topics, .subscribers and
.dead_letters, which the console plots, and to the tables analytics_topics, … of the lake.
"""

# Fields of the rows of all kinds, as `from_json` reads them. A field that is zero is not in a row.
ROW = """
    time DOUBLE, seconds DOUBLE, topic STRING, subscriber STRING, kind STRING, reason STRING,
    published BIGINT, published_bytes BIGINT, kept_bytes BIGINT, topics BIGINT,
    delivered BIGINT, acked BIGINT, dropped BIGINT, expired BIGINT, redelivered BIGINT, dead_lettered BIGINT,
    lag BIGINT, in_flight BIGINT, members BIGINT, count BIGINT, deliver ARRAY<BIGINT>, ack ARRAY<BIGINT>
"""
SUMS = (
    *("published", "published_bytes", "delivered", "acked", "dropped", "expired"),
    *("redelivered", "dead_lettered", "count"),
)
LAST = ("kept_bytes", "topics", "lag", "in_flight", "members")  # what they were at the end of a window
HISTOGRAMS = ("deliver", "ack")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def figures(records: DataFrame) -> DataFrame:
    """Telemetry, of any kind, as columns; `at` is when the interval of a row began, `of` is its kind."""
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    row = F.from_json(F.col("value").cast("string"), ROW)
    known = records.select(F.substring_index("topic", ".", -1).alias("of"), row.alias("row")).select("of", "row.*")
    return known.withColumn("at", F.timestamp_seconds(F.col("time") - F.col("seconds"))).dropna(subset=["at", "topic"])


def windows(rows: DataFrame, seconds: float = WINDOW, late: float = LATE) -> DataFrame:
    """The result of `figures`, added up in windows of event time; rows that come later than `late` are not counted."""
    from pyspark.sql import functions as F  # noqa: N812

    def total(column: Column) -> Column:
        return F.coalesce(F.sum(column), F.lit(0))

    sums = [total(F.col(name)).alias(name) for name in SUMS]
    last = [F.coalesce(F.max_by(F.coalesce(name, F.lit(0)), "at"), F.lit(0)).alias(name) for name in LAST]
    counts = [
        F.array(*(total(F.get(F.col(name), F.lit(index))) for index in range(len(LATENCY_BOUNDS) + 1))).alias(name)
        for name in HISTOGRAMS
    ]
    first = F.min_by(F.coalesce("lag", F.lit(0)), "at").alias("first_lag")
    most = F.max(F.coalesce("lag", F.lit(0))).alias("max_lag")
    keys: list[Column | str] = [
        F.window("at", _duration(seconds)).alias("window"),
        "of",
        "topic",
        "subscriber",
        "kind",
        "reason",
    ]
    grouped = rows.withWatermark("at", _duration(late)).groupBy(keys).agg(*sums, *last, *counts, first, most)
    return grouped.withColumns(
        {
            "time": F.unix_micros(F.col("window.end")) / 1e6,
            "seconds": (F.unix_micros(F.col("window.end")) - F.unix_micros(F.col("window.start"))) / 1e6,
        }
    )


def meaning(found: DataFrame) -> DataFrame:
    """The result of `windows`, with derived figures, for the rows of all kinds.

    - `records_per_second`: published or delivered; `bytes_per_second`: published.
    - `deliver_p50`, `_p95`, `_p99`, `ack_p50`, …: latencies in seconds; null: nothing was measured.
    - `drop_rate`: the share of records that the subscriber missed; `drop_warning`: it is more than 1 %.
    - `lag_trend`: by how many records a second its lag grew.
    - `is_slow`: it dropped so many, or its lag grew and is more than it takes in a second, and 10.
    """
    from pyspark.sql import functions as F  # noqa: N812

    offered, seconds = F.col("delivered") + F.col("dropped"), F.col("seconds")
    drop_rate = F.when(offered > 0, F.col("dropped") / offered).otherwise(F.lit(0.0))
    trend, rate = (F.col("lag") - F.col("first_lag")) / seconds, F.col("delivered") / seconds
    quantiles = F.udf(_quantiles, "array<double>", useArrow=False)
    measured = found.withColumns({f"{name}_quantiles": quantiles(name) for name in HISTOGRAMS})
    latencies = {
        f"{name}_{label}": F.get(F.col(f"{name}_quantiles"), F.lit(index))
        for name in HISTOGRAMS
        for index, label in enumerate(QUANTILES)
    }
    return measured.withColumns(
        {
            "kind": F.coalesce("kind", F.lit("subscription")),
            "records_per_second": F.when(F.col("of") == "topics", F.col("published") / seconds).otherwise(rate),
            "bytes_per_second": F.col("published_bytes") / seconds,
            "drop_rate": drop_rate,
            "drop_warning": drop_rate > DROP_WARNING,
            "lag_trend": trend,
            "is_slow": (drop_rate > DROP_WARNING) | ((trend > 0) & (F.col("lag") > rate + SLOW_LAG)),
            **latencies,
        }
    )


COLUMNS = {
    "topics": (
        *("time", "seconds", "topic", "topics", "published", "published_bytes", "kept_bytes"),
        *("records_per_second", "bytes_per_second"),
    ),
    "subscribers": (
        *("time", "seconds", "topic", "subscriber", "kind", "delivered", "acked", "dropped", "expired"),
        *("redelivered", "dead_lettered", "lag", "max_lag", "in_flight", "members", "deliver", "ack"),
        *("records_per_second", "deliver_p50", "deliver_p95", "deliver_p99", "ack_p50", "ack_p95", "ack_p99"),
        *("drop_rate", "drop_warning", "lag_trend", "is_slow"),
    ),
    "dead_letters": ("time", "seconds", "topic", "subscriber", "reason", "count"),
}
"""The fields of the results of each kind. `time` is the end of the window, in seconds since 1970."""


TYPES = {
    **dict.fromkeys(("topic", "subscriber", "kind", "reason"), "string"),
    **dict.fromkeys(("drop_warning", "is_slow"), "bool"),
    **dict.fromkeys(("seconds", "records_per_second", "bytes_per_second", "drop_rate", "lag_trend"), "double"),
    **dict.fromkeys((f"{name}_{label}" for name in HISTOGRAMS for label in QUANTILES), "double"),
}
"""Of the columns that are no whole numbers."""


def topics(found: DataFrame) -> DataFrame:
    """Of `windows`, the publishes to each topic: records and bytes, in all and per second."""
    return _of_kind(found, "topics")


def subscribers(found: DataFrame) -> DataFrame:
    """Of `windows`, how each subscriber of each topic did: see `meaning`."""
    return _of_kind(found, "subscribers")


def dead_letters(found: DataFrame) -> DataFrame:
    """Of `windows`, how many dead letters each subscriber left, by reason."""
    return _of_kind(found, "dead_letters")


def _of_kind(found: DataFrame, kind: str) -> DataFrame:
    return meaning(found.where(found["of"] == kind)).select("window", *COLUMNS[kind])


def records(found: DataFrame) -> DataFrame:
    """The result of `windows` as the records to publish: the fields of telemetry, and derived ones.

    All kinds come from one aggregation. As several, of which one is idle, each would wait for its watermark.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rows = meaning(found.where(F.col("of").isin(*KINDS)))
    value = F.lit(None).cast("string")
    for kind, columns in COLUMNS.items():
        value = F.when(F.col("of") == kind, F.to_json(F.struct(*columns))).otherwise(value)
    topic = F.concat(F.lit(ANALYTICS_PREFIX), F.col("of"))
    return rows.select(topic.alias("topic"), F.col("topic").alias("key"), value.alias("value"))


def _quantiles(counts: Sequence[int] | None) -> list[float | None]:
    """The latencies of a histogram. A function of Python: as expressions of Spark, its code is too long to compile."""
    return [latency_quantile(counts or (), share) for share in QUANTILES.values()]


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


# -- The pipeline ----------------------------------------------------------------------------------------


def build(context: Context) -> Sequence[Stream | Check]:
    """The query from telemetry to topics, and the one from there to the lake."""
    window, late = context.options["window"], context.options["late"]
    if window < 1:
        raise InvalidOption("window", window, "expected a second or more")
    telemetry = context.source(f"{TELEMETRY_PREFIX}>", failOnDataLoss="false")
    found = windows(figures(telemetry), window, late)
    parts: list[Stream | Check] = [Stream("analytics", context.to_topic(records(found)))]
    if not context.options["no_tables"]:
        parts.append(Check("tables", partial(copy_to_tables, context, {}), every=context.options["copy_every"]))
    return parts


def copy_to_tables(context: Context, done: dict[str, int] | None = None) -> Finding:
    """Add the results that were published since the last time to the tables of the lake, each once.

    A commit stores up to which sequence of the broker its table has them. `done`: the next offset of each topic of
    which this process has copied some, so that it does not read them again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from runnel.spark.pipelines.delta_sink import committed_version, write_once

    storage, added = context.storage_options, 0
    done = {} if done is None else done
    tables = {kind: context.table(TABLE_PREFIX + kind) for kind in KINDS}
    behind = {kind: committed_version(table, storage, _application(kind)) for kind, table in tables.items()}
    starting: dict[str, Any] = {"startingOffsets": json.dumps(done)} if done else {}
    published = context.records(f"{ANALYTICS_PREFIX}>", failOnDataLoss="false", **starting)
    is_new = F.lit(False)
    for kind, first in behind.items():
        is_new |= (F.col("topic") == analytics_topic(kind)) & (F.col("sequence") >= first)
    new = published.where(is_new).select("topic", "offset", "sequence", "value").toArrow().to_pylist()
    for kind, table in tables.items():
        found = [row for row in new if row["topic"] == analytics_topic(kind)]
        if found:
            rows = _table_of(kind, [row["value"] for row in found])
            end = max(row["sequence"] for row in found) + 1
            if write_once(table, storage, rows, _application(kind), end, after=behind[kind]):
                added += len(found)
                done[analytics_topic(kind)] = max(row["offset"] for row in found) + 1
            else:  # another process did, perhaps not all of them: the next time says
                done.pop(analytics_topic(kind), None)
    return Finding(True, f"tables: {added:,} windows added")


def _application(kind: str) -> str:
    return f"runnel/{analytics_topic(kind)}"


def _type(column: str) -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.int64()) if column in HISTOGRAMS else pa.type_for_alias(TYPES.get(column, "int64"))


def _table_of(kind: str, values: Sequence[bytes]) -> pa.Table:
    """Results as rows of a table; `window_end` is their time."""
    import pyarrow as pa

    rows = [msgspec.json.decode(value) for value in values]
    columns = {name: pa.array([row.get(name) for row in rows], _type(name)) for name in COLUMNS[kind] if name != "time"}
    ends = pa.array([round(row["time"] * 1e6) for row in rows], pa.timestamp("us", "UTC"))
    return pa.table({"window_end": ends, **columns})


PIPELINE = Pipeline(
    "analytics",
    "throughput, latency, lag and drops of topics and subscribers, in windows of time",
    build,
    (
        Option("window", "how long a window is (1m)", WINDOW, kind="seconds", metavar="TIME"),
        Option("late", "how long to wait for rows that come late (10s)", LATE, kind="seconds", metavar="TIME"),
        Option("copy_every", "between two copies of results to the lake (1m)", 60.0, kind="seconds", metavar="TIME"),
        Option("no_tables", "write no tables to the lake, only topics", False, kind="flag"),
    ),
    DESCRIPTION,
    {"spark.sql.shuffle.partitions": 1},  # a sample has some hundred rows: more tasks only cost time
)
