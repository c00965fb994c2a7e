"""What a broker publishes about itself: rows that add up, and nothing about what is idle or internal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel.api.broker import Broker
from runnel.broker.telemetry import PER_TURN
from runnel.core.options import NO_TOPIC_OPTIONS
from runnel.core.telemetry import LATENCY_BOUNDS, MAX_ROWS, OTHER, ROWS, telemetry_topic
from runnel.testing.clock import JumpingClock

INTERVAL = 10.0


@pytest.fixture
def clock(runnel_clock: JumpingClock) -> JumpingClock:
    """A clock that stands still."""
    return runnel_clock


async def rows(broker: Broker, kind: str) -> list[Any]:
    """All rows of a kind that the broker holds."""
    if telemetry_topic(kind) not in broker.backend.catalog.logs:
        return []
    page = await broker.backend.history(telemetry_topic(kind), "earliest", 10_000, 1 << 24)
    return [msgspec.json.decode(record.value, type=ROWS[kind]) for record in page.records]


async def test_a_sample_counts_what_was_published_since_the_last(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        await broker.topic("orders").publish_many([b"abc"] * 5)
        await broker.publish("quotes", b"x")
        await clock.advance(INTERVAL)
        await broker.publish("orders", b"abcd")
        await clock.advance(INTERVAL)
        found = [(row.topic, row.published, row.published_bytes, row.seconds) for row in await rows(broker, "topics")]
    assert found == [("orders", 5, 15, 10.0), ("quotes", 1, 1, 10.0), ("orders", 1, 4, 10.0)]


async def test_an_idle_broker_publishes_no_telemetry(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker, broker.subscribe("t"):
        await broker.publish("t", b"x")
        await clock.advance(INTERVAL)
        before = len(await rows(broker, "topics")), broker.backend.timeline.sequence
        await broker.topic("idle").declare()
        await clock.advance(INTERVAL * 3)
        assert (len(await rows(broker, "topics")), broker.backend.timeline.sequence) == before


async def test_a_subscriber_row_has_deliveries_lag_drops_and_latency(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        async with broker.subscribe("t", buffer=4) as records:
            await broker.publish("t", b"x")
            await clock.advance(0.2)
            await anext(records)
            await clock.advance(INTERVAL)
            (row,) = await rows(broker, "subscribers")
            assert (row.topic, row.subscriber, row.kind) == ("t", "anonymous", "subscription")
            assert (row.delivered, row.dropped, row.lag, row.members) == (1, 0, 0, 1)
            assert row.deliver[LATENCY_BOUNDS.index(0.25)] == sum(row.deliver) == 1
            broker.topic("t").publish_nowait(b"x")
            for _ in range(9):
                broker.topic("t").publish_nowait(b"x")
            await clock.advance(INTERVAL)
            last = (await rows(broker, "subscribers"))[-1]
            assert (last.delivered, last.dropped, last.lag) == (0, 6, 4)
        await clock.advance(INTERVAL)
        ended = (await rows(broker, "subscribers"))[-1]
        assert (ended.dropped, ended.lag, ended.members) == (0, 0, 0)


async def test_old_records_do_not_count_as_slow_deliveries(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        await broker.topic("t", retention_count=10).publish(b"old")
        await clock.advance(3600)
        async with broker.subscribe("t", start="earliest") as records:
            await anext(records)
            await clock.advance(INTERVAL)
            row = (await rows(broker, "subscribers"))[-1]
            assert (row.delivered, row.deliver) == (1, ())


async def test_a_group_row_has_acks_redeliveries_and_both_latencies(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        async with broker.subscribe("jobs", group="work", backoff=[0.0]) as deliveries:
            await broker.publish("jobs", b"x")
            first = await anext(deliveries)
            await clock.advance(0.02)
            await first.nack()
            await clock.advance(0.0)
            second = await anext(deliveries)
            await clock.advance(2.0)
            await second.ack()
            await clock.advance(INTERVAL)
        (row,) = [row for row in await rows(broker, "subscribers") if row.kind == "group" and row.acked]
        assert (row.subscriber, row.delivered, row.acked, row.redelivered) == ("work", 2, 1, 1)
        assert sum(row.deliver) == 1
        assert row.ack[LATENCY_BOUNDS.index(2.5)] == sum(row.ack) == 1


async def test_dead_letters_are_counted_by_reason_without_its_text(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        async with broker.subscribe("jobs", group="work") as deliveries:
            for number in range(3):
                await broker.publish("jobs", b"x")
                await (await anext(deliveries)).reject(f"ValueError: order {number} has no price")
            await broker.publish("jobs", b"x")
            await (await anext(deliveries)).reject("too old")
            await clock.advance(INTERVAL)
        found = {(row.topic, row.subscriber, row.reason): row.count for row in await rows(broker, "dead_letters")}
    assert found == {("jobs", "work", "ValueError"): 3, ("jobs", "work", "too old"): 1}


async def test_reasons_of_dead_letters_are_bounded(monkeypatch: pytest.MonkeyPatch, clock: JumpingClock) -> None:
    monkeypatch.setattr("runnel.broker.totals.MAX_REASONS", 2)
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        async with broker.subscribe("jobs", group="work") as deliveries:
            for number in range(5):
                await broker.publish("jobs", b"x")
                await (await anext(deliveries)).reject(f"reason {number}")
            await clock.advance(INTERVAL)
        assert {row.reason: row.count for row in await rows(broker, "dead_letters")} == {
            "reason 0": 1,
            "reason 1": 1,
            OTHER: 3,
        }


async def test_a_stored_position_lags_until_it_is_read_and_is_repeated_seldom(
    tmp_path: Path, clock: JumpingClock
) -> None:
    async with runnel.open(tmp_path, clock=clock, telemetry=INTERVAL, share=False) as broker:
        await broker.publish("t", b"0")
        async with broker.subscribe("t", name="reader") as records:
            await anext(records)
        await broker.topic("t").publish_many([b"x"] * 7)
        await clock.advance(INTERVAL)
        await broker.backend.flushed()
        lags = [row.lag for row in await rows(broker, "subscribers") if row.kind == "position"]
        await clock.advance(INTERVAL * 5)
        await broker.backend.flushed()
        assert lags == [8]
        assert [row.lag for row in await rows(broker, "subscribers") if row.kind == "position"] == [8]
        await clock.advance(INTERVAL * 2)
        await broker.backend.flushed()
        assert [row.lag for row in await rows(broker, "subscribers") if row.kind == "position"] == [8, 8]


async def test_a_sample_has_a_bounded_number_of_rows_that_lose_no_count(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        for number in range(MAX_ROWS + 20):
            await broker.topic(f"t.{number}").publish_many([b"x"] * (2 if number < MAX_ROWS else 1))
        await clock.advance(INTERVAL)
        found = await rows(broker, "topics")
    assert len(found) == MAX_ROWS + 1
    assert (found[-1].topic, found[-1].published, found[-1].topics) == (OTHER, 20, 20)
    assert sum(row.published for row in found) == MAX_ROWS * 2 + 20


async def test_a_sample_of_many_subscribers_lets_others_run_and_loses_no_count(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        opened = [broker.subscribe("t", start="latest") for _ in range(PER_TURN * 2)]
        for one in opened:
            await one.__aenter__()
        await broker.publish("t", b"x")
        for one in opened:
            await anext(one)
        await clock.advance(INTERVAL)
        for one in opened:
            await one.__aexit__(None, None, None)
        await clock.advance(INTERVAL)
        found = await rows(broker, "subscribers")
    assert sum(row.delivered for row in found) == PER_TURN * 2


async def test_telemetry_is_never_about_itself_and_matches_no_pattern_of_a_user(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker, broker.subscribe(">") as everything:
        async with broker.subscribe("$runnel.telemetry.>") as telemetry:
            await broker.publish("t", b"x")
            await clock.advance(INTERVAL)
            for _ in range(2):
                assert (await anext(telemetry)).topic.startswith("$runnel.telemetry.")
            await clock.advance(INTERVAL)
            assert (await anext(everything)).topic == "t"
            assert {row.topic for row in await rows(broker, "subscribers")} == {">"}
            assert {row.topic for row in await rows(broker, "topics")} == {"t"}
            assert await broker.topics() == ["t"]
            assert broker.statistics().published == 1


async def test_only_the_broker_publishes_telemetry() -> None:
    async with runnel.open() as broker, broker.subscribe("$runnel.telemetry.topics"):
        with pytest.raises(runnel.InvalidName, match="internal"):
            await broker.publish("$runnel.telemetry.topics", b"{}")
        writer = broker.backend.writer("$runnel.telemetry.topics", None, NO_TOPIC_OPTIONS)
        with pytest.raises(runnel.InvalidName, match="internal"):  # a client may send any name
            writer.resolve()
        await broker.publish("$runnel.analytics.topics", b"{}")


async def test_telemetry_is_read_before_there_is_some(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        async with broker.subscribe("$runnel.telemetry.topics") as found:
            await broker.publish("t", b"x")
            await clock.advance(INTERVAL)
            assert (await anext(found)).key == b"t"
        options = await broker.backend.describe("$runnel.telemetry.topics")
        assert options is not None
        assert options["retention_age"] == 7 * 86400


async def test_telemetry_in_a_folder_is_bounded_and_survives_a_restart(tmp_path: Path, clock: JumpingClock) -> None:
    for life in range(2):
        async with runnel.open(tmp_path, clock=clock, telemetry=INTERVAL, share=False) as broker:
            await broker.publish("t", b"x")
            await clock.advance(INTERVAL)
            await broker.backend.flushed()
            assert [row.published for row in await rows(broker, "topics")] == [1] * (life + 1)
            options = await broker.backend.describe(telemetry_topic("topics"))
            assert options is not None
            assert options["retention_age"] == 7 * 86400
            assert options["retention_bytes"]


async def test_what_pipelines_publish_about_the_broker_is_bounded_and_on_disk(tmp_path: Path) -> None:
    async with runnel.open(tmp_path, share=False) as broker:
        await broker.publish("$runnel.analytics.topics", b"{}")
        assert broker.backend.catalog.logs["$runnel.analytics.topics"].stored is not None
        options = await broker.backend.describe("$runnel.analytics.topics")
        assert options == {"retention_age": 30 * 86400, "retention_bytes": 256 << 20}


@pytest.mark.parametrize("wrong", [0, -1, 0.01, "often", 1e9])
def test_an_interval_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="telemetry"):
        runnel.open(telemetry=wrong)


def test_telemetry_of_a_server_is_the_servers_choice() -> None:
    with pytest.raises(runnel.InvalidOption, match="runnel serve --telemetry"):
        runnel.open("runnel://127.0.0.1:1", telemetry=5)


async def test_closing_stops_the_samples(clock: JumpingClock) -> None:
    async with runnel.open(clock=clock, telemetry=INTERVAL) as broker:
        await broker.publish("t", b"x")
    await clock.advance(INTERVAL)
    assert broker.backend.timeline.touched is None
