"""Series out of telemetry: counts are kept, lag is carried on, and the newest interval is whole."""

from __future__ import annotations

from typing import Any

import pytest

import runnel
from runnel.core.telemetry import LATENCY_BOUNDS, DeadLetterRow, SubscriberRow, TopicRow, analytics_topic
from runnel.observe import analytics
from runnel.observe.analytics import SPANS, AnalyticsSeries, Span, read_series
from runnel.testing.clock import JumpingClock

HISTOGRAM = tuple(8 if index == 6 else 0 for index in range(len(LATENCY_BOUNDS) + 1))


def series(*rows: Any, start: float = 1000.0, bucket: float = 10.0, count: int = 6) -> dict[str, Any]:
    """The document of some rows."""
    made = AnalyticsSeries(start, bucket, count)
    for row in rows:
        made.add(row)
    return made.document()


def test_an_interval_is_spread_over_the_buckets_that_it_overlaps() -> None:
    found = series(TopicRow(1025.0, 10.0, "t", 100, 1000))
    assert found["series"]["published"] == [0, 5, 5, 0, 0, 0]
    assert found["topics"][0]["published"] == 100


def test_an_interval_that_begins_before_the_series_counts_in_part() -> None:
    found = series(TopicRow(1005.0, 10.0, "t", 100), TopicRow(999.0, 10.0, "t", 7), TopicRow(1075.0, 10.0, "t", 7))
    assert found["totals"]["published"] == 50
    assert found["rows"] == 1


def test_a_lag_holds_until_the_next_row_says_otherwise() -> None:
    one = SubscriberRow(1010.0, 10.0, "t", "s", lag=5)
    two = SubscriberRow(1030.0, 10.0, "t", "s", lag=9)
    found = series(two, one, SubscriberRow(1050.0, 10.0, "t", "s"))
    assert found["series"]["lag"] == [5, 5, 9, 9, 0, 0]


def test_a_lag_that_is_not_repeated_is_forgotten() -> None:
    found = series(SubscriberRow(1060.0, 60.0, "t", "s", lag=5), bucket=60.0, count=6)
    assert found["series"]["lag"] == [5, 5, 5, 5, 0, 0]


def test_a_subscriber_that_drops_more_than_one_percent_is_slow() -> None:
    found = series(
        SubscriberRow(1060.0, 60.0, "t", "bad", delivered=90, dropped=10),
        SubscriberRow(1060.0, 60.0, "t", "good", delivered=1000, dropped=1),
    )
    by_name = {one["subscriber"]: one for one in found["subscribers"]}
    assert by_name["bad"]["drop_warning"]
    assert by_name["bad"]["slow"]
    assert not by_name["good"]["slow"]
    assert found["subscribers"][0]["subscriber"] == "bad"


def test_a_subscriber_whose_lag_grows_beyond_its_rate_is_slow() -> None:
    rows = [SubscriberRow(1010.0 + 10 * n, 10.0, "t", "s", delivered=10, lag=100 * n) for n in range(6)]
    assert series(*rows)["subscribers"][0]["slow"]


def test_latencies_are_quantiles_of_the_histograms_of_a_bucket() -> None:
    found = series(SubscriberRow(1010.0, 10.0, "t", "s", delivered=8, deliver=HISTOGRAM))
    p50 = found["series"]["deliver"]["p50"]
    assert p50[0] == pytest.approx((LATENCY_BOUNDS[5] + LATENCY_BOUNDS[6]) / 2)
    assert p50[1] is None
    assert found["subscribers"][0]["deliver"]["p99"] <= LATENCY_BOUNDS[6]
    assert found["subscribers"][0]["ack"]["p50"] is None


def test_dead_letters_are_summed_by_reason() -> None:
    rows = [DeadLetterRow(1010.0, 10.0, "t", "s", reason, 2) for reason in ("a", "b", "a")]
    found = series(*rows)
    assert [(one["reason"], one["count"]) for one in found["dead_letters"]] == [("a", 4), ("b", 2)]


def test_topics_beyond_a_bound_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics, "MAX_KEYS", 2)
    found = series(*(TopicRow(1010.0, 10.0, f"t{number}", 1) for number in range(5)))
    assert {one["topic"]: one["published"] for one in found["topics"]} == {"t0": 1, "t1": 1, "(other)": 3}


async def test_series_are_read_from_telemetry_and_end_with_the_newest_interval(runnel_clock: JumpingClock) -> None:
    async with runnel.open(clock=runnel_clock, telemetry=10) as broker, broker.subscribe("t"):
        for _ in range(3):
            await broker.topic("t").publish_many([b"x"] * 20)
            await runnel_clock.advance(10)
        await runnel_clock.advance(4)
        found = (await read_series(broker.backend, SPANS["minutes"], runnel_clock.time())).document()
        assert found["series"]["published"][-4:] == [0, 2, 2, 2]
        assert found["series"]["lag"][-1] == 60


async def test_windows_of_the_pipeline_are_used_where_there_are_some(runnel_clock: JumpingClock) -> None:
    import msgspec

    async with runnel.open(clock=runnel_clock, telemetry=10) as broker:
        start = runnel_clock.time()
        for _ in range(12):
            await broker.topic("t").publish_many([b"x"] * 10)
            await runnel_clock.advance(10)
        window = TopicRow(start + 60, 60.0, "t", 6000)  # instead of the 60 of telemetry
        await broker.publish(analytics_topic("topics"), msgspec.json.encode(window))
        await broker.publish(analytics_topic("topics"), b"no JSON")
        span = Span(600.0, 60.0)
        found = (await read_series(broker.backend, span, runnel_clock.time())).document()
        assert found["series"]["published"][-2:] == [100, 1]


async def test_a_broker_without_telemetry_has_empty_series() -> None:
    async with runnel.open() as broker:
        found = (await read_series(broker.backend, SPANS["days"], 1e9)).document()
        assert found["rows"] == 0
        assert set(found["series"]["published"]) == {0.0}
