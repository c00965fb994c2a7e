"""Latencies, and what they say: percentiles, not averages. Bounded, however long a run is."""

from __future__ import annotations

import random
from collections.abc import Iterable

PERCENTILES = (50.0, 90.0, 99.0)
MAX_SAMPLES = 100_000


class Samples:
    """Numbers of which a fair sample is kept: each that was ever added is in it with the same chance."""

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self._most, self._seen, self._largest = most, 0, 0.0
        self._kept: list[float] = []
        self._chance = random.Random(0)

    def add(self, value: float) -> None:
        """One more."""
        self._seen += 1
        self._largest = max(self._largest, value)
        if len(self._kept) < self._most:
            self._kept.append(value)
        elif (at := self._chance.randrange(self._seen)) < self._most:
            self._kept[at] = value

    def values(self) -> list[float]:
        """Those that were kept, with the largest of all among them."""
        return [*self._kept, self._largest] if self._kept else []


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p90, p99 and the largest; None where there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    last = len(ordered) - 1
    found = {f"p{one:g}": ordered[round(one / 100 * last)] for one in PERCENTILES}
    return found | {"max": ordered[-1]}


def human_latency(seconds: float) -> str:
    """`1.25 ms`, `83 µs`, `2.1 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
