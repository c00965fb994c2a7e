"""A reader for a client of a listener: what was sent and what was asked beyond are two things."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import runnel
from runnel import Broker, Position, Record
from runnel.broker.read.reader import FAR_BYTES, LocalReader
from runnel.core.backend import SLICE, Taken
from runnel.core.errors import OffsetOutOfRange
from runnel.core.options import SubscribeOptions
from runnel.core.record import MissedRange
from runnel.testing.clock import JumpingClock


class Woken:
    """Notes that there may be something, and can be waited for."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __call__(self) -> None:
        self.event.set()


def opened(
    broker: Broker,
    pattern: str | Sequence[str] = "t",
    resume: Position | int | None = None,
    until: int | None = None,
    **options: Any,
) -> LocalReader:
    reader: LocalReader = broker.backend.reader(pattern, SubscribeOptions.of(options), Woken(), resume, until, far=True)
    reader.enter()
    return reader


async def one_take(reader: LocalReader) -> Taken:
    """What it takes next."""
    woken = reader.wake
    assert isinstance(woken, Woken)
    while True:
        woken.event.clear()
        if (found := reader.take(SLICE)) is not None:
            return found
        assert not reader.ended
        reader.park()
        await woken.event.wait()


async def taken(reader: LocalReader, count: int) -> tuple[list[MissedRange], list[bytes]]:
    """What was missed, and the next `count` values."""
    missed: list[MissedRange] = []
    values: list[bytes] = []
    while len(values) < count:
        found = await one_take(reader)
        missed += [found.missed] if found.missed is not None else []
        values += [value for part in found.slices for value in part.values]
    return missed, values


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_it_takes_what_is_published_and_then_nothing(broker: Broker, pattern: str) -> None:
    reader = opened(broker, pattern)
    await broker.topic("t").publish_many([b"a", b"b"])
    await broker.publish("t", b"c", key="k")
    assert await taken(reader, 3) == ([], [b"a", b"b", b"c"])
    assert reader.take(SLICE) is None
    assert (reader.ended, reader.error) == (False, None)


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_its_reader_has_not_taken_up_lags_and_the_rest_is_delivered(broker: Broker, pattern: str) -> None:
    reader = opened(broker, pattern)
    await broker.topic("t").publish_many([b"a", b"b", b"c", b"d", b"e"])
    assert await taken(reader, 5) == ([], [b"a", b"b", b"c", b"d", b"e"])
    assert (reader.lag, reader.delivered) == (5, 0)
    reader.count(4, 1, 2)
    assert (reader.lag, reader.delivered, reader.expired, reader.dropped_count) == (1, 1, 1, 2)
    reader.count(3, 0, 0)  # overtaken by a later one
    assert (reader.lag, reader.delivered, reader.expired, reader.dropped_count) == (1, 1, 1, 2)
    reader.count(99, 1, 2)  # more than there was
    assert (reader.lag, reader.delivered) == (0, 2)


async def test_a_reader_that_says_nothing_has_taken_up_what_it_was_given(broker: Broker) -> None:
    reader = opened(broker)
    await broker.publish("t", b"a")
    assert await taken(reader, 1) == ([], [b"a"])
    reader.count_all()
    assert (reader.lag, reader.delivered) == (0, 1)


async def test_it_is_notified_when_records_are_available_again(broker: Broker) -> None:
    reader = opened(broker)
    assert reader.take(SLICE) is None
    reader.park()
    await broker.publish("t", b"a")
    assert isinstance(reader.wake, Woken)
    assert reader.wake.event.is_set()


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_its_place_is_what_the_reader_asked_beyond_not_what_was_sent(broker: Broker, pattern: str) -> None:
    reader = opened(broker, pattern)
    await broker.topic("t").publish_many([b"a", b"b", b"c"])
    first = reader.position
    await taken(reader, 3)
    assert reader.position == first
    reader.confirm(first + 2)
    assert reader.position == first + 2
    reader.confirm(first + 1)  # overtaken
    assert reader.position == first + 2
    reader.confirm(first + 99)  # no further than what was sent
    assert reader.position == first + 3


async def test_a_name_goes_on_where_the_reader_was(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"a", b"b", b"c"])
    reader = opened(broker, name="n")
    await taken(reader, 3)
    reader.confirm(1)
    reader.leave()
    assert await taken(opened(broker, name="n"), 2) == ([], [b"b", b"c"])


async def test_resuming_wins_over_the_position_of_the_name(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"a", b"b", b"c"])
    reader = opened(broker, name="n")
    epoch = reader.epoch
    assert epoch is not None
    reader.leave()
    assert await taken(opened(broker, name="n", resume=Position(epoch, 2)), 1) == ([], [b"c"])


async def test_a_pattern_resumes_by_sequence(broker: Broker) -> None:
    await broker.publish("a", b"1")
    await broker.publish("b", b"2")
    reader = opened(broker, "*", start="earliest")
    found = await one_take(reader)
    reader.leave()
    assert await taken(opened(broker, "*", resume=found.slices[-1].sequence), 1) == ([], [b"2"])


async def test_resuming_in_another_life_of_the_topic_is_reported_as_a_gap(broker: Broker) -> None:
    await broker.publish("t", b"old")
    epoch = opened(broker).epoch
    assert epoch is not None
    await broker.delete("t")
    await broker.publish("t", b"new")
    gaps, values = await taken(opened(broker, resume=Position(epoch, 1)), 1)
    assert values == [b"new"]
    assert "deleted and made again" in gaps[0].reason


async def test_block_waits_for_what_the_reader_says(broker: Broker) -> None:
    reader = opened(broker, policy="block", buffer=2)
    topic = broker.topic("t")
    await topic.publish_many([b"a", b"b"])
    await taken(reader, 2)
    with pytest.raises(runnel.Full):
        topic.publish_nowait(b"c")
    reader.confirm(1)
    topic.publish_nowait(b"c")
    with pytest.raises(runnel.Full):
        topic.publish_nowait(b"d")


async def test_records_beyond_the_bound_are_reported_as_a_gap_and_handed_on(broker: Broker) -> None:
    dropped: list[Record[bytes]] = []
    reader = opened(broker, on_drop=dropped.append, buffer=2)
    assert not reader.is_eager
    await broker.topic("t").publish_many([b"a", b"b", b"c", b"d"])
    found = await one_take(reader)
    assert found.missed is not None
    assert (found.missed.first, found.missed.end, found.missed.count) == (0, 2, 2)
    assert [record.value for record in dropped] == [b"a", b"b"]


async def test_a_client_without_a_bound_may_run_ahead(broker: Broker) -> None:
    assert opened(broker).is_eager
    assert not opened(broker, policy="drop_oldest").is_eager


async def test_strict_ends_it_with_the_gap(broker: Broker) -> None:
    reader = opened(broker, strict=True, buffer=1)
    await broker.topic("t").publish_many([b"a", b"b"])
    assert reader.take(SLICE) is None
    assert reader.ended
    assert isinstance(reader.error, runnel.RecordsMissed)


async def test_expired_records_are_left_out(broker: Broker, clock: JumpingClock) -> None:
    reader = opened(broker)
    for value, expires in ((b"a", None), (b"b", 5), (b"c", None)):
        await broker.publish("t", value, expires=expires)
    await clock.advance(6)
    assert await taken(reader, 2) == ([], [b"a", b"c"])
    assert reader.expired == 1


async def test_a_topic_that_is_deleted_ends_it(broker: Broker) -> None:
    reader = opened(broker)
    await broker.publish("t", b"a")
    await taken(reader, 1)
    await broker.delete("t")
    assert reader.take(SLICE) is None
    assert reader.ended
    assert isinstance(reader.error, runnel.TopicDeleted)


async def test_finishing_leaves_what_was_published(broker: Broker) -> None:
    reader = opened(broker)
    await broker.publish("t", b"a")
    reader.finish()
    await broker.publish("t", b"b")
    assert await taken(reader, 1) == ([], [b"a"])
    assert reader.take(SLICE) is None
    assert (reader.ended, reader.error) == (True, None)


async def test_leaving_leaves_nothing_behind(broker: Broker) -> None:
    reader = opened(broker)
    reader.leave()
    assert broker.statistics().subscriptions == ()
    assert reader.take(SLICE) is None


async def test_publish_and_wait_waits_for_it(broker: Broker) -> None:
    reader = opened(broker)
    waiting = asyncio.ensure_future(broker.topic("t").publish_and_wait(b"a"))
    await taken(reader, 1)
    assert not waiting.done()
    reader.confirm(1)
    await waiting


async def test_it_says_what_values_of_a_typed_topic_are_written_in(broker: Broker) -> None:
    reader = opened(broker, "*")
    await broker.topic("t", int).publish(5)
    await broker.topic("m", int, encoding="msgpack").publish(5)
    await broker.publish("b", b"5")
    await taken(reader, 3)
    assert [reader.encoding_of(topic) for topic in ("t", "m", "b", "none")] == ["json", "msgpack", None, None]


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_expired_records_delay_no_publisher(broker: Broker, clock: JumpingClock, pattern: str) -> None:
    reader = opened(broker, pattern, policy="block", buffer=2)
    await broker.publish("t", b"a")
    await broker.publish("t", b"b", expires=5)
    await clock.advance(6)
    found = await one_take(reader)
    reader.confirm((found.slices[0].sequence if pattern == "*" else 0) + 1)
    await broker.topic("t").publish_many([b"c", b"d"])
    assert await taken(reader, 2) == ([], [b"c", b"d"])


async def test_several_topics_are_one_reader_in_the_order_of_sequences(broker: Broker) -> None:
    reader = opened(broker, ("a", "b.*"))
    before = reader.changes
    for topic, value in (("a", b"1"), ("c", b"not ours"), ("b.x", b"2"), ("a", b"3")):
        await broker.publish(topic, value)
    assert await taken(reader, 3) == ([], [b"1", b"2", b"3"])
    assert reader.changes > before
    assert len(reader.epochs) == 2
    assert reader.end_sequence() == 4
    again = opened(broker, ("a", "b.*"), resume=2)
    assert again.end_sequence() is None
    assert await taken(again, 2) == ([], [b"2", b"3"])
    assert again.sent == 4


# -- up to a place ----------------------------------------------------------------------------------------------


async def test_one_that_knows_its_end_gives_all_before_it_and_ends(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"%d" % at for at in range(20)])
    reader = opened(broker, start="earliest", until=7)
    _, values = await taken(reader, 7)
    assert values == [b"%d" % at for at in range(7)]
    assert reader.take(SLICE) is None
    assert reader.ended
    assert not reader.is_cut_off


async def test_one_that_knows_its_end_gives_that_much_if_more_was_published_since(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"a", b"b"])
    reader = opened(broker, start="earliest", until=2)
    await broker.publish("t", b"c")
    assert await taken(reader, 2) == ([], [b"a", b"b"])
    assert reader.take(SLICE) is None
    assert (reader.ended, reader.error) == (True, None)


async def test_it_cannot_end_where_nothing_is_yet_and_leaves_nothing_behind(broker: Broker) -> None:
    await broker.publish("t", b"")
    with pytest.raises(OffsetOutOfRange):
        opened(broker, start="earliest", until=2)
    assert broker.statistics().subscriptions == ()
    with pytest.raises(OffsetOutOfRange):
        opened(broker, "never", start="earliest", until=1)
    assert await broker.topics() == ["t"]


async def test_of_several_topics_there_is_no_offset_to_end_at(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"a", b"b"])
    reader = opened(broker, ["t"], start="earliest", until=1)
    assert await taken(reader, 2) == ([], [b"a", b"b"])
    assert not reader.ended


async def test_one_that_knows_its_end_continues_when_it_is_asked_to_finish(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"x"] * 20)
    reader = opened(broker, start="earliest", until=15)
    reader.finish()
    assert not reader.ended
    await taken(reader, 15)
    assert reader.take(SLICE) is None
    assert reader.ended


async def test_one_that_ends_before_its_place_was_cut_off(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"x"] * 20)
    reader = opened(broker, start="earliest", until=15)
    reader.end()
    assert reader.is_cut_off


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_it_takes_at_once_is_bounded_by_bytes_too(broker: Broker, pattern: str) -> None:
    reader, values = opened(broker, pattern), [bytes([n]) * 300_000 for n in range(10)]
    await broker.topic("t").publish_many([*values, bytes(3 * FAR_BYTES), b"", *[b"x"] * 100])
    for number in range(3):
        await broker.publish("t", b"%d" % number)
    found = []
    while (taken := reader.take(SLICE)) is not None:
        found.append([value for part in taken.slices for value in part.values])
    assert [len(values) for values in found] == [3, 3, 3, 1, 1, 104]
    assert found[0] + found[1] + found[2] + found[3] == values
