"""Durations in fixed buckets: cheap to add to, and of one size for ever."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class HistogramSnapshot(msgspec.Struct, frozen=True):
    """How many durations fell at or below each bound (the last count has no bound), and their sum in seconds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many durations there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """A bound that at least `share` of the durations do not exceed; 0 when there were none."""
        rank, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if count and seen >= rank:
                return bound
        return 0.0


class Histogram:
    """Counts durations."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def snapshot(self) -> HistogramSnapshot:
        """What was counted so far."""
        return HistogramSnapshot(BOUNDS, tuple(self._counts), self._sum)
