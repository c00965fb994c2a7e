"""Typed values: to bytes and back, refused with the field named, grown only by optional fields."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption, SchemaConflict, ValidationFailed
from runnel.core.record import Record
from runnel.core.schema import Codec, Schema, SchemaValidator, check_schema_evolution


class Item(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    id: int
    items: list[Item] = []
    note: str | None = None


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: int


ORDERS = st.builds(
    Order,
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.builds(Item, st.text(), st.integers(0, 1000)), max_size=3),
    st.none() | st.text(),
)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@given(order=ORDERS)
def test_a_value_comes_back_equal(encoding: str, order: Order) -> None:
    codec: Codec[Order] = Codec(Order, encoding)
    assert codec.decode("orders", codec.encode("orders", order)) == order


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_each_decoding_makes_an_object_of_its_own(encoding: str) -> None:
    codec: Codec[Order] = Codec(Order, encoding)
    data = codec.encode("orders", Order(1, [Item("a")]))
    one, two = codec.decode("orders", data), codec.decode("orders", data)
    one.items[0].sku = "changed"
    assert two.items[0].sku == "a"


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"id": "x"}, "id"),
        ({}, "id"),
        ({"id": 1, "items": [{"sku": "a"}, {"sku": 5}]}, "items[1].sku"),
        ({"id": 1, "items": [{"count": 2}]}, "items[0].sku"),
        ({"id": 1, "items": {"sku": "a"}}, "items"),
        ({"id": 1, "note": 1.5}, "note"),
        (["id"], "the value"),
        (None, "the value"),
        ("text", "the value"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(encoding: str, value: object, field: str) -> None:
    codec: Codec[Order] = Codec(Order, encoding)
    with pytest.raises(ValidationFailed) as caught:
        codec.encode("orders", value)
    error = caught.value
    assert (error.topic, error.type_name, error.field) == ("orders", "Order", field)
    assert field in str(error)
    assert "orders" in str(error)


def test_a_wrong_key_and_a_type_with_parameters_are_named() -> None:
    with pytest.raises(ValidationFailed, match=r"takes dict\[str, dict\[int, str\]\]; .* at \[...\]: .*, as a key"):
        Codec(dict[str, dict[int, str]]).encode("t", {"a": {"b": "c"}})


def test_a_struct_that_was_built_wrong_is_refused() -> None:
    with pytest.raises(ValidationFailed) as caught:
        Codec(Order).encode("orders", Order("one"))  # type: ignore[arg-type]
    assert caught.value.field == "id"


def test_an_unknown_field_is_named_where_the_type_forbids_it() -> None:
    with pytest.raises(ValidationFailed) as caught:
        Codec(Strict).encode("t", {"id": 1, "extra": 2})
    assert caught.value.field == "extra"


@pytest.mark.parametrize("value", [object(), {1j: 2}, lambda: None, 2**70])
def test_what_cannot_be_encoded_at_all_is_refused(value: object) -> None:
    with pytest.raises(ValidationFailed):
        Codec(dict[str, int]).encode("t", value)


def test_a_value_nested_too_deeply_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValidationFailed):
        Codec(list[Any]).encode("t", nested)


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_or_refused_and_never_something_else(data: bytes) -> None:
    for encoding in ("json", "msgpack"):
        try:
            value: object = Codec[Order](Order, encoding).decode("t", data)
        except ValidationFailed:
            continue
        assert isinstance(value, Order)


def test_text_that_is_not_utf_8_inside_json_is_refused() -> None:
    with pytest.raises(ValidationFailed):
        Codec(str).decode("t", b'"\xff"')


def test_deep_brackets_are_refused() -> None:
    with pytest.raises(ValidationFailed, match="nested too deeply"):
        Codec(Any).decode("t", b"[" * 100_000)


def test_an_unknown_encoding_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="'json' or 'msgpack'"):
        Codec(Order, "xml")


def test_a_type_that_msgspec_cannot_encode_is_refused() -> None:
    class Custom:
        def __init__(self, other: "Custom") -> None: ...

    with pytest.raises(InvalidOption, match="msgspec cannot encode it"):
        Codec(Custom)


def test_a_codec_says_what_it_is() -> None:
    assert repr(Codec(Order, "msgpack")) == "<Codec Order as msgpack>"
    assert "list" in Codec(list[int]).name


# -- growth -----------------------------------------------------------------------------------------------------


def grown(*fields: Any, name: str = "Event") -> Codec[Any]:
    return Codec(msgspec.defstruct(name, list(fields)))


BEFORE = (("id", int), ("at", str))


@pytest.mark.parametrize(
    "fields",
    [
        BEFORE,
        (*BEFORE, ("note", str, "")),
        (*BEFORE, ("note", str | None, None), ("count", int, 0)),
        (("id", int), ("at", str, "now")),  # a default was added
    ],
)
def test_a_type_may_gain_fields_with_defaults(fields: Any) -> None:
    grown(*fields).succeed("t", grown(*BEFORE))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ((*BEFORE, ("note", str)), "field 'note' of Event has no default"),
        ((("id", int),), "field 'at' of Event is gone"),
        ((("id", str), ("at", str)), "field 'id' of Event changed"),
        ((("id", int), ("when", str, "")), "field 'at' of Event is gone"),
    ],
)
def test_any_other_change_of_a_type_is_refused_by_name(fields: Any, why: str) -> None:
    with pytest.raises(SchemaConflict, match=why) as caught:
        grown(*fields).succeed("t", grown(*BEFORE))
    assert caught.value.topic == "t"


def test_a_default_may_not_be_taken_away() -> None:
    before = grown(("id", int), ("note", str, ""))
    with pytest.raises(SchemaConflict, match="'note' of Event has no default"):
        grown(("id", int), ("note", str)).succeed("t", before)


def test_a_nested_type_is_held_to_the_same_rule() -> None:
    inner = msgspec.defstruct("Inner", [("a", int)])
    wider = msgspec.defstruct("Inner", [("a", int), ("b", int, 0)])
    broken = msgspec.defstruct("Inner", [("a", int), ("b", int)])
    before = grown(("inner", inner))
    grown(("inner", wider)).succeed("t", before)
    with pytest.raises(SchemaConflict, match="'b' of Inner has no default"):
        grown(("inner", broken)).succeed("t", before)


def test_another_type_altogether_is_refused() -> None:
    with pytest.raises(SchemaConflict):
        Codec(int).succeed("t", grown(*BEFORE))
    with pytest.raises(SchemaConflict, match="the value changed"):
        Codec(int).succeed("t", Codec(str))


def test_the_encoding_may_not_change() -> None:
    with pytest.raises(SchemaConflict, match="encoded as json, not msgpack"):
        Codec(int, "msgpack").succeed("t", Codec(int))


def test_equal_types_follow_each_other() -> None:
    Codec(list[int]).succeed("t", Codec(list[int]))


def test_a_key_without_a_value_is_a_tombstone_and_read_as_none() -> None:
    codec: Codec[int] = Codec(int)

    def record(key: bytes | None, value: bytes) -> Record[bytes]:
        return Record("t", 0, 0, 1, key, value, {}, datetime(2026, 1, 1, tzinfo=UTC))

    assert codec.value_of(record(b"k", b"5")) == 5
    assert codec.value_of(record(b"k", b"")) is None
    with pytest.raises(ValidationFailed):
        codec.value_of(record(None, b""))


MALFORMED: list[Any] = [
    {"$ref": "#/$defs/Missing"},
    {"$ref": 5, "$defs": {"5": {}}},
    {"$defs": 3},
    {"$ref": "#/$defs/A", "$defs": {"A": 7}},
    {"properties": [1]},
    {"properties": {"a": 3}},
    {"type": "object", "properties": {}, "required": 4},
    {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {}, "required": [1]}}},
    {"properties": {"a": {"default": object()}}},
]


@pytest.mark.parametrize("schema", MALFORMED)
def test_a_malformed_schema_is_refused_and_one_that_was_stored_is_a_conflict(schema: Any) -> None:
    with pytest.raises(InvalidOption, match="schema"):
        Schema("json", schema).check()
    with pytest.raises(InvalidOption, match="schema"):
        check_schema_evolution("t", Schema("json", schema), Codec(Order))
    with pytest.raises(SchemaConflict, match="the schema it has is none"):
        check_schema_evolution("t", Codec(Order), SchemaValidator("json", schema))


@pytest.mark.parametrize("type_", [Order, int, list[Order], dict[str, Item], Order | None, Any])
def test_every_schema_of_a_type_is_well_formed(type_: Any) -> None:
    Schema("json", Codec(type_).schema).check()


@pytest.mark.parametrize(
    ("earlier", "later", "why"),
    [
        (dict[str, int], dict[str, str], r"changed from dict\[str, int\] to dict\[str, str\]"),
        (int, Annotated[int, msgspec.Meta(ge=1)], r"changed \(int: minimum\)"),
    ],
)
def test_a_conflict_names_both_types_or_what_differs(earlier: Any, later: Any, why: str) -> None:
    with pytest.raises(SchemaConflict, match=why):
        Codec(later).succeed("t", Codec(earlier))
