"""Durations and sizes as people write them: `15s`, `1.5h`, `250ms`, `64MiB`, `2GB`.

A bare number is seconds, or bytes.
"""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {"b": 1} | {
    letter + unit: base**power
    for power, letter in enumerate("kmgt", 1)
    for unit, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_AMOUNT = re.compile(r"(\d[\d_]*(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)")
_SHOWN_BYTES = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_SHOWN_SECONDS = (("w", 604_800.0), ("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def seconds(text: str) -> float:
    """A duration in seconds; ValueError names the valid forms."""
    amount, unit = _split(text, "expected a duration, such as 15s, 250ms, 5min, 1.5h or 7d")
    if unit.lower() not in _SECONDS and unit:
        raise ValueError(f"{unit!r} is no unit of time: expected ms, s, min, h, d or w")
    return float(amount) * _SECONDS[unit.lower() or "s"]


def size(text: str) -> int:
    """A size in bytes; ValueError names the valid forms. `MiB` counts in 1,024s, and so does `M`; `MB` in 1,000s."""
    amount, unit = _split(text, "expected a size, such as 512KiB, 64MiB, 2GB or 1048576")
    if unit.lower() not in _BYTES and unit:
        raise ValueError(f"{unit!r} is no unit of size: expected B, KiB, MiB, GiB or TiB (or KB, MB, GB, TB)")
    found = float(amount) * _BYTES[unit.lower() or "b"] if "." in amount else int(amount) * _BYTES[unit.lower() or "b"]
    if found != int(found):
        raise ValueError("expected whole bytes")
    return int(found)


def show_seconds(value: float) -> str:
    """A duration as it would be written: `15s`, `250ms`, `1d`."""
    for unit, length in _SHOWN_SECONDS:
        if value and value % length == 0:
            return f"{value / length:.0f}{unit}"
    return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"


def show_size(value: int) -> str:
    """A size as it would be written: `64MiB`, `1500B`."""
    for unit, length in _SHOWN_BYTES:
        if value and value % length == 0:
            return f"{value // length}{unit}"
    return f"{value}B"


def _split(text: str, expected: str) -> tuple[str, str]:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(expected)
    return found[1].replace("_", ""), found[2]
