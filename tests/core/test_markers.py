"""A marker as a transaction wants it: checked when it is said, compared with like values only."""

from typing import Any

import pytest

from runnel.core.errors import InvalidOption, MarkConflict
from runnel.core.markers import ANYTHING, MAX_MARKER_NAME, MAX_MARKER_VALUE, Marker, check_marker_name


@pytest.mark.parametrize("name", ["", "x" * (MAX_MARKER_NAME + 1), 7, b"m", "\ud800"], ids=repr)
def test_a_name_is_text_of_some_length(name: Any) -> None:
    with pytest.raises(InvalidOption, match="1 to 256 characters"):
        check_marker_name(name)


def test_the_longest_name_is_one() -> None:
    assert check_marker_name("x" * MAX_MARKER_NAME) == "x" * MAX_MARKER_NAME


@pytest.mark.parametrize(
    "value",
    [True, 1.5, -(2**63) - 1, 2**64, "\ud800", "x" * (MAX_MARKER_VALUE + 1), bytes(MAX_MARKER_VALUE + 1)],
    ids=type,
)
def test_what_is_no_value_of_a_mark_is_refused_as_one_and_as_an_expectation(value: Any) -> None:
    with pytest.raises(InvalidOption, match="value"):
        Marker("m", value, ANYTHING)
    with pytest.raises(InvalidOption, match="expected"):
        Marker("m", 1, value)


@pytest.mark.parametrize("value", [-(2**63), 2**64 - 1, "x" * MAX_MARKER_VALUE, bytes(MAX_MARKER_VALUE), None])
def test_the_largest_and_the_least_are_values(value: Any) -> None:
    assert Marker("m", value, value).value == value


@pytest.mark.parametrize(
    ("value", "current", "past"),
    [(5, None, False), (5, 4, False), (5, 5, True), (5, 6, True), ("b", "a", False), (b"a", b"b", True)],
)
def test_it_is_past_where_the_mark_is_as_far(value: Any, current: Any, past: bool) -> None:
    assert Marker("m", value, ANYTHING).is_past(current) is past


def test_forgetting_is_past_only_where_there_is_none() -> None:
    assert Marker("m", None, ANYTHING).is_past(None)
    assert not Marker("m", None, ANYTHING).is_past(5)


def test_another_than_expected_is_a_conflict_unless_it_is_done_already() -> None:
    with pytest.raises(MarkConflict):
        Marker("m", 6, 5).is_past(4)
    with pytest.raises(MarkConflict):
        Marker("m", 6, None).is_past(4)
    assert Marker("m", 6, 5).is_past(6)
    assert not Marker("m", 6, 5).is_past(5)


def test_only_like_values_are_compared() -> None:
    with pytest.raises(InvalidOption, match="another type"):
        Marker("m", 6, ANYTHING).is_past("5")


def test_they_say_what_they_are() -> None:
    assert repr(Marker("m", 5, ANYTHING)) == "<Marker 'm' = 5>"
    assert repr(ANYTHING) == "ANYTHING"
