"""A clock that a test moves; it then runs every timer that became due."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

START = 1_767_225_600.0  # 2026-01-01T00:00:00Z: any fixed moment does

TURNS = 20  # turns of the loop after each timer: enough for a chain of tasks to come to rest


class JumpingTimer:
    """An action that a `JumpingClock` runs later."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Call it off."""
        self.callback = None


class JumpingClock:
    """Time for tests: `await clock.advance(60)` and a minute has passed, with all that was due in it.

    >>> clock = JumpingClock()
    >>> async with runnel.open(clock=clock) as broker:
    ...     await broker.publish("offers", "today only", expires=3600)
    ...     await clock.advance(3601)  # no waiting
    """

    def __init__(self, start: float = START) -> None:
        self._now = start
        self._timers: list[tuple[float, int, JumpingTimer]] = []
        self._order = count()  # timers due at the same moment fire in the order they were set

    def __repr__(self) -> str:
        return f"<JumpingClock at {self._now:.3f}, {len(self._timers)} timers>"

    def time(self) -> float:
        """Seconds since the Unix epoch, by this clock."""
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> JumpingTimer:
        """Run `callback` once the clock was moved on by `delay` seconds."""
        timer = JumpingTimer(self._now + max(0.0, delay), callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`: timers fire in order, each at its own time, and tasks run in between."""
        if seconds < 0:
            raise ValueError(f"time only moves on, not by {seconds} seconds")
        end = self._now + seconds
        await self._rest()
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            if timer.callback is not None:
                timer.callback()
                await self._rest()
        self._now = end
        await self._rest()

    @staticmethod
    async def _rest() -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
