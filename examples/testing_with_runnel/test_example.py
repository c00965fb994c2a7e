"""Tests of a small service, with the fixtures that runnel brings: `runnel_broker` and `runnel_clock`.

Nothing here sleeps. `publish_and_wait` returns when every subscriber has processed the record, and the
clock of the fixture moves only when the test moves it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import runnel
from runnel.testing import JumpingClock

pytestmark = pytest.mark.asyncio  # not needed with `asyncio_mode = "auto"`


# The service under test: it confirms orders, and answers how many there were.


@asynccontextmanager
async def order_service(broker: runnel.Broker) -> AsyncIterator[None]:
    seen = 0

    async def confirm() -> None:
        nonlocal seen
        async for order in orders:
            seen += 1
            await broker.publish("confirmations", b"confirmed " + order.value)

    async def count() -> None:
        async for question in questions:
            await broker.reply(question, str(seen))

    async with broker.subscribe("orders") as orders, broker.subscribe("orders.count") as questions:
        tasks = asyncio.create_task(confirm()), asyncio.create_task(count())
        yield
    await asyncio.gather(*tasks)  # their loops end with the block


# The tests.


async def test_an_order_is_confirmed(runnel_broker: runnel.Broker) -> None:
    async with runnel_broker.subscribe("confirmations") as confirmations, order_service(runnel_broker):
        await runnel_broker.topic("orders").publish_and_wait("tea")
        assert (await anext(confirmations)).value == b"confirmed tea"


async def test_orders_are_counted(runnel_broker: runnel.Broker) -> None:
    async with order_service(runnel_broker):
        for drink in ("tea", "coffee"):
            await runnel_broker.topic("orders").publish_and_wait(drink)
        assert (await runnel_broker.request("orders.count", "?")).value == b"2"


async def test_a_subscriber_that_hangs_is_named(runnel_broker: runnel.Broker, runnel_clock: JumpingClock) -> None:
    async with runnel_broker.subscribe("orders", name="warehouse"):  # and never reads
        publishing = asyncio.create_task(runnel_broker.topic("orders").publish_and_wait("tea", timeout=60))
        await runnel_clock.advance(60)
        with pytest.raises(runnel.Stalled, match="warehouse"):
            await publishing


async def test_an_offer_is_gone_after_its_hour(runnel_broker: runnel.Broker, runnel_clock: JumpingClock) -> None:
    await runnel_broker.publish("offers", "tea, half price", expires=3600)
    await runnel_broker.publish("offers", "coffee")
    await runnel_clock.advance(3601)
    async with runnel_broker.subscribe("offers", start="earliest") as offers:
        assert (await anext(offers)).value == b"coffee"
