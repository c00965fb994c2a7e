"""The system's clock."""

import asyncio
import time

from runnel.runtime.clock import SystemClock


async def test_it_tells_the_time_of_the_system() -> None:
    before = time.time()
    assert before <= SystemClock().time() <= time.time()


async def test_timers_fire_on_the_running_loop_in_order() -> None:
    clock, order = SystemClock(), []
    done = asyncio.get_running_loop().create_future()
    clock.call_later(0.002, lambda: done.set_result(None))
    clock.call_later(0.001, lambda: order.append("first"))
    clock.call_later(0.0, lambda: order.append("at once")).cancel()
    await done
    assert order == ["first"]
