"""The port through which a broker knows the time: the system's clock and the one for tests both fit it."""

import asyncio

import pytest

from runnel.core.clock import Clock, Timer
from runnel.runtime.clock import SystemClock
from runnel.testing.clock import JumpingClock


@pytest.mark.parametrize("make", [SystemClock, JumpingClock])
async def test_a_timer_that_was_called_off_does_nothing(make: type[Clock]) -> None:
    clock, fired = make(), []
    timer: Timer = clock.call_later(0, lambda: fired.append("no"))
    timer.cancel()
    timer.cancel()  # harmless
    if isinstance(clock, JumpingClock):
        await clock.advance(1)
    else:
        later = asyncio.get_running_loop().create_future()
        clock.call_later(0, lambda: later.set_result(None))
        await later
    assert fired == []


@pytest.mark.parametrize("make", [SystemClock, JumpingClock])
async def test_time_is_seconds_since_the_unix_epoch(make: type[Clock]) -> None:
    assert make().time() > 1_700_000_000
