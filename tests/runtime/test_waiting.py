"""Waiting with a limit that the broker's clock keeps; and telling those who wait."""

import asyncio

import pytest

from runnel.runtime.waiting import resolve_waiter, wait_all
from runnel.testing.clock import JumpingClock


async def test_nothing_to_wait_for_is_done() -> None:
    assert await wait_all([], None, JumpingClock())


async def test_it_returns_when_the_last_is_done() -> None:
    loop = asyncio.get_running_loop()
    one, two = loop.create_future(), loop.create_future()
    waiting = asyncio.ensure_future(wait_all([one, two], None, JumpingClock()))
    one.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    two.set_exception(ValueError("done all the same"))
    assert await waiting
    assert isinstance(two.exception(), ValueError)


async def test_it_gives_up_when_the_clock_says_so() -> None:
    clock, never = JumpingClock(), asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_all([never], 5, clock))
    await clock.advance(4.9)
    assert not waiting.done()
    await clock.advance(0.1)
    assert await waiting is False
    assert not never.done(), "what was waited for is left alone"


async def test_its_timer_is_called_off_when_it_is_not_needed() -> None:
    clock, soon = JumpingClock(), asyncio.get_running_loop().create_future()
    soon.set_result(None)
    assert await wait_all([soon], 5, clock)
    assert all(timer.callback is None for _, _, timer in clock._timers)


async def test_being_cancelled_leaves_nothing_behind() -> None:
    clock, never = JumpingClock(), asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_all([never], 5, clock))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert not never.done()
    assert all(timer.callback is None for _, _, timer in clock._timers)


async def test_a_waiter_is_notified_once() -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    resolve_waiter(waiter, KeyError("no"))
    resolve_waiter(waiter)
    with pytest.raises(KeyError):
        await waiter


def test_no_waiter_is_notified_on_a_closed_loop() -> None:
    loop = asyncio.new_event_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    waiter.add_done_callback(lambda _: None)
    loop.close()
    resolve_waiter(waiter)
    assert waiter.done()
