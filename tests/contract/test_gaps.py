"""Gaps: every record that is lost is counted, told with its place, and warned about once."""

import logging
from typing import Any

import pytest

import runnel
from runnel import Broker, Gap
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import read, rest, visible

SLOW = "the subscriber was too slow"


async def flood(broker: Broker, count: int, topic: str = "t") -> None:
    await broker.topic(topic).publish_many([b"x"] * count)


@on_every_socket
async def test_a_gap_says_from_where_to_where_and_how_many(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=2) as subscription:
        await flood(broker, 5)
        first, second = await read(subscription, 2)
    assert first.gap == Gap("t", 0, 3, 3, SLOW)
    assert second.gap is None


async def test_a_gap_of_a_pattern_is_reported_in_sequences_and_counts_only_its_own(broker: Broker) -> None:
    async with broker.subscribe("a.*", buffer=1) as subscription:
        for name in ("a.x", "other", "a.y", "other", "a.x"):
            await broker.publish(name, b"")
        record = await anext(subscription)
    assert (record.topic, record.sequence) == ("a.x", 4)
    assert record.gap == Gap("a.*", 0, 3, 2, SLOW)


async def test_a_gap_is_reported_with_the_batch_that_follows_it(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=2) as subscription:
        await flood(broker, 5)
        batches = subscription.batches()
        batch = await anext(batches)
        assert (batch.gap, len(batch)) == (Gap("t", 0, 3, 3, SLOW), 2)
        await flood(broker, 1)
        assert (await anext(batches)).gap is None


async def test_on_gap_is_called_for_every_gap(broker: Broker) -> None:
    gaps: list[Gap] = []
    async with broker.subscribe("t", buffer=1, on_gap=gaps.append) as subscription:
        await flood(broker, 3)
        await read(subscription, 1)
        await flood(broker, 2)
        await read(subscription, 1)
    assert gaps == [Gap("t", 0, 2, 2, SLOW), Gap("t", 3, 4, 1, SLOW)]


async def test_an_on_gap_that_raises_does_not_stop_the_reader(broker: Broker, caplog: Any) -> None:
    def explode(gap: Gap) -> None:
        raise RuntimeError("boom")

    async with broker.subscribe("t", buffer=1, on_gap=explode) as subscription:
        await flood(broker, 3)
        assert (await anext(subscription)).offset == 2
    assert "failed" in caplog.text


async def test_strict_raises_and_ends_the_subscription(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=1, strict=True, name="exact") as subscription:
        await flood(broker, 3)
        with pytest.raises(runnel.RecordsMissed, match="'exact': missed 2 records") as caught:
            await read(subscription, 1)
        assert caught.value.gap == Gap("t", 0, 2, 2, SLOW)
        with pytest.raises(runnel.RecordsMissed):
            await read(subscription, 1)
        assert broker.statistics().subscriptions == ()


async def test_strict_raises_for_batches_too(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=1, strict=True) as subscription:
        await flood(broker, 3)
        with pytest.raises(runnel.RecordsMissed):
            await anext(subscription.batches())
    statistics = broker.statistics()
    assert (statistics.delivered, statistics.dropped) == (0, 2)


async def test_strict_is_silent_while_nothing_is_missed(broker: Broker) -> None:
    async with broker.subscribe("t", strict=True) as subscription:
        await flood(broker, 100)
        assert len(await read(subscription, 100)) == 100


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING and one.name == "runnel"]


@pytest.mark.parametrize("by", ["record", "batch"])
async def test_above_one_percent_it_is_warned_about_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    async with broker.subscribe("t", buffer=10, name="slow") as subscription:
        batches = subscription.batches() if by == "batch" else None
        for _ in range(5):
            await flood(broker, 15)
            await (anext(batches) if batches is not None else read(subscription, 10))
    (warning,) = warnings(caplog)
    assert "'slow'" in warning
    assert SLOW in warning


@pytest.mark.parametrize("by", ["record", "batch"])
async def test_one_percent_or_less_is_no_reason_to_warn(
    broker: Broker, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    async with broker.subscribe("t", buffer=1000) as subscription:
        await flood(broker, 1010)
        await (anext(subscription.batches()) if by == "batch" else read(subscription, 1000))
        assert broker.statistics().dropped == 10
    assert warnings(caplog) == []


async def test_retention_tells_its_own_reason(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=3)
    await topic.declare()
    async with topic.subscribe() as subscription:
        await flood(broker, 5)
        record = await anext(subscription)
    assert record.gap == Gap("t", 0, 2, 2, "no longer kept (retention)")


async def test_a_slow_reader_of_a_topic_with_retention_gets_one_gap(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=2)
    await topic.declare()
    async with topic.subscribe(buffer=3) as subscription:
        await flood(broker, 6)
        record = await anext(subscription)
    assert record.offset == 4
    assert record.gap is not None
    assert (record.gap.first, record.gap.end, record.gap.count) == (0, 4, 4)
    assert "too slow" in record.gap.reason
    assert "retention" in record.gap.reason


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_records_that_aged_out_are_reported_with_the_following_ones(
    broker: Broker, clock: JumpingClock, pattern: str
) -> None:
    topic = broker.topic("t", retention_age=10)
    await topic.declare()
    async with broker.subscribe(pattern, buffer=10) as subscription:  # with a bound of its own nothing is sent ahead
        await flood(broker, 3)
        await clock.advance(11)
        batch = await anext(subscription.batches())
        assert (len(batch), batch.gap and batch.gap.count) == (0, 3)


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_gap_whose_records_all_expired_is_still_reported(
    broker: Broker, clock: JumpingClock, pattern: str
) -> None:
    async with broker.subscribe(pattern, buffer=2) as subscription:
        await broker.topic("t").publish_many([b"x"] * 5, expires=1)
        await clock.advance(2)
        later = broker.topic("t")
        later.publish_nowait(b"y")
        await visible(broker, "t", 6)
        (record,) = await read(subscription, 1)
    assert record.offset == 5
    assert record.gap is not None
    assert (record.gap.first, record.gap.end, record.gap.count) == (0, 4, 4)


@on_every_socket
async def test_gaps_and_records_together_cover_every_offset(broker: Broker) -> None:
    seen: list[int] = []
    async with broker.subscribe("t", buffer=7) as subscription:
        for size in (3, 8, 7, 20, 1, 9):
            await flood(broker, size)
            for record in await read(subscription, min(size, 7)):
                if record.gap is not None:
                    assert record.gap.end == record.offset
                    assert record.gap.count == record.gap.end - record.gap.first
                    seen += range(record.gap.first, record.gap.end)
                seen.append(record.offset)
        broker.close()
        assert await rest(subscription) == []
    assert seen == list(range(48))


async def test_a_strict_name_resumes_at_what_it_never_read(broker: Broker) -> None:
    async with broker.subscribe("t", name="n", strict=True, buffer=3) as records:
        await broker.topic("t").publish_many([b"%d" % n for n in range(10)])
        with pytest.raises(runnel.RecordsMissed):
            await anext(records)
    async with broker.subscribe("t", name="n") as records:
        assert (await anext(records)).value == b"7"
