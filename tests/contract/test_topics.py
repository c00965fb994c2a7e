"""Topics: made, declared, listed, deleted, and how much they keep."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import at_rest, read, rest, running, soon, values, visible


async def test_topics_are_made_on_first_use_and_listed_by_name(broker: Broker) -> None:
    assert await broker.topics() == []
    broker.topic("never.used")
    await broker.publish("b", b"")
    await broker.topic("a").declare()
    async with broker.subscribe("c"), broker.subscribe("d.*"):
        assert await broker.topics() == ["a", "b", "c"]


async def test_a_topic_that_was_only_subscribed_to_goes_with_its_last_subscription(broker: Broker) -> None:
    async with broker.subscribe("*"):
        async with broker.subscribe("a"), broker.subscribe("a"), broker.subscribe("b"):
            assert await broker.topics() == ["a", "b"]
            await broker.publish("b", b"")
        assert await broker.topics() == ["b"]


async def test_a_name_comes_back_to_a_topic_that_was_gone_meanwhile(broker: Broker) -> None:
    for _ in range(2):
        async with broker.subscribe("t", name="n"):
            pass
    await broker.publish("t", b"1")
    async with broker.subscribe("t", name="n") as subscription:
        assert await values(subscription, 1) == [b"1"]


@pytest.mark.near("publish_nowait hands over; which topics there are, the server knows")
async def test_without_auto_create_publish_nowait_refuses_unknown_names(place: Place) -> None:
    async with place.open(auto_create=False) as broker:
        with pytest.raises(runnel.UnknownTopic):
            broker.topic("t").publish_nowait(b"")
        assert await broker.topics() == []


@on_every_socket
async def test_without_auto_create_unknown_names_are_refused(place: Place) -> None:
    async with place.open(auto_create=False) as broker:
        for call in (broker.publish("t", b""), broker.topic("t").publish(b""), broker.topic("t").publish_many([b""])):
            with pytest.raises(runnel.UnknownTopic, match="declare"):
                await call
        with pytest.raises(runnel.UnknownTopic):
            async with broker.subscribe("t"):
                pass
        assert await broker.topics() == []
        await broker.topic("t").declare()
        async with broker.subscribe("t") as subscription, broker.subscribe("*") as pattern:
            await broker.publish("t", b"a")
            assert await values(subscription, 1) == await values(pattern, 1) == [b"a"]


async def test_declaring_twice_with_the_same_options_is_fine(broker: Broker) -> None:
    for _ in range(2):
        await broker.topic("t", retention_count=5).declare()
    await broker.topic("t").publish(b"")  # says nothing, contradicts nothing


async def test_options_that_contradict_are_refused(broker: Broker) -> None:
    await broker.topic("t", retention_count=5).declare()
    with pytest.raises(runnel.TopicConflict, match="retention_count=5, not 6") as caught:
        await broker.topic("t", retention_count=6).publish(b"")
    assert (caught.value.option, caught.value.has, caught.value.asked) == ("retention_count", 5, 6)
    with pytest.raises(runnel.TopicConflict):
        await broker.topic("t", retention_age=6).declare()


async def test_the_first_subscriber_does_not_decide_the_options(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=2)
    async with topic.subscribe(), broker.subscribe("t"):
        await topic.publish_many([b"a", b"b", b"c"])
        with pytest.raises(runnel.TopicConflict):
            await broker.topic("t", retention_count=3).declare()
    async with topic.subscribe(start="earliest") as subscription:
        assert await values(subscription, 2) == [b"b", b"c"]


@pytest.mark.parametrize(
    "options",
    [{"retention_count": 0}, {"retention_count": 1.5}, {"retention_age": -1}, {"retention_bytes": "1"}, {"backoff": 5}],
)
async def test_wrong_options_are_refused_by_name(broker: Broker, options: dict[str, Any]) -> None:
    with pytest.raises(runnel.InvalidOption) as caught:
        broker.topic("t", **options)
    assert caught.value.option in options


async def test_an_unknown_option_suggests_the_nearest(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidOption, match="did you mean 'retention_age'"):
        broker.topic("t", retention_ages=5)


@pytest.mark.parametrize("options", [{"durable": True}, {"compact": True}, {"compression": "zstd"}])
def test_what_memory_cannot_do_is_said(options: dict[str, Any]) -> None:
    with pytest.raises(runnel.NotSupported, match="in memory only"):
        runnel.open().topic("t", **options)


# -- delete -----------------------------------------------------------------------------------------------------


@on_every_socket
async def test_deleting_a_topic_tells_its_subscribers(broker: Broker) -> None:
    async with broker.subscribe("t") as waiting, broker.subscribe("t") as behind:
        async with running(read(waiting, 2)) as reader:
            await broker.publish("t", b"a")
            await at_rest()
            await broker.delete("t")
            with pytest.raises(runnel.TopicDeleted, match="subscribe again") as caught:
                await soon(reader)
        with pytest.raises(runnel.TopicDeleted):
            await read(behind, 1)
    assert caught.value.topic == "t"
    assert broker.statistics().subscriptions == ()
    assert await broker.topics() == []


async def test_a_topic_can_be_deleted_through_its_handle(broker: Broker) -> None:
    topic = broker.topic("t")
    await topic.publish(b"")
    await topic.delete()
    assert await broker.topics() == []


async def test_deleting_what_does_not_exist_is_refused(broker: Broker) -> None:
    with pytest.raises(runnel.UnknownTopic):
        await broker.delete("t")


@on_every_socket
async def test_a_topic_made_again_has_a_new_epoch_and_starts_at_zero(broker: Broker) -> None:
    topic = broker.topic("t")
    old = await topic.publish(b"old")
    topic.publish_nowait(b"old")
    await broker.delete("t")
    topic.publish_nowait(b"new")
    new = await topic.publish(b"newer")
    assert new.epoch > old.epoch
    assert new.offset == 1
    async with topic.subscribe(start="earliest") as subscription:
        assert await values(subscription, 2) == [b"new", b"newer"]


async def test_sequences_go_on_after_a_topic_was_deleted(broker: Broker) -> None:
    await broker.topic("t").publish_many([b""] * 5)
    await broker.delete("t")
    async with broker.subscribe("*") as subscription:
        await broker.publish("t", b"")
        assert (await anext(subscription)).sequence == 5


async def test_deleting_a_topic_fails_publishers_that_wait(broker: Broker) -> None:
    async with broker.subscribe("t", policy="block", buffer=1):
        await broker.publish("t", b"a")
        async with running(broker.publish("t", b"b")) as publisher:
            await broker.delete("t")
            with pytest.raises(runnel.TopicDeleted):
                await soon(publisher)


async def test_a_message_id_is_forgotten_with_its_topic(broker: Broker) -> None:
    await broker.publish("t", b"a", message_id="one")
    await broker.publish("t", b"b")
    await broker.delete("t")
    await broker.publish("t", b"x")
    assert (await broker.publish("t", b"a", message_id="one")).offset == 1


# -- retention --------------------------------------------------------------------------------------------------


async def kept(broker: Broker, topic: str = "t") -> list[int]:
    """The offsets that a newcomer can read."""
    async with broker.subscribe(topic, start="earliest", buffer=100_000) as subscription:
        return [record.offset for record in await read(subscription, subscription.lag)]


async def publish_one_by_one(broker: Broker, count: int, how: str, value: bytes = b"0123456789") -> None:
    topic = broker.topic("t")
    if how == "many":
        await topic.publish_many([value] * count)
    for _ in range(count if how != "many" else 0):
        if how == "nowait":
            topic.publish_nowait(value)
        else:
            await topic.publish(value)
            if how == "turns":
                await asyncio.sleep(0)
    await visible(broker, "t", count)


@pytest.mark.parametrize("how", ["await", "nowait", "many", "turns"])
async def test_retention_count_keeps_exactly_so_many(broker: Broker, how: str) -> None:
    await broker.topic("t", retention_count=3).declare()
    await publish_one_by_one(broker, 10, how)
    statistics = broker.statistics().topics["t"]
    assert (statistics.first, statistics.end, statistics.kept_bytes, statistics.published) == (7, 10, 30, 10)
    assert await kept(broker) == [7, 8, 9]


@pytest.mark.parametrize("how", ["await", "nowait", "many", "turns"])
async def test_retention_bytes_keeps_what_fits(broker: Broker, how: str) -> None:
    await broker.topic("t", retention_bytes=35).declare()
    await publish_one_by_one(broker, 10, how)
    assert await kept(broker) == [7, 8, 9]
    statistics = broker.statistics().topics["t"]
    assert (statistics.first, statistics.kept_bytes, statistics.published_bytes) == (7, 30, 100)


async def test_retention_bytes_keeps_the_last_record_however_large(broker: Broker) -> None:
    await broker.topic("t", retention_bytes=5).declare()
    await publish_one_by_one(broker, 3, "await")
    assert await kept(broker) == [2]


@on_every_socket
async def test_retention_age_is_looked_at_even_when_nothing_is_published(broker: Broker, clock: JumpingClock) -> None:
    topic = broker.topic("t", retention_age=10)
    await topic.publish(b"a")
    await clock.advance(6)
    await topic.publish(b"b")
    assert await kept(broker) == [0, 1]
    await clock.advance(4.5)
    assert await kept(broker) == [1]
    await clock.advance(10)
    assert await kept(broker) == []
    assert broker.statistics().topics["t"].kept_bytes == 0
    await topic.publish(b"c")
    assert await kept(broker) == [2]


async def test_reading_an_aging_topic_does_not_stop_the_clock_of_what_follows(
    broker: Broker, clock: JumpingClock
) -> None:
    topic = broker.topic("t", retention_age=3600)
    await topic.publish(b"a")
    assert await kept(broker) == [0]
    await clock.advance(60)
    await topic.publish(b"b")
    async with topic.subscribe(start="earliest") as subscription:
        one, two = await read(subscription, 2)
    assert (two.time - one.time).total_seconds() == 60


async def test_by_default_at_least_the_newest_1024_are_kept_and_memory_is_bounded(broker: Broker) -> None:
    topic = broker.topic("t", durable=False)  # on disk all is kept
    for _ in range(20):
        await topic.publish_many([b"x"] * 1000)
    statistics = broker.statistics().topics["t"]
    assert 1024 <= statistics.end - statistics.first <= 3 * 1024


async def test_a_subscriber_with_a_large_buffer_keeps_what_it_has_not_read(broker: Broker) -> None:
    topic = broker.topic("t", durable=False)
    async with topic.subscribe(buffer=50_000) as subscription:
        for _ in range(20):
            await topic.publish_many([b"x"] * 1000)
        records = await read(subscription, 20_000)
    assert [record.gap for record in records] == [None] * 20_000
    for _ in range(50):
        await topic.publish_many([b"x"] * 1000)
    statistics = broker.statistics().topics["t"]
    assert statistics.end - statistics.first <= 3 * 1024


async def test_the_topics_own_bound_overrides_any_subscribers(broker: Broker) -> None:
    await broker.topic("t", retention_count=2).declare()
    for policy in ("drop_oldest", "block", "disconnect"):
        async with broker.subscribe("t", policy=policy, buffer=100) as subscription:
            await broker.topic("t").publish_many([b""] * 5)
            record = await anext(subscription)
        assert record.gap is not None
        assert record.gap.count == 3
    assert await rest_of_nothing(broker) == []


async def rest_of_nothing(broker: Broker) -> list[Any]:
    async with broker.subscribe("t") as subscription:
        broker.close()
        return await rest(subscription)


# -- options that change --------------------------------------------------------------------------------------------


@on_every_socket
async def test_options_of_a_topic_that_exists_are_changed_and_hold_at_once(broker: Broker) -> None:
    topic = broker.topic("t")
    await publish_one_by_one(broker, 10, "await")
    assert await topic.configure(retention_count=3, max_deliver=5) == {"retention_count": 3, "max_deliver": 5}
    assert await kept(broker) == [7, 8, 9]
    assert await topic.configure(retention_count=None) == {"max_deliver": 5}
    await topic.publish(b"x" * 10)
    assert await kept(broker) == [7, 8, 9, 10]  # what is gone does not come back
    assert await topic.configure(retention_bytes=25) == {"retention_bytes": 25, "max_deliver": 5}
    assert await kept(broker) == [9, 10]


async def test_an_option_that_was_changed_wins_over_what_publishers_name(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=5, max_deliver=2)
    await topic.declare()
    await broker.topic("t").configure(retention_count=2)
    for number in range(4):
        await topic.publish(b"%d" % number)  # it still says 5
    await broker.topic("t", retention_count=7).declare()
    assert await kept(broker) == [2, 3]
    with pytest.raises(runnel.TopicConflict):
        await broker.topic("t", max_deliver=3).declare()  # nobody changed that one


async def test_a_topic_begins_to_age_when_its_retention_is_set(broker: Broker, clock: JumpingClock) -> None:
    topic = broker.topic("t")
    await topic.publish(b"a")
    await clock.advance(60)
    await topic.publish(b"b")
    await topic.configure(retention_age=30)
    assert await kept(broker) == [1]
    await topic.configure(retention_age=3600)
    await clock.advance(1800)
    assert await kept(broker) == [1]
    await clock.advance(1900)
    assert await kept(broker) == []


async def test_changes_that_cannot_be_are_refused_and_change_nothing(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=5)
    with pytest.raises(runnel.UnknownTopic):
        await topic.configure(retention_count=3)
    await topic.declare()
    for wrong, error in (
        ({"retention_cuont": 3}, runnel.InvalidOption),
        ({"retention_count": -1}, runnel.InvalidOption),
        ({}, runnel.InvalidOption),
        ({"durable": not broker.is_durable, "retention_count": 3}, runnel.NotSupported),
        ({"encoding": "msgpack", "retention_count": 3}, runnel.NotSupported),
    ):
        with pytest.raises(error):
            await topic.configure(**wrong)
    assert await topic.configure(backoff=(1, 5)) == {"retention_count": 5, "backoff": (1, 5)}
