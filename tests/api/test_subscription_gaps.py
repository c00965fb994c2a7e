"""Gaps of a subscription: told once, with the next item, in its own places; also for values that cannot be decoded."""

import pytest

from runnel import Broker, Gap, Subscription
from runnel.api.subscription import WARN_SHARE
from runnel.core.errors import RecordsMissed
from runnel.core.record import MissedRange


async def publish(broker: Broker, *values: bytes, topic: str = "t") -> None:
    await broker.topic(topic).publish_many(list(values))


async def test_what_cannot_be_decoded_is_a_gap_before_what_follows(broker: Broker) -> None:
    told: list[Gap] = []
    async with broker.subscribe("t", type=int, on_gap=told.append) as subscription:
        await publish(broker, b"1", b"x", b"y", b"4")
        batch = await anext(subscription.batches())
        first, second = batch
        assert (batch.values, batch.gap, first.gap) == ((1, 4), None, None)
        assert second.gap is not None
        assert (second.gap.first, second.gap.end, second.gap.count) == (1, 3, 2)
        assert "not a int" in second.gap.reason
        assert (subscription.delivered, subscription.dropped_count, told) == (2, 2, [second.gap])


async def test_before_the_first_it_goes_with_the_batch_and_behind_the_last_with_the_next(broker: Broker) -> None:
    async with broker.subscribe("t", type=int) as subscription:
        batches = subscription.batches()
        await publish(broker, b"x", b"1", b"y")
        batch = await anext(batches)
        assert batch.gap is not None
        assert (batch.values, batch.gap.first, batch.gap.end) == ((1,), 0, 1)
        await publish(broker, b"7")
        later = await anext(batches)
        assert later.gap is not None
        assert (later.values, later.gap.first, later.gap.end) == ((7,), 2, 3)


async def test_records_one_by_one_carry_the_gap_before_them(broker: Broker) -> None:
    async with broker.subscribe("t", type=int) as subscription:
        await publish(broker, b"x", b"1", b"y", b"z", b"2")
        found = [await anext(subscription) for _ in range(2)]
        assert [(one.value, one.gap and (one.gap.first, one.gap.end)) for one in found] == [(1, (0, 1)), (2, (2, 4))]


async def test_of_a_pattern_a_gap_is_reported_in_sequences(broker: Broker) -> None:
    await publish(broker, *[b"0"] * 100, topic="u")
    async with broker.subscribe("t.*", type=int) as subscription:
        await publish(broker, b"x", b"1", topic="t.a")
        gap = (await anext(subscription)).gap
        assert gap is not None
        assert (gap.topic, gap.first, gap.end) == ("t.*", 100, 101)


async def test_how_values_are_written_is_asked_for_each_topic(broker: Broker) -> None:
    async with broker.subscribe("t.*", type=int) as subscription:
        await broker.topic("t.json", int).publish(500)
        await broker.topic("t.msgpack", int, encoding="msgpack").publish(500)
        await broker.publish("t.plain", b"500")
        found = [await anext(subscription) for _ in range(3)]
        assert [(one.value, one.gap) for one in found] == [(500, None)] * 3
        assert len({one.topic for one in found}) == 3


@pytest.mark.parametrize("by", ["record", "batch"])
async def test_where_a_gap_is_an_error_a_value_that_cannot_be_decoded_ends_it(broker: Broker, by: str) -> None:
    told: list[Gap] = []
    async with broker.subscribe("t", type=int, strict=True, name="n", on_gap=told.append) as subscription:

        async def item() -> object:
            return await anext(subscription if by == "record" else subscription.batches())

        await publish(broker, b"1")
        await item()
        await publish(broker, b"x", b"2")
        with pytest.raises(RecordsMissed, match="'n': missed 1 record") as caught:
            await item()
        assert [caught.value.gap] == told
        assert (caught.value.gap.first, caught.value.gap.end, caught.value.gap.count) == (1, 2, 1)
        with pytest.raises(RecordsMissed):
            await item()
        assert broker.statistics().subscriptions == ()
    async with broker.subscribe("t", name="n") as again:
        assert (await anext(again)).value == b"x", "a name goes on at what it never read"


async def test_a_type_that_fits_is_no_error(broker: Broker) -> None:
    async with broker.subscribe("t", type=int, strict=True) as subscription:
        await publish(broker, b"1", b"2")
        assert (await anext(subscription.batches())).values == (1, 2)


async def test_gaps_one_after_the_other_are_reported_as_one_once(broker: Broker) -> None:
    told: list[Gap] = []
    async with broker.subscribe("t", on_gap=told.append) as subscription:
        assert isinstance(subscription, Subscription)
        subscription._miss(MissedRange(0, 2, 2, "slow"))
        subscription._miss(MissedRange(2, 3, 1, "gone"))
        subscription._miss(None)
        await publish(broker, b"a", b"b")
        found = [await anext(subscription) for _ in range(2)]
        assert [one.gap for one in found] == [Gap("t", 0, 3, 3, "slow; gone"), None]
        assert [gap.count for gap in told] == [2, 1]


async def test_above_one_percent_it_warns_once_and_says_what_helps(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    assert WARN_SHARE == 0.01
    async with broker.subscribe("t", buffer=1, name="me") as subscription:
        for _ in range(98):
            await publish(broker, b"x")
            await anext(subscription)
        await publish(broker, b"1 of", b"100 missed")
        await anext(subscription)
        assert (subscription.delivered, subscription.dropped_count, caplog.messages) == (99, 1, [])
        for count in (2, 8):
            await publish(broker, *[b"x"] * count)
            await anext(subscription)
    (warning,) = caplog.messages
    assert "'me' has missed 2 records" in warning
    assert "A larger buffer" in warning
