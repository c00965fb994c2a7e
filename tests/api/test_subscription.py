"""What every subscription does alike: entered once, read one way, woken, ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import runnel
from runnel.api.subscription import SubscriptionBase
from runnel.core.errors import RunnelError
from runnel.testing import JumpingClock


class Source:
    """What it reads: nothing but whether that is over."""

    label = "counting"
    ended = False
    error: RunnelError | None = None

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def end(self) -> None:
        self.ended = True
        self.wake()


class Counting(SubscriptionBase):
    """Hands out numbers that a test puts in."""

    def __init__(self) -> None:
        super().__init__()
        self._source: Any = Source(self.wake)
        self.numbers: list[int] = []
        self._entered = True

    def put(self, *numbers: int) -> None:
        self.numbers += numbers
        self.wake()

    def one_by_one(self) -> AsyncIterator[int]:
        return self._iterate(self._numbers)

    def two_by_two(self) -> AsyncIterator[int]:
        return self._iterate(self._pairs)

    async def _numbers(self) -> AsyncIterator[int]:
        while not self._source.ended:
            while self.numbers:
                yield self.numbers.pop(0)
            await self._parked()

    async def _pairs(self) -> AsyncIterator[int]:
        yield 0


async def test_a_read_that_was_cancelled_goes_on_where_it_was() -> None:
    reading = Counting()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(reading.one_by_one()), 0.001)
    reading.put(1, 2)
    assert await anext(reading.one_by_one()) == 1
    assert await anext(reading.one_by_one()) == 2


async def test_it_is_read_one_way_at_a_time() -> None:
    reading = Counting()
    reading.put(1)
    await anext(reading.one_by_one())
    with pytest.raises(runnel.SubscriptionMisused, match="one way"):
        reading.two_by_two()


async def test_ending_wakes_whoever_waits_and_the_loop_is_over() -> None:
    reading = Counting()
    seen: list[int] = []

    async def read() -> None:
        seen.extend([number async for number in reading.one_by_one()])

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    reading.put(7)
    await asyncio.sleep(0)
    reading.end()
    await task
    assert seen == [7]


async def test_gathering_waits_for_enough_or_for_the_time() -> None:
    reading, clock = Counting(), JumpingClock()

    def ahead() -> int:
        return len(reading.numbers)

    gathering = asyncio.create_task(reading._gather(ahead, 3, 10.0, clock))
    await clock.advance(60)
    assert not gathering.done(), "nothing is there yet: the time runs from the first"
    reading.put(1)
    await clock.advance(9)
    assert not gathering.done()
    reading.put(2, 3)
    await gathering
    late = asyncio.create_task(reading._gather(ahead, 5, 10.0, clock))
    await clock.advance(10)
    await late


async def test_a_subscription_that_could_not_be_entered_can_be_entered_later() -> None:
    async with runnel.open(auto_create=False) as broker:
        subscription = broker.subscribe("t")
        with pytest.raises(runnel.UnknownTopic):
            await subscription.__aenter__()
        await broker.topic("t").declare()
        async with subscription:
            await broker.publish("t", "x")
            assert (await anext(subscription)).value == b"x"
