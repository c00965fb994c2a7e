"""Worker-seconds of each folder of tests, printed at the end of a run beside what was budgeted for it.

The sum over all folders, divided by the number of workers, is about how long `make test` takes. Nothing fails because
of these figures: machines differ, and so does their load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from tests.scheduling import folder

AREAS: dict[str, dict[str, int]] = {
    "base": {
        "contract": 100,
        "crash": 60,
        "journal": 60,
        "server": 50,
        "broker": 40,
        "cli": 45,
        "chaos": 30,
        "fuzz": 15,
        "opening": 12,
        "golden": 8,
        "client": 10,
        "testing": 10,
        "wire": 10,
        "core": 8,
        "api": 6,
        "runtime": 2,
        "blocking": 3,
        "config": 2,
        "observe": 2,
        "fastapi": 5,
    },
    "security and operations": {"security": 28, "operations": 45},
    "Spark": {"spark": 200},
    "lake": {"lake": 32, "arrow": 8},
    "PostgreSQL": {"postgres": 120},
    "NATS": {"cluster": 100},
    "browsers": {"browser": 98, "console": 2},
    "tools and docs": {"examples": 34, "benchmarks": 21, "docs": 40, "project": 15},
}
"""Seconds on an idle machine with two cores."""


def table(spent: Mapping[str, float]) -> list[str]:
    """One line per folder, by area, and one per area; a folder without a budget comes last."""
    known = {name for folders in AREAS.values() for name in folders}
    areas = AREAS | {"no budget": dict.fromkeys(sorted(spent.keys() - known), 0)}
    lines = []
    for area, folders in areas.items():
        here = {name: spent[name] for name in folders if name in spent}
        if not here:
            continue
        for name, seconds in sorted(here.items(), key=lambda one: -one[1]):
            lines.append(_line(f"  {name}", seconds, folders[name]))
        lines.append(_line(area, sum(here.values()), sum(folders.values())))
    total = sum(sum(folders.values()) for folders in AREAS.values())
    return [*lines, _line("all", sum(spent.values()), total)]


def _line(name: str, seconds: float, budget: int) -> str:
    over = "  over" if seconds > budget else ""
    return f"{name:<18}{seconds:>8.1f} s of {budget:>4}{over}"


class Budget:
    """A plugin of pytest: adds up the setup, call and teardown of every test."""

    def __init__(self) -> None:
        self._spent: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._spent[folder(report.nodeid)] += report.duration  # type: ignore[assignment]  # a Counter of floats

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._spent) < 2:  # part of one folder: pytest's own figure says it
            return
        terminalreporter.section("worker-seconds, and the budget", "-")
        for line in table(self._spent):
            terminalreporter.line(line)
