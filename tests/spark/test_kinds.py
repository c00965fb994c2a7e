"""Values of each kind arrive in Arrow as they were, with None where there is none."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.arrow import typed_values
from runnel.arrow.typed_values import (
    ColumnKind,
    JsonKind,
    ListKind,
    MapKind,
    StructKind,
    UnionKind,
    decimal_kind,
    list_offsets,
)


class Point(msgspec.Struct):
    f0: int
    f1: str | None = None


class Dot(msgspec.Struct, tag="dot"):
    f0: int


class Line(msgspec.Struct, tag="line"):
    f0: float


POINT = StructKind(Point, {"x": typed_values.INTEGER, "the name": typed_values.TEXT})
SHAPE = UnionKind(
    {"dot": StructKind(Dot, {"x": typed_values.INTEGER}), "line": StructKind(Line, {"length": typed_values.NUMBER})}
)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (typed_values.INTEGER, [1, None, -(2**63), 2**63 - 1]),
        (typed_values.NUMBER, [1.5, None]),
        (typed_values.BOOLEAN, [True, False, None]),
        (typed_values.TEXT, ["a", "", None]),
        (typed_values.BYTES, [b"\0\xff", None]),
        (typed_values.DATE, [date(2026, 11, 15), None]),
        (typed_values.TIMESTAMP, [NOON, None]),
        (decimal_kind(6, 2), [Decimal("1234.50"), None]),
        (ListKind(typed_values.INTEGER), [[1, 2], [], None, [3]]),
        (ListKind(ListKind(typed_values.TEXT)), [[["a"], []], None, []]),
    ],
    ids=repr,
)
def test_a_column_holds_what_was_put_into_it(kind: ColumnKind, values: list[Any]) -> None:
    column = kind.column(values)
    assert column.type == kind.arrow
    assert column.to_pylist() == values
    column.validate(full=True)


def test_anything_else_is_shown_as_json() -> None:
    assert JsonKind().column([{"a": [1, None]}, None, "x"]).to_pylist() == ['{"a":[1,null]}', None, '"x"']


def test_a_decimal_with_more_digits_than_declared_is_refused_and_not_rounded() -> None:
    with pytest.raises(pa.ArrowInvalid):
        decimal_kind(6, 2).column([Decimal("1.234")])


def test_fields_become_one_column_each_whatever_they_are_called() -> None:
    column = POINT.column([Point(1, "a"), None, Point(2)])
    assert column.to_pylist() == [{"x": 1, "the name": "a"}, None, {"x": 2, "the name": None}]
    assert column.type == POINT.arrow


def test_a_type_without_fields_is_an_empty_struct() -> None:
    class Empty(msgspec.Struct):
        pass

    assert StructKind(Empty, {}).column([Empty(), None]).to_pylist() == [{}, None]


def test_a_map_keeps_its_keys_in_order() -> None:
    column = MapKind(POINT).column([{"b": Point(1), "a": Point(2)}, None, {}])
    shown = [("b", {"x": 1, "the name": None}), ("a", {"x": 2, "the name": None})]
    assert column.to_pylist() == [shown, None, []]


def test_of_several_arms_the_one_that_a_value_is_stands_beside_its_tag() -> None:
    column = SHAPE.column([Dot(1), None, Line(0.5)])
    assert column.to_pylist() == [
        {"kind": "dot", "dot": {"x": 1}, "line": None},
        None,
        {"kind": "line", "dot": None, "line": {"length": 0.5}},
    ]


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=20))
def test_where_lists_end_is_what_splits_them_again(lists: list[list[int]]) -> None:
    found, flat = list_offsets(lists).to_pylist(), [one for some in lists for one in some]
    assert [flat[first:end] for first, end in pairwise(found)] == lists


@given(st.lists(st.none() | st.lists(st.none() | st.builds(Point, st.integers(0, 9), st.none() | st.text()))))
def test_lists_of_structs_with_holes_at_any_place_come_across(values: list[Any]) -> None:
    wanted = [
        None if some is None else [None if one is None else {"x": one.f0, "the name": one.f1} for one in some]
        for some in values
    ]
    assert ListKind(POINT).column(values).to_pylist() == wanted
