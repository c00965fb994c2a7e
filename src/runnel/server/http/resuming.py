"""Where an event stream begins: decided from what was asked, the id that came back, and the topics there are.

Decides, and opens nothing. What cannot be gone on from is told as a gap, and the stream goes on all the same.
Below: event_id, core. Above: events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.core.errors import InvalidOption
from runnel.core.pattern import is_pattern, matches
from runnel.core.position import Position
from runnel.core.record import Gap
from runnel.core.start import Start
from runnel.server.http.event_id import Place, known_of

if TYPE_CHECKING:
    from runnel.broker.log import Log

ANOTHER = "the id is of another broker, or of one in memory that has stopped since"
AHEAD = "the id is ahead of all that there is"
DELETED = "a topic was deleted since"
MADE_AGAIN = "the topic was deleted, or made again, since"


class Beginning(NamedTuple):
    """How to open the feed: of one topic by offset, or of several by sequence; and what to tell first."""

    pattern: str | tuple[str, ...]
    options: dict[str, Any]  # start or resume
    gap: Gap | None
    resumed: bool


def begin(
    patterns: tuple[str, ...],
    start: Start,
    place: Place | None,
    *,
    mark: bytes,
    logs: Mapping[str, Log],
    end: int,
) -> Beginning:
    """Where a stream of `patterns` begins. `end` is the sequence behind all that is visible."""
    log = logs.get(patterns[0]) if len(patterns) == 1 and not is_pattern(patterns[0]) else None
    if place is not None and place.mark == mark and log is not None and place.epoch == log.epoch:
        if place.offset <= log.end:
            return Beginning(log.name, {"resume": Position(place.epoch, place.offset)}, None, True)
        ahead = Gap(log.name, log.end, place.offset, None, AHEAD)
        return Beginning(log.name, {"start": "earliest" if start is None else start}, ahead, False)
    if place is not None and place.mark == mark and place.sequence <= end:
        return Beginning(patterns, {"resume": place.sequence}, _deleted(patterns, place, logs, end), True)
    gap: Gap | None = None
    if place is not None:
        why = ANOTHER if place.mark != mark else AHEAD
        gap, start = Gap(" ".join(patterns), 0, 0, None, why), "earliest" if start is None else start
    if log is not None:
        if isinstance(start, int):
            start = min(log.end, start if start >= 0 else max(log.first, log.end + start))
        return Beginning(log.name, {"start": "latest" if start is None else start}, gap, False)
    if isinstance(start, int):
        if len(patterns) > 1 or is_pattern(patterns[0]):
            why = "offsets differ between topics: start at earliest, latest or a time"
            raise InvalidOption("start", start, why)
        start = "earliest"  # of a topic that is not there yet: whatever comes is wanted
    return Beginning(patterns, {"start": "latest" if start is None else start}, gap, False)


def _deleted(patterns: tuple[str, ...], place: Place, logs: Mapping[str, Log], end: int) -> Gap | None:
    """What to tell of topics that were there when the id was given, and are not now."""
    shown = " ".join(patterns)
    if place.known is not None:
        covered = covered_epochs(patterns, logs)
        if known_of(covered, place.known.highest) != place.known:
            return Gap(shown, place.sequence, end, None, DELETED)
    elif place.epoch and len(patterns) == 1 and not is_pattern(patterns[0]):  # it was the topic's, in an earlier life
        return Gap(shown, place.sequence, end, None, MADE_AGAIN)
    return None


def covered_epochs(patterns: tuple[str, ...], logs: Mapping[str, Log]) -> list[int]:
    """The epochs of the topics that these patterns cover."""
    found = {logs[name] for name in patterns if name in logs}
    if wild := [one for one in patterns if is_pattern(one)]:
        found |= {log for log in logs.values() if any(matches(one, log.name) for one in wild)}
    return [log.epoch for log in found]
