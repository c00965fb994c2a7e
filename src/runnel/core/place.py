"""Where a name is to stand: checked before it is stored, or sent.

Above: broker.places, client.places.
"""

from __future__ import annotations

from collections.abc import Mapping

from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name
from runnel.core.position import Position


def checked_places(places: Mapping[str, tuple[str, Position]], hold: bool | None) -> dict[str, tuple[str, Position]]:
    """`places`, by name, if they are (topic, position) each, and `hold`, if it says anything, says yes or no."""
    if hold is not None and not isinstance(hold, bool):
        raise InvalidOption("hold", hold, "expected True, False or None")
    if not isinstance(places, Mapping):
        raise InvalidOption("places", places, "expected a mapping of names to (topic, position)")
    found: dict[str, tuple[str, Position]] = {}
    for name, place in places.items():
        if not isinstance(name, str) or not name:
            raise InvalidOption("name", name, "a name is a str that is not empty")
        if not isinstance(place, tuple) or len(place) != 2 or not isinstance(place[1], Position):
            raise InvalidOption("places", place, f"expected (topic, Position) for {name!r}")
        topic, position = place
        if position.epoch < 0 or position.offset < 0:
            raise InvalidOption("position", position, "epoch and offset are whole numbers, 0 or more")
        found[name] = check_name(topic), position
    return found
