"""Where to start reading: the cursor that it means."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runnel.broker.cursor import RETENTION, Cursor, LogCursor
from runnel.broker.log import Log
from runnel.broker.pattern_cursor import PatternCursor
from runnel.broker.timeline import Timeline
from runnel.core.errors import OffsetOutOfRange
from runnel.core.missed import Missed
from runnel.core.position import Position
from runnel.core.start import Start

if TYPE_CHECKING:
    from runnel.broker.store import Store


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
        # In memory, not even the place of what is gone is kept for ever: that something was there is all that is known.
        forgotten = max((log.forgotten for log in logs if log.stored is None), default=0)
        return cursor, Missed(sequence, forgotten, 0, RETENTION) if forgotten > sequence else None
    (log,) = logs
    oldest = timeline.first(log)
    missed = None
    if isinstance(start, Position):
        if start.epoch == log.epoch:
            start = start.offset
        else:
            reason = f"the topic was deleted and made again since epoch {start.epoch}"
            # Who had read nothing of the other life lost nothing with it, and is owed all of this one.
            missed = Missed(oldest, oldest, 0, reason) if start.offset else None
            start = "earliest" if start.offset else 0
    if isinstance(start, datetime):
        time = start.astimezone(UTC)
        start = log.offset_at(time) if store is None or log.stored is None else store.offset_at(log, time)
    offset = start if isinstance(start, int) else log.end if start == "latest" else oldest
    if offset > log.end:
        raise OffsetOutOfRange(log.name, offset, oldest, log.end)
    return LogCursor(timeline, log, offset, store), missed
