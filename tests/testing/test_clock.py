"""The clock that jumps: timers in order, each at its own time, and no waiting."""

from __future__ import annotations

import asyncio

import pytest

import runnel
from runnel.testing import JumpingClock


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = JumpingClock(start=100.0)
    await asyncio.sleep(0)
    assert clock.time() == 100.0
    await clock.advance(2.5)
    assert clock.time() == 102.5


async def test_timers_fire_in_order_each_at_its_own_time() -> None:
    clock = JumpingClock(start=0.0)
    fired: list[tuple[str, float]] = []
    for name, delay in (("late", 3.0), ("early", 1.0), ("also early", 1.0), ("too late", 10.0)):
        clock.call_later(delay, lambda name=name: fired.append((name, clock.time())))  # type: ignore[misc]
    await clock.advance(5)
    assert fired == [("early", 1.0), ("also early", 1.0), ("late", 3.0)]


async def test_a_timer_set_by_a_timer_fires_in_the_same_jump() -> None:
    clock = JumpingClock(start=0.0)
    fired: list[float] = []

    def again() -> None:
        fired.append(clock.time())
        clock.call_later(1, again)

    clock.call_later(1, again)
    await clock.advance(3.5)
    assert fired == [1.0, 2.0, 3.0]


async def test_a_cancelled_timer_does_not_fire() -> None:
    clock = JumpingClock()
    fired: list[int] = []
    clock.call_later(1, lambda: fired.append(1)).cancel()
    await clock.advance(2)
    assert not fired


async def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="only moves on"):
        await JumpingClock().advance(-1)


async def test_a_broker_on_it_stamps_its_time_and_keeps_its_timeouts() -> None:
    clock = JumpingClock(start=1000.0)
    async with runnel.open(clock=clock) as broker, broker.subscribe("t") as records:
        await broker.publish("t", "x")
        assert (await anext(records)).time.timestamp() == 1000.0
        asked = asyncio.create_task(broker.request("t", "anyone?", timeout=30))
        await clock.advance(29)
        assert not asked.done()
        await clock.advance(1)
        with pytest.raises(runnel.RequestTimeout):
            await asked
