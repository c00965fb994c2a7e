"""Durations in fixed buckets: cheap to add to, and of one size for ever."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

# Of work: handlers.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Of a disk: a fast one syncs in a tenth of a millisecond, and one that is in trouble takes seconds.
SYNC_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


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

    def since(self, earlier: HistogramSnapshot) -> HistogramSnapshot:
        """What was counted after `earlier`, a snapshot of the same histogram."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return HistogramSnapshot(self.bounds, counts, self.sum - earlier.sum)


class Histogram:
    """Counts durations. One thread adds; any may take a snapshot."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def snapshot(self) -> HistogramSnapshot:
        """What was counted so far."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)
