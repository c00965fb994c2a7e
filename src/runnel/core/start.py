"""Where to start reading: what a caller may say."""

from __future__ import annotations

from datetime import datetime

from runnel.core.errors import InvalidOption
from runnel.core.position import Position

Start = str | int | datetime | Position | None


def check_start(start: Start, pattern: str, *, is_pattern: bool) -> None:
    """Raise unless `start` makes sense for `pattern`."""
    known = start is None or isinstance(start, str | int | datetime | Position)
    if isinstance(start, bool) or not known or (isinstance(start, str) and start not in ("latest", "earliest")):
        raise InvalidOption("start", start, "expected 'latest', 'earliest', an offset, a datetime or a Position")
    if is_pattern and isinstance(start, int | Position):
        raise InvalidOption("start", start, f"offsets differ between the topics of {pattern!r}; start at a time")
    if isinstance(start, int) and start < 0:
        raise InvalidOption("start", start, "an offset is 0 or more")
    if isinstance(start, datetime) and start.tzinfo is None:
        raise InvalidOption("start", start, "give the time a zone, such as datetime.now(UTC)")
