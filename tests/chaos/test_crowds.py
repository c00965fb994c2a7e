"""Many clients: some of them frozen, or all of them at once. `tests.chaos.frozen` and `.rush` do it with thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.crowd import percentiles
from tests.chaos.frozen import freeze
from tests.chaos.rush import rush
from tests.nightly import nightly_beyond
from tests.patience import PATIENCE


@pytest.mark.parametrize(("clients", "seconds", "ping"), nightly_beyond(1, [(50, 1.0, 2.0), (100, 4.0, 4.0)]))
async def test_frozen_clients_affect_no_other_and_are_noticed(
    tmp_path: Path, clients: int, seconds: float, ping: float
) -> None:
    figures = await freeze(tmp_path / "data", clients, frozen=clients // 5, seconds=seconds, ping=ping)
    assert not figures.broken, f"{figures}\n{figures.broken}"
    assert figures.unsent > 0, "they were sent more than the system keeps for them"


async def test_many_at_once_are_let_in_a_few_at_a_time(tmp_path: Path) -> None:
    worst = 1000 * PATIENCE  # on a machine that does something else as well; `make chaos` measures
    figures = await rush(tmp_path / "data", clients=300, calm=5, seconds=0.5, worst=worst)
    assert not figures.broken, f"{figures}\n{figures.broken}"


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles([n / 1000 for n in range(1, 101)]) == {"p50": 51.0, "p99": 100.0, "max": 100.0}
    assert percentiles([]) == {"p50": 0.0, "p99": 0.0, "max": 0.0}
