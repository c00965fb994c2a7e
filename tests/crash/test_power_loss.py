"""The power goes, or the process is killed, at every storage call of made-up lives of a journal.

After reopening: every acknowledged record is there once and in order, nothing is half there, no position is ever given
twice, no cursor is ahead of the log. What is checked is in model and workload; `python -m tests.crash.torture` does
the same for as long as one likes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.sweep import Sweep

SEEDS = range(12)
WANTED = 2_000


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_at_any_call_loses_nothing_that_was_acknowledged(seed: int, tally: Counter[str]) -> None:
    sweep = Sweep(seed, steps=26, again=0.1).run()
    tally["lives"] += 1
    tally["points"] += sweep.points
    tally["openings"] += sweep.openings
    tally["placed"] += sweep.world.placed
    tally.update(sweep.operations)


def test_there_were_enough_crashes(tally: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    if tally["lives"] < len(SEEDS):
        pytest.skip("only some of the lives were lived")
    with capsys.disabled():
        print(f"\n{tally['points']:,} crash points in {tally['lives']} lives, {tally['openings']:,} openings")  # noqa: T201
    assert tally["points"] >= WANTED
    assert tally["placed"], "no stage was ever put into its topic"
    assert {"write", "sync", "rename", "remove", "truncate", "sync_names", "allocate", "create"} <= tally.keys()


def test_a_life_can_be_lived_again() -> None:
    first, second = Sweep(3, steps=12).run(), Sweep(3, steps=12).run()
    assert (first.points, first.openings) == (second.points, second.openings)
    assert first.world.storage.trace == second.world.storage.trace
    assert first.world.promises.states[-1].topics.keys() == second.world.promises.states[-1].topics.keys()
