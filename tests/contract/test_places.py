"""Places of those who read elsewhere: stored together, seen with their lag, and held if they say so."""

from __future__ import annotations

from typing import Any

import pytest

from runnel import Broker
from runnel.core.errors import (
    InvalidName,
    InvalidOption,
    NameInUse,
    NotSupported,
    OffsetOutOfRange,
    TopicDeleted,
    UnknownTopic,
)
from runnel.core.position import Position
from runnel.core.statistics import CursorStatistics
from tests.contract.afar import on_every_socket
from tests.contract.lives import Folder
from tests.contract.reading import values


async def filled(broker: Broker, topic: str = "t", count: int = 10) -> int:
    """A topic with some records; its epoch."""
    span = await broker.topic(topic).publish_many([b"%d" % number for number in range(count)])
    return span[0].epoch


async def test_a_place_is_seen_with_its_lag(broker: Broker) -> None:
    t, u = await filled(broker), await filled(broker, "u", 3)
    await broker.place({"q/t": ("t", Position(t, 4)), "q/u": ("u", Position(u, 3))})
    assert broker.statistics().cursors == (
        CursorStatistics("q/t", "t", 4, 6, False),
        CursorStatistics("q/u", "u", 3, 0, False),
    )
    await broker.publish("u", b"x")
    await broker.place({"q/t": ("t", Position(t, 10))})
    assert [one.lag for one in broker.statistics().cursors] == [0, 1]


async def test_a_subscriber_under_the_same_name_continues_there(broker: Broker) -> None:
    epoch = await filled(broker)
    await broker.place({"me": ("t", Position(epoch, 7))})
    async with broker.subscribe("t", name="me") as subscription:
        assert await values(subscription, 3) == [b"7", b"8", b"9"]
        assert broker.statistics().cursors == ()  # somebody reads under it now
        with pytest.raises(NameInUse):
            await broker.place({"me": ("t", Position(epoch, 1))})
    await broker.place({"me": ("t", Position(epoch, 1))})  # back, too
    async with broker.subscribe("t", name="me") as subscription:
        assert await values(subscription, 1) == [b"1"]


async def test_a_name_that_reads_a_pattern_is_placed_at_a_sequence(broker: Broker) -> None:
    await filled(broker, "t.a", 2)
    await filled(broker, "t.b", 2)
    async with broker.subscribe("t.*", name="me", start="earliest") as subscription:
        third = [await anext(subscription) for _ in range(4)][2]
        with pytest.raises(NameInUse):
            await broker.place({"me": ("t.*", third.sequence)})
    await broker.place({"me": ("t.*", third.sequence)})
    async with broker.subscribe("t.*", name="me") as subscription:
        assert await values(subscription, 2) == [b"0", b"1"]
    for place in (("t.>", 0), ("t.*", 1 << 62)):
        with pytest.raises((InvalidOption, OffsetOutOfRange)):
            await broker.place({"me": place})


async def test_a_named_subscription_that_was_left_is_seen_the_same_way(broker: Broker) -> None:
    await filled(broker)
    async with broker.subscribe("t", name="reader") as one, broker.subscribe("*", name="all") as every:
        await values(one, 4)
        await values(every, 4)
    by_name = {one.name: one for one in broker.statistics().cursors}
    assert by_name["reader"].pattern == "t"
    assert by_name["reader"].place + (by_name["reader"].lag or 0) == 10
    assert by_name["all"].lag is None  # its place is a sequence


async def test_of_a_topic_that_was_made_again_nothing_is_read(broker: Broker) -> None:
    epoch = await filled(broker)
    await broker.place({"q": ("t", Position(epoch, 8))})
    await broker.delete("t")
    assert [one.lag for one in broker.statistics().cursors] == [0]
    await filled(broker, count=5)
    assert [(one.place, one.lag) for one in broker.statistics().cursors] == [(0, 5)]


@on_every_socket
async def test_all_places_are_stored_or_none(broker: Broker) -> None:
    epoch = await filled(broker)
    for wrong in (("none", Position(1, 0)), ("t", Position(epoch, 11)), ("t", Position(epoch + 7, 0))):
        with pytest.raises((UnknownTopic, OffsetOutOfRange, TopicDeleted)):
            await broker.place({"good": ("t", Position(epoch, 1)), "bad": wrong})
    assert broker.statistics().cursors == ()


async def test_a_name_keeps_to_its_topic(broker: Broker) -> None:
    t, u = await filled(broker), await filled(broker, "u")
    await broker.place({"me": ("t", Position(t, 1))})
    with pytest.raises(InvalidOption, match="holds a position on 't'"):
        await broker.place({"me": ("u", Position(u, 1))})
    await broker.forget("me")
    await broker.place({"me": ("u", Position(u, 1))})


@pytest.mark.parametrize(
    ("places", "error"),
    [
        ({"": ("t", Position(1, 0))}, InvalidOption),
        ({"n": ("t", 5)}, InvalidOption),
        ({"n": "t"}, InvalidOption),
        ({"n": ("t.*", Position(1, 0))}, InvalidOption),
        ({"n": ("t..x", Position(1, 0))}, InvalidName),
        ({"n": ("t", Position(1, -1))}, InvalidOption),
        ([("n", "t", Position(1, 0))], InvalidOption),
    ],
)
async def test_what_is_no_place_is_refused(broker: Broker, places: Any, error: type[Exception]) -> None:
    await filled(broker)
    with pytest.raises(error):
        await broker.place(places)


async def test_hold_is_yes_no_or_unsaid(broker: Broker) -> None:
    epoch = await filled(broker)
    with pytest.raises(InvalidOption, match="hold"):
        await broker.place({"n": ("t", Position(epoch, 1))}, hold="yes")  # type: ignore[arg-type]


async def test_memory_holds_nothing(broker: Broker) -> None:
    topic = broker.topic("fleeting", durable=False)
    span = await topic.publish_many([b"x"])
    with pytest.raises(NotSupported, match="memory only"):
        await broker.place({"n": ("fleeting", Position(span[0].epoch, 0))}, hold=True)
    assert broker.statistics().cursors == ()


async def test_a_place_that_holds_keeps_what_lies_behind_it(folder: Folder) -> None:
    async with folder.life() as broker:
        epoch = await filled(broker, count=100)
        await broker.place({"q": ("t", Position(epoch, 40))}, hold=True)
        with pytest.raises(Exception, match="held"):
            await broker.topic("t").trim(60)
        assert await broker.topic("t").trim(40) == 40
        await broker.place({"q": ("t", Position(epoch, 60))})  # it moves, and goes on holding
        assert await broker.topic("t").trim(60) == 60
        with pytest.raises(Exception, match="held"):
            await broker.topic("t").trim(61)
    async with folder.life() as broker:  # in the next life, too
        assert broker.statistics().cursors == (CursorStatistics("q", "t", 60, 40, True),)
        with pytest.raises(Exception, match="held"):
            await broker.topic("t").trim(61)
        await broker.place({"q": ("t", Position(epoch, 60))}, hold=False)
        assert await broker.topic("t").trim(61) == 61
    async with folder.life() as broker:
        assert [one.hold for one in broker.statistics().cursors] == [False]


async def test_a_place_is_durable_when_it_is_stored(folder: Folder) -> None:
    async with folder.life() as broker:
        epoch = await filled(broker)
        await broker.place({f"q/{number}": ("t", Position(epoch, number)) for number in range(10)})
        path = folder.copy().path  # as it is on disk this very moment
    found = Folder(path, folder.clock, killed=False)
    async with found.life() as broker:
        assert [one.place for one in broker.statistics().cursors] == [*range(10)]
