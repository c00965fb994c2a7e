"""A starting point on the command line: `earliest`, `latest`, an offset, or a time.

A time without a zone is UTC, like all times that the commands print.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from runnel.core.clock import micros
from runnel.core.errors import InvalidOption
from runnel.core.pattern import is_pattern

if TYPE_CHECKING:
    from runnel.journal.read.inspection import Inspection

_WORDS = ("earliest", "latest")


class Start(NamedTuple):
    """One of the three: a word, an offset, or microseconds since 1970."""

    word: str | None = None
    offset: int | None = None
    time: int | None = None


def parse_start(option: str, given: str) -> Start:
    """The given value, or an error that names the valid ones."""
    if given in _WORDS:
        return Start(word=given)
    if given.isascii() and given.isdigit():
        return Start(offset=int(given))
    try:
        time = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidOption(
            option, given, "expected 'earliest', 'latest', an offset, or a time such as 2026-05-01T12:00"
        ) from None
    return Start(time=micros(time if time.tzinfo else time.replace(tzinfo=UTC)))


def resolve_start(start: Start, pattern: str, seen: Inspection, option: str) -> int:
    """The offset of a topic, or the sequence of a pattern, that is meant."""
    topic = seen.topic(pattern)
    whole = is_pattern(pattern)
    if start.offset is not None:
        if whole:
            raise InvalidOption(option, start.offset, f"offsets differ between the topics of {pattern!r}; give a time")
        return start.offset
    first, end = (0, seen.ledger.sequence if whole else 0) if topic is None else (topic.first, topic.end)
    if start.time is not None:
        found = seen.place_at(pattern, start.time)
        return end if found is None else found
    return end if start.word == "latest" else first


def utc_time(microseconds: int) -> datetime:
    """A time as the API takes it."""
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)


def api_start(start: Start) -> str | int | datetime | None:
    """Where to begin, as the API takes it."""
    if start.time is not None:
        return utc_time(start.time)
    return start.word if start.offset is None else start.offset
