"""A reader of a server that reads for clients of a server in front of it: counts, places, topics, ranges, finishing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import runnel
from runnel import Broker, Position
from runnel.client.reader import RemoteReader
from runnel.core.backend import SLICE, SharedSteps
from runnel.core.options import SubscribeOptions
from runnel.wire.frames import FrameKind
from tests.client.memory_link import JoinedLink, joined
from tests.patience import PATIENCE


class Woken:
    """Notes that there may be something, and can be waited for."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __call__(self) -> None:
        self.event.set()


async def opened(
    link: JoinedLink,
    pattern: str | Sequence[str] = "t",
    resume: Position | int | None = None,
    until: int | None = None,
    *,
    far: bool = True,
    **options: Any,
) -> RemoteReader:
    reader: RemoteReader = link.backend.reader(pattern, SubscribeOptions.of(options), Woken(), resume, until, far=far)
    await reader.enter()
    return reader


async def values(reader: RemoteReader, count: int) -> list[bytes]:
    """The next `count` values, or fewer if it ends."""
    found: list[bytes] = []
    woken = reader.wake
    assert isinstance(woken, Woken)
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            woken.event.clear()
            if (taken := reader.take(SLICE)) is None:
                if reader.ended:
                    return found
                reader.park()
                await woken.event.wait()
                continue
            assert taken.missed is None
            found += [value for part in taken.slices for value in part.values]
    return found


async def fill(broker: Broker, count: int, topic: str = "t", first: int = 0) -> None:
    await broker.topic(topic).publish_many([b"%d" % number for number in range(first, first + count)])


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def counted(broker: Broker) -> tuple[int, int, int, int]:
    """Lag, delivered, expired and dropped, as the server sees its reader."""
    (one,) = broker.statistics().subscriptions
    return one.lag, one.delivered, one.expired, one.dropped


# -- counts -----------------------------------------------------------------------------------------------------


async def test_what_the_client_in_front_has_not_taken_up_lags() -> None:
    async with joined() as (broker, link):
        reader = await opened(link)
        await fill(broker, 5)
        await values(reader, 5)
        reader.count(0, 0, 0)
        await link.settle()
        assert counted(broker) == (5, 0, 0, 0)
        reader.count(4, 1, 2)
        await link.settle()
        assert counted(broker) == (1, 1, 1, 2)
        reader.count(5, 1, 2)
        await link.settle()
        assert counted(broker) == (0, 2, 1, 2)


async def test_what_expired_on_the_way_is_counted_and_does_not_lag() -> None:
    async with joined() as (broker, link):
        reader = await opened(link)
        await broker.publish("t", b"short", expires=30)
        await broker.topic("t").publish_many([b"a", b"b"])
        await link.settle()
        link.ahead = 60.0  # of the server's clock
        assert await values(reader, 2) == [b"a", b"b"]
        reader.count(1, 0, 0)
        await link.settle()
        assert counted(broker) == (1, 1, 1, 0)
        reader.count(2, 1, 0)
        await link.settle()
        assert counted(broker) == (0, 1, 2, 0)
        assert reader.expired == 2


@pytest.mark.parametrize("name", [None, "n"])
async def test_counts_go_on_over_a_lost_connection(name: str | None) -> None:
    async with joined() as (broker, link):
        await fill(broker, 10)
        reader = await opened(link, start="earliest", name=name)
        await values(reader, 10)
        reader.confirm(4)
        reader.count(6, 0, 0)
        await link.settle()
        assert counted(broker)[:2] == (4, 6)
        link.cut()
        link.connect()
        await link.settle()
        await fill(broker, 3, first=10)
        assert await values(reader, 3) == numbers(10, 13)
        reader.count(10, 0, 0)  # the client in front has all that came before
        await link.settle()
        assert counted(broker)[0] == 3
        reader.count(13, 0, 0)
        await link.settle()
        assert counted(broker)[0] == 0


async def test_one_that_says_nothing_has_taken_up_and_asked_beyond_what_was_taken_for_it() -> None:
    async with joined() as (broker, link):
        reader = await opened(link)
        waiting = asyncio.ensure_future(broker.topic("t").publish_and_wait(b"a"))
        assert await values(reader, 1) == [b"a"]
        await link.settle()
        assert not waiting.done()
        reader.pass_all()
        await asyncio.wait_for(waiting, PATIENCE)
        assert (counted(broker)[:2], reader.position) == ((0, 1), 1)


# -- places -----------------------------------------------------------------------------------------------------


async def test_it_resumes_by_position_or_by_sequence() -> None:
    async with joined() as (broker, link):
        await fill(broker, 2, "u")
        await fill(broker, 5)
        (bounds,) = await broker.bounds("t")
        reader = await opened(link, resume=Position(bounds.epoch, 3))
        assert (reader.epoch, reader.position, reader.is_pattern) == (bounds.epoch, 3, False)
        assert await values(reader, 2) == numbers(3, 5)
        assert reader.sent == 5
        many = await opened(link, "*", resume=4)
        assert (many.epoch, many.position, many.is_pattern) == (None, 4, True)
        assert await values(many, 3) == numbers(2, 5)
        assert many.sent == 7


async def test_resuming_wins_over_the_position_of_the_name() -> None:
    async with joined() as (broker, link):
        await fill(broker, 5)
        (bounds,) = await broker.bounds("t")
        reader = await opened(link, name="n")
        reader.leave(1)
        await reader.left()
        assert await values(await opened(link, name="n", resume=Position(bounds.epoch, 4)), 1) == numbers(4, 5)


# -- several ----------------------------------------------------------------------------------------------------


async def test_several_names_and_patterns_are_one_reader_by_sequence_and_a_name_joins_with_its_topic() -> None:
    async with joined() as (broker, link):
        for topic in ("a", "b.x"):
            await broker.topic(topic).declare()
        reader = await opened(link, ("a", "b.*", "later"))
        assert (reader.pattern, reader.is_pattern, reader.epoch) == ("a b.* later", True, None)
        assert await broker.topics() == ["a", "b.x"], "no topic is made for it"
        assert reader.epochs is None, "the server alone knows what it covers"
        for topic in ("a", "c", "b.x", "later", "b.y", "a"):
            await broker.publish(topic, topic)
        assert await values(reader, 5) == [b"a", b"b.x", b"later", b"b.y", b"a"]
        assert reader.sent == 6
        assert reader.end_sequence() is None, "nobody knows here"


async def test_one_name_in_a_list_is_read_by_sequence() -> None:
    async with joined() as (broker, link):
        await broker.publish("u", b"0")
        reader = await opened(link, ["t"], far=False)
        await broker.publish("t", b"1")
        assert await values(reader, 1) == [b"1"]
        assert (reader.is_pattern, reader.sent) == (True, 2)
        with pytest.raises(runnel.InvalidOption, match="start"):
            await opened(link, ["t"], start=3)


async def test_several_go_on_after_a_lost_connection() -> None:
    async with joined() as (broker, link):
        reader = await opened(link, ["a", "later"])
        await broker.publish("a", b"1")
        assert await values(reader, 1) == [b"1"]
        link.cut()
        await broker.publish("later", b"2")
        link.connect()
        await broker.publish("a", b"3")
        assert await values(reader, 2) == [b"2", b"3"]


async def test_a_wrong_name_among_several_is_refused_before_anything_is_sent() -> None:
    async with joined() as (_, link):
        with pytest.raises(runnel.InvalidPattern):
            await opened(link, ["a", "b..c"])
        with pytest.raises(runnel.InvalidPattern):
            await opened(link, "a b")
        assert link.kinds == []


# -- up to a place ----------------------------------------------------------------------------------------------


async def test_it_ends_before_the_offset_that_was_asked_for() -> None:
    async with joined() as (broker, link):
        await fill(broker, 20)
        reader = await opened(link, start=3, until=7)
        assert await values(reader, 99) == numbers(3, 7)
        assert (reader.ended, reader.error, reader.is_cut_off) == (True, None, False)


async def test_a_range_whose_last_records_expired_is_whole() -> None:
    async with joined() as (broker, link):
        await fill(broker, 2)
        await broker.publish("t", b"gone", expires=0.000001)
        reader = await opened(link, start="earliest", until=3)
        assert await values(reader, 99) == numbers(0, 2)
        assert (reader.ended, reader.error, reader.is_cut_off) == (True, None, False)


async def test_one_that_ends_before_its_place_was_cut_off() -> None:
    async with joined(credit=1) as (broker, link):
        for number in range(5):
            await fill(broker, 1, first=number)
            await link.settle(3)
        reader = await opened(link, start="earliest", until=5)
        await link.settle()
        reader.end()
        assert reader.is_cut_off


async def test_it_cannot_end_where_nothing_is_yet() -> None:
    async with joined() as (broker, link):
        await fill(broker, 1)
        with pytest.raises(runnel.OffsetOutOfRange):
            await opened(link, start="earliest", until=2)


async def test_finishing_leaves_what_was_published_and_no_more() -> None:
    async with joined() as (broker, link):
        reader = await opened(link)
        await fill(broker, 3)
        reader.finish()
        await link.settle()
        await fill(broker, 3, first=3)
        assert await values(reader, 99) == numbers(0, 3)
        assert (reader.ended, reader.error) == (True, None)
        assert broker.statistics().subscriptions == ()
        assert FrameKind.CALL in link.kinds


async def test_one_that_knows_its_end_continues_when_it_is_asked_to_finish() -> None:
    async with joined() as (broker, link):
        await fill(broker, 5)
        reader = await opened(link, start="earliest", until=4)
        reader.finish()
        assert await values(reader, 99) == numbers(0, 4)


@pytest.mark.parametrize("when", ["before it was heard", "after it was heard"])
async def test_finishing_over_a_lost_connection_leaves_what_is_here(when: str) -> None:
    async with joined(credit=1) as (broker, link):
        reader = await opened(link)
        for number in range(2):
            await fill(broker, 1, first=number)  # for the second there is no credit
            await link.settle()
        reader.finish()
        if when == "after it was heard":
            await link.settle()
        else:
            await asyncio.sleep(0)
        link.cut()
        link.connect()
        await link.settle()
        assert await values(reader, 99) == numbers(0, 1)
        assert (reader.ended, reader.error) == (True, None)
        assert broker.statistics().subscriptions == ()


@pytest.mark.parametrize("options", [{}, {"policy": "drop_oldest", "buffer": 10}], ids=["eager", "asks"])
async def test_a_stream_that_finds_nothing_is_woken_by_what_comes(options: dict[str, Any]) -> None:
    """`take_step` parks by itself. A reader with a policy is sent nothing before it has asked the server."""
    async with joined() as (broker, link):
        reader = await opened(link, start="earliest", **options)
        steps: SharedSteps = {}
        found: list[bytes] = []
        woken = reader.wake
        assert isinstance(woken, Woken)
        for number in range(3):
            woken.event.clear()
            assert reader.take_step(steps, SLICE) is None
            await fill(broker, 1, first=number)
            async with asyncio.timeout(PATIENCE):
                while (step := reader.take_step(steps, SLICE)) is None:
                    await woken.event.wait()
                    woken.event.clear()
            found += [value for part in step.slices for value in part.values]
        assert found == numbers(0, 3)
        reader.leave()
