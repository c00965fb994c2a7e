"""Time: the clock port that a broker is given, and times as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Timer(Protocol):
    """Something asked for that can still be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it already happened."""


class Clock(Protocol):
    """Wall-clock seconds, and timers. The system's, or one that a test moves."""

    def time(self) -> float:
        """Seconds since the Unix epoch."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` on the event loop after `delay` seconds."""


# -- Stored times ----------------------------------------------------------------------------------------
# Microseconds since 1970: a float of seconds would lose some of them.


_START_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros(time: datetime) -> int:
    """A time as stored: microseconds since 1970."""
    return (time - _START_OF_TIME) // _MICROSECOND


def from_micros(stored: int) -> datetime:
    """A stored time as a datetime in UTC."""
    return _START_OF_TIME + timedelta(microseconds=stored)
