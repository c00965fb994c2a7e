"""Patterns: one subscription over many topics, in the order of the broker."""

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import PLACES, places
from tests.contract.reading import at_rest, coordinates, read, rest, running, values
from tests.nightly import examples


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders.*", ["orders.eu", "orders.us"]),
        ("orders.>", ["orders.eu", "orders.us", "orders.eu.paid"]),
        ("*.eu", ["orders.eu", "users.eu"]),
        ("*", ["orders"]),
        (">", ["orders.eu", "orders.us", "orders.eu.paid", "users.eu", "orders"]),
        ("orders.*.paid", ["orders.eu.paid"]),
    ],
)
async def test_a_star_is_one_token_and_an_arrow_is_the_rest(broker: Broker, pattern: str, expected: list[str]) -> None:
    names = ["orders.eu", "orders.us", "orders.eu.paid", "users.eu", "orders"]
    async with broker.subscribe(pattern) as joined_later:
        for name in names:
            await broker.publish(name, name)
        async with broker.subscribe(pattern, start="earliest") as joined_before:
            broker.close()
            assert [record.topic for record in await rest(joined_later)] == expected
            assert [record.topic for record in await rest(joined_before)] == expected


async def test_a_topic_made_later_joins_and_wakes_the_waiting_reader(broker: Broker) -> None:
    async with broker.subscribe("logs.*") as subscription:
        async with running(values(subscription, 3)) as reader:
            await broker.publish("logs.1", b"a")
            await at_rest()
            await broker.publish("other", b"x")
            await at_rest()
            broker.topic("logs.2").publish_nowait(b"b")
            await at_rest()
            await broker.publish("logs.1", b"c")
            assert await reader == [b"a", b"b", b"c"]


@on_every_socket
async def test_a_pattern_reads_in_the_order_of_publishing(broker: Broker) -> None:
    async with broker.subscribe("*") as subscription:
        order = ["b", "a", "a", "c", "b", "a"]
        for at, name in enumerate(order):
            await broker.publish(name, b"%d" % at)
        records = await read(subscription, 6)
    assert coordinates(records) == [("b", 0, 0), ("a", 0, 1), ("a", 1, 2), ("c", 0, 3), ("b", 1, 4), ("a", 2, 5)]
    assert [record.value for record in records] == [b"%d" % at for at in range(6)]


@examples(10, 40)
@given(
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), max_size=30),
    limit=st.sampled_from([1, 2, 3, 5, 1000]),
)
@pytest.mark.parametrize("name", places(every_socket=False))
async def test_a_pattern_and_its_topics_agree_on_every_record(
    name: str, steps: list[tuple[str, int]], limit: int
) -> None:
    with TemporaryDirectory() as folder:
        async with PLACES[name](Path(folder), JumpingClock()) as broker:
            async with broker.subscribe("*") as subscription:
                for number, (topic, count) in enumerate(steps):
                    await broker.topic(topic).publish_many([b"%d" % number] * count)
                broker_topics = await broker.topics()
                by_topic = {}
                for topic in broker_topics:
                    async with broker.subscribe(topic, start="earliest") as one:
                        by_topic[topic] = await read(one, broker.statistics().topics[topic].end)
                broker.close()
                batches = await rest(subscription.batches(max_records=limit))
            records = [record for batch in batches for record in batch]
            assert all(len(batch) <= limit for batch in batches)
            assert [record.sequence for record in records] == list(range(len(records)))
            for topic, expected in by_topic.items():
                assert [record for record in records if record.topic == topic] == expected


async def test_a_pattern_starts_at_a_time(broker: Broker, clock: JumpingClock) -> None:
    for name in ("a", "b", "c"):
        await broker.publish(name, name)
        await clock.advance(10)
    start = datetime.fromtimestamp(clock.time() - 20, UTC)
    async with broker.subscribe("*", start=start) as subscription:
        assert await values(subscription, 2) == [b"b", b"c"]


async def test_earliest_starts_a_pattern_at_what_is_kept_without_a_gap(broker: Broker) -> None:
    topic = broker.topic("a", retention_count=2)
    for number in range(5):
        await topic.publish(b"%d" % number)
        await broker.publish("b", b"b")
    async with broker.subscribe("*", start="earliest") as subscription:
        broker.close()
        records = await rest(subscription)
    assert [record.gap for record in records] == [None] * 7
    assert [record.value for record in records if record.topic == "a"] == [b"3", b"4"]


async def test_internal_topics_match_no_pattern(broker: Broker) -> None:
    async with broker.subscribe(">") as everything, broker.subscribe("*.*.*") as three_tokens:
        async with broker.subscribe("ask") as questions:
            async with running(broker.request("ask", b"?")) as asking:
                await broker.reply(await anext(questions), b"!")
                assert (await asking).value == b"!"
        broker.close()
        assert [record.topic for record in await rest(everything)] == ["ask"]
        assert await rest(three_tokens) == []


async def test_a_pattern_loses_the_unread_records_of_a_deleted_topic_and_reports_them(broker: Broker) -> None:
    async with broker.subscribe("*", buffer=10) as subscription:  # with a bound of its own nothing is sent ahead
        await broker.publish("a", b"a0")
        await broker.publish("b", b"b0")
        await broker.publish("a", b"a1")
        await broker.delete("a")
        await broker.publish("b", b"b1")
        records = await read(subscription, 2)
    assert [record.value for record in records] == [b"b0", b"b1"]
    first, second = (record.gap for record in records)
    assert first is not None
    assert second is not None
    assert (first.first, first.end, first.count) == (0, 1, 1)
    assert (second.first, second.end, second.count) == (2, 3, 1)
    assert "deleted" in first.reason


async def test_a_gap_with_nothing_after_it_is_reported_with_the_next_record(broker: Broker) -> None:
    async with broker.subscribe("*", buffer=10) as subscription:  # with a bound of its own nothing is sent ahead
        await broker.publish("a", b"lost")
        await broker.delete("a")
        async with running(read(subscription, 1)) as reader:
            await broker.publish("b", b"after")
            (record,) = await reader
    assert record.gap is not None
    assert (record.gap.first, record.gap.end, record.gap.count) == (0, 1, 1)


async def test_a_topic_made_anew_under_a_pattern_goes_on(broker: Broker) -> None:
    async with broker.subscribe("*") as subscription:
        await broker.publish("a", b"first life")
        assert await values(subscription, 1) == [b"first life"]
        await broker.delete("a")
        await broker.publish("a", b"second life")
        record = await anext(subscription)
    assert (record.value, record.offset, record.sequence, record.gap) == (b"second life", 0, 1, None)


async def test_overlapping_patterns_each_get_their_own(broker: Broker) -> None:
    async with broker.subscribe("a.>") as one, broker.subscribe("*.b") as two, broker.subscribe("a.b") as three:
        await broker.publish("a.b", b"x")
        for subscription in (one, two, three):
            assert await values(subscription, 1) == [b"x"]


async def test_a_pattern_does_not_need_a_topic(broker: Broker) -> None:
    async with broker.subscribe("nothing.*"):
        assert await broker.topics() == []


async def test_no_user_pattern_makes_an_internal_topic(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidName, match="internal"):
        async with broker.subscribe("$runnel.mine"):
            pass
