"""Measures the whole matrix: a process for each backend, and for each thing that grows.

A cell that takes too long is stopped with its process, and another process goes on with the next one, so that a cliff
costs its own cell and no other.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.matrix.backends import BACKENDS
from benchmarks.matrix.growth import COUNTS, THINGS, probes
from benchmarks.matrix.operations import OPERATIONS
from benchmarks.matrix.options import ASK_TO_WAIT, FAMILIES, STEEP
from benchmarks.processes import running

OPTION_BACKENDS = tuple(BACKENDS)
GROWTH_BACKENDS = ("memory", "folder", "TCP")

Cell = dict[str, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is measured: seconds a round, rounds, seconds that a cell and that filling may take; how many things."""

    seconds: float = 0.01
    rounds: int = 5
    limit: float = 5.0
    fill_limit: float = 60.0
    counts: tuple[int, ...] = COUNTS
    backends: tuple[str, ...] = OPTION_BACKENDS
    growth_backends: tuple[str, ...] = GROWTH_BACKENDS


QUICK = Effort(0.002, 2, 3.0, 20.0, COUNTS[:2], growth_backends=GROWTH_BACKENDS[:1])


@dataclass(slots=True)
class Measured:
    """A cell and what it came to: figures in nanoseconds, `cpu` and `wall`, of the plain case and of its own."""

    backend: str
    row: str
    column: str  # an option, or the number of things
    table: str = "options"  # or the thing that grows
    plain: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    stopped: float = 0.0  # seconds a record, at least, when it was stopped
    absent: str = ""
    error: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the CPU of the plain case it takes, or, where it waits for three times as long, the time."""
        if self.stopped and self.plain:
            return self.stopped * 1e9 / self.plain["wall"]
        if not self.own or not self.plain:
            return None
        return self._times("wall" if self.waits else "cpu")

    @property
    def waits(self) -> bool:
        """Whether it waits for three times as long as the plain case, without an option that asks for it."""
        if not self.own or not self.plain or self.column in ASK_TO_WAIT:
            return False
        return self._times("wall") >= max(STEEP, 2 * self._times("cpu"))

    def _times(self, what: str) -> float:
        return self.own[what] / max(self.plain[what], 1e-9)

    @property
    def is_steep(self) -> bool:
        """Whether it is marked."""
        return bool(self.error) or bool(self.stopped) or (self.ratio or 0) >= STEEP

    def as_json(self) -> Any:
        """Its figures: CPU and time of the plain case, then of its own; and why there are none, or not all."""
        figures = [round(ns) if ns >= 100 else round(ns, 1) for of in (self.plain, self.own) for ns in of.values()]
        more = {name: value for name in ("stopped", "error") if (value := getattr(self, name))}
        return {"figures": figures, **more} if more else figures

    def read(self, told: Any) -> Measured:
        """The same, with figures that were written as JSON."""
        more = told if isinstance(told, dict) else {"figures": told}
        figures = more["figures"]
        self.plain, self.own = (dict(zip(("cpu", "wall"), some, strict=False)) for some in (figures[:2], figures[2:]))
        self.stopped, self.error = more.get("stopped", 0.0), more.get("error", "")
        return self


@dataclass(slots=True)
class Matrix:
    """All cells."""

    cells: list[Measured] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        """What broke. A cell that was stopped is a figure, not an error."""
        return [cell.error for cell in self.cells if cell.error]

    def as_json(self) -> dict[str, Any]:
        """For machines: a row for each operation, and beside each thing, at each backend, without what is absent."""
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for cell in self.cells:
            if not cell.absent:
                rows.setdefault((cell.backend, cell.table, cell.row), {})[cell.column] = cell.as_json()
        names = ("backend", "table", "row", "columns")
        return {"name": "matrix", "rows": [dict(zip(names, (*at, row), strict=True)) for at, row in rows.items()]}

    @staticmethod
    def of(told: dict[str, Any]) -> Matrix:
        """The matrix that was written as JSON."""
        return Matrix(
            [
                Measured(row["backend"], row["row"], column, row["table"]).read(figures)
                for row in told["rows"]
                for column, figures in row["columns"].items()
            ]
        )


async def measured(effort: Effort, folder: Path, progress: Progress, only: str = "") -> Matrix:
    """The matrix; of operations and things that have `only` in their name."""
    matrix = Matrix()
    for backend in effort.backends:
        await _options(matrix, effort, folder, backend, only, progress)
    for backend in effort.growth_backends:
        for thing in THINGS:
            if only in thing:
                await _growth(matrix, effort, folder, backend, thing, progress)
    return matrix


def _measuring(effort: Effort, folder: Path, backend: str, **more: Any) -> Callable[[list[Cell]], Sequence[str]]:
    """Starts a process that measures cells of a backend."""
    plan = {"seconds": effort.seconds, "rounds": effort.rounds, "limit": effort.limit}
    plan |= {"backend": backend, "folder": str(folder)} | more

    def command(cells: list[Cell]) -> Sequence[str]:
        return [sys.executable, "-m", "benchmarks.matrix.measuring", json.dumps(plan | {"cells": cells})]

    return command


async def _options(matrix: Matrix, effort: Effort, folder: Path, backend: str, only: str, progress: Progress) -> None:
    cells = [
        {"operation": operation.title, "label": label}
        for operation in OPERATIONS.values()
        if only in operation.title
        for label in ["", *(one.label for one in operation.variations())]
        if backend == "folder" or not label.startswith(FAMILIES["open"])
    ]
    costs: dict[str, dict[str, float]] = {}  # of plain cells that were measured

    def keep(cell: Cell, told: dict[str, Any]) -> None:
        title, label = cell["operation"], cell["label"]
        made = Measured(backend, title, label, stopped=told.get("stopped", 0.0) / OPERATIONS[title].per)
        made.absent, made.error = told.get("absent", ""), told.get("error", "")
        made.plain, made.own = told.get("plain", costs.get(title, {})), told.get("varied", {})
        if not label and made.plain:
            costs[title] = made.plain
        matrix.cells.append(made)

    def left(cells: list[Cell], at: Cell) -> list[Cell]:
        if at["label"]:
            return cells
        return [cell for cell in cells if cell["operation"] != at["operation"]]  # the plain case itself is absent

    command = _measuring(effort, folder, backend)
    await measure_all(cells, effort, command, keep, left, lambda cell: progress(f"matrix: {backend}, {cell}"))


async def _growth(matrix: Matrix, effort: Effort, folder: Path, backend: str, thing: str, progress: Progress) -> None:
    beside = {probe.title: probe for probe in probes(thing)}
    cells = [{"probe": title, "count": count} for count in (0, *effort.counts) for title in beside]
    plain: dict[str, dict[str, float]] = {}
    kept: set[tuple[str, int]] = set()

    def keep(cell: Cell, told: dict[str, Any]) -> None:
        title, count = cell["probe"], cell["count"]
        if (title, count) in kept:
            return  # things were made again, for a process that took the place of one that was stopped
        kept.add((title, count))
        own, probe = told.get("plain", {}), beside.get(title)
        if own and count and probe and thing in probe.each:
            own = {what: ns / count for what, ns in own.items()}
        is_compared_with_none = probe and thing not in probe.each and not THINGS[thing].takes_part
        if own and (count or is_compared_with_none):
            plain.setdefault(title, own)
        stopped = told.get("stopped", 0.0) / (OPERATIONS[probe.operation].per if probe else count)
        made = Measured(backend, title, str(count), thing, plain.get(title, {}), own, stopped)
        made.absent, made.error = told.get("absent", ""), told.get("error", "")
        if count or made.error or made.stopped:
            matrix.cells.append(made)

    def left(cells: list[Cell], at: Cell) -> list[Cell]:
        return [cell for cell in cells if cell["probe"] != at["probe"]]  # more of them would not be quicker

    command = _measuring(effort, folder, backend, thing=thing)
    await measure_all(cells, effort, command, keep, left, lambda cell: progress(f"matrix: {backend}, {thing}, {cell}"))


async def measure_all(
    cells: list[Cell],
    effort: Effort,
    command: Callable[[list[Cell]], Sequence[str]],
    keep: Callable[[Cell, dict[str, Any]], None],
    left: Callable[[list[Cell], Cell], list[Cell]],
    progress: Progress,
) -> None:
    """Measure cells, in as many processes as it takes; `command` starts one.

    `left` is what is still worth measuring after a cell that was stopped, or is absent.
    """
    while cells:
        async with running(command(cells)) as process:
            begun: Cell | None = None
            filling = stopped = False
            starting, first = True, 0.0
            while True:
                limit = effort.fill_limit if filling or starting else effort.limit
                told = await _line(process, limit)
                if told is None:
                    stopped = True
                    process.kill()
                    break
                if "fill" in told:
                    begun, filling = told["fill"], True
                elif "first" in told:
                    first = told["first"]
                elif "begin" in told:
                    begun, filling, first = told["begin"], False, 0.0
                    progress(" ".join(map(str, begun.values())))
                elif "cell" in told:
                    starting = filling
                    keep(told["cell"], told)
                    cells = [cell for cell in cells if cell != told["cell"]]
                    if "absent" in told or "error" in told:
                        cells = left(cells, told["cell"])
                elif not told:
                    break
        if begun is None:
            raise RuntimeError("the measuring process did not come to its first cell; what it said is above")
        if stopped and filling:
            keep(begun, {"stopped": effort.fill_limit})
            return
        if cells and begun in cells:
            keep(begun, {"stopped": first or effort.limit} if stopped else {"error": "the measuring process ended"})
            cells = left([cell for cell in cells if cell != begun], begun)


async def _line(process: asyncio.subprocess.Process, limit: float) -> dict[str, Any] | None:
    """What the process says next; None: nothing, for too long; empty: it has ended."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limit):
            line = await process.stdout.readline()
    except TimeoutError:
        return None
    return json.loads(line) if line else {}
