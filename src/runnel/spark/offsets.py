"""Stream offsets in the checkpoint, and the options `startingOffsets` and `endingOffsets`.

A stream's offset is stored in its checkpoint as JSON: the journal id, and an epoch and an offset per topic. Spark
compares offsets as text, so equal offsets always give equal text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from runnel.core.clock import from_micros
from runnel.core.errors import InvalidOption, OffsetOutOfRange
from runnel.core.pattern import is_pattern, matches
from runnel.core.position import Position
from runnel.core.topic_bounds import TopicBounds

EARLIEST, LATEST = "earliest", "latest"
_NAMED = {-2: EARLIEST, -1: LATEST}


class TopicProgress(NamedTuple):
    """The progress of a stream in a topic: everything from where it `began` in this life of it, before `offset`.

    The beginning is where the stream first met the topic: records missing then do not count as lost.
    """

    epoch: int
    offset: int
    began: int = 0


class StreamOffset(NamedTuple):
    """The progress of a stream in each of its topics."""

    journal: str
    topics: dict[str, TopicProgress]

    @property
    def positions(self) -> dict[str, Position]:
        """The positions of the first records that it has not come to."""
        return {name: Position(one.epoch, one.offset) for name, one in self.topics.items()}

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it; the same places give the same text."""
        topics = {
            name: list(one) if one.began else [one.epoch, one.offset] for name, one in sorted(self.topics.items())
        }
        return {"journal": self.journal, "topics": topics}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> StreamOffset:
        """Parse the output of `to_json`. A checkpoint of another format is refused."""
        try:
            said = msgspec.convert(kept, _StoredOffset)
        except msgspec.ValidationError as error:
            why = f"the checkpoint is not one of a runnel source ({error}); choose another checkpointLocation"
            raise InvalidOption("checkpointLocation", "its offsets", why) from None
        return cls(said.journal, {name: TopicProgress(*place) for name, place in said.topics.items()})


class _StoredOffset(msgspec.Struct):
    journal: str
    topics: dict[str, Annotated[list[int], msgspec.Meta(min_length=2, max_length=3)]]


Place = str | int | Position | datetime
"""Where to begin or end in a topic: a word, an offset, an offset of one life of it, or a time."""


class OffsetSpec(NamedTuple):
    """Where to begin or end: everywhere alike, or topic by topic. `default` is for topics that are not named."""

    default: str | datetime
    topics: Mapping[str, Place] = {}

    def resolve(
        self, bounds: Iterable[TopicBounds], bounds_at: Callable[[Sequence[str], datetime], Iterable[TopicBounds]]
    ) -> dict[str, Position]:
        """The positions that it means. `bounds_at` looks up where a time lies in some topics."""
        bounds = list(bounds)
        timed: dict[datetime, list[str]] = {}
        for one in bounds:
            if isinstance(said := self.topics.get(one.topic, self.default), datetime):
                timed.setdefault(said, []).append(one.topic)
        at = {one.topic: one for time, topics in timed.items() for one in bounds_at(topics, time)}
        return {one.topic: Position(*self._place(at.get(one.topic, one))) for one in bounds}

    def _place(self, one: TopicBounds) -> tuple[int, int]:
        said = self.topics.get(one.topic, self.default)
        if isinstance(said, datetime):
            return one.epoch, one.end if one.at is None else max(one.at, one.first)
        if isinstance(said, Position):
            return said.epoch, said.offset
        if isinstance(said, str):
            return one.epoch, one.first if said == EARLIEST else one.end
        if said > one.end:
            raise OffsetOutOfRange(one.topic, said, one.first, one.end)
        return one.epoch, said


def parse_offsets(option: str, text: str | None, default: str, patterns: Iterable[str]) -> OffsetSpec:
    """Parse `startingOffsets` or `endingOffsets`: a word, a time, or JSON by topic."""
    if text is None:
        return OffsetSpec(default)
    said = text.strip()
    if said.lower() in (EARLIEST, LATEST):
        return OffsetSpec(_allowed(option, said.lower()))
    if said.startswith("{"):
        return _by_topic(option, said, default, tuple(patterns))
    return OffsetSpec(_time(option, said))


def _allowed(option: str, word: str) -> str:
    if option == "endingOffsets" and word == EARLIEST:
        raise InvalidOption(option, word, "a read that ends where it begins has nothing to read")
    return word


def _time(option: str, text: str) -> datetime:
    if text.isascii() and text.isdigit():
        try:
            return from_micros(int(text) * 1000)
        except OverflowError:
            raise InvalidOption(option, text, "that is no time: milliseconds since 1970 are expected") from None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        why = 'expected earliest, latest, {"topic": 17}, or a time: 2026-01-02T03:04:05Z, or milliseconds since 1970'
        raise InvalidOption(option, text, why) from None
    if time.tzinfo is None:
        raise InvalidOption(option, text, "give the time a zone, such as 2026-01-02T03:04:05Z")
    return time.astimezone(UTC)


def _by_topic(option: str, text: str, default: str, patterns: tuple[str, ...]) -> OffsetSpec:
    try:
        said = json.loads(text)
    except ValueError as error:
        raise InvalidOption(option, text, f"it is not JSON: {error}") from None
    found: dict[str, Place] = {}
    others: dict[str, str | datetime] = {}
    for topic, place in said.items():
        if topic in patterns and is_pattern(topic):
            others[topic] = _of_others(option, topic, place)
            continue
        if not topic or not any(matches(one, topic) for one in patterns):
            raise InvalidOption(option, topic, f"the query does not read it: its topics are {', '.join(patterns)}")
        found[topic] = _of_one(option, topic, place)
    for name in patterns:
        if name not in found and not is_pattern(name):
            why = f"it says nothing of topic {name!r}, which the query reads; add it: -2 is the earliest, -1 the latest"
            raise InvalidOption(option, text, why)
    if len(set(others.values())) > 1:
        raise InvalidOption(
            option, text, "all patterns must have the same position: they are for topics without a name here"
        )
    return OffsetSpec(next(iter(others.values()), default), found)


def _of_others(option: str, pattern: str, place: object) -> str | datetime:
    """The offsets for topics of a pattern that are not named."""
    said = _of_one(option, pattern, place)
    if isinstance(said, str | datetime):
        return said
    why = f"pattern {pattern!r}: expected earliest, latest or a time; only a topic has offsets"
    raise InvalidOption(option, place, why)


def _of_one(option: str, topic: str, place: object) -> Place:
    if isinstance(place, str) and place.lower() in (EARLIEST, LATEST):
        return _allowed(option, place.lower())
    if isinstance(place, str):
        return _time(option, place)
    if isinstance(place, int) and not isinstance(place, bool):
        if place in _NAMED:
            return _allowed(option, _NAMED[place])
        if place >= 0:
            return place
    if isinstance(place, dict) and place.keys() == {"epoch", "offset"}:
        epoch, offset = place["epoch"], place["offset"]
        if isinstance(epoch, int) and isinstance(offset, int) and epoch >= 0 and offset >= 0:
            return Position(epoch, offset)
    why = (
        f"topic {topic!r}: expected an offset, -2 (earliest), -1 (latest), a time such as "
        '"2026-01-02T03:04:05Z", or {"epoch": 1, "offset": 17}'
    )
    raise InvalidOption(option, place, why)
