"""Crashes for as long as one likes: `python -m tests.crash.torture --points 100000`.

Each seed is a life of a journal, crashed at every storage call. A broken promise is printed with its seed, and seen
again with `--seed`. Exit code 0: all promises were kept; 1: some were not.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from multiprocessing import Pool, cpu_count
from multiprocessing.pool import AsyncResult
from typing import NamedTuple

from tests.crash.sweep import Sweep

STEPS, ENDS, AGAIN = 60, 4, 0.25  # of a life: steps, ends tried at each point, how often one is crashed once more


class Lived(NamedTuple):
    """What came of one seed."""

    seed: int
    points: int
    openings: int
    violation: str | None
    trace: str


def live(seed: int) -> Lived:
    """One life. Whatever happens is reported: a traceback of ours is as bad as one of the journal's."""
    sweep = Sweep(seed, steps=STEPS, ends=ENDS, again=AGAIN)
    try:
        sweep.run()
    except Exception as error:
        return Lived(seed, sweep.points, sweep.openings, f"{error}", traceback.format_exc())
    return Lived(seed, sweep.points, sweep.openings, None, "")


class Tally:
    """How far it has come."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.began, self.told = wanted, time.monotonic(), 0.0
        self.lives = self.points = self.openings = self.violations = 0

    def __str__(self) -> str:
        elapsed = time.monotonic() - self.began
        return (
            f"{elapsed:7.0f} s  {self.points:>9,} of {self.wanted:,} crash points  {self.openings:>9,} openings  "
            f"{self.lives:>5,} lives  {self.violations} violations"
        )

    def add(self, lived: Lived) -> None:
        self.lives += 1
        self.points += lived.points
        self.openings += lived.openings
        if lived.violation is not None:
            self.violations += 1
            say(f"VIOLATION, seen again with --seed {lived.seed}: {lived.violation[:600]}")
        if time.monotonic() - self.told > 5:
            self.told = time.monotonic()
            say(str(self))


def say(line: str) -> None:
    """Tell at once: torture takes its time."""
    print(line, flush=True)  # noqa: T201


def lives(first: int, jobs: int) -> Iterator[Lived]:
    """One life after another, each process busy with one, until nobody asks for more."""
    with Pool(jobs) as pool:
        running: deque[AsyncResult[Lived]] = deque()
        for seed in count(first):
            running.append(pool.apply_async(live, (seed,)))
            if len(running) > 2 * jobs:
                yield running.popleft().get()


def main(arguments: Sequence[str] | None = None) -> int:
    """Torture the journal; the exit code."""
    parser = argparse.ArgumentParser(description="crash the journal at every storage call of generated workloads")
    parser.add_argument("--points", type=int, default=100_000, help="how many crash points at least")
    parser.add_argument("--seed", type=int, help="live this one life again, and show where it fails")
    parser.add_argument("--first", type=int, default=1_000_000, help="the seed to begin with")
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="how many processes")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        lived = live(options.seed)
        say(lived.trace or f"seed {lived.seed}: {lived.points:,} crash points, {lived.openings:,} openings, all well")
        return int(lived.violation is not None)
    say(f"seeds from {options.first} on, {options.jobs} processes")
    tally = Tally(options.points)
    for lived in lives(options.first, options.jobs):
        tally.add(lived)
        if tally.points >= options.points:
            break
    say(str(tally))
    return int(tally.violations > 0)


if __name__ == "__main__":
    sys.exit(main())
