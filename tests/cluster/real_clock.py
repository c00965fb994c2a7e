"""The clock of a real server, for tests that are written for one that they move: it is waited for."""

from __future__ import annotations

import asyncio
import time

from runnel.testing.clock import JumpingClock

MOMENT = 0.1  # seconds for the cluster to do what is due


class RealClock(JumpingClock):
    """Its `advance` takes the time that it says."""

    def time(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    async def advance(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds + MOMENT)
