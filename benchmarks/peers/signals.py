"""blinker signals: synchronous calls through a registry of receivers."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.harness import Figures
from benchmarks.load import Load, Tally, counted


async def one_by_one(load: Load) -> Figures:
    """signal.send with each value."""
    return _send(load, [(value, 1) for value in load.values])


async def in_lists(load: Load) -> Figures:
    """signal.send with each list."""
    return _send(load, [(chunk, len(chunk)) for chunk in load.chunks()])


def _send(load: Load, items: list[tuple[Any, int]]) -> Figures:
    from blinker import Signal

    signal = Signal()
    tallies = [Tally() for _ in range(load.subscribers)]
    for tally in tallies:

        def receive(sender: None, value: object, count: int, tally: Tally = tally) -> None:
            tally.values += count
            tally.batches += 1

        signal.connect(receive, weak=False)
    begun = time.perf_counter()
    for item, count in items:
        signal.send(None, value=item, count=count)
    return counted(load, time.perf_counter() - begun, tallies)
