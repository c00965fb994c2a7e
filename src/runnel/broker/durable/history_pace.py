"""How fast readers of history read beside live traffic: decides when the next chunk may be read. Time is an argument.

Without live traffic nothing is held back. With it, readers of history get a share of the bytes that the broker moves,
and never less than `LEAST_RATE`.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

LEAST_RATE = 16 << 20
"""Bytes a second that readers of history may always read, all together."""

WINDOW = 0.05
"""Seconds over which live traffic is measured."""

BATCH_SECONDS, RECORD_SECONDS = 2e-4, 5e-6
"""Live traffic is full at 5,000 batches a second, at 200,000 records a second, or at some of each.

Below that, history is held back in proportion: a hundred messages a second hardly slow down a reader that catches up. A
full machine publishes more than this even where it has to compete with readers of history for its processors."""


class LiveTraffic(NamedTuple):
    """Records published since the broker was opened."""

    records: int
    batches: int
    bytes: int


class HistoryPace:
    """The share that history gets: from 0, exclusive, to 1, which is all that it can take."""

    __slots__ = ("_activity", "_free_at", "_rate", "_since", "_traffic", "share")

    def __init__(self, share: float, traffic: LiveTraffic, now: float) -> None:
        self.share = share
        self._traffic, self._since = traffic, now
        self._activity = 0.0  # of live traffic: 1 is full
        self._rate = inf  # bytes a second that history may read beside full live traffic
        self._free_at = now  # when the next chunk may be read

    def __repr__(self) -> str:
        return f"<HistoryPace of {self.share:g}, live traffic {self._activity:.0%}>"

    def wait(self, traffic: LiveTraffic, now: float) -> float:
        """Seconds until the next chunk may be read, or until the next call; 0: read it now."""
        elapsed = now - self._since
        if elapsed >= WINDOW:
            self._measure(traffic, elapsed)
            self._traffic, self._since = traffic, now
        if self._activity == 0 or self._free_at <= now:
            return 0.0
        return min(self._free_at - now, WINDOW)

    def read(self, size: int, now: float) -> None:
        """A chunk of so many bytes is read for a reader of history."""
        self._free_at = max(self._free_at, now) + self._activity * size / self._rate

    def _measure(self, traffic: LiveTraffic, elapsed: float) -> None:
        records, batches, size = (now - before for now, before in zip(traffic, self._traffic, strict=True))
        activity = min(1.0, (batches * BATCH_SECONDS + records * RECORD_SECONDS) / elapsed)
        if self.share >= 1 or not activity:
            self._activity, self._free_at = 0.0, 0.0  # what it was to wait for is over
            return
        self._activity = activity
        self._rate = max(LEAST_RATE, size / elapsed * self.share / (1 - self.share))
