"""The power goes, or the process is killed, at every storage call of made-up lives of a journal.

After reopening: every acknowledged record is there once and in order, nothing is half there, no position is ever given
twice, no cursor is ahead of the log. What is checked is in model and workload; `python -m tests.crash.torture` does
the same for as long as one likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.crash.sweep import Sweep

SEEDS = range(12)
OPERATIONS = {"write", "sync", "rename", "remove", "truncate", "sync_names", "allocate", "create"}


@pytest.mark.parametrize(
    ("seeds", "points"),
    [
        pytest.param((6, 8, 9, 11), 450, id="short"),
        pytest.param(SEEDS, 2_000, id="long", marks=pytest.mark.nightly),
    ],
)
def test_a_crash_at_any_call_loses_nothing_that_was_acknowledged(seeds: Iterable[int], points: int) -> None:
    """`Failure` names the seed, the point and the end that was found. The workloads must reach every operation."""
    tally: Counter[str] = Counter()
    for seed in seeds:
        sweep = Sweep(seed, steps=26, again=0.1).run()
        tally["points"] += sweep.points
        tally["placed"] += sweep.world.placed
        tally.update(sweep.operations)
    assert tally["points"] >= points
    assert tally["placed"], "no stage was ever put into its topic"
    assert OPERATIONS - tally.keys() == set()


def test_a_life_can_be_lived_again() -> None:
    first, second = Sweep(3, steps=12).run(), Sweep(3, steps=12).run()
    assert (first.points, first.openings) == (second.points, second.openings)
    assert first.world.storage.trace == second.world.storage.trace
    assert first.world.promises.states[-1].topics.keys() == second.world.promises.states[-1].topics.keys()
