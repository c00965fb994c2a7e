"""Where to start reading: what a caller may say, and the cursor that it means."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runnel.broker.cursor import Cursor, LogCursor, Missed
from runnel.broker.log import Log
from runnel.broker.pattern_cursor import PatternCursor
from runnel.broker.timeline import Timeline
from runnel.core.errors import InvalidOption, OffsetOutOfRange
from runnel.core.position import Position

if TYPE_CHECKING:
    from runnel.broker.store import Store

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


def open_cursor(
    timeline: Timeline, logs: set[Log], start: Start, *, is_pattern: bool, store: Store | None = None
) -> tuple[Cursor, Missed | None]:
    """A cursor at `start`, and what it has already missed. Of a pattern, a number is a sequence."""
    if is_pattern:
        if isinstance(start, datetime):
            time = start.astimezone(UTC)
            sequence = timeline.sequence_at(time)
            if store is not None and (on_disk := store.sequence_at(time)) is not None:
                sequence = min(sequence, on_disk)
        else:
            sequence = start if isinstance(start, int) else timeline.sequence if start == "latest" else 0
        cursor = PatternCursor(timeline, logs, sequence, store)
        if start != sequence:  # not a place that it had come to: what is gone was never its own
            cursor.forget_gone()
        return cursor, None
    (log,) = logs
    oldest = timeline.first(log)
    missed = None
    if isinstance(start, Position):
        if start.epoch == log.epoch:
            start = start.offset
        else:
            reason = f"the topic was deleted and made again since epoch {start.epoch}"
            missed = Missed(oldest, oldest, 0, reason) if start.offset else None  # of which nothing was ever read
            start = "earliest"
    if isinstance(start, datetime):
        time = start.astimezone(UTC)
        start = log.offset_at(time) if store is None or log.stored is None else store.offset_at(log, time)
    offset = start if isinstance(start, int) else log.end if start == "latest" else oldest
    if offset > log.end:
        raise OffsetOutOfRange(log.name, offset, oldest, log.end)
    return LogCursor(timeline, log, offset, store), missed
