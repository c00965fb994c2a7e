"""Schedules the work of groups: in the next iteration of the event loop, and never for long.

One publish may wake thousands of groups. They take their turns in the order in which they were woken, and after
`SLICE` seconds the rest waits for the next iteration, so that other work of the loop runs in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from runnel.runtime.loop_owner import LoopOwner

SLICE = 0.005


class GroupTurns:
    """The groups of a broker that wait for their turn."""

    __slots__ = ("_is_scheduled", "_loop_owner", "_queue")

    def __init__(self, loop_owner: LoopOwner) -> None:
        self._loop_owner = loop_owner
        self._queue: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def __repr__(self) -> str:
        return f"<GroupTurns, {len(self._queue)} waiting>"

    def add(self, turn: Callable[[], None]) -> bool:
        """Have `turn` called in the next iteration, or soon after it; False: there is no event loop yet."""
        if self._loop_owner.loop is None:
            return False
        self._queue.append(turn)
        self._schedule()
        return True

    def _schedule(self) -> None:
        if not self._is_scheduled:
            assert self._loop_owner.loop is not None, "`add` has checked it"
            self._loop_owner.loop.call_soon(self._run)
            self._is_scheduled = True

    def _run(self) -> None:
        self._is_scheduled = False
        queue = self._queue
        last = perf_counter() + SLICE
        try:
            for _ in range(len(queue)):  # a group that is woken meanwhile has its turn in the next iteration
                queue.popleft()()
                if perf_counter() > last:
                    break
        finally:
            if queue:
                self._schedule()
