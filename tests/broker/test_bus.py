"""What the parts of a broker share."""

import asyncio

import pytest

from runnel.broker.broker import Broker
from runnel.broker.bus import Bus
from runnel.broker.gate import TURN
from runnel.core.errors import BrokerClosed
from runnel.testing import JumpingClock


async def test_a_publisher_pauses_when_its_turn_is_over() -> None:
    async with Broker() as broker:
        log = broker._bus.catalog.find("t")
        await broker.topic("t").publish_many([b"x"] * (TURN - 1))
        assert not broker._bus.is_turn_over(log)
        broker.topic("t").publish_nowait(b"x")
        assert broker._bus.is_turn_over(log)
        await asyncio.sleep(0)
        assert not broker._bus.is_turn_over(log)
        async with broker.subscribe("t", buffer=10):
            await broker.topic("t").publish_many([b"x"] * 5)
            assert not broker._bus.is_turn_over(log), "it has paused"


async def test_settling_reaches_every_reader_of_a_pattern() -> None:
    async with Broker() as broker, broker.subscribe("*", buffer=1) as subscription:
        await broker.topic("t").publish_many([b"x"] * 5)
        broker._bus.settle_readers()
        assert subscription.flow.missed is not None
        assert subscription.flow.missed.count == 4


async def test_numbers_are_given_once() -> None:
    broker = Broker()
    assert [broker._bus.next_number() for _ in range(3)] == [1, 2, 3]


async def test_closing_ends_readers_refuses_publishers_and_may_be_repeated() -> None:
    async with Broker() as broker, broker.subscribe("t", policy="block", buffer=1) as records:
        await broker.publish("t", b"x")
        waiting = asyncio.create_task(broker.publish("t", b"y"))
        await asyncio.sleep(0)
        broker._bus.close()
        broker._bus.close()
        with pytest.raises(BrokerClosed):
            await waiting
        assert [record.value async for record in records] == [b"x"]


async def test_only_readers_of_this_life_of_the_topic_are_watched() -> None:
    bus = Bus(auto_create=True, clock=JumpingClock())
    log = bus.catalog.find("t")
    assert bus.watch(log, log.position(0)) == {}
