"""The matrix as Markdown: the steep cells, what plain operations cost, what options add, and what grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from benchmarks.harness import number
from benchmarks.matrix.growth import MAKING, PROBES
from benchmarks.matrix.options import STEEP
from benchmarks.matrix.running import GROWTH_BACKENDS, OPTION_BACKENDS, Matrix, Measured

STEEP_MARK = "✗"
SUPER_LINEAR_MARK = "✗✗"
NOISE = 2.0  # a cost for each thing that rises by less than this from one number of them to the next is taken as equal


def tables(matrix: Matrix) -> str:
    """All tables."""
    return "\n".join([*_steep(matrix), *_plain(matrix), *_options(matrix), *_growth(matrix)])


def shown(cell: Measured) -> str:
    """A cell: its ratio, marked if it is steep; a dash where there is nothing to measure."""
    if cell.absent:
        return "–"
    if cell.error:
        return f"{STEEP_MARK} failed"
    if cell.ratio is None:
        return f"{STEEP_MARK} stopped" if cell.stopped else "–"
    if cell.stopped:
        return f"{STEEP_MARK} > {number(cell.ratio)} (stopped)"
    text = f"{cell.ratio:.1f}" if cell.ratio < 10 else number(cell.ratio)
    return f"{STEEP_MARK} **{text}**{' (waits)' if cell.waits else ''}" if cell.is_steep else text


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown; the first row is its head."""
    yield from (f"| {' | '.join(row)} |" for row in rows[:1])
    yield "|" + "---|" * len(rows[0])
    yield from (f"| {' | '.join(row)} |" for row in rows[1:])
    yield ""


def _steep(matrix: Matrix) -> Iterator[str]:
    measured = [cell for cell in matrix.cells if cell.column and not cell.absent]
    steep = [cell for cell in measured if cell.is_steep]
    grown = sum(is_super_linear(before, cell) for before, cell in _steps(matrix))
    yield f"**{len(steep)} of {len(measured)} cells are marked {STEEP_MARK}**: {STEEP:g} × the plain case or more."
    yield f"**{grown} are marked {SUPER_LINEAR_MARK}**: they grow faster than the number of things beside them.\n"


def is_super_linear(before: Measured, cell: Measured) -> bool:
    """Whether a cell of growth costs more, for each thing beside it, than `before`, the cell with fewer of them."""
    if not before.own or not cell.own:
        return False
    for_each = cell.row == MAKING or any(cell.row == probe.title and cell.table in probe.each for probe in PROBES)
    things = int(cell.column) / int(before.column)
    return cell.own["cpu"] / max(before.own["cpu"], 1e-9) >= (NOISE if for_each else things)


def _steps(matrix: Matrix) -> Iterator[tuple[Measured, Measured]]:
    """Neighbouring cells of growth: fewer things, then more of them."""
    rows: dict[tuple[str, str, str], list[Measured]] = {}
    for cell in matrix.cells:
        if cell.table != "options" and int(cell.column):
            rows.setdefault((cell.backend, cell.table, cell.row), []).append(cell)
    for cells in rows.values():
        yield from pairwise(sorted(cells, key=lambda cell: int(cell.column)))


def _by_backend(cells: Iterable[Measured]) -> dict[str, Measured]:
    return {cell.backend: cell for cell in cells}


def _plain(matrix: Matrix) -> Iterator[str]:
    """What each operation costs as it is."""
    cells = [cell for cell in matrix.cells if cell.table == "options" and not cell.column]
    backends = [name for name in OPTION_BACKENDS if name in {cell.backend for cell in cells}]
    rows = [["operation, µs of CPU a record", *backends]]
    for row in dict.fromkeys(cell.row for cell in cells):
        found = _by_backend(cell for cell in cells if cell.row == row)
        rows.append([row, *(_microseconds(found.get(name)) for name in backends)])
    yield "#### Plain operations\n"
    yield from table(rows)


def _microseconds(cell: Measured | None) -> str:
    if cell is None or not cell.plain:
        return f"{STEEP_MARK} {cell.error or 'stopped'}" if cell and (cell.error or cell.stopped) else "–"
    return number(cell.plain["cpu"] / 1e3)


def _options(matrix: Matrix) -> Iterator[str]:
    """What each option adds, a table for each operation that has some."""
    cells = [cell for cell in matrix.cells if cell.table == "options" and cell.column]
    for row in dict.fromkeys(cell.row for cell in cells):
        of_row = [cell for cell in cells if cell.row == row]
        backends = [name for name in OPTION_BACKENDS if any(c.backend == name and not c.absent for c in of_row)]
        rows = [["× the plain case", *backends]]
        for column in dict.fromkeys(cell.column for cell in of_row):
            found = _by_backend(cell for cell in of_row if cell.column == column)
            shows = [shown(found[name]) if name in found else "–" for name in backends]
            if any(text != "–" for text in shows):
                rows.append([f"`{column}`", *shows])
        if len(rows) > 1:
            yield f"#### {row}: options\n"
            yield from table(rows)


def _growth(matrix: Matrix) -> Iterator[str]:
    """What operations cost beside many things, a table for each backend and thing."""
    cells = [cell for cell in matrix.cells if cell.table != "options"]
    for backend in GROWTH_BACKENDS:
        of_backend = [cell for cell in cells if cell.backend == backend]
        things = list(dict.fromkeys(cell.table for cell in of_backend))
        if not things:
            continue
        yield f"#### Growth: {backend}\n"
        counts = sorted({int(cell.column) for cell in of_backend} - {0})
        yield f"Each cell: beside {', '.join(f'{count:,}' for count in counts)} of them.\n"
        rows = [["× the plain case, beside", *things]]
        for row in dict.fromkeys(cell.row for cell in of_backend):
            found = {(cell.table, int(cell.column)): cell for cell in of_backend if cell.row == row}
            rows.append([row, *(_grown([found.get((thing, count)) for count in counts]) for thing in things)])
        yield from table(rows)


def _grown(cells: Sequence[Measured | None]) -> str:
    texts = [shown(cell) if cell else "" for cell in cells]
    for at, (before, cell) in enumerate(pairwise(cells), 1):
        if before and cell and is_super_linear(before, cell):
            texts[at] = f"{SUPER_LINEAR_MARK} {texts[at].removeprefix(STEEP_MARK).lstrip()}"
    if all(text in ("–", "") for text in texts):
        return "–"
    return ", ".join(text for text in texts if text)
