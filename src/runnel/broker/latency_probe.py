"""Measures how long records take to be delivered and acked, of a few records only.

A reader compares its count of records with `at` and calls `measure` only when it has passed that. The probe chooses
the next count so that a busy reader is measured about every 20 ms, and a quiet one at every record.
"""

from __future__ import annotations

from runnel.core.statistics import Histogram
from runnel.core.telemetry import LATENCY_BOUNDS

FREQUENT = 0.01  # seconds between two measurements: half as many from then on
SELDOM = 0.1  # twice as many
MAX_STRIDE = 1 << 20  # records


class LatencyProbe:
    """Measures records of one reader into a histogram."""

    __slots__ = ("_last", "_stride", "histogram", "measured", "since")

    def __init__(self, histogram: Histogram, since: float) -> None:
        self.histogram, self.since = histogram, since  # records published before `since` do not count
        self.measured = 0  # since telemetry last looked
        self._last, self._stride = since, 1

    @classmethod
    def new(cls, since: float) -> LatencyProbe:
        """One with a histogram of its own."""
        return cls(Histogram(LATENCY_BOUNDS), since)

    def measure(self, began: float, now: float, count: int) -> int:
        """A record, the reader's `count`-th, took from `began` to `now`; at which count to measure the next."""
        if began >= self.since:
            self.histogram.add(max(0.0, now - began))
        self.measured += 1
        passed, self._last = now - self._last, now
        if passed < FREQUENT:
            self._stride = min(MAX_STRIDE, self._stride * 2)
        elif passed > SELDOM and self._stride > 1:
            self._stride //= 2
        return count + self._stride

    def is_asleep(self) -> bool:
        """Whether nothing was measured since the last call: the reader was fast, and is slow now."""
        asleep, self.measured = not self.measured, 0
        if asleep:
            self._stride = 1
        return asleep
