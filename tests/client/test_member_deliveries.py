"""Deliveries of a server: checked here and at once, whatever the server knows by then."""

from collections.abc import Callable
from typing import Any

import pytest

import runnel
from tests.client.memory_link import joined
from tests.client.test_member import fill, look, member, take

SETTLE: dict[str, Callable[[Any], Any]] = {
    "ack": lambda delivery: delivery.ack(),
    "nack": lambda delivery: delivery.nack(),
    "reject": lambda delivery: delivery.reject("no"),
    "extend": lambda delivery: delivery.extend(5),
}


@pytest.mark.parametrize("first", ["ack", "nack", "reject"])
@pytest.mark.parametrize("again", SETTLE)
async def test_settling_twice_is_refused_before_the_server_is_asked(first: str, again: str) -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        delivery = await anext(deliveries)
        SETTLE[first](delivery)
        assert (delivery.settled, delivery.lapsed) == (True, False)
        with pytest.raises(runnel.AlreadySettled):
            SETTLE[again](delivery)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
async def test_times_that_are_none_are_refused_and_change_nothing(seconds: float) -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        delivery = await anext(deliveries)
        with pytest.raises(runnel.InvalidOption):
            delivery.nack(seconds)
        with pytest.raises(runnel.InvalidOption):
            delivery.extend(seconds)
        assert not delivery.settled


async def test_a_batch_of_which_some_lapsed_acks_the_rest_and_says_so() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 2, key="k")
        await broker.publish("t", b"other")
        await link.settle()
        batch = await anext(deliveries.batches())
        batch._parts[0].lease.ended = True
        with pytest.raises(runnel.LeaseEnded):
            batch.ack()
        await link.settle()
        assert look(broker).acked == len(batch) - 1


async def test_a_batch_is_nacked_and_rejected_where_it_is_open() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await broker.topic("t").publish_many([b"0", b"1", b"2"])
        batch = await anext(deliveries.batches())
        assert repr(batch) == "<DeliveryBatch of 3 records>"
        await next(iter(batch)).ack()
        await batch.reject("no")
        await batch.nack()
        await link.settle()
        assert (look(broker).acked, look(broker).dead_lettered) == (1, 2)


async def test_in_memory_no_ack_is_durable() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        (delivery,) = await take(deliveries, 1)
        with pytest.raises(runnel.NotSupported, match="durable ack"):
            delivery.ack(durable=True)
        assert not delivery.settled
