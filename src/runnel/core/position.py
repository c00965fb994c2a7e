"""The position of a record in its topic, (epoch, offset), and where a subscription starts.

A topic that is deleted and created again has a new epoch, so an old position never refers to a record
of the new topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name, check_no_control, check_pattern, is_pattern


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """A record's place in its topic. Printed and parsed as `epoch:offset`."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that `str(position)` printed."""
        epoch, colon, offset = text.partition(":")
        if not (colon and epoch.isascii() and epoch.isdigit() and offset.isascii() and offset.isdigit()):
            raise InvalidOption("position", text, "expected 'epoch:offset', two whole numbers")
        return cls(int(epoch), int(offset))


class Span(NamedTuple):
    """The first and the last position of what one `publish_many` appended; unpacks as `first, last`."""

    first: Position
    last: Position

    def records(self) -> int:
        """How many records it was."""
        return self.last.offset - self.first.offset + 1


# -- Where a subscription starts -------------------------------------------------------------------------


Start = str | int | datetime | Position | None


class SnapshotStart(Protocol):
    """A start behind what its reader has seen elsewhere, such as in a snapshot of a database.

    It is looked up in the topic when the subscription is entered. From there on records that were seen are left out.
    """

    @property
    def topic(self) -> str:
        """The topic that it is for."""

    async def find(self, backend: Any) -> tuple[Position | None, str | None]:
        """The position of a record before all that were not seen, and why records may be missing there.

        None instead of a position: the beginning of the topic.
        """

    def seen(self, headers: Mapping[str, str]) -> bool | None:
        """Whether a record was seen; None: neither this one nor any after it."""


def check_start(start: Start, pattern: str, *, is_pattern: bool) -> None:
    """Raise unless `start` makes sense for `pattern`."""
    known = start is None or isinstance(start, str | int | datetime | Position)
    if isinstance(start, bool) or not known or (isinstance(start, str) and start not in ("latest", "earliest")):
        why = "expected 'latest', 'earliest', an offset, a datetime or a Position"
        if isinstance(start, str) and start[:1].isdigit():
            why += "; write a time as datetime(2026, 1, 31, 12, 0, tzinfo=UTC), and an offset as a number"
        raise InvalidOption("start", start, why)
    if is_pattern and isinstance(start, int | Position):
        raise InvalidOption("start", start, f"offsets differ between the topics of {pattern!r}; start at a time")
    if isinstance(start, int) and start < 0:
        raise InvalidOption("start", start, "an offset is 0 or more")
    if isinstance(start, datetime) and start.tzinfo is None:
        raise InvalidOption("start", start, "give the time a zone, such as datetime.now(UTC)")


def checked_confirmations(positions: Mapping[str, Position]) -> dict[str, Position]:
    """`positions`, by topic, if that is what they are."""
    if not isinstance(positions, Mapping):
        raise InvalidOption("positions", positions, "expected a mapping of topics to positions")
    for topic, position in positions.items():
        check_name(topic)
        if not isinstance(position, Position) or position.epoch < 0 or position.offset < 0:
            raise InvalidOption("positions", position, f"expected a Position for {topic!r}: epoch and next offset")
    return dict(positions)


# -- Stored positions of named subscriptions -------------------------------------------------------------


def checked_positions(
    places: Mapping[str, tuple[str, Position | int]], hold: bool | None
) -> dict[str, tuple[str, Position | int]]:
    """`places`, by name, if they are (topic, position) or (pattern, sequence) each, and `hold` is yes, no or None."""
    if hold is not None and not isinstance(hold, bool):
        raise InvalidOption("hold", hold, "expected True, False or None")
    if not isinstance(places, Mapping):
        raise InvalidOption("places", places, "expected a mapping of names to (topic, position)")
    found: dict[str, tuple[str, Position | int]] = {}
    for name, place in places.items():
        if not isinstance(name, str) or not name:
            raise InvalidOption("name", name, "a name is a str that is not empty")
        check_no_control("name", name)
        if not isinstance(place, tuple) or len(place) != 2 or not isinstance(place[0], str):
            raise InvalidOption("places", place, f"expected (topic, Position) for {name!r}")
        topic, position = place
        if reads_by_sequence(topic):
            if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < 1 << 63:
                raise InvalidOption("places", place, f"{name!r} is to read a pattern: expected (pattern, sequence)")
            for one in topic.split(" "):
                check_pattern(one)
        elif not isinstance(position, Position):
            raise InvalidOption("places", place, f"expected (topic, Position) for {name!r}")
        elif position.epoch < 0 or position.offset < 0:
            raise InvalidOption("position", position, "epoch and offset are whole numbers, 0 or more")
        else:
            check_name(topic)
        found[name] = topic, position
    return found


def reads_by_sequence(pattern: str) -> bool:
    """Whether a subscription stored on `pattern` has a sequence as its place: it reads a pattern, or several topics."""
    return is_pattern(pattern) or " " in pattern
