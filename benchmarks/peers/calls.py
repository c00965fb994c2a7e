"""Plain function calls: no queue, no loop, no isolation. The floor, not a peer."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.harness import Figures
from benchmarks.load import Load, Tally, counted


async def one_by_one(load: Load) -> Figures:
    """Call each subscriber with each value."""
    tallies, receivers = _receivers(load.subscribers)
    values = load.values
    begun = time.perf_counter()
    for value in values:
        for receive in receivers:
            receive(value)
    return counted(load, time.perf_counter() - begun, tallies)


async def in_lists(load: Load) -> Figures:
    """Call each subscriber with each list."""
    tallies = [Tally() for _ in range(load.subscribers)]

    def receiver(tally: Tally) -> Callable[[list[bytes]], None]:
        def receive(values: list[bytes]) -> None:
            tally.values += len(values)
            tally.batches += 1

        return receive

    receivers = [receiver(tally) for tally in tallies]
    chunks = load.chunks()
    begun = time.perf_counter()
    for chunk in chunks:
        for receive in receivers:
            receive(chunk)
    return counted(load, time.perf_counter() - begun, tallies)


def _receivers(count: int) -> tuple[list[Tally], list[Callable[[bytes], None]]]:
    tallies = [Tally() for _ in range(count)]

    def receiver(tally: Tally) -> Callable[[bytes], None]:
        def receive(value: bytes) -> None:
            tally.values += 1
            tally.batches += 1

        return receive

    return tallies, [receiver(tally) for tally in tallies]
