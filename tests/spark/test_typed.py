"""Typed values become columns; what does not fit is told, or is an error that says where."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.arrow.typed_values import Digits, TypedDecoder
from runnel.core.errors import ValidationFailed
from runnel.core.schema import Codec, Schema


class Part(msgspec.Struct):
    name: str
    grams: float | None = None


class Order(msgspec.Struct):
    id: int
    when: Annotated[datetime, msgspec.Meta(tz=True)]
    price: Decimal
    parts: list[Part] = []
    notes: dict[str, int] = {}
    state: str = "new"


class Created(msgspec.Struct, tag="created"):
    id: int


class Paid(msgspec.Struct, tag="paid"):
    amount: float


NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
ORDER = Order(7, NOON, Decimal("12.50"), [Part("nut", 1.5), Part("bolt")], {"a": 1}, "paid")


def typed(type_: Any, encoding: str = "json", bad: str | None = "_bad") -> TypedDecoder:
    return TypedDecoder(Schema(encoding, Codec(type_, encoding).schema), bad=bad, digits=Digits(10, 2))


def rows(how: TypedDecoder, values: Sequence[bytes | None]) -> list[dict[str, Any]]:
    columns = how.columns(values, lambda at: ("orders", 100 + at))
    table = pa.table(columns, pa.schema(how.fields))
    table.validate(full=True)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_every_field_is_a_column(encoding: str) -> None:
    how = typed(Order, encoding, bad=None)
    (row,) = rows(how, [Codec(Order, encoding).encode("orders", ORDER)])
    parts = [{"name": "nut", "grams": 1.5}, {"name": "bolt", "grams": None}]
    notes = [("a", 1)]
    assert row == {"id": 7, "when": NOON, "price": Decimal("12.50"), "parts": parts, "notes": notes, "state": "paid"}


def test_what_a_record_leaves_out_is_its_default_and_what_is_new_in_it_is_not_seen() -> None:
    how = typed(Order, bad=None)
    (row,) = rows(how, [b'{"id": 1, "when": "2026-11-15T12:00:00Z", "price": "1", "since": "later"}'])
    assert (row["parts"], row["notes"], row["state"]) == ([], [], "new")
    assert "since" not in row


def test_a_tagged_union_is_its_kind_and_its_arms() -> None:
    how = typed(Created | Paid, bad=None)
    assert rows(how, [b'{"type": "paid", "amount": 2}', b'{"type": "created", "id": 1}']) == [
        {"kind": "paid", "created": None, "paid": {"amount": 2.0}},
        {"kind": "created", "created": {"id": 1}, "paid": None},
    ]


def test_a_type_that_is_no_struct_is_one_column() -> None:
    assert rows(typed(list[int]), [b"[1,2]", b"{}"]) == [
        {"value": [1, 2], "_bad": None},
        {"value": None, "_bad": b"{}"},
    ]


def test_a_tombstone_is_a_row_of_nulls_and_not_bad() -> None:
    how = typed(Part)
    assert rows(how, [None, b'{"name": "nut"}']) == [
        {"name": None, "grams": None, "_bad": None},
        {"name": "nut", "grams": None, "_bad": None},
    ]


BAD = [
    (b"", "the value"),
    (b"{", "the value"),
    (b"\xff", "the value"),
    (b'{"id": 9223372036854775808, "when": "2026-11-15T12:00:00Z", "price": "1"}', "id"),
    (b'{"id": "1", "when": "2026-11-15T12:00:00Z", "price": "1"}', "id"),
    (b'{"id": null, "when": "2026-11-15T12:00:00Z", "price": "1"}', "id"),
    (b'{"id": 1, "when": "2026-11-15T12:00:00", "price": "1"}', "when"),
    (b'{"id": 1, "when": "2026-11-15T12:00:00Z", "price": "1.005"}', "the value"),
    (b'{"id": 1, "when": "2026-11-15T12:00:00Z"}', "price"),
]


@pytest.mark.parametrize(("value", "field"), BAD)
def test_a_record_that_does_not_fit_is_an_error_that_names_topic_offset_and_field(value: bytes, field: str) -> None:
    with pytest.raises(ValidationFailed, match=r"\(offset 101\); mode='PERMISSIVE'") as failed:
        rows(typed(Order, bad=None), [msgspec.json.encode(ORDER), value])
    assert (failed.value.topic, failed.value.field) == ("orders", field)


@given(st.lists(st.sampled_from([msgspec.json.encode(ORDER), None, *(value for value, _ in BAD)]), max_size=40))
def test_with_a_column_for_them_bad_records_stand_in_it_and_harm_no_other(values: list[bytes | None]) -> None:
    bad = {value for value, _ in BAD}
    found = rows(typed(Order), values)
    assert [row["_bad"] for row in found] == [value if value in bad else None for value in values]
    good = msgspec.json.encode(ORDER)
    assert [row["id"] for row in found] == [7 if value == good else None for value in values]


def test_it_travels_as_its_schema() -> None:
    how = typed(Order)
    value = [msgspec.json.encode(ORDER)]
    rows(how, value)  # made types that cannot be pickled
    again = pickle.loads(pickle.dumps(how))
    assert again.fields == how.fields
    assert rows(again, value) == rows(how, value)
    assert "id, when, price" in repr(again)
