"""The last hours of some figures, at even steps, in a bounded amount of memory: the data of the console's charts.

A value is kept in the slot of its time, so that a pause leaves a hole and moves nothing. Days are for analytics, which
reads telemetry from a topic; the ring ends with the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import isnan, nan

Key = tuple[str, str, str]
"""The subject of a value: kind ("totals", "topic", "group", "subscription"), name, and figure."""

MOST_SERIES = 1_000  # of 2,160 floats of 4 bytes: about 9 MB


class SampleRing:
    """`add(time, values)` at every step; `read` returns means over longer steps."""

    def __init__(self, step: float, kept: float, most: int = MOST_SERIES) -> None:
        self.step, self._slots, self._most = step, int(kept / step), most
        self._series: dict[Key, array[float]] = {}
        self._seen: dict[Key, int] = {}  # the last slot of each that has a value
        self._last = -1  # the number of the last slot, since 1970

    def __len__(self) -> int:
        return len(self._series)

    def add(self, time: float, values: Mapping[Key, float]) -> None:
        """Keep `values`. Series without a value for the longest make room for new ones."""
        now = int(time / self.step)
        if now <= self._last:
            return  # a clock that was put back: existing values stay
        for slot in range(max(self._last + 1, now - self._slots + 1), now + 1):
            for known in self._series.values():
                known[slot % self._slots] = nan
        self._last = now
        for key, value in values.items():
            series = self._series.get(key) or self._new(key, now)
            if series is not None:
                series[now % self._slots] = value
                self._seen[key] = now

    def _new(self, key: Key, now: int) -> array[float] | None:
        if len(self._series) >= self._most:
            oldest = min(self._seen, key=self._seen.__getitem__)
            if self._seen[oldest] >= now - 1:
                return None  # all of them are in use
            del self._series[oldest], self._seen[oldest]
        found = self._series[key] = array("f", [nan]) * self._slots
        return found

    def read(self, kind: str, name: str, time: float, seconds: float, points: int) -> dict[str, list[float | None]]:
        """The figures of one thing in the last `seconds`, each as so many points; None where nothing was sampled."""
        slots = min(self._slots, int(seconds / self.step))
        width = max(1, slots // points)
        end = int(time / self.step) + 1
        first = end - slots
        found = {}
        for (of, named, figure), series in self._series.items():
            if (of, named) != (kind, name):
                continue
            oldest = max(first, self._last - self._slots + 1)
            values = []
            for start in range(first, end, width):
                some = [
                    value
                    for slot in range(start, min(start + width, end))
                    if oldest <= slot <= self._last and not isnan(value := series[slot % self._slots])
                ]
                values.append(round(sum(some) / len(some), 4) if some else None)
            found[figure] = values
        return found
