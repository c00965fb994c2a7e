"""The columns of a query: a record's own and those of its type, looked up once, and beside each other by name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from runnel.arrow.columns import RecordBatchBuilder, RowBuffer
from runnel.arrow.layout import ON_REQUEST, PLAIN_LAYOUT, ColumnLayout
from runnel.arrow.range_reader import with_offsets
from runnel.arrow.typed_values import Digits, TypedDecoder
from runnel.core.batch_format import pack, unpack
from runnel.core.errors import InvalidOption
from runnel.core.record import Meta
from runnel.core.schema import Codec, Schema
from runnel.core.topic_bounds import TopicBounds
from runnel.spark.options import SourceOptions
from runnel.spark.schema import (
    SOURCE_COLUMNS,
    common_schema,
    parse_decimal_type,
    resolve_layout,
    spark_columns,
    spark_schema,
)
from tests.carried import columns_of
from tests.spark.rig import Served, Shelf


class Part(msgspec.Struct):
    name: str
    grams: list[float] = []


class Order(msgspec.Struct):
    id: int
    time: str
    parts: list[Part] = []
    notes: dict[str, list[int]] = {}


class Other(msgspec.Struct):
    id: int


def schema(type_: Any, encoding: str = "json") -> Schema:
    return Schema(encoding, Codec(type_, encoding).schema)


def layout(type_: Any, bad: str | None = "_corrupt_record") -> ColumnLayout:
    return ColumnLayout(TypedDecoder(schema(type_), bad=bad))


def options(**said: str) -> SourceOptions:
    return SourceOptions.parse({"path": "data", "topic": "orders.*", "valueFormat": "typed", **said})


def test_records_as_they_are_have_their_own_columns_alone() -> None:
    assert PLAIN_LAYOUT.own == {name: name for name in (*SOURCE_COLUMNS, *ON_REQUEST)}
    assert spark_columns(PLAIN_LAYOUT) == spark_schema()
    assert resolve_layout(SourceOptions.parse({"path": "nowhere", "topic": "t"})) is PLAIN_LAYOUT


def test_the_fields_of_the_type_stand_in_the_place_of_the_value() -> None:
    assert spark_columns(layout(Other)).fieldNames() == [
        *(name for name in SOURCE_COLUMNS if name != "value"),
        *("id", "_corrupt_record"),
    ]
    assert spark_columns(layout(Other, bad=None)).fieldNames()[-1] == "id"
    assert spark_columns(layout(list[int], bad=None)).fieldNames()[-1] == "value"


def test_a_column_of_the_record_gives_way_to_a_field_of_its_name_whatever_its_case() -> None:
    made = layout(Order)
    assert "_time" in made.own
    assert "time" not in made.own
    both = layout(msgspec.defstruct("Both", [("Offset", int), ("_offset", int)]))
    assert [shown for shown, name in both.own.items() if name == "offset"] == ["__offset"]


def test_arrow_builds_exactly_the_declared_spark_types_also_nested() -> None:
    made = pickle.loads(pickle.dumps(layout(Order)))
    arrow = to_arrow_schema(spark_columns(made), timezone="UTC")
    value = b'{"id": 1, "time": "noon", "parts": [{"name": "nut", "grams": [1.5]}], "notes": {"a": [1, 2]}}'
    rows = RowBuffer("orders", 7, decoded=True)
    metas = [None, Meta(key=b"k"), None, None]
    rows.add(with_offsets(unpack(pack([value, b"", b"", b"{}"], columns_of(metas))), 5, 5, 1000), 0.0)
    batch = RecordBatchBuilder(arrow, made).batch(rows)
    batch.validate(full=True)
    assert batch.schema.equals(arrow)
    assert [field.type for field in batch.schema] == [column.type for column in batch.columns]
    first, tombstone, empty, bad = batch.to_pylist()
    assert (first["offset"], first["time"], first["_time"].microsecond) == (5, "noon", 1000)
    assert first["parts"] == [{"name": "nut", "grams": [1.5]}]
    assert first["notes"] == [("a", [1, 2])]
    assert (tombstone["key"], tombstone["id"], tombstone["_corrupt_record"]) == (b"k", None, None)
    assert (empty["id"], empty["_corrupt_record"]) == (None, b"")
    assert (bad["id"], bad["_corrupt_record"]) == (None, b"{}")


def test_a_query_without_fields_decodes_nothing() -> None:
    made = layout(Order, bad=None)
    rows = RowBuffer("orders", 7, decoded=True)
    rows.add(with_offsets(unpack(pack([b"nonsense"])), 5, 5, 1000), 0.0)
    assert RecordBatchBuilder(pa.schema([pa.field("offset", pa.int64())]), made).batch(rows).to_pylist() == [
        {"offset": 5}
    ]


def bounds(name: str, type_: Any = None, encoding: str = "json") -> TopicBounds:
    return TopicBounds(name, 1, 0, 5, schema=None if type_ is None else schema(type_, encoding))


def test_all_topics_of_a_query_have_one_type() -> None:
    same = Shelf(bounds("orders.eu", Order), bounds("orders.us", Order), bounds("else", Other))
    assert common_schema(same, options()) == schema(Order)


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ([], r"there is no topic 'orders\.\*' yet.*declare.*valueFormat='bytes'"),
        ([bounds("orders.eu")], "topic 'orders.eu' has no type; declare"),
        ([bounds("orders.eu", Order), bounds("orders.us")], "topic 'orders.us' has no type"),
        ([bounds("orders.eu", Order), bounds("orders.us", Other)], "'orders.eu' and 'orders.us' have different types"),
        ([bounds("orders.eu", Order), bounds("orders.us", Order, "msgpack")], "different types"),
    ],
)
def test_topics_without_one_type_are_refused_with_the_way_out(topics: list[TopicBounds], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        common_schema(Shelf(*topics), options())


def test_a_bad_record_has_a_column_of_a_name_that_is_free(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.run(served.broker.topic("orders.eu", Other).declare())
        where = {"path": str(tmp_path)}
        assert spark_columns(resolve_layout(options(**where))).fieldNames()[-2:] == ["id", "_corrupt_record"]
        assert (
            spark_columns(resolve_layout(options(**where, columnNameOfCorruptRecord="bad"))).fieldNames()[-1] == "bad"
        )
        assert spark_columns(resolve_layout(options(**where, mode="FAILFAST"))).fieldNames()[-1] == "id"
        with pytest.raises(InvalidOption, match="a field of the type has this name"):
            resolve_layout(options(**where, columnNameOfCorruptRecord="ID"))


def test_digits_are_read_as_spark_writes_them() -> None:
    assert parse_decimal_type(None) is None
    assert (
        parse_decimal_type("18,4")
        == parse_decimal_type("decimal(18, 4)")
        == parse_decimal_type(" DECIMAL(18,4) ")
        == Digits(18, 4)
    )
    for text in ("18", "", "a,b", "-1,2"):
        with pytest.raises(InvalidOption, match="such as 18,4"):
            parse_decimal_type(text)
