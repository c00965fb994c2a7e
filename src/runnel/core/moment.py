"""Times as they are stored: microseconds since 1970. A float of seconds would lose some of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_START_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros(time: datetime) -> int:
    """A time as it is stored."""
    return (time - _START_OF_TIME) // _MICROSECOND


def from_micros(stored: int) -> datetime:
    """A stored time as a datetime in UTC."""
    return _START_OF_TIME + timedelta(microseconds=stored)
