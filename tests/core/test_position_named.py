"""Named positions: a name, a topic and a position, each checked."""

from typing import Any

import pytest

from runnel.core.errors import InvalidName, InvalidOption
from runnel.core.position import Position, checked_positions


def test_places_come_back_as_they_were() -> None:
    places = {"a": ("t", Position(1, 5)), "b/t": ("t.u", Position(0, 0))}
    assert checked_positions(places, None) == places
    assert checked_positions({}, True) == {}


@pytest.mark.parametrize(
    ("places", "hold", "error"),
    [
        ({1: ("t", Position(1, 5))}, None, InvalidOption),
        ({"": ("t", Position(1, 5))}, None, InvalidOption),
        ({"a": ["t", Position(1, 5)]}, None, InvalidOption),
        ({"a": ("t", Position(1, 5), 1)}, None, InvalidOption),
        ({"a": ("t", (1, 5))}, None, InvalidOption),
        ({"a": (">", Position(1, 5))}, None, InvalidName),
        ({"a": ("t", Position(-1, 5))}, None, InvalidOption),
        ({"a": ("t", Position(1, 5))}, 1, InvalidOption),
        ("a", None, InvalidOption),
    ],
)
def test_what_is_no_place_is_named(places: Any, hold: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked_positions(places, hold)
