"""Statistics: a frozen snapshot that adds up."""

import pytest

from runnel import Broker, InvalidOption, InvalidPattern
from runnel.core.statistics import OtherTopics
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import read, running, visible


async def test_a_new_broker_did_nothing(broker: Broker) -> None:
    statistics = broker.statistics()
    assert (statistics.topics, statistics.subscriptions, statistics.flowed) == ({}, (), {})
    assert (statistics.published, statistics.delivered, statistics.dropped, statistics.waiting_publishers) == (0,) * 4


async def test_a_snapshot_does_not_change(broker: Broker) -> None:
    before = broker.statistics()
    await broker.publish("t", b"a")
    assert before.published == 0
    with pytest.raises(AttributeError):
        before.published = 5  # type: ignore[misc]


@on_every_socket
async def test_topics_count_records_and_bytes(broker: Broker) -> None:
    position = await broker.publish("t", b"abc")
    broker.topic("t").publish_nowait(b"de")
    await visible(broker, "t", 2)
    async with broker.subscribe("t"), broker.subscribe("*"):
        statistics = broker.statistics()
    topic = statistics.topics["t"]
    assert (topic.name, topic.epoch, topic.published, topic.published_bytes) == ("t", position.epoch, 2, 5)
    assert (topic.first, topic.end, topic.kept_bytes, topic.subscribers) == (0, 2, 5, 2)
    assert (statistics.published, statistics.published_bytes) == (2, 5)


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "disconnect"])
async def test_what_was_published_is_delivered_dropped_or_waiting(broker: Broker, policy: str, pattern: str) -> None:
    async with broker.subscribe(pattern, policy=policy, buffer=10, name="s") as subscription:
        batches = subscription.batches(max_records=4)
        published = in_hand = 0
        for size in (3, 12, 5, 1, 25):
            await broker.topic("t").publish_many([b""] * size)
            published += size
            (now,) = broker.statistics().subscriptions
            assert now.delivered + now.dropped + now.lag - in_hand == published
            assert now.lag <= 10
            handed = len(await anext(batches))
            # Where what is in hand counts against the bound, it is delivered and lags at once.
            in_hand = handed if policy == "drop_newest" else 0
        assert (now.label, now.pattern, now.name, now.policy, now.buffer) == ("s", pattern, "s", policy, 10)


async def test_counters_go_on_after_subscriptions_ended_and_topics_were_deleted(broker: Broker) -> None:
    for _ in range(3):
        async with broker.subscribe("t", buffer=2) as subscription:
            await broker.topic("t").publish_many([b"xy"] * 5)
            await read(subscription, 2)
    await broker.delete("t")
    statistics = broker.statistics()
    assert (statistics.published, statistics.published_bytes) == (15, 30)
    assert (statistics.delivered, statistics.dropped) == (6, 9)


async def test_drops_that_were_never_reported_count_when_a_subscription_ends(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=2):
        await broker.topic("t").publish_many([b""] * 5)
    assert broker.statistics().dropped == 3


async def test_anonymous_subscriptions_count_together_and_named_ones_apart(broker: Broker) -> None:
    for name in (None, None, "billing"):
        async with broker.subscribe("t", name=name, start="latest") as subscription:
            await broker.publish("t", b"")
            await read(subscription, 1)
    flowed = broker.statistics().flowed
    assert {key: one.delivered for key, one in flowed.items()} == {("t", "anonymous"): 2, ("t", "billing"): 1}


async def test_lag_is_what_waits_to_be_read(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.topic("t").publish_many([b""] * 5)
        assert broker.statistics().subscriptions[0].lag == subscription.lag == 5
        await anext(subscription.batches())
        assert broker.statistics().subscriptions[0].lag == subscription.lag == 0


async def test_internal_topics_do_not_show(broker: Broker) -> None:
    async with broker.subscribe("ask") as requests:
        async with running(broker.request("ask", b"?")) as asking:
            statistics = broker.statistics()
            assert list(statistics.topics) == ["ask"]
            assert len(statistics.subscriptions) == 1
            await broker.reply(await anext(requests), b"!")
            await asking
    assert broker.statistics().published == 1
    assert list(broker.statistics().flowed) == [("ask", "anonymous")]


async def test_expired_records_are_counted_apart(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.topic("t").publish_many([b""] * 3, expires=1)
        await broker.publish("t", b"")
        await clock.advance(2)
        await read(subscription, 1)
    (flowed,) = broker.statistics().flowed.values()
    assert (flowed.delivered, flowed.dropped, flowed.expired) == (1, 0, 3)


async def test_a_full_subscriber_whose_records_all_expired_has_room_again(broker: Broker, clock: JumpingClock) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(policy="block", buffer=2) as subscription:
        await topic.publish_many([b"", b""], expires=1)
        await clock.advance(2)
        async with running(anext(subscription.batches())):  # type: ignore[arg-type]
            topic.publish_nowait(b"fits")
            assert broker.statistics().subscriptions[0].expired == 2


async def test_some_topics_can_be_asked_for_and_the_sums_are_of_all(broker: Broker) -> None:
    for name in ("b.1", "a.1", "b.2", "c"):
        await broker.publish(name, b"xy")
    kept = sum(one.kept_bytes for one in broker.statistics().topics.values())

    def found(pattern: str | None = None, limit: int | None = None) -> list[str]:
        statistics = broker.statistics(pattern, limit=limit)
        assert (statistics.published, statistics.published_bytes) == (4, 8)
        count = 4 - len(statistics.topics)
        assert statistics.other == OtherTopics(count, count, 2 * count, statistics.other.kept_bytes)
        assert statistics.other.kept_bytes + sum(one.kept_bytes for one in statistics.topics.values()) == kept
        return list(statistics.topics)

    assert found() == ["b.1", "a.1", "b.2", "c"], "in the order in which they were created"
    assert found("b.*") == ["b.1", "b.2"]
    assert found("*.1", limit=1) == ["b.1"]
    assert found("c") == ["c"]
    assert found("b") == []
    assert found(limit=0) == []
    assert found(">", limit=100) == ["b.1", "a.1", "b.2", "c"]
    with pytest.raises(InvalidPattern):
        broker.statistics("b.>.c")
    for limit in (-1, True, 1.5):
        with pytest.raises(InvalidOption):
            broker.statistics(limit=limit)  # type: ignore[arg-type]
