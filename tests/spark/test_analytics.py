"""The analytics pipeline: windows over telemetry, as functions of DataFrames, and from a broker to a lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import runnel
from runnel.core.telemetry import (
    LATENCY_BOUNDS,
    DeadLetterRow,
    Row,
    SubscriberRow,
    TopicRow,
    analytics_topic,
    latency_quantile,
    telemetry_topic,
)
from runnel.spark.pipelines import Context, RunOptions, StateFolder, find_pipeline, run_pipeline
from runnel.spark.pipelines.analytics import (
    copy_to_tables,
    dead_letters,
    figures,
    records,
    subscribers,
    topics,
    windows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = 1_800_000_000.0  # the beginning of a minute


def histogram(**counts: int) -> tuple[int, ...]:
    """A histogram of latencies: `_3=7` puts 7 into the fourth bucket."""
    found = [0] * (len(LATENCY_BOUNDS) + 1)
    for bucket, count in counts.items():
        found[int(bucket[1:])] = count
    return tuple(found)


def subscriber(at: float, **fields: Any) -> SubscriberRow:
    """A row of the interval of 10 s that ends `at` seconds after the start."""
    return SubscriberRow(START + at, 10.0, "orders", fields.pop("subscriber", "billing"), **fields)


KINDS: dict[type, str] = {TopicRow: "topics", SubscriberRow: "subscribers", DeadLetterRow: "dead_letters"}
ROWS: list[Row] = [
    TopicRow(START + 10, 10.0, "orders", 100, 5_000, 700),
    TopicRow(START + 60, 10.0, "orders", 20, 1_000, 900),  # the last interval of the first minute
    TopicRow(START + 70, 10.0, "orders", 7, 70, 900),  # the first of the second
    TopicRow(START + 20, 10.0, "quotes", 3, 30),
    subscriber(10, delivered=100, lag=5, members=1, deliver=histogram(_3=90, _9=10)),
    subscriber(20, delivered=80, dropped=20, lag=65, members=2, deliver=histogram(_3=50, _20=50)),
    subscriber(70, delivered=1, members=2),
    subscriber(10, subscriber="work", kind="group", delivered=10, acked=8, redelivered=2, ack=histogram(_12=8)),
    subscriber(20, subscriber="quiet", delivered=1000, dropped=5),
    DeadLetterRow(START + 10, 10.0, "orders", "work", "ValueError", 2),
    DeadLetterRow(START + 20, 10.0, "orders", "work", "ValueError", 1),
    DeadLetterRow(START + 20, 10.0, "orders", "work", "rejected", 4),
]


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> DataFrame:
    """Windows of a minute over the rows, worked out once."""
    told = [(telemetry_topic(KINDS[type(row)]), msgspec.json.encode(row)) for row in ROWS]
    made = windows(figures(spark.createDataFrame(told, "topic STRING, value BINARY")), 60).persist()
    return made


def test_throughput_of_a_topic_adds_up_in_the_window_where_intervals_began(found: DataFrame) -> None:
    rows = {(row.topic, row.time - START): row for row in topics(found).collect()}
    assert {key: (row.published, row.published_bytes) for key, row in rows.items()} == {
        ("orders", 60.0): (120, 6_000),
        ("orders", 120.0): (7, 70),
        ("quotes", 60.0): (3, 30),
    }
    assert rows["orders", 60.0].records_per_second == 2.0
    assert rows["orders", 60.0].bytes_per_second == 100.0
    assert rows["orders", 60.0].kept_bytes == 900


def test_a_subscriber_has_drop_rate_lag_trend_and_whether_it_is_slow(found: DataFrame) -> None:
    rows = {(row.subscriber, row.time - START): row for row in subscribers(found).collect()}
    billing = rows["billing", 60.0]
    assert (billing.delivered, billing.dropped, billing.lag, billing.max_lag, billing.members) == (180, 20, 65, 65, 2)
    assert billing.drop_rate == 0.1
    assert billing.lag_trend == 1.0
    assert billing.drop_warning
    assert billing.is_slow
    quiet = rows["quiet", 60.0]
    assert not quiet.drop_warning  # 0.5 %
    assert not quiet.is_slow
    assert not rows["billing", 120.0].is_slow
    work = rows["work", 60.0]
    assert (work.kind, work.acked, work.redelivered) == ("group", 8, 2)


def test_quantiles_are_those_of_the_histograms_added_up(found: DataFrame) -> None:
    rows = {(row.subscriber, row.time - START): row for row in subscribers(found).collect()}
    billing, summed = rows["billing", 60.0], histogram(_3=140, _9=10, _20=50)
    assert tuple(billing.deliver) == summed
    for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert billing[f"deliver_{label}"] == pytest.approx(latency_quantile(summed, share))
    assert billing.ack_p50 is None
    assert rows["work", 60.0].ack_p99 == pytest.approx(latency_quantile(histogram(_12=8), 0.99))


def test_dead_letters_are_counted_by_reason(found: DataFrame) -> None:
    rows = {(row.topic, row.subscriber, row.reason): row["count"] for row in dead_letters(found).collect()}
    assert rows == {("orders", "work", "ValueError"): 3, ("orders", "work", "rejected"): 4}


def test_results_have_the_fields_of_telemetry(found: DataFrame) -> None:
    told = [(row.topic, row.value) for row in records(found).collect()]
    (minute,) = [
        row
        for topic, value in told
        if topic == analytics_topic("subscribers")
        and (row := msgspec.json.decode(value, type=SubscriberRow)).subscriber == "billing"
        and row.time == START + 60
    ]
    assert (minute.seconds, minute.delivered, minute.lag) == (60.0, 180, 65)
    assert sum(minute.deliver) == 200


def test_what_is_no_telemetry_is_left_out(spark: SparkSession) -> None:
    odd = [(telemetry_topic("topics"), b"no JSON"), (telemetry_topic("else"), b'{"time":1,"seconds":1,"topic":"t"}')]
    made = records(windows(figures(spark.createDataFrame(odd, "topic STRING, value BINARY"))))
    assert made.count() == 0


@pytest.fixture
def telemetry(tmp_path: Path) -> Path:
    """A folder with the telemetry of a broker that worked for some minutes, by a clock that jumps."""
    from runnel.testing.clock import JumpingClock

    async def work() -> None:
        clock = JumpingClock()
        async with runnel.open(tmp_path / "data", clock=clock, telemetry=10, share=False) as broker:
            async with broker.subscribe("orders", group="work") as deliveries:
                for _ in range(20):
                    await broker.publish("orders", b"x" * 100)
                    await clock.advance(1)
                    await (await anext(deliveries)).ack()
                    await clock.advance(9.5)
                    await broker.backend.flushed()

    import asyncio

    asyncio.run(work())
    return tmp_path / "data"


def test_the_pipeline_publishes_windows_and_writes_them_to_the_lake(
    spark: SparkSession, telemetry: Path, tmp_path: Path
) -> None:
    import deltalake

    options = RunOptions(
        broker={"path": str(telemetry)},
        lake=str(tmp_path / "lake"),
        state=StateFolder(tmp_path / "state"),
        options={"window": 60.0, "late": 0.0},
        once=True,
    )
    assert run_pipeline(find_pipeline("analytics"), options, spark=spark)
    with (
        runnel.blocking.open(telemetry) as broker,
        broker.subscribe(analytics_topic("topics"), start="earliest") as got,
    ):
        rows = [msgspec.json.decode(got.receive(timeout=30).value, type=TopicRow) for _ in range(3)]
    assert [row.topic for row in rows] == ["orders"] * 3
    assert all(row.seconds == 60.0 for row in rows)
    assert len({row.time for row in rows}) == 3
    assert sum(row.published for row in rows) in range(14, 21)  # the last window is open
    table = deltalake.DeltaTable(str(tmp_path / "lake" / "analytics_topics")).to_pyarrow_table().to_pylist()
    assert sorted(row["published"] for row in table) == sorted(row.published for row in rows)
    context, done = Context(spark, "analytics", options.broker, options.lake), dict[str, int]()
    assert copy_to_tables(context, done).summary == "tables: 0 windows added"
    with runnel.blocking.open(telemetry) as broker:
        broker.publish(analytics_topic("topics"), msgspec.json.encode(rows[0]))
    assert copy_to_tables(context, done).summary == "tables: 1 windows added"
    assert done == {analytics_topic("topics"): 4}  # it begins there the next time
    assert copy_to_tables(context, done).summary == "tables: 0 windows added"
