"""Filters that Spark pushes down: those on topic, offset and time make a read smaller.

What ranges of offsets can say exactly, Spark need not look at again. A time can only be narrowed to the records around
it (an append has one time, and offsets are whole), so Spark still looks.
Below: core. Above: selection, batch_reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

FOREVER = 1 << 63
_MICROSECOND = timedelta(microseconds=1)


class Narrowing(NamedTuple):
    """What a read may leave out: other topics, offsets outside [first, end), records before `since` or from `until` on.

    `names` None: any topic; `prefix`: how its name begins.
    """

    names: frozenset[str] | None = None
    prefix: str = ""
    first: int = 0
    end: int = FOREVER
    since: datetime | None = None
    until: datetime | None = None

    def takes(self, topic: str) -> bool:
        """Whether anything of a topic is wanted."""
        return (self.names is None or topic in self.names) and topic.startswith(self.prefix)


def narrow(filters: Iterable[Filter], own: Mapping[str, str] | None = None) -> tuple[Narrowing, list[Filter]]:
    """What `filters` leave out, and those that Spark has to look at itself.

    `own`: by the name of a column, what of the record it is (None: what it is called). Others are not ours.
    """
    found, rest = Narrowing(), []
    for one in filters:
        narrower, is_exact = _with(found, one, _meant(one, own))
        found = narrower
        if not is_exact:
            rest.append(one)
    return found, rest


def _meant(one: Filter, own: Mapping[str, str] | None) -> str | None:
    """What of the record a filter is about."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1:
        return None
    return path[0] if own is None else own.get(path[0])


def _with(known: Narrowing, one: Filter, column: str | None) -> tuple[Narrowing, bool]:
    """Narrowed by one filter more, and whether that is all that it says."""
    kind, value = type(one).__name__, getattr(one, "value", None)
    if kind == "IsNotNull":
        return known, column in ("topic", "epoch", "offset", "sequence", "time", "value")
    if column == "topic":
        return _by_topic(known, kind, value)
    if column == "offset" and isinstance(value, int) and not isinstance(value, bool):
        return _by_offset(known, kind, value)
    if column == "time" and isinstance(value, datetime) and value.tzinfo is not None:
        return _by_time(known, kind, value), False
    return known, False


def _by_topic(known: Narrowing, kind: str, value: object) -> tuple[Narrowing, bool]:
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        said = value if isinstance(value, tuple | list) else (value,)
        names = frozenset(one for one in said if isinstance(one, str))
        return known._replace(names=names if known.names is None else known.names & names), True
    if kind == "StringStartsWith" and isinstance(value, str):
        if value.startswith(known.prefix):
            return known._replace(prefix=value), True
        return known._replace(names=known.names if known.prefix.startswith(value) else frozenset()), True
    return known, False


def _by_offset(known: Narrowing, kind: str, value: int) -> tuple[Narrowing, bool]:
    first, end = known.first, known.end
    if kind in ("EqualTo", "EqualNullSafe"):
        return known._replace(first=max(first, value), end=min(end, value + 1)), True
    if kind == "GreaterThanOrEqual":
        return known._replace(first=max(first, value)), True
    if kind == "GreaterThan":
        return known._replace(first=max(first, value + 1)), True
    if kind == "LessThan":
        return known._replace(end=min(end, value)), True
    if kind == "LessThanOrEqual":
        return known._replace(end=min(end, value + 1)), True
    return known, False


def _by_time(known: Narrowing, kind: str, value: datetime) -> Narrowing:
    since, until = known.since, known.until
    if kind in ("GreaterThanOrEqual", "GreaterThan", "EqualTo", "EqualNullSafe"):
        since = value if since is None else max(since, value)
    if kind in ("LessThanOrEqual", "LessThan", "EqualTo", "EqualNullSafe"):
        behind = value if kind == "LessThan" else value + _MICROSECOND
        until = behind if until is None else min(until, behind)
    return known._replace(since=since, until=until)
