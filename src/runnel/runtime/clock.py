"""The system clock, with timers on the running event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from runnel.core.clock import Timer


class SystemClock:
    """The clock that a broker has unless it is given another."""

    time = staticmethod(time.time)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` on the running event loop after `delay` seconds."""
        return asyncio.get_running_loop().call_later(delay, callback)


_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_time() -> float:
    """Seconds of a clock that is never set, and that keeps running while the process or the machine is suspended."""
    return time.clock_gettime(_STEADY)
