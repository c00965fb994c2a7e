"""Streams that have something to do, served in rounds: one callback wakes all of them, some at a time.

What a turn of the loop published is one serving for a stream. Those that stand at the same place are served side
by side, and share what the first of them found (`Steps`). Between two handfuls others on the loop have their turn.
Below: broker.step. Above: stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from runnel.broker.step import Steps

HANDFUL = 64  # streams that are served before others on the loop have their turn


class Served(Protocol):
    """Who waits to be served."""

    def serve(self, steps: Steps) -> None:
        """Do what there is to do, up to a bound. It raises nothing."""


class Rounds:
    """Who is to be served, in the order in which they were woken."""

    def __init__(self) -> None:
        self._woken: deque[Served] = deque()
        self._under_way = False

    def add(self, one: Served) -> None:
        """Serve this one soon. Whoever waits already must not be added again."""
        self._woken.append(one)
        if not self._under_way:
            self._under_way = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """A handful. What one of them found the others take over: nothing can happen in between."""
        steps: Steps = {}
        woken = self._woken
        try:
            for _ in range(min(HANDFUL, len(woken))):
                woken.popleft().serve(steps)
        finally:  # whatever one of them does, the others are served
            self._under_way = bool(woken)
            if woken:
                asyncio.get_running_loop().call_soon(self._serve)
