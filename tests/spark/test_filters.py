"""Filters that Spark pushes down make a read smaller, and never leave out what should come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from runnel.spark.planning import PushedFilters, push_filters

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOPIC, OFFSET, TIME = ("topic",), ("offset",), ("time",)
COMPARED: dict[type[Any], Any] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


@given(st.lists(st.tuples(st.sampled_from(sorted(COMPARED, key=str)), st.integers(-3, 12)), max_size=4))
def test_offsets_are_left_out_exactly(said: list[tuple[type[Any], int]]) -> None:
    narrowing, rest = push_filters([kind(OFFSET, value) for kind, value in said])
    assert rest == []
    for offset in range(10):
        taken = narrowing.first <= offset < narrowing.end
        assert taken == all(COMPARED[kind](offset, value) for kind, value in said)


@given(st.lists(st.tuples(st.sampled_from(sorted(COMPARED, key=str)), st.integers(-3, 12)), max_size=4))
def test_times_are_narrowed_and_spark_looks_again(said: list[tuple[type[Any], int]]) -> None:
    filters = [kind(TIME, NOON + timedelta(microseconds=value)) for kind, value in said]
    narrowing, rest = push_filters(filters)
    assert rest == filters
    for late in range(10):
        time = NOON + timedelta(microseconds=late)
        is_in = (narrowing.since is None or time >= narrowing.since) and (
            narrowing.until is None or time < narrowing.until
        )
        assert is_in or not all(COMPARED[kind](late, value) for kind, value in said)


@pytest.mark.parametrize(
    ("filters", "taken"),
    [
        ([EqualTo(TOPIC, "a.b")], ["a.b"]),
        ([In(TOPIC, ("a.b", "c"))], ["a.b", "c"]),
        ([In(TOPIC, ("a.b", "c")), EqualTo(TOPIC, "c")], ["c"]),
        ([StringStartsWith(TOPIC, "a.")], ["a.b", "a.x"]),
        ([StringStartsWith(TOPIC, "a"), StringStartsWith(TOPIC, "a.x")], ["a.x"]),
        ([StringStartsWith(TOPIC, "a.x"), StringStartsWith(TOPIC, "a")], ["a.x"]),
        ([StringStartsWith(TOPIC, "a"), StringStartsWith(TOPIC, "c")], []),
        ([IsNotNull(TOPIC)], ["a.b", "a.x", "c"]),
    ],
)
def test_topics_are_left_out_exactly(filters: list[Filter], taken: list[str]) -> None:
    narrowing, rest = push_filters(filters)
    assert rest == []
    assert [name for name in ("a.b", "a.x", "c") if narrowing.takes(name)] == taken


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(TOPIC, "a")),
        EqualTo(("key",), b"k"),
        IsNotNull(("key",)),
        EqualTo(("headers", "a"), "b"),
        In(OFFSET, (1, 2)),
        GreaterThan(TIME, datetime(2026, 1, 1)),  # of no zone
    ],
)
def test_what_says_nothing_here_is_handed_back(one: Filter) -> None:
    assert push_filters([one]) == (PushedFilters(), [one])


def test_columns_go_by_what_they_are_and_not_by_their_names() -> None:
    own = {"topic": "topic", "_offset": "offset", "_time": "time", "key": "key"}
    mine = [EqualTo(("_offset",), 5), IsNotNull(("_time",))]
    others = [EqualTo(OFFSET, 7), GreaterThan(TIME, NOON), IsNotNull(TIME), EqualTo(("topic", "x"), "y")]
    late = GreaterThanOrEqual(("_time",), NOON)
    assert push_filters([*mine, *others, late], own) == (PushedFilters(first=5, end=6, since=NOON), [*others, late])
