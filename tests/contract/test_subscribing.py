"""Subscribing: where it starts, how it reads, and what a name keeps."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import runnel
from runnel import Batch, Broker, Position, Subscription
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import at_rest, read, rest, running, soon, values
from tests.patience import PATIENCE


async def numbers(broker: Broker, count: int, topic: str = "t", start: int = 0) -> None:
    await broker.topic(topic).publish_many([b"%d" % number for number in range(start, start + count)])


async def first_batch(subscription: Subscription[bytes], max_records: int, max_wait: float) -> Batch[bytes]:
    return await anext(subscription.batches(max_records=max_records, max_wait=max_wait))


# -- where to start ---------------------------------------------------------------------------------------------


@on_every_socket
async def test_an_anonymous_subscription_starts_at_what_is_published_next(broker: Broker) -> None:
    await numbers(broker, 3)
    async with broker.subscribe("t") as subscription, broker.subscribe("t", start="latest") as same:
        await broker.publish("t", b"new")
        assert await values(subscription, 1) == await values(same, 1) == [b"new"]


async def test_it_starts_where_the_block_is_entered_not_where_reading_begins(broker: Broker) -> None:
    subscription = broker.subscribe("t")
    await broker.publish("t", b"before the block")
    async with subscription:
        await broker.publish("t", b"in the block")
        assert await values(subscription, 1) == [b"in the block"]


@on_every_socket
async def test_earliest_starts_at_the_oldest_kept_record_without_a_gap(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=3)
    await topic.publish_many([b"%d" % number for number in range(10)])
    async with topic.subscribe(start="earliest") as subscription:
        records = await read(subscription, 3)
    assert [(record.offset, record.gap) for record in records] == [(7, None), (8, None), (9, None)]


@pytest.mark.parametrize("offset", range(5))
async def test_an_offset_starts_at_that_record(broker: Broker, offset: int) -> None:
    await numbers(broker, 4)
    async with broker.subscribe("t", start=offset) as subscription:
        await broker.publish("t", b"4")
        assert await values(subscription, 5 - offset) == [b"%d" % number for number in range(offset, 5)]


async def test_an_offset_beyond_the_end_is_refused_with_the_range(broker: Broker) -> None:
    await numbers(broker, 4)
    with pytest.raises(runnel.OffsetOutOfRange, match=r"\[0, 4\), not 5"):
        async with broker.subscribe("t", start=5):
            pass
    assert broker.statistics().subscriptions == ()


async def test_an_offset_no_longer_kept_is_reported_as_a_gap(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=2)
    await topic.publish_many([b"%d" % number for number in range(5)])
    async with topic.subscribe(start=1) as subscription:
        record = await anext(subscription)
    assert record.offset == 3
    assert record.gap is not None
    assert (record.gap.first, record.gap.end, record.gap.count) == (1, 3, 2)
    assert "retention" in record.gap.reason


@on_every_socket
async def test_a_time_starts_at_the_first_record_that_is_not_older(broker: Broker, clock: JumpingClock) -> None:
    begin = datetime.fromtimestamp(clock.time(), UTC)
    for number in range(4):
        await broker.publish("t", b"%d" % number)
        await clock.advance(10)
    for seconds, expected in ((-1, 0), (0, 0), (1, 1), (10, 1), (25, 3), (30, 3), (31, 4)):
        async with broker.subscribe("t", start=begin + timedelta(seconds=seconds)) as subscription:
            assert subscription.lag == 4 - expected
            if expected < 4:
                assert (await anext(subscription)).offset == expected


async def test_a_time_in_any_zone_is_the_same_moment(broker: Broker, clock: JumpingClock) -> None:
    from datetime import timezone

    await broker.publish("t", b"old")
    await clock.advance(10)
    await broker.publish("t", b"new")
    moment = datetime.fromtimestamp(clock.time() - 5, timezone(timedelta(hours=9)))
    async with broker.subscribe("t", start=moment) as subscription:
        assert await values(subscription, 1) == [b"new"]


async def test_a_position_starts_at_its_record(broker: Broker) -> None:
    await numbers(broker, 4)
    position = await broker.publish("t", b"here")
    async with broker.subscribe("t", start=position) as subscription:
        assert await values(subscription, 1) == [b"here"]


@on_every_socket
async def test_a_position_of_an_earlier_life_of_the_topic_starts_at_earliest_and_tells(broker: Broker) -> None:
    await numbers(broker, 4)
    old = await broker.publish("t", b"old")
    await broker.delete("t")
    await broker.publish("t", b"new")
    for policy in ("drop_oldest", "drop_newest", "block", "disconnect"):
        async with broker.subscribe("t", start=old, policy=policy) as subscription:
            record = await anext(subscription)
        assert (record.value, record.offset) == (b"new", 0)
        assert record.gap is not None, policy
        assert (record.gap.count, record.gap.first, record.gap.end) == (0, 0, 0)
        assert "deleted and made again" in record.gap.reason


@pytest.mark.parametrize(
    "start",
    ["newest", "", -1, True, 1.5, b"earliest", datetime(2026, 1, 1), object()],
    ids=lambda start: repr(start) if type(start) is not object else "object",
)
async def test_a_wrong_start_is_refused(broker: Broker, start: Any) -> None:
    with pytest.raises(runnel.InvalidOption) as caught:
        broker.subscribe("t", start=start)
    assert caught.value.option == "start"


async def test_a_name_that_would_act_on_a_terminal_is_refused(broker: Broker) -> None:
    async def mark(name: str) -> None:
        async with broker.transaction() as tx:
            tx.mark(name, 1)

    for name in ("a\x1b[2Jb", "a\nb", "\x00", "a\x7f", "a\x9b31m"):
        with pytest.raises(runnel.InvalidOption, match="control character"):
            broker.subscribe("t", name=name)
        with pytest.raises(runnel.InvalidOption, match="control character"):
            broker.subscribe("t", group="g", name=name)
        with pytest.raises(runnel.InvalidOption, match="control character"):
            broker.producer(name)
        with pytest.raises(runnel.InvalidOption, match="control character"):
            broker.stage("t", writer=name, batch=0)
        with pytest.raises(runnel.InvalidOption, match="control character"):
            await mark(name)
        with pytest.raises(runnel.InvalidOption, match="control character"):
            await broker.place({name: ("t", Position(0, 0))})


@pytest.mark.parametrize("start", [0, 5, Position(1, 5)])
async def test_an_offset_makes_no_sense_for_a_pattern(broker: Broker, start: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="offsets differ between the topics"):
        broker.subscribe("a.*", start=start)


@pytest.mark.parametrize("option", ["buffer", "buffer_bytes"])
@pytest.mark.parametrize("bound", [0, -1, 1.5, "5", True])
async def test_a_wrong_bound_is_refused(broker: Broker, option: str, bound: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="whole number above 0") as caught:
        broker.subscribe("t", **{option: bound})
    assert caught.value.option == option


@pytest.mark.parametrize("pattern", ["", "a..b", "a b", ">.a", "a*", "\ud800", 5, None])
async def test_a_wrong_pattern_is_refused(broker: Broker, pattern: Any) -> None:
    with pytest.raises(runnel.InvalidPattern):
        broker.subscribe(pattern)


@pytest.mark.parametrize("name", ["", 5, b"name"])
async def test_a_wrong_subscription_name_is_refused(broker: Broker, name: Any) -> None:
    with pytest.raises(runnel.InvalidOption) as caught:
        broker.subscribe("t", name=name)
    assert caught.value.option == "name"


async def test_a_wrong_policy_or_type_is_refused(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidOption, match="'drop_oldest'"):
        broker.subscribe("t", policy="drop")
    with pytest.raises(runnel.InvalidOption):
        broker.subscribe("t", type=5)  # type: ignore[call-overload, arg-type, unused-ignore]


# -- how it reads -----------------------------------------------------------------------------------------------


async def test_a_waiting_reader_gets_what_is_published_later(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        async with running(values(subscription, 3)) as reader:
            await broker.publish("t", b"a")
            await at_rest()
            broker.topic("t").publish_nowait(b"b")
            await at_rest()
            await numbers(broker, 1)
            assert await reader == [b"a", b"b", b"0"]


async def test_reading_goes_on_after_a_break_where_it_was(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await numbers(broker, 5)
        async for record in subscription:
            if record.value == b"1":
                break
        assert await values(subscription, 3) == [b"2", b"3", b"4"]


@on_every_socket
async def test_a_read_that_was_given_up_loses_nothing(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        for number in range(3):
            waiting = asyncio.ensure_future(anext(subscription))
            await at_rest()
            waiting.cancel()
            await asyncio.wait([waiting])
            await broker.publish("t", b"%d" % number)
            assert await values(subscription, 1) == [b"%d" % number]


async def test_batches_hold_what_is_there(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await numbers(broker, 7)
        batches = subscription.batches()
        batch = await anext(batches)
        assert len(batch) == 7
        assert batch.values == tuple(b"%d" % number for number in range(7))
        assert [record.offset for record in batch] == list(range(7))
        await numbers(broker, 2, start=7)
        assert (await anext(batches)).values == (b"7", b"8")


async def test_batches_hold_at_most_max_records(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        await numbers(broker, 7)
        batches = subscription.batches(max_records=3)
        assert [len(batch) for batch in await read(batches, 3)] == [3, 3, 1]


@on_every_socket
async def test_a_batch_waits_for_more_until_it_is_full(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        async with running(first_batch(subscription, 3, 60)) as reader:
            await numbers(broker, 2)
            await at_rest()
            assert not reader.done()
            await numbers(broker, 2, start=2)
            assert (await reader).values == (b"0", b"1", b"2")


async def test_a_batch_that_does_not_get_full_waits_max_wait_from_its_first_record(
    broker: Broker, clock: JumpingClock
) -> None:
    async with broker.subscribe("t") as subscription:
        async with running(first_batch(subscription, 100, 2)) as reader:
            await clock.advance(60)
            assert not reader.done()
            await broker.publish("t", b"a")
            await clock.advance(1)
            await broker.publish("t", b"b")
            await clock.advance(0.9)
            assert not reader.done()
            await clock.advance(0.1)
            assert (await reader).values == (b"a", b"b")


async def test_waiting_for_a_full_batch_never_makes_a_subscriber_drop(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=10) as subscription:
        async with running(first_batch(subscription, 1000, 60)) as reader:
            for number in range(10):
                await broker.publish("t", b"%d" % number)
            await at_rest()
            batch = await asyncio.wait_for(reader, PATIENCE)
    assert (len(batch), batch.gap) == (10, None)


@pytest.mark.parametrize(
    ("records", "wait"), [(0, None), (-1, None), (1.5, None), (5, -1), (5, "1"), (5, float("nan"))]
)
async def test_wrong_bounds_of_a_batch_are_refused(broker: Broker, records: Any, wait: Any) -> None:
    async with broker.subscribe("t") as subscription:
        with pytest.raises(runnel.InvalidOption, match="max_"):
            subscription.batches(max_records=records, max_wait=wait)


@on_every_socket
async def test_a_long_history_is_read_whole_by_record_and_by_batch(broker: Broker) -> None:
    topic = broker.topic("t", retention_count=10_000)
    expected = [b"%d" % number for number in range(10_000)]
    for first in range(0, 10_000, 1000):
        await topic.publish_many(expected[first : first + 1000])
    async with topic.subscribe(start="earliest", buffer=20_000) as subscription:
        assert await values(subscription, 10_000) == expected
    async with topic.subscribe(start="earliest", buffer=20_000) as subscription:
        found: list[bytes] = []
        async for batch in subscription.batches(max_records=777):
            found += batch.values
            if len(found) == 10_000:
                break
    assert found == expected


# -- names ------------------------------------------------------------------------------------------------------


async def test_a_new_name_starts_at_earliest(broker: Broker) -> None:
    await numbers(broker, 2)
    async with broker.subscribe("t", name="billing") as subscription:
        assert subscription.name == subscription.label == "billing"
        assert await values(subscription, 2) == [b"0", b"1"]


async def test_a_name_goes_on_after_the_last_record_that_was_asked_beyond(broker: Broker) -> None:
    await numbers(broker, 5)
    async with broker.subscribe("t", name="billing") as subscription:
        await read(subscription, 3)  # the third was handed out and perhaps not finished
    async with broker.subscribe("t", name="billing", start="latest") as subscription:
        assert await values(subscription, 3) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block", "disconnect"])
async def test_a_name_on_batches_goes_on_with_the_batch_in_hand(broker: Broker, policy: str, pattern: str) -> None:
    await numbers(broker, 5)
    async with broker.subscribe(pattern, name="billing", policy=policy) as subscription:
        await read(subscription.batches(max_records=2), 2)
    async with broker.subscribe(pattern, name="billing", policy=policy) as subscription:
        assert (await anext(subscription.batches())).values == (b"2", b"3", b"4")


@on_every_socket
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block", "disconnect"])
async def test_a_name_on_a_pattern_keeps_its_place_over_all_topics(broker: Broker, policy: str) -> None:
    for topic in ("a", "b", "a", "c"):
        await broker.publish(topic, topic)
    async with broker.subscribe(">", name="audit", policy=policy) as subscription:
        assert await values(subscription, 2) == [b"a", b"b"]
    await broker.publish("d", b"d")
    async with broker.subscribe(">", name="audit", policy=policy) as subscription:
        assert await values(subscription, 4) == [b"b", b"a", b"c", b"d"]


async def test_a_name_that_read_nothing_stays_where_it_was(broker: Broker) -> None:
    await numbers(broker, 2)
    for _ in range(2):
        async with broker.subscribe("t", name="billing"):
            pass
    async with broker.subscribe("t", name="billing") as subscription:
        assert await values(subscription, 1) == [b"0"]


async def test_one_name_is_one_open_subscription(broker: Broker) -> None:
    async with broker.subscribe("t", name="billing"):
        with pytest.raises(runnel.NameInUse, match="billing"):
            async with broker.subscribe("t", name="billing"):
                pass
    async with broker.subscribe("t", name="billing"):
        pass


async def test_a_name_belongs_to_its_pattern(broker: Broker) -> None:
    async with broker.subscribe("t", name="billing"):
        pass
    with pytest.raises(runnel.InvalidOption, match="holds a position on 't', not on 'u'"):
        async with broker.subscribe("u", name="billing"):
            pass


async def test_a_name_whose_topic_was_made_anew_starts_over_and_reports_it(broker: Broker) -> None:
    await numbers(broker, 5)
    async with broker.subscribe("t", name="billing") as subscription:
        await read(subscription, 3)
    await broker.delete("t")
    await broker.publish("t", b"new")
    async with broker.subscribe("t", name="billing") as subscription:
        record = await anext(subscription)
    assert (record.value, record.offset) == (b"new", 0)
    assert record.gap is not None


# -- immutability -----------------------------------------------------------------------------------------------


async def test_a_subscriber_that_tries_to_change_a_record_affects_no_other(broker: Broker) -> None:
    async with broker.subscribe("t") as one, broker.subscribe("t") as two, broker.subscribe("t") as three:
        await broker.publish("t", b"value", key=b"key", headers={"a": "1"})
        record = await anext(one)
        for field in ("value", "key", "headers", "offset", "topic"):
            with pytest.raises(AttributeError):
                setattr(record, field, None)
        with pytest.raises(TypeError):
            record.headers["a"] = "2"
        batch = await anext(two.batches())
        with pytest.raises(TypeError):
            batch.values[0] = b"changed"  # type: ignore[index]
        seen = await anext(three)
    assert (seen.value, seen.key, seen.headers) == (b"value", b"key", {"a": "1"})


async def test_two_subscribers_read_at_their_own_pace(place: Place) -> None:
    async with place.open() as broker:
        async with broker.subscribe("t") as fast, broker.subscribe("t") as slow:
            for number in range(10):
                await broker.publish("t", b"%d" % number)
                assert await values(fast, 1) == [b"%d" % number]
            broker.close()
            assert len(await rest(slow)) == 10


@on_every_socket
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("how", ["records", "batches", "full batches"])
async def test_an_iterator_goes_on_after_a_read_that_was_cancelled(broker: Broker, group: str | None, how: str) -> None:
    subscription: Any = broker.subscribe("t", group=group)
    async with subscription:
        wait = {"max_records": 2, "max_wait": 1e6} if how == "full batches" else {}
        items = aiter(subscription if how == "records" else subscription.batches(**wait))
        count = 2 if how == "full batches" else 1
        for number in range(3):
            reading = asyncio.ensure_future(anext(items))
            await at_rest()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await broker.topic("t").publish_many([b"%d" % number] * count)
            item = await soon(anext(items))
            assert (item.values if how != "records" else (item.value,)) == (b"%d" % number,) * count
            if group is not None:
                await item.ack()
        broker.close()
        assert [item async for item in items] == []


async def test_a_cancelled_iterator_does_not_read_beside_another(broker: Broker) -> None:
    async with broker.subscribe("t") as subscription:
        records = aiter(subscription)
        reading = asyncio.ensure_future(anext(records))
        await at_rest()
        reading.cancel()
        await asyncio.wait([reading])
        batches = subscription.batches()
        await broker.topic("t").publish_many([b"a", b"b"])
        assert (await soon(anext(batches))).values == (b"a", b"b")
        with pytest.raises(runnel.SubscriptionMisused, match="read it one way"):
            await anext(records)


def _numbers(items: list[Any]) -> list[int]:
    return [int(value) for item in items for value in (item.values if hasattr(item, "values") else [item.value])]


@on_every_socket
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("how", ["records", "batches"])
async def test_an_iterator_goes_on_after_a_read_that_was_cancelled_before_it_ran(
    broker: Broker, group: str | None, how: str
) -> None:
    subscription: Any = broker.subscribe("t", group=group)
    async with subscription:
        items, found = aiter(subscription if how == "records" else subscription.batches(2)), []
        for count in (0, 1, 2):  # items read before the cancelled one: the first has not begun to read
            reading = asyncio.ensure_future(anext(items))
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
            if not count:
                await numbers(broker, 12)
            found += [await soon(anext(items)) for _ in range(count)]
        rest = 12 - len(_numbers(found))
        found += [await soon(anext(items)) for _ in range(rest if how == "records" else rest // 2)]
        assert _numbers(found) == list(range(12))


@on_every_socket
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize(("one", "other"), [("records", "records"), ("records", "batches"), ("batches", "records")])
async def test_an_iteration_goes_on_where_one_was_closed(
    broker: Broker, group: str | None, one: str, other: str
) -> None:
    def read(how: str) -> Any:
        return aiter(subscription if how == "records" else subscription.batches(4))

    subscription: Any = broker.subscribe("t", group=group)
    async with subscription:
        await numbers(broker, 12)
        async with aclosing(read(one)) as items:
            found = [await soon(anext(items))]
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        items = read(other)
        while len(_numbers(found)) < 12:
            found.append(await soon(anext(items)))
        assert _numbers(found) == list(range(12))


@pytest.mark.parametrize("how", ["records", "batches"])
async def test_a_closed_iteration_leaves_no_reader_blocked(broker: Broker, how: str) -> None:
    async with broker.subscribe("t", policy="block", buffer=2) as subscription:
        await numbers(broker, 2)
        async with aclosing(subscription.batches()) as batches:  # type: ignore[type-var]
            assert (await soon(anext(batches))).values == (b"0", b"1")
        async with running(broker.publish("t", b"2")) as publishing:
            await at_rest()
            item: Any = await soon(anext(aiter(subscription if how == "records" else subscription.batches())))
            assert _numbers([item]) == [2]
            await soon(publishing)
