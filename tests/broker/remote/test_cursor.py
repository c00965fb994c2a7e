"""The remote cursor: what was sent and what was asked beyond are two things."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker, Gap, Position
from runnel.broker.remote.cursor import RemoteCursor, open_remote_cursor
from runnel.core.batch_format import JSON, unpack
from runnel.core.errors import OffsetOutOfRange
from runnel.testing.clock import JumpingClock


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture(params=["memory", "folder"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: JumpingClock) -> AsyncIterator[Broker]:
    where = None if request.param == "memory" else tmp_path
    async with runnel.open(where, clock=clock) as opened:
        yield opened


class Ready:
    """Somebody who is told that there may be something, and can wait for that."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __call__(self) -> None:
        self.event.set()


def opened(broker: Broker, pattern: str = "t", **options: Any) -> RemoteCursor:
    feed = open_remote_cursor(broker, pattern, ready=Ready(), **options)
    feed.enter()
    return feed


async def taken(feed: RemoteCursor, count: int) -> tuple[list[Gap], list[bytes]]:
    """The gaps, and the next `count` values."""
    gaps: list[Gap] = []
    values: list[bytes] = []
    while len(values) < count:
        ready = feed._ready
        assert isinstance(ready, Ready)
        ready.event.clear()
        if (found := feed.take()) is None:
            assert not feed.ended
            await ready.event.wait()
            continue
        gaps += [found.gap] if found.gap is not None else []
        values += [value for piece in found.pieces for value in unpack(piece.packed).values]
    return gaps, values


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_it_takes_what_is_published_and_then_nothing(broker: Broker, pattern: str) -> None:
    feed = opened(broker, pattern)
    await broker.topic("t").publish_many([b"a", b"b"])
    await broker.publish("t", b"c", key="k")
    assert await taken(feed, 3) == ([], [b"a", b"b", b"c"])
    assert feed.take() is None
    assert (feed.ended, feed.error) == (False, None)


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_its_reader_has_not_taken_up_lags_and_the_rest_is_delivered(broker: Broker, pattern: str) -> None:
    feed = opened(broker, pattern)
    await broker.topic("t").publish_many([b"a", b"b", b"c", b"d", b"e"])
    assert await taken(feed, 5) == ([], [b"a", b"b", b"c", b"d", b"e"])
    assert (feed.lag, feed.delivered) == (5, 0)
    feed.count(4, 1, 2)
    assert (feed.lag, feed.delivered, feed.expired, feed.dropped_count) == (1, 1, 1, 2)
    feed.count(3, 0, 0)  # overtaken by a later one
    assert (feed.lag, feed.delivered, feed.expired, feed.dropped_count) == (1, 1, 1, 2)
    feed.count(99, 1, 2)  # more than there was
    assert (feed.lag, feed.delivered) == (0, 2)


async def test_a_reader_that_says_nothing_has_taken_up_what_it_was_given(broker: Broker) -> None:
    feed = opened(broker)
    await broker.publish("t", b"a")
    assert await taken(feed, 1) == ([], [b"a"])
    feed.count_all()
    assert (feed.lag, feed.delivered) == (0, 1)


async def test_it_is_told_when_there_is_something_again(broker: Broker) -> None:
    feed = opened(broker)
    assert feed.take() is None
    await broker.publish("t", b"a")
    assert feed._ready.event.is_set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_its_place_is_what_the_reader_asked_beyond_not_what_was_sent(broker: Broker, pattern: str) -> None:
    feed = opened(broker, pattern)
    await broker.topic("t").publish_many([b"a", b"b", b"c"])
    first = feed.position
    await taken(feed, 3)
    assert feed.position == first
    feed.confirm(first + 2)
    assert feed.position == first + 2
    feed.confirm(first + 1)  # overtaken
    assert feed.position == first + 2
    feed.confirm(first + 99)  # no further than what was sent
    assert feed.position == first + 3


async def test_a_name_goes_on_where_the_reader_was(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"a", b"b", b"c"])
    feed = opened(broker, name="n")
    await taken(feed, 3)
    feed.confirm(1)
    feed.leave()
    assert await taken(opened(broker, name="n"), 2) == ([], [b"b", b"c"])


async def test_resuming_wins_over_the_position_of_the_name(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"a", b"b", b"c"])
    feed = opened(broker, name="n")
    epoch = feed.epoch
    assert epoch is not None
    feed.leave()
    assert await taken(opened(broker, name="n", resume=Position(epoch, 2)), 1) == ([], [b"c"])


async def test_a_pattern_resumes_by_sequence(broker: Broker) -> None:
    await broker.publish("a", b"1")
    await broker.publish("b", b"2")
    feed = opened(broker, "*", start="earliest")
    found = feed.take()
    assert found is not None
    places = [piece.sequence for piece in found.pieces]
    feed.leave()
    assert await taken(opened(broker, "*", resume=places[-1]), 1) == ([], [b"2"])


async def test_resuming_in_another_life_of_the_topic_is_told_as_a_gap(broker: Broker) -> None:
    await broker.publish("t", b"old")
    epoch = opened(broker).epoch
    assert epoch is not None
    await broker.delete("t")
    await broker.publish("t", b"new")
    gaps, values = await taken(opened(broker, resume=Position(epoch, 1)), 1)
    assert values == [b"new"]
    assert "deleted and made again" in gaps[0].reason


async def test_block_waits_for_what_the_reader_says(broker: Broker) -> None:
    feed = opened(broker, policy="block", buffer=2)
    topic = broker.topic("t")
    await topic.publish_many([b"a", b"b"])
    await taken(feed, 2)
    with pytest.raises(runnel.Full):
        topic.publish_nowait(b"c")
    feed.confirm(1)
    topic.publish_nowait(b"c")
    with pytest.raises(runnel.Full):
        topic.publish_nowait(b"d")


async def test_what_exceeds_its_bound_is_told_as_a_gap_and_handed_on(broker: Broker) -> None:
    dropped: list[bytes] = []
    feed = open_remote_cursor(
        broker, "t", ready=lambda: None, drops=lambda piece: dropped.extend(unpack(piece.packed).values), buffer=2
    )
    feed.enter()
    assert not feed.eager
    await broker.topic("t").publish_many([b"a", b"b", b"c", b"d"])
    found = feed.take()
    assert found is not None
    assert found.gap is not None
    assert (found.gap.first, found.gap.end, found.gap.count) == (0, 2, 2)
    assert dropped == [b"a", b"b"]


async def test_what_nobody_bounded_may_run_ahead(broker: Broker) -> None:
    assert opened(broker).eager
    assert not opened(broker, policy="drop_oldest").eager


async def test_strict_ends_it_with_the_gap(broker: Broker) -> None:
    feed = opened(broker, strict=True, buffer=1)
    await broker.topic("t").publish_many([b"a", b"b"])
    assert feed.take() is None
    assert feed.ended
    assert isinstance(feed.error, runnel.RecordsMissed)


async def test_expired_records_are_left_out(broker: Broker, clock: JumpingClock) -> None:
    feed = opened(broker)
    for value, expires in ((b"a", None), (b"b", 5), (b"c", None)):
        await broker.publish("t", value, expires=expires)
    await clock.advance(6)
    assert await taken(feed, 2) == ([], [b"a", b"c"])
    assert feed.expired == 1


async def test_a_topic_that_is_deleted_ends_it(broker: Broker) -> None:
    feed = opened(broker)
    await broker.publish("t", b"a")
    await taken(feed, 1)
    await broker.delete("t")
    assert feed.take() is None
    assert feed.ended
    assert isinstance(feed.error, runnel.TopicDeleted)


async def test_finishing_leaves_what_was_published(broker: Broker) -> None:
    feed = opened(broker)
    await broker.publish("t", b"a")
    feed.finish()
    await broker.publish("t", b"b")
    assert await taken(feed, 1) == ([], [b"a"])
    assert feed.take() is None
    assert (feed.ended, feed.error) == (True, None)


async def test_leaving_leaves_nothing_behind(broker: Broker) -> None:
    feed = opened(broker)
    feed.leave()
    assert broker.statistics().subscriptions == ()
    assert feed.take() is None


async def test_publish_and_wait_waits_for_it(broker: Broker) -> None:
    feed = opened(broker)
    waiting = asyncio.ensure_future(broker.topic("t").publish_and_wait(b"a"))
    await taken(feed, 1)
    assert not waiting.done()
    feed.confirm(1)
    await waiting


async def test_pieces_of_a_typed_topic_say_what_they_are_written_in(broker: Broker) -> None:
    feed = opened(broker)
    await broker.topic("t", int).publish(5)
    while (found := feed.take()) is None:  # noqa: ASYNC110  # it is asked, and never told
        await asyncio.sleep(0)
    assert unpack(found.pieces[0].packed).header.content_type == JSON


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_has_expired_holds_up_nobody(broker: Broker, clock: JumpingClock, pattern: str) -> None:
    feed = opened(broker, pattern, policy="block", buffer=2)
    await broker.publish("t", b"a")
    await broker.publish("t", b"b", expires=5)
    await clock.advance(6)
    found = None
    while found is None:
        found = feed.take()
        await asyncio.sleep(0)
    feed.confirm((found.pieces[0].sequence if pattern == "*" else 0) + 1)
    await broker.topic("t").publish_many([b"c", b"d"])
    assert await taken(feed, 2) == ([], [b"c", b"d"])


async def test_several_topics_are_one_feed_in_the_order_of_sequences(broker: Broker) -> None:
    feed = open_remote_cursor(broker, ("a", "b.*"), ready=Ready())
    feed.enter()
    before = feed.attachment.changes
    for topic, value in (("a", b"1"), ("c", b"not ours"), ("b.x", b"2"), ("a", b"3")):
        await broker.publish(topic, value)
    assert await taken(feed, 3) == ([], [b"1", b"2", b"3"])
    assert feed.attachment.changes > before
    assert len(feed.epochs) == 2
    assert feed.end_sequence() == 4
    again = open_remote_cursor(broker, ("a", "b.*"), ready=Ready(), resume=2)
    again.enter()
    assert again.end_sequence() is None
    assert await taken(again, 2) == ([], [b"2", b"3"])
    assert again.sent == 4


# -- up to a place ----------------------------------------------------------------------------------------------


async def test_a_feed_that_finishes_at_an_offset_gives_all_before_it_and_ends(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"%d" % at for at in range(20)])
    feed = opened(broker, start="earliest")
    feed.finish_at(7)
    _, values = await taken(feed, 7)
    assert values == [b"%d" % at for at in range(7)]
    assert feed.take() is None
    assert feed.ended
    assert not feed.is_cut_off


async def test_it_cannot_finish_where_nothing_is_yet(broker: Broker) -> None:
    await broker.publish("t", b"")
    feed = opened(broker, start="earliest")
    with pytest.raises(OffsetOutOfRange):
        feed.finish_at(2)


async def test_who_knows_its_end_goes_on_when_it_is_told_to_finish(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"x"] * 20)
    feed = opened(broker, start="earliest")
    feed.finish_at(15)
    feed.finish()
    assert not feed.ended
    await taken(feed, 15)
    assert feed.take() is None
    assert feed.ended


async def test_one_that_ends_before_its_place_was_cut_off(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"x"] * 20)
    feed = opened(broker, start="earliest")
    feed.finish_at(15)
    feed.end()
    assert feed.is_cut_off
