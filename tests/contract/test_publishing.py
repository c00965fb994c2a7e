"""Publishing: what comes back, what is stored, and what is refused at the door."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import runnel
from runnel import Broker, Position
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import read, rest, values

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@on_every_socket
async def test_publish_returns_the_position_of_the_record(broker: Broker) -> None:
    first = await broker.publish("t", b"a")
    second = await broker.publish("t", b"b")
    assert (first.offset, second.offset) == (0, 1)
    assert first.epoch == second.epoch
    async with broker.subscribe("t", start="earliest") as subscription:
        records = await read(subscription, 2)
    assert [record.position for record in records] == [first, second]


async def test_publish_nowait_appends_at_once(broker: Broker) -> None:
    topic = broker.topic("t")
    for number in range(5):
        topic.publish_nowait(b"%d" % number)
    assert (await topic.publish(b"5")).offset == 5
    async with topic.subscribe(start="earliest") as subscription:
        assert await values(subscription, 6) == [b"%d" % number for number in range(6)]


async def test_publish_many_is_contiguous_and_returns_first_and_last(broker: Broker) -> None:
    topic = broker.topic("t")
    await topic.publish(b"before")
    first, last = span = await topic.publish_many([b"a", "b", bytearray(b"c")])  # type: ignore[list-item]
    assert (first.offset, last.offset, span.records()) == (1, 3, 3)
    async with topic.subscribe(start="earliest") as subscription:
        assert await values(subscription, 4) == [b"before", b"a", b"b", b"c"]


async def test_publish_many_gives_each_value_its_key(broker: Broker) -> None:
    topic = broker.topic("t")
    await topic.publish_many([b"a", b"b", b"c"], keys=["1", None, b"3"], headers={"h": "x"})
    async with topic.subscribe(start="earliest") as subscription:
        records = await read(subscription, 3)
    assert [record.key for record in records] == [b"1", None, b"3"]
    assert [record.headers["h"] for record in records] == ["x"] * 3


@on_every_socket
async def test_publish_many_is_all_or_nothing(broker: Broker) -> None:
    topic = broker.topic("t")
    with pytest.raises(runnel.InvalidValue):
        await topic.publish_many([b"good", object()])  # type: ignore[list-item]
    with pytest.raises(runnel.InvalidOption, match="keys"):
        await topic.publish_many([b"a", b"b"], keys=[b"1"])
    assert (await topic.publish(b"first")).offset == 0


@pytest.mark.parametrize(
    "wrong", [b"abc", "abc", 5, {b"a"}, (one for one in [b"a"])], ids=["bytes", "text", "number", "set", "generator"]
)
async def test_publish_many_takes_a_sequence_of_values(broker: Broker, wrong: Any) -> None:
    with pytest.raises(runnel.InvalidValue, match="a sequence"):
        await broker.topic("t").publish_many(wrong)


@pytest.mark.parametrize("empty", [[], ()])
async def test_publish_many_of_nothing_is_refused(broker: Broker, empty: Sequence[bytes]) -> None:
    with pytest.raises(runnel.InvalidOption, match="at least one"):
        await broker.topic("t").publish_many(empty)


@on_every_socket
async def test_a_record_carries_all_that_was_published_with_it(broker: Broker, clock: JumpingClock) -> None:
    position = await broker.publish("orders.eu", "hello", key="42", headers={"source": "web"})
    async with broker.subscribe("orders.eu", start="earliest") as subscription:
        record = await anext(subscription)
    assert record.topic == "orders.eu"
    assert record.value == b"hello"
    assert record.key == b"42"
    assert record.headers == {"source": "web"}
    assert record.time == datetime.fromtimestamp(clock.time(), UTC)
    assert (record.epoch, record.offset) == (position.epoch, position.offset)
    assert record.sequence == 0
    assert record.gap is None


async def test_time_never_goes_back(place: Place) -> None:
    clock = place.clock
    async with place.open() as broker:
        await broker.publish("t", b"a")
        await clock.advance(10)
        await broker.publish("t", b"b")
        await clock.advance(0)
        clock._now -= 3600  # the system's clock was set back
        await broker.publish("t", b"c")
        async with broker.subscribe("t", start="earliest") as subscription:
            times = [record.time for record in await read(subscription, 3)]
    assert times[1] - times[0] == timedelta(seconds=10)
    assert times[2] == times[1]


async def test_the_order_of_one_topic_is_total_and_the_same_for_all(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe() as one, topic.subscribe() as two:
        await topic.publish(b"a")
        topic.publish_nowait(b"b")
        await topic.publish_many([b"c", b"d"])
        await broker.publish("t", b"e")
        first, second = await read(one, 5), await read(two, 5)
    assert first == second
    assert [record.value for record in first] == [b"a", b"b", b"c", b"d", b"e"]
    assert [record.offset for record in first] == [0, 1, 2, 3, 4]


async def test_sequences_rise_by_one_over_all_topics(broker: Broker) -> None:
    async with broker.subscribe(">") as subscription:
        for name in ("a", "b", "a", "a", "c"):
            await broker.publish(name, b"")
        assert [record.sequence for record in await read(subscription, 5)] == [0, 1, 2, 3, 4]


async def test_an_empty_value_is_a_value(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"")
        await broker.publish("t", "")
        assert await values(subscription, 2) == [b"", b""]


# -- traceparent ------------------------------------------------------------------------------------------------


async def test_the_callers_traceparent_is_kept(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"", headers={"traceparent": TRACE})
        assert (await anext(subscription)).traceparent == TRACE


async def test_without_one_every_record_has_its_own_and_all_subscribers_see_the_same(broker: Broker) -> None:
    async with broker.subscribe("t") as one, broker.subscribe(">") as two:
        await broker.publish("t", b"")
        await broker.publish("t", b"")
        mine = [record.traceparent for record in await read(one, 2)]
        theirs = [record.traceparent for record in await read(two, 2)]
    assert mine == theirs
    assert len(set(mine)) == 2


async def test_a_wrong_traceparent_is_refused(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidOption, match="W3C form"):
        await broker.publish("t", b"", headers={"traceparent": "nonsense"})


# -- message ids ------------------------------------------------------------------------------------------------


@on_every_socket
async def test_a_message_id_is_stored_once_and_gives_the_first_position_again(broker: Broker) -> None:
    first = await broker.publish("t", b"a", message_id="one")
    await broker.publish("t", b"b", message_id="two")
    assert await broker.publish("t", b"again", message_id="one") == first
    broker.topic("t").publish_nowait(b"again", message_id="two")
    assert (await broker.publish("t", b"c")).offset == 2


async def test_a_message_id_counts_for_one_topic_and_for_two_minutes(broker: Broker, clock: JumpingClock) -> None:
    await broker.publish("t", b"a", message_id="one")
    assert (await broker.publish("u", b"a", message_id="one")).offset == 0
    await clock.advance(119)
    assert (await broker.publish("t", b"a", message_id="one")).offset == 0
    await clock.advance(2)
    assert (await broker.publish("t", b"a", message_id="one")).offset == 1


@pytest.mark.parametrize("message_id", ["", "x" * 257, 5, b"one"])
async def test_a_wrong_message_id_is_refused(broker: Broker, message_id: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="1 to 256 characters"):
        await broker.publish("t", b"a", message_id=message_id)


# -- expiry, delay, priority ------------------------------------------------------------------------------------


@on_every_socket
async def test_an_expired_record_is_skipped_and_counted_apart_from_drops(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"short", expires=5)
        await broker.publish("t", b"long", expires=timedelta(seconds=60))
        await broker.publish("t", b"for ever")
        await clock.advance(5)
        records = await read(subscription, 2)
        (now,) = broker.statistics().subscriptions
    assert [(record.offset, record.value, record.gap) for record in records] == [
        (1, b"long", None),
        (2, b"for ever", None),
    ]
    assert (now.delivered, now.dropped, now.expired) == (2, 0, 1)


async def test_records_that_expire_unread_are_absent_from_batches(broker: Broker, clock: JumpingClock) -> None:
    topic = broker.topic("t")
    async with topic.subscribe() as subscription:
        await topic.publish_many([b"a", b"b"], expires=1)
        await topic.publish(b"c")
        await clock.advance(2)
        batch = await anext(subscription.batches())
    assert (batch.values, batch.gap) == ((b"c",), None)


async def test_a_record_that_has_not_expired_is_read(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"a", expires=5)
        await clock.advance(4.9)
        assert await values(subscription, 1) == [b"a"]


async def test_delay_and_priority_leave_plain_subscriptions_in_offset_order(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", b"a", delay=3600)
        await broker.publish("t", b"b", priority=9)
        await broker.publish("t", b"c", delay=timedelta(hours=1), priority=5)
        assert await values(subscription, 3) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("priority", [-1, 10, 1.5, "5", True])
async def test_a_priority_is_a_whole_number_from_0_to_9(broker: Broker, priority: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="0 \\(last\\) to 9 \\(first\\)"):
        await broker.publish("t", b"", priority=priority)


@pytest.mark.parametrize("option", ["delay", "expires"])
@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", True, timedelta(seconds=-1)])
async def test_a_delay_and_an_expiry_are_seconds(broker: Broker, option: str, seconds: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="0 or more") as caught:
        await broker.publish("t", b"", **{option: seconds})
    assert caught.value.option == option


# -- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 5, {"a": 1}, [b"a"], object()], ids=lambda value: type(value).__name__)
async def test_a_value_that_is_neither_bytes_nor_text_is_refused(broker: Broker, value: Any) -> None:
    for publish in (broker.publish("t", value), broker.topic("t").publish(value)):
        with pytest.raises(runnel.InvalidValue, match="give the topic a type"):
            await publish
    with pytest.raises(runnel.InvalidValue, match="give the topic a type"):
        broker.topic("t").publish_nowait(value)
    assert await broker.topics() == []


@pytest.mark.parametrize("bad", [{"key": 5}, {"headers": {"a": 1}}, {"headers": {"a\n": "x"}}, {"headers": 5}])
async def test_wrong_keys_and_headers_are_refused(broker: Broker, bad: dict[str, Any]) -> None:
    with pytest.raises(runnel.UsageError):
        await broker.publish("t", b"", **bad)
    with pytest.raises(runnel.UsageError):
        broker.topic("t").publish_nowait(b"", **bad)


@pytest.mark.parametrize("name", ["", "a..b", "a b", "a.*", ">", "$runnel.x", "\ud800", "x" * 300, 5, None])
async def test_a_wrong_topic_name_is_refused_everywhere(broker: Broker, name: Any) -> None:
    with pytest.raises(runnel.InvalidName):
        broker.topic(name)
    with pytest.raises(runnel.InvalidName):
        await broker.publish(name, b"")
    with pytest.raises(runnel.InvalidName):
        await broker.request(name, b"")
    with pytest.raises(runnel.InvalidName):
        await broker.delete(name)


@on_every_socket
async def test_a_record_beyond_the_limit_is_refused_and_nothing_is_stored(broker: Broker) -> None:
    huge = bytes(16 * 1024 * 1024 + 1)
    with pytest.raises(runnel.TooLarge, match="max_record_bytes"):
        await broker.publish("t", huge)
    with pytest.raises(runnel.TooLarge, match="max_record_bytes"):
        await broker.topic("t").publish_many([b"small", huge])
    with pytest.raises(runnel.TooLarge, match="max_entry_bytes"):
        await broker.topic("t").publish_many([huge[1:]] * 5)
    assert await broker.topics() == []


async def test_a_value_that_is_written_into_after_publishing_stays_as_it_was(broker: Broker) -> None:
    buffer, headers = bytearray(b"abc"), {"a": "1"}
    async with broker.subscribe("t") as subscription:
        await broker.publish("t", buffer, headers=headers)  # type: ignore[arg-type]
        buffer[0] = 0
        headers["a"] = "2"
        record = await anext(subscription)
    assert (record.value, record.headers) == (b"abc", {"a": "1"})


# -- publish_and_wait -------------------------------------------------------------------------------------------


async def test_publish_and_wait_returns_at_once_without_subscribers(broker: Broker) -> None:
    assert await broker.topic("t").publish_and_wait(b"a") == Position((await broker.publish("t", b"b")).epoch, 0)


@on_every_socket
async def test_everything_published_before_closing_is_still_read(place: Place) -> None:
    async with place.open() as broker:
        subscription = await broker.subscribe("t").__aenter__()
        await broker.topic("t").publish_many([b"a", b"b"])
    assert [record.value for record in await rest(subscription)] == [b"a", b"b"]
