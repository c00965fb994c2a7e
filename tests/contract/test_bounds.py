"""Where topics begin and end: told the same wherever the broker lives."""

from datetime import UTC, datetime, timedelta

import pytest

from runnel import Broker
from runnel.core.errors import InvalidOption, InvalidPattern
from tests.contract.afar import on_every_socket


@on_every_socket
async def test_bounds_are_reported_by_name(broker: Broker) -> None:
    first, last = await broker.topic("b").publish_many([b"12345"] * 10)
    await broker.publish("a.x", b"")
    one, two = await broker.bounds()
    assert (one.topic, two.topic) == ("a.x", "b")
    assert (two.epoch, two.first, two.end) == (first.epoch, 0, last.offset + 1)
    assert (two.bytes, two.record_bytes, two.at, two.schema) == (50, 5.0, None, None)
    assert two.durable == broker.is_durable
    assert [one.topic for one in await broker.bounds("a.*", "c")] == ["a.x"]
    assert await broker.bounds("c") == []


async def test_bounds_tell_where_a_time_lies(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"x"] * 10)
    now = datetime.fromtimestamp(broker.clock.time(), UTC)
    for time, at in ((now - timedelta(hours=1), 0), (now + timedelta(hours=1), 10)):
        (bounds,) = await broker.bounds("t", time=time)
        assert bounds.at == at


async def test_what_was_trimmed_is_not_within_them(broker: Broker) -> None:
    await broker.topic("t").publish_many([b"x"] * 10)
    await broker.topic("t").trim(4)
    (bounds,) = await broker.bounds("t")
    assert (bounds.first, bounds.end, bounds.bytes) == (4, 10, 6)


async def test_what_makes_no_sense_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidPattern):
        await broker.bounds("a..b")
    with pytest.raises(InvalidOption, match="zone"):
        await broker.bounds("a", time=datetime(2026, 1, 1))


async def test_a_typed_topic_tells_its_schema(broker: Broker) -> None:
    await broker.topic("n", int).publish(5)
    (bounds,) = await broker.bounds("n")
    assert bounds.schema is not None
    assert (bounds.schema.encoding, bounds.schema.schema) == ("json", {"type": "integer"})


@on_every_socket
async def test_bounds_tell_where_a_sequence_lies_in_every_topic(broker: Broker) -> None:
    for number in range(20):
        await broker.topic("abc"[number % 3]).publish_many([b"x"] * (1 + number % 4))
    async with broker.subscribe("*", start="earliest") as records:
        published = [await anext(records) for _ in range(50)]
    first = published[0].sequence
    for sequence in range(first, first + 52):
        later = [one for one in published if one.sequence >= sequence]
        for bounds in await broker.bounds("*", sequence=sequence):
            due = [one.offset for one in later if one.topic == bounds.topic]
            assert bounds.at == (due[0] if due else bounds.end)


async def test_a_question_is_about_a_time_or_a_sequence(broker: Broker) -> None:
    with pytest.raises(InvalidOption, match="not both"):
        await broker.bounds("a", time=datetime.now(UTC), sequence=3)
    with pytest.raises(InvalidOption, match="0 or more"):
        await broker.bounds("a", sequence=-1)
