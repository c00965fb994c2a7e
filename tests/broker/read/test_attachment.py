"""A reader's hold on the logs that its pattern covers."""

import asyncio

import pytest

import runnel
from runnel.broker.read.attachment import Attachment
from runnel.broker.topic.log import CHUNK
from runnel.broker.topic.readers import ENTER_TURN
from runnel.core.errors import InvalidOption, InvalidPattern
from runnel.core.options import KEEP_COUNT
from tests.broker.broker_parts import Notes, make_flow, make_timeline
from tests.brokers import local_broker


def reader_of(attachment: Attachment) -> Notes:
    with attachment.covering():
        return make_flow(attachment.cursor("earliest")[0], "drop_oldest")[1]


async def test_a_pattern_covers_the_topics_there_are_and_those_made_later() -> None:
    async with runnel.open() as broker:
        for name in ("a.x", "b"):
            await broker.topic(name).declare()
        attachment = broker.backend.attachment("a.*", None)
        reader = reader_of(attachment)
        attachment.attach(reader)
        assert {log.name for log in attachment.logs} == {"a.x"}
        await broker.topic("a.y").declare()
        assert broker.backend.readers.patterns.covering("a.y") == [reader]
        assert attachment.detach(reader)
        assert broker.backend.readers.patterns.covering("a.y") == []
        assert not attachment.detach(reader)


async def test_a_name_covers_its_topic_and_makes_it() -> None:
    async with runnel.open() as broker:
        attachment = broker.backend.attachment("t", None)
        reader = reader_of(attachment)
        attachment.attach(reader)
        (log,) = attachment.logs
        assert log is broker.backend.catalog.logs["t"]
        assert log.topic_readers is not None
        assert list(log.topic_readers) == [reader]
        attachment.detach(reader)
        assert list(log.topic_readers) == []


async def test_a_parked_reader_is_woken_by_the_next_publish_even_to_a_hot_log() -> None:
    async with runnel.open() as broker:
        attachment = broker.backend.attachment("t", None)
        reader = reader_of(attachment)
        attachment.attach(reader)
        topic = broker.topic("t")
        topic.publish_nowait(b"x")
        topic.publish_nowait(b"the short way")
        assert reader.woken == 0
        attachment.park(reader)
        topic.publish_nowait(b"the long way")
        assert reader.woken == 1
        broker.backend.timeline.cool()
        topic.publish_nowait(b"nobody sleeps")
        assert reader.woken == 1


@pytest.mark.parametrize("pattern", ["a.*", "t"])
async def test_joining_closes_the_open_run_so_that_the_newcomer_is_seen(pattern: str) -> None:
    async with runnel.open() as broker:
        broker.topic("t").publish_nowait(b"x")
        broker.topic("a.x").publish_nowait(b"x")
        assert broker.backend.timeline.hot is not None
        attachment = broker.backend.attachment(pattern, None)
        attachment.attach(reader_of(attachment))
        assert broker.backend.timeline.hot is None


def test_a_wrong_pattern_or_start_is_refused_at_once() -> None:
    broker = local_broker()
    with pytest.raises(InvalidPattern):
        broker.backend.attachment("a..b", None)
    with pytest.raises(InvalidOption):
        broker.backend.attachment("a.*", 5)
    assert make_timeline().runs == []


async def test_several_names_and_patterns_are_one_hold_and_make_no_topic() -> None:
    async with runnel.open() as broker:
        await broker.topic("a.x").declare()
        attachment = broker.backend.attachment(["a.x", "a.*", "a.>", "later", "a.x"], None)
        assert (attachment.patterns, attachment.is_pattern) == (("a.x", "a.*", "a.>", "later"), True)
        reader = reader_of(attachment)
        attachment.attach(reader)
        assert {log.name for log in attachment.logs} == {"a.x"}
        assert await broker.topics() == ["a.x"]
        joined: list[str] = []
        reader.join = lambda log: joined.append(log.name)  # type: ignore[method-assign]
        await broker.topic("a.y").declare()
        await broker.topic("later").declare()
        assert joined == ["a.y", "later"]
        assert attachment.detach(reader)
        assert all(broker.backend.readers.patterns.covering(name) == [] for name in ("a.x", "a.y", "later"))


async def test_one_name_in_a_list_is_read_by_sequence() -> None:
    async with runnel.open() as broker:
        assert broker.backend.attachment(["t"], None).is_pattern
        with pytest.raises(InvalidOption):
            broker.backend.attachment(["t"], 3)


async def test_it_shows_that_topics_came_and_went() -> None:
    async with runnel.open() as broker:
        attachment = broker.backend.attachment("a.*", None)
        before = attachment.changes
        attachment.attach(reader := reader_of(attachment))
        reader.join, reader.part = attachment.join, attachment.part  # type: ignore[method-assign]
        assert attachment.logs == set()
        log = broker.backend.catalog.make("a.x")
        joined = attachment.changes
        assert attachment.logs == {log}
        await broker.delete("a.x")
        assert before < joined < attachment.changes
        assert attachment.logs == set()


async def test_subscribing_to_a_pattern_touches_no_topic_before_it_is_published_to() -> None:
    async with runnel.open() as broker:
        for name in ("a.x", "a.y"):
            await broker.publish(name, b"x")
        logs = broker.backend.catalog.logs
        async with broker.subscribe("a.*") as records:
            assert [log.readers for log in logs.values()] == [None, None]
            await broker.publish("a.x", b"x")
            assert [log.readers is None for log in logs.values()] == [False, True]
            assert (await anext(records)).topic == "a.x"
        topic_readers = logs["a.x"].readers
        assert topic_readers is not None
        assert topic_readers.patterns == (), "a topic that is idle keeps no reader that has left"


async def test_what_only_one_wanted_kept_goes_soon_after_it_left() -> None:
    async with runnel.open() as broker:
        topic = broker.topic("t")
        async with broker.subscribe("t", buffer=100_000):
            for _ in range(50):
                await topic.publish_many([b"x"] * 1000)
            log = broker.backend.catalog.logs["t"]
            assert len(log.values) == 50_000
        await topic.publish_many([b"x"] * CHUNK)
        assert len(log.values) <= KEEP_COUNT + 2 * CHUNK


async def test_entering_many_subscriptions_lets_others_run() -> None:
    async with runnel.open() as broker:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count())
        subscriptions = [broker.subscribe("a.*") for _ in range(4 * ENTER_TURN)]
        for one in subscriptions:
            await one.__aenter__()
        assert turns >= 3
        counting.cancel()


async def test_entering_that_is_cancelled_leaves_no_reader() -> None:
    async with runnel.open() as broker:
        subscriptions = [broker.subscribe("a.*") for _ in range(ENTER_TURN)]
        for one in subscriptions[:-1]:
            await one.__aenter__()
        entering = asyncio.ensure_future(subscriptions[-1].__aenter__())
        await asyncio.sleep(0)
        assert len(broker.backend.readers) == ENTER_TURN
        entering.cancel()
        await asyncio.wait([entering])
        assert entering.cancelled()
        assert len(broker.backend.readers) == ENTER_TURN - 1
