"""A reader of a broker in this process: its options, its position, how it sleeps and ends."""

from collections.abc import Callable
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.broker.read.reader import LocalReader
from runnel.core.backend import SLICE
from runnel.core.errors import Disconnected, InvalidName, InvalidOption, InvalidPattern, SubscriptionMisused
from runnel.core.options import SubscribeOptions
from runnel.core.position import Position
from tests.brokers import local_broker


def reader(broker: Broker, pattern: str = "t", wake: Callable[[], None] = lambda: None, **options: Any) -> LocalReader:
    found: LocalReader = broker.backend.reader(pattern, SubscribeOptions.of(options), wake)
    return found


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"buffer": 0}, InvalidOption),
        ({"buffer_bytes": -1}, InvalidOption),
        ({"name": ""}, InvalidOption),
        ({"start": "soon"}, InvalidOption),
        ({"dead_letter": "a..b"}, InvalidName),
        ({"dead_letter": "t"}, InvalidOption),
    ],
)
def test_options_are_checked_before_anything_happens(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        reader(local_broker(), "t", **options)


def test_a_wrong_pattern_is_refused() -> None:
    with pytest.raises(InvalidPattern):
        reader(local_broker(), "t.>.x")


def test_a_label_is_the_name_or_a_number_of_its_own() -> None:
    broker = local_broker()
    assert reader(broker, name="billing").label == "billing"
    labels = {reader(broker).label for _ in range(3)}
    assert len(labels) == 3
    assert all(label.startswith("t#") for label in labels)


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_a_name_keeps_is_the_first_record_not_asked_beyond(pattern: str) -> None:
    async with local_broker() as broker:
        await broker.topic("u").publish_many([b"x"] * 10)  # sequences differ from offsets
        position = (await broker.topic("t").publish_many([b"a", b"b", b"c"])).first
        at = [Position(position.epoch, n) if pattern == "t" else 10 + n for n in range(4)]
        async with broker.subscribe(pattern, name="n", start=0 if pattern == "t" else None) as subscription:
            if pattern == "*":
                for _ in range(10):
                    await anext(subscription)
            await anext(subscription)
        assert broker.backend.positions.stored["n"] == (pattern, at[0])
        async with broker.subscribe(pattern, name="n") as subscription:
            assert (await anext(subscription)).value == b"a"
            assert (await anext(subscription)).value == b"b"
        assert broker.backend.positions.stored["n"] == (pattern, at[1])
        async with broker.subscribe(pattern, name="n") as subscription:
            await anext(subscription.batches(max_records=2))
            assert subscription.position == (1 if pattern == "t" else 11)
        assert broker.backend.positions.stored["n"] == (pattern, at[1])


async def test_a_name_is_free_again_after_a_start_that_failed() -> None:
    async with local_broker() as broker:
        subscription = broker.subscribe("t", name="n", start=99)
        with pytest.raises(Exception, match="not 99"):
            await subscription.__aenter__()
        backend = broker.backend
        assert (backend.positions.open, list(backend.readers), backend.positions.stored) == ({}, [], {})
        async with broker.subscribe("t", name="n"):
            assert list(broker.backend.positions.open) == ["n"]


async def test_leaving_what_was_never_entered_is_harmless() -> None:
    async with local_broker() as broker:
        reader(broker, name="n").leave()
        assert broker.backend.positions.stored == {}


async def test_it_is_entered_once_and_knows_nothing_before() -> None:
    async with local_broker() as broker:
        made = reader(broker)
        assert repr(made) == "<LocalReader 't#1' not entered, taken up to 0, confirmed up to 0>"
        assert made.take(SLICE) is None
        with pytest.raises(SubscriptionMisused, match="enter it first"):
            _ = made.lag
        made.enter()
        with pytest.raises(SubscriptionMisused, match="entered before"):
            made.enter()
        await broker.publish("t", b"x")
        made.take(SLICE)
        assert repr(made) == "<LocalReader 't#1' open, taken up to 1, confirmed up to 0>"
        made.end()
        assert "ended" in repr(made)


async def test_a_parked_reader_is_woken_once_per_run() -> None:
    async with local_broker() as broker:
        woken: list[None] = []
        made = reader(broker, wake=lambda: woken.append(None))
        made.enter()
        made.park()
        topic = broker.topic("t")
        for value in (b"x", b"y"):
            topic.publish_nowait(value)
        assert len(woken) == 1
        taken = made.take(SLICE)
        assert taken is not None
        assert [part.values for part in taken.slices] == [(b"x", b"y")]


async def test_ending_twice_keeps_the_first_reason_and_gives_nothing_more() -> None:
    async with local_broker() as broker:
        made = reader(broker, name="n")
        made.enter()
        await broker.publish("t", b"x")
        made.disconnect(5)
        made.end()
        assert isinstance(made.error, Disconnected)
        assert made.error.drops == 5
        assert made.take(SLICE) is None
        assert list(broker.backend.readers) == []


async def test_who_has_left_takes_nothing_though_it_is_there() -> None:
    async with local_broker() as broker:
        ended, left = reader(broker), reader(broker)
        for one in (ended, left):
            one.enter()
        await broker.publish("t", b"x")
        ended.end()
        left.leave()
        assert ended.take(SLICE) is not None
        assert left.take(SLICE) is None


async def test_what_drop_newest_put_aside_is_where_it_stands() -> None:
    async with local_broker() as broker:
        made = reader(broker, policy="drop_newest", buffer=1)
        made.enter()
        await broker.topic("t").publish_many([b"a", b"b", b"c"])
        assert made.position == 0
