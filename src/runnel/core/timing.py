"""When a schedule is due: every so many seconds, or by a cron expression in a time zone. Pure: time is an argument.

Due times do not depend on when a process began, so all processes that run a schedule agree on them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import count, islice
from math import ceil, floor
from typing import Protocol
from zoneinfo import ZoneInfo

from runnel.core.errors import InvalidOption

_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
_DAYS = 366 * 9  # the 29th of February may be eight years ahead

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}


def time_zone(zone: str | tzinfo) -> tzinfo:
    """A time zone by its name, such as "Europe/Berlin"."""
    if isinstance(zone, tzinfo):
        return zone
    try:
        return ZoneInfo(zone)
    except (ValueError, TypeError, OSError, LookupError):
        why = "no such time zone on this machine; expected a name such as 'Europe/Berlin' (the package tzdata has them)"
        raise InvalidOption("tz", zone, why) from None


class Timing(Protocol):
    """The due times of a schedule, in seconds since 1970."""

    def next(self, after: float) -> float | None:
        """The first due time later than `after`; None: there is none within nine years."""

    def between(self, after: float, until: float, limit: int) -> list[float]:
        """The due times later than `after` and not later than `until`, in order; if more, the last `limit`."""


class Interval:
    """The multiples of so many seconds since 1970."""

    def __init__(self, seconds: float) -> None:
        self._step = max(1, round(seconds * 1000))  # in whole milliseconds: floats would drift apart

    def __repr__(self) -> str:
        return f"<every {self._step / 1000:g} s>"

    def next(self, after: float) -> float | None:
        """The first due time later than `after`."""
        return (floor(after * 1000 + 1e-3) // self._step + 1) * self._step / 1000

    def between(self, after: float, until: float, limit: int) -> list[float]:
        """The due times later than `after` and not later than `until`; of more than `limit` the last ones."""
        first = floor(after * 1000 + 1e-3) // self._step + 1
        end = floor(until * 1000 + 1e-3) // self._step + 1
        return [at * self._step / 1000 for at in range(max(first, end - limit), end)]


class Cron:
    """A cron expression: minute, hour, day of the month, month, day of the week, as a clock in `zone` shows them.

    When clocks go forward, a time that they skip is due at the moment they continue. When clocks go back, a time that
    comes twice is due the first time. An expression with `*` as its hour follows the minutes that pass instead: it is
    due in both hours, and not in the one that is skipped.
    """

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self.expression, self.zone = expression, zone
        fields = _NICKNAMES.get(expression.strip().lower(), expression).lower().split()
        if len(fields) != 5:
            why = "expected 5 fields: minute, hour, day of the month, month, day of the week"
            raise InvalidOption("cron", expression, f"{why}; or one of {', '.join(_NICKNAMES)}")
        self._minutes = sorted(_field(expression, "minute", fields[0], 0, 59))
        self._hours = sorted(_field(expression, "hour", fields[1], 0, 23))
        self._days = _field(expression, "day of the month", fields[2], 1, 31)
        self._months = _field(expression, "month", fields[3], 1, 12, _MONTHS)
        self._weekdays = {day % 7 for day in _field(expression, "day of the week", fields[4], 0, 7, _WEEKDAYS)}
        self._every_hour = fields[1].startswith("*")
        self._either = not fields[2].startswith("*") and not fields[4].startswith("*")  # both name days: one is enough
        self._known: dict[date, list[float]] = {}  # the due times of the days that were looked at last
        if self.next(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) is None:
            raise InvalidOption("cron", expression, "no date is like that")

    def __repr__(self) -> str:
        return f"<cron {self.expression!r} {self.zone}>"

    def next(self, after: float) -> float | None:
        """The first due time later than `after`; None: there is none within nine years."""
        for day in islice(self._from(after, _DAY), _DAYS):
            dues = self._due(day)
            if (at := bisect_right(dues, after)) < len(dues):
                return dues[at]
        return None

    def between(self, after: float, until: float, limit: int) -> list[float]:
        """The due times later than `after` and not later than `until`; of more than `limit` the last ones."""
        found: list[float] = []  # the latest first
        first = datetime.fromtimestamp(after, UTC).astimezone(self.zone).date() - _DAY
        for day in self._from(until, -_DAY):
            if day < first or len(found) >= limit:
                break
            dues = self._due(day)
            found += reversed(dues[bisect_right(dues, after) : bisect_right(dues, until)])
        return sorted(found[:limit])

    def _from(self, time: float, step: timedelta) -> Iterable[date]:
        """The days that match, from the one before (or after) `time` on: its due times may lie beyond midnight."""
        day = datetime.fromtimestamp(time, UTC).astimezone(self.zone).date() - step
        for number in count():
            try:
                yield day + number * step
            except OverflowError:
                return

    def _due(self, day: date) -> list[float]:
        """The due times of a day, sorted."""
        if not self._matches(day):
            return []
        if (known := self._known.get(day)) is None:
            if len(self._known) > 4:
                self._known.clear()
            known = self._known[day] = sorted({found for hour in self._hours for found in self._due_in(day, hour)})
        return known

    def _matches(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        by_day, by_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return by_day or by_weekday if self._either else by_day and by_weekday

    def _due_in(self, day: date, hour: int) -> Iterable[float]:
        for minute in self._minutes:
            clock = datetime(day.year, day.month, day.day, hour, minute)
            first, second = (clock.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
            if first == second:
                yield first.timestamp()
            elif first < second:  # the clock shows it twice
                yield first.timestamp()
                if self._every_hour:
                    yield second.timestamp()
            elif not self._every_hour:  # the clock skips it
                yield self._change(second, first).timestamp()

    def _change(self, before: datetime, after: datetime) -> datetime:
        """The minute at which the clock was moved, between two times."""
        old = before.astimezone(self.zone).utcoffset()
        minutes = range(ceil((after - before) / _MINUTE) + 1)
        moved = bisect_left(
            minutes, True, key=lambda minute: (before + minute * _MINUTE).astimezone(self.zone).utcoffset() != old
        )
        return before + moved * _MINUTE


def _field(
    expression: str, name: str, text: str, least: int, most: int, names: dict[str, int] | None = None
) -> set[int]:
    """The numbers that a field of a cron expression selects."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        low, dash, high = span.partition("-")
        try:
            if span == "*":
                first, last = least, most
            else:
                first = _number(low, names)
                last = _number(high, names) if dash else most if slash else first
            every = int(step) if slash and step.isascii() and step.isdigit() else 0 if slash else 1
        except ValueError:
            every = 0
        if every < 1 or not least <= first <= last <= most:
            why = f"{part!r} is no {name}: expected {least}-{most}, `*`, a range, `/step` or a list"
            raise InvalidOption("cron", expression, why)
        found.update(range(first, last + 1, every))
    return found


def _number(text: str, names: dict[str, int] | None) -> int:
    if names is not None and text in names:
        return names[text]
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text)
