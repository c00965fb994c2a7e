"""A value held against a schema: what the type refuses is refused, with the field, and nothing that it takes."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import ValidationFailed
from runnel.core.schema import Mismatch, SchemaValidator, codec_of


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


def schema_mismatch(schema: dict[str, Any], value: Any, encoding: str = "json") -> Mismatch | None:
    return SchemaValidator(encoding, schema).mismatch(value)


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
        {"id": 4, "before": {"id": 5, "before": None}},
    ],
)
def test_what_fits_passes(value: Any) -> None:
    assert schema_mismatch(SCHEMA, value) is None


def test_msgpack_has_bytes_and_times_of_its_own() -> None:
    value = {"id": 3, "when": datetime(2026, 1, 1), "key": b"\x00"}
    assert schema_mismatch(SCHEMA, value, "msgpack") is None
    assert schema_mismatch(SCHEMA, {"id": 3, "notes": {"a": b""}}, "msgpack") == (
        "notes[...]",
        "expected string, got bytes",
    )


Number = Annotated[int, msgspec.Meta(ge=0, lt=10, multiple_of=2)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=3)]
When = Annotated[datetime, msgspec.Meta(tz=True)]
Few = Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)]
Named = Annotated[dict[Name, int], msgspec.Meta(max_length=1)]


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        (Number, [0, 8], [-2, 10, 3, 2.0]),
        (Name, ["a", "abc"], ["", "abcd"]),
        (When, ["2026-01-01T00:00:00Z"], ["2026-01-01T00:00:00", "soon"]),
        (date, ["2026-01-01"], ["2026-13-01"]),
        (timedelta, ["PT1S"], ["1 s"]),
        (UUID, ["12345678-1234-5678-1234-567812345678"], ["1234"]),
        (Decimal, ["1.5", 1.5, 1], ["one"]),
        (bytes, ["AAAA", ""], ["A"]),
        (Few, [[1], [1, 2]], [[], [1, 2, 3]]),
        (Named, [{"a": 1}, {}], [{"a": 1, "b": 2}, {"abcd": 1}, {"a": "b"}]),
        (Literal[1, "a", None], [1, "a", None], [2, True, "b"]),
    ],
)
def test_bounds_lengths_and_formats_are_checked_as_the_type_does(type_: Any, good: list[Any], bad: list[Any]) -> None:
    schema = msgspec.json.schema(type_)
    for value in good:
        assert schema_mismatch(schema, value) is None
        msgspec.json.decode(msgspec.json.encode(value), type=type_)
    for value in bad:
        assert schema_mismatch(schema, value) is not None, value
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(value), type=type_)


def test_a_pattern_of_a_client_is_not_run() -> None:
    schema = msgspec.json.schema(Annotated[str, msgspec.Meta(pattern="^(a+)+$")])
    assert schema_mismatch(schema, "a" * 64 + "!") is None


def test_arrays_that_stand_for_objects_are_looked_at_too() -> None:
    schema = msgspec.json.schema(list[Pair])
    assert schema_mismatch(schema, [[1], [2, "b"]]) is None
    assert schema_mismatch(schema, [[1], []]) == ("[1]", "expected 1 items or more, got 0")
    assert schema_mismatch(schema, [["a"]]) == ("[0][0]", "expected integer, got string")


def test_a_type_is_called_by_its_name() -> None:
    assert SchemaValidator("json", SCHEMA).name == "Order"
    assert SchemaValidator("json", msgspec.json.schema(int)).name == "int"


def test_a_schema_that_goes_round_in_circles_comes_to_an_end() -> None:
    assert schema_mismatch({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, 1) is None


def test_what_is_not_understood_is_let_pass() -> None:
    schemas: list[dict[str, Any]] = [
        {},
        {"type": "new"},
        {"$ref": "#/$defs/gone"},
        {"anyOf": []},
        {"type": ["integer", "null"]},
        {"type": "integer", "minimum": "a", "multipleOf": 0},
        {"enum": 5},
        {"anyOf": 5},
        {"discriminator": {"mapping": 5}, "$defs": 5},
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


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (dict[str, int], "dict[str, int]"),
        (list[str], "list[str]"),
        (int | None, "int | None"),
        (float, "float"),
        (dict[str, list[bool]], "dict[str, list[bool]]"),
    ],
)
def test_a_schema_without_a_title_is_called_by_what_it_describes(type_: Any, name: str) -> None:
    assert SchemaValidator("json", msgspec.json.schema(type_)).name == name


@pytest.mark.parametrize("data", [b"tea", b"plain text"])
def test_what_is_not_json_is_called_so(data: bytes) -> None:
    for check in (SchemaValidator("json", msgspec.json.schema(dict[str, int])).check, codec_of(dict[str, int]).check):
        with pytest.raises(ValidationFailed, match=r"takes dict\[str, int\]; .*this is not JSON.*text needs quotes"):
            check("orders", data)
    with pytest.raises(ValidationFailed, match=r"not JSON or not all of it$"):
        codec_of(dict[str, int]).check("orders", b'{"id": 1')
