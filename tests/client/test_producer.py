"""Numbered publishes to a server: what is sent again is stored once."""

import asyncio
from typing import Any

import pytest

import runnel


async def test_a_number_that_is_sent_again_has_its_first_position(remote: Any) -> None:
    producer = remote.producer("import")
    first = await producer.publish("t", b"0", sequence=0)
    span = await producer.publish_many("t", [b"1", b"2"], sequence=1)
    assert (producer.next, remote.producer("import").next) == (3, 3)
    assert await producer.publish("t", b"0", sequence=0) == first
    assert (await producer.publish_many("t", [b"1", b"2"], sequence=1)) == span
    assert remote.statistics().topics["t"].end == 3


async def test_without_numbers_they_are_given_in_order_though_many_publish_at_once(remote: Any) -> None:
    for producer in (remote.producer(), remote.producer("named")):
        before = 0 if producer.name is None else 20
        positions = await asyncio.gather(*(producer.publish("t", b"%d" % number) for number in range(20)))
        assert [position.offset for position in positions] == list(range(before, before + 20))
        assert producer.next == 20


async def test_two_handles_of_a_name_go_on_behind_each_other(remote: Any) -> None:
    one, two = remote.producer("n"), remote.producer("n")
    for number, producer in enumerate((one, two, one)):
        assert (await producer.publish("t", b"x")).offset == number


async def test_a_number_that_leaves_others_out_is_a_gap(remote: Any) -> None:
    producer = remote.producer("n")
    await producer.publish("t", b"0")
    with pytest.raises(runnel.SequenceGap):
        await producer.publish("t", b"5", sequence=5)
    assert (await producer.publish("t", b"1")).offset == 1


@pytest.mark.parametrize("wrong", [-1, True, "0", 2**63])
async def test_what_is_no_number_is_refused(remote: Any, wrong: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="sequence"):
        await remote.producer("n").publish("t", b"0", sequence=wrong)


async def test_names_and_topics_are_checked(remote: Any) -> None:
    for name in ("", "x" * 257, 5):
        with pytest.raises(runnel.InvalidOption):
            remote.producer(name)
    async with runnel.open() as other:
        with pytest.raises(runnel.InvalidOption, match="another broker"):
            await remote.producer("n").publish(other.topic("t"), b"0")
    assert repr(remote.producer("n")) == "<Producer 'n'>"


async def test_a_publish_given_up_on_its_way_does_not_lend_its_number_to_the_next(remote: Any) -> None:
    producer = remote.producer()
    await producer.publish("t", b"0")
    given_up = asyncio.ensure_future(producer.publish("t", b"1"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert remote.backend.link.publishing.outbox._sent, "it is on its way"
    given_up.cancel()
    await asyncio.wait([given_up])
    position = await producer.publish("t", b"2")
    async with remote.subscribe("t", start=position) as records:
        assert (await anext(records)).value == b"2"
