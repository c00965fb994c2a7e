"""Positions: printed, parsed, compared."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidName, InvalidOption, InvalidPattern
from runnel.core.position import Position, Span, Start, check_start, checked_positions

NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
POSITIONS = st.builds(Position, NUMBERS, NUMBERS)


@given(POSITIONS)
def test_a_printed_position_is_parsed_to_the_same(position: Position) -> None:
    assert Position.parse(str(position)) == position


@given(POSITIONS, POSITIONS)
def test_positions_are_ordered_by_epoch_and_then_by_offset(one: Position, two: Position) -> None:
    assert (one < two) == ((one.epoch, one.offset) < (two.epoch, two.offset))


@pytest.mark.parametrize(
    "text", ["", ":", "1", "1:", ":1", "1:2:3", "-1:2", "1:-2", " 1:2", "1:2\n", "a:b", "²:1", "1.0:2"]
)
def test_what_is_no_position_is_refused_with_the_form_it_should_have(text: str) -> None:
    with pytest.raises(InvalidOption, match="expected 'epoch:offset'") as caught:
        Position.parse(text)
    assert caught.value.value == text


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused_and_never_something_else(text: str) -> None:
    try:
        position = Position.parse(text)
    except InvalidOption:
        return
    assert Position.parse(str(position)) == position


def test_a_position_cannot_be_changed_and_is_hashable() -> None:
    position = Position(1, 2)
    with pytest.raises(AttributeError):
        position.offset = 3  # type: ignore[misc]
    assert {position: "here"}[Position(1, 2)] == "here"


def test_a_span_unpacks_and_counts() -> None:
    span = Span(Position(7, 10), Position(7, 12))
    first, last = span
    assert (first.offset, last.offset, span.records()) == (10, 12, 3)


# -- Named positions: a name, a topic and a position, each checked -------------------------------------------


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
        ({"a": (">", Position(1, 5))}, None, InvalidOption),
        ({"a": (">", -1)}, None, InvalidOption),
        ({"a": (">", True)}, None, InvalidOption),
        ({"a": ("t..u", Position(1, 5))}, None, InvalidName),
        ({"a": ("t u..*", 5)}, None, InvalidPattern),
        ({"a": ("t", Position(-1, 5))}, None, InvalidOption),
        ({"a": ("t", Position(1, 5))}, 1, InvalidOption),
        ("a", None, InvalidOption),
    ],
)
def test_what_is_no_place_is_named(places: Any, hold: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked_positions(places, hold)


# -- Where to start: what may be said ------------------------------------------------------------------------


@pytest.mark.parametrize("start", [None, "latest", "earliest", datetime(2026, 1, 1, tzinfo=UTC)], ids=repr)
@pytest.mark.parametrize("pattern", ["t", "t.*"])
def test_these_may_be_said_of_a_topic_and_of_a_pattern(start: Start, pattern: str) -> None:
    check_start(start, pattern, is_pattern="*" in pattern)


@pytest.mark.parametrize("start", ["oldest", True, -1, 1.5, datetime(2026, 1, 1), b"latest"], ids=repr)
def test_what_makes_no_sense_is_refused(start: Start) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_start(start, "t", is_pattern=False)
    assert caught.value.option == "start"


@pytest.mark.parametrize("start", [5, Position(1, 5)])
def test_an_offset_of_a_pattern_is_refused(start: Start) -> None:
    check_start(start, "t", is_pattern=False)
    with pytest.raises(InvalidOption, match="start at a time"):
        check_start(start, "t.*", is_pattern=True)
