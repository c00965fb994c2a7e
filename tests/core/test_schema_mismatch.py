"""A value held against a schema: what the type would refuse for sure is refused, and nothing that it would take."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.schema import schema_mismatch, schema_title


class Item(msgspec.Struct, tag=True):
    name: str
    price: float = 0.0


class Parcel(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    size: tuple[int, int]


class Order(msgspec.Struct):
    id: int
    things: list[Item | Parcel] = []
    state: Literal["new", "paid"] = "new"
    notes: dict[str, str] = {}
    when: datetime | None = None
    key: bytes = b""
    before: "Order | None" = None


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: str = ""


SCHEMA = msgspec.json.schema(Order)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "id"),
        ({"id": "one"}, "id"),
        ({"id": True}, "id"),
        ({"id": 1.5}, "id"),
        ([], "the value"),
        (None, "the value"),
        ({"id": 1, "things": [{"type": "Item"}]}, "things[0].name"),
        ({"id": 1, "things": [{"type": "Parcel", "size": [1]}]}, "things[0].size"),
        ({"id": 1, "things": [{"type": "Parcel", "size": [1, 2, 3]}]}, "things[0].size"),
        ({"id": 1, "things": [{"type": "Parcel", "size": [1, 2], "more": 1}]}, "things[0].more"),
        ({"id": 1, "state": "lost"}, "state"),
        ({"id": 1, "notes": {"a": 1}}, "notes[...]"),
        ({"id": 1, "before": {"id": None}}, "before.id"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, field: str) -> None:
    found = schema_mismatch(SCHEMA, value)
    assert found is not None
    assert found[0] == field
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, Order)


@pytest.mark.parametrize(
    "value",
    [
        {"id": 1},
        {"id": 1, "unknown": object()},
        {"id": 2, "things": [{"type": "Item", "name": "a", "price": 3}, {"type": "Parcel", "size": [1, 2]}]},
        {"id": 3, "state": "paid", "notes": {"a": "b"}, "when": "2026-01-01T00:00:00Z", "key": "AAAA"},
        {"id": 3, "when": datetime(2026, 1, 1), "key": b"\x00"},  # as msgpack has them
        {"id": 4, "before": {"id": 5, "before": None}},
    ],
)
def test_what_fits_passes(value: Any) -> None:
    assert schema_mismatch(SCHEMA, value) is None


def test_arrays_that_stand_for_objects_are_looked_at_too() -> None:
    schema = msgspec.json.schema(list[Pair])
    assert schema_mismatch(schema, [[1], [2, "b"]]) is None
    assert schema_mismatch(schema, [[1], []]) == ("[1]", "expected 1 items or more, got 0")
    assert schema_mismatch(schema, [["a"]]) == ("[0][0]", "expected integer, got string")


def test_a_type_is_called_by_its_name() -> None:
    assert schema_title(SCHEMA) == "Order"
    assert schema_title(msgspec.json.schema(int)) == "its type"


def test_a_schema_that_goes_round_in_circles_comes_to_an_end() -> None:
    assert schema_mismatch({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, 1) is None


def test_what_is_not_understood_is_let_pass() -> None:
    schemas: list[dict[str, Any]] = [
        {},
        {"type": "new"},
        {"$ref": "#/$defs/gone"},
        {"anyOf": []},
        {"type": ["integer", "null"]},
    ]
    for schema in schemas:
        assert schema_mismatch(schema, 1) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "a", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = [int, float, str, bool, None, list[int], dict[str, int], tuple[int, str], int | None, Order, Pair, UUID | int]


@given(ANYTHING, st.sampled_from(TYPES))
def test_nothing_is_refused_that_the_type_takes(value: Any, type_: Any) -> None:
    if schema_mismatch(msgspec.json.schema(type_), value) is not None:
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(msgspec.json.encode(value), type=type_)
