"""The broker itself: what it ties together."""

import asyncio

import pytest

import runnel
from runnel.broker.broker import Broker
from runnel.broker.gate import TURN
from runnel.core.errors import NotSupported


async def test_a_publisher_pauses_when_its_turn_is_over() -> None:
    async with Broker() as broker:
        log = broker.catalog.find("t")
        await broker.topic("t").publish_many([b"x"] * (TURN - 1))
        assert not broker.is_turn_over(log)
        broker.topic("t").publish_nowait(b"x")
        assert broker.is_turn_over(log)
        await asyncio.sleep(0)
        assert not broker.is_turn_over(log)
        async with broker.subscribe("t", buffer=10):
            await broker.topic("t").publish_many([b"x"] * 5)
            assert not broker.is_turn_over(log), "it has paused"


async def test_settling_reaches_every_reader_of_a_pattern() -> None:
    async with Broker() as broker, broker.subscribe("*", buffer=1) as subscription:
        await broker.topic("t").publish_many([b"x"] * 5)
        broker.settle_readers()
        assert subscription.flow.missed is not None
        assert subscription.flow.missed.count == 4


async def test_a_pattern_that_never_reads_survives_the_compaction_of_the_timeline() -> None:
    async with Broker() as broker, broker.subscribe("*", buffer=10) as subscription:
        for number in range(3000):
            name = f"t{number % 3}"
            broker.topic(name, retention_count=1).publish_nowait(b"%d" % number)
        broker.close()
        records = [record async for record in subscription]
    missed = sum(record.gap.count or 0 for record in records if record.gap)
    assert missed + len(records) == 3000
    assert [record.value for record in records] == [b"2997", b"2998", b"2999"]


async def test_it_says_what_it_is() -> None:
    broker = Broker()
    async with broker, broker.subscribe("t"):
        assert repr(broker) == "<Broker in memory, open, 1 topics, 1 readers>"
    assert "closed" in repr(broker)


async def test_numbers_are_given_once() -> None:
    broker = Broker()
    assert [broker.next_number() for _ in range(3)] == [1, 2, 3]


def test_without_a_loop_it_says_what_to_use() -> None:
    with pytest.raises(NotSupported, match=r"runnel\.blocking"):
        runnel.open().topic("t").publish_nowait(b"x")
