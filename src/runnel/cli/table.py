"""Tables for people: aligned columns, sizes and ages that can be read at a glance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

T = TypeVar("T")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns under their heads; numbers stand to the right."""
    given = [list(row) for row in rows]
    shown = [list(heads), *([text(cell) for cell in row] for row in given)]
    widths = [max(len(line[at]) for line in shown) for at in range(len(heads))]
    right = [_is_numbers([row[at] for row in given]) for at in range(len(heads))]
    lines = []
    for line in shown:
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def present(columns: Mapping[str, T], rows: Sequence[Mapping[str, object]]) -> dict[str, T]:
    """The columns that something is known for: a folder and a server know different things."""
    return {key: column for key, column in columns.items() if not rows or any(key in row for row in rows)}


def pairs(facts: Iterable[tuple[str, object]]) -> str:
    """Names and what they stand for, a line each."""
    shown = [(name, text(value)) for name, value in facts]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in shown)


def many(count: int, what: str) -> str:
    """So many of something: `1 topic`, `2 topics`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def hidden(records: int, size: int, where: str = "are not shown") -> str:
    """What a look beside a running owner leaves out."""
    return f"{many(records, 'record')} ({human_size(size)}) written and not yet synced {where}"


def _is_numbers(cells: Sequence[object]) -> bool:
    said = [cell for cell in cells if cell is not None]
    return bool(said) and all(isinstance(cell, int) for cell in said)


class Size(int):
    """Bytes, shown as people count them."""

    def __str__(self) -> str:
        return human_size(int(self))


def text(cell: object) -> str:
    """A cell as it is shown."""
    if cell is None:
        return "-"
    if isinstance(cell, Size | bool) or not isinstance(cell, int):
        return str(cell)
    return f"{cell:,}"


def human_size(size: int) -> str:
    """Bytes in the unit that fits: `1.5 MiB`."""
    amount = float(size)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def human_age(seconds: float) -> str:
    """A length of time in its two largest units: `3 d 4 h`."""
    left = max(0, int(seconds))
    found: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, length)
        if amount or (unit == "s" and not found):
            found.append(f"{amount} {unit}")
    return " ".join(found[:2])


def human_time(microseconds: int) -> str | None:
    """A time of the journal, in UTC, to the second; None for never."""
    if not microseconds:
        return None
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
