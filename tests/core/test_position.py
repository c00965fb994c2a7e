"""Positions: printed, parsed, compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption
from runnel.core.position import Position, Span

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
