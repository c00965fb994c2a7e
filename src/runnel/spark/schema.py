"""The columns of the source and of the sink: names, types, and which ones a query has.

The layout of a query is settled when the query is made and does not change. With typed values the fields of the type
are columns in place of `value`; a record's own column of the same name gets an underscore before its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from runnel.arrow.layout import PLAIN_LAYOUT, ColumnLayout
from runnel.arrow.location import open_range_reader
from runnel.arrow.range_reader import RangeReader, durable_only
from runnel.core.errors import InvalidOption
from runnel.core.schema import Schema
from runnel.core.topic_bounds import TopicBounds
from runnel.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from runnel.arrow.typed_values import Digits


SOURCE_COLUMNS: dict[str, tuple[str, bool]] = {
    "topic": ("string", False),
    "epoch": ("bigint", False),
    "offset": ("bigint", False),
    "sequence": ("bigint", False),
    "time": ("timestamp", False),
    "key": ("binary", True),
    "value": ("binary", False),
    "headers": ("map<string,string>", False),
    "traceparent": ("string", True),
}
"""By name: the type as Spark writes it, and whether it can be null."""

EXTRA_COLUMNS = {"due": "double", "expires": "double", "priority": "int"}
"""Columns that a query has only if its schema names them, and their types."""

HEADER_LIST = "array<struct<key:string,value:binary>>"
"""The type of headers with `headersFormat=array`, as Spark's own source for Kafka has them."""


def spark_schema(*, header_list: bool = False) -> StructType:
    """The plain columns of records."""
    from pyspark.sql import types

    header = types.StructType(
        [types.StructField("key", types.StringType(), False), types.StructField("value", types.BinaryType(), False)]
    )
    kinds: dict[str, types.DataType] = {
        "string": types.StringType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "binary": types.BinaryType(),
        "map<string,string>": (
            types.ArrayType(header, False)
            if header_list
            else types.MapType(types.StringType(), types.StringType(), False)
        ),
    }
    return types.StructType(
        [types.StructField(name, kinds[kind], null) for name, (kind, null) in SOURCE_COLUMNS.items()]
    )


def check_source_schema(asked: StructType, known: StructType | None = None) -> None:
    """Raise unless a query can have these columns, of those that there are (`known`; None: a record's own)."""
    there = {field.name: field.dataType.simpleString() for field in (known or spark_schema()).fields}
    there |= {name: kind for name, kind in EXTRA_COLUMNS.items() if name not in there}
    if not asked.fields:
        raise InvalidOption("schema", "", f"name a column at least: {', '.join(there)}")
    for field in asked.fields:
        kind = there.get(field.name)
        if kind is None:
            raise InvalidOption("schema", field.name, f"a record has no such column; it has {', '.join(there)}")
        if field.dataType.simpleString() != kind:
            raise InvalidOption("schema", field.name, f"it is {kind}, not {field.dataType.simpleString()}")


# -- Tables of a catalog ---------------------------------------------------------------------------------
# Spark keeps the options that a table was created with, and hands them to no reader or writer of a source in Python:
# to these it hands the columns of the table, as they were. So the first column carries the options as metadata.


_TABLE_OPTIONS = "runnel.options"


def as_table(columns: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a table. All of them can be null: an insert leaves out those that the broker fills in."""
    from pyspark.sql.types import StructField, StructType

    first, *others = [StructField(field.name, field.dataType, True, field.metadata) for field in columns.fields]
    first.metadata = {**first.metadata, _TABLE_OPTIONS: json.dumps(dict(options), sort_keys=True)}
    return StructType([first, *others])


def options_of_table(columns: StructType) -> dict[str, str]:
    """The options that a table with these columns was created with; none, if it is no table."""
    for field in columns.fields:
        if _TABLE_OPTIONS in field.metadata:
            found: dict[str, str] = json.loads(field.metadata[_TABLE_OPTIONS])
            return found
    return {}


# -- The columns of one query ----------------------------------------------------------------------------


CORRUPT_COLUMN = "_corrupt_record"
"""The column of a record that cannot be decoded, by default. Spark's own readers call it so."""

_DIGITS = re.compile(r"\s*(?:decimal\s*\()?\s*(\d+)\s*,\s*(\d+)\s*\)?\s*", re.IGNORECASE)


def spark_columns(layout: ColumnLayout) -> StructType:
    """The columns of a layout as Spark has them."""
    from pyspark.sql.types import StructField, StructType

    plain = spark_schema(header_list=layout.header_list)
    shown = {shown: name for shown, name in layout.own.items() if name in SOURCE_COLUMNS}
    fields = [StructField(one, plain[name].dataType, plain[name].nullable) for one, name in shown.items()]
    if layout.typed is None:
        return StructType(fields)
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    return StructType([*fields, *from_arrow_schema(pa.schema(layout.typed.fields)).fields])


def resolve_layout(options: SourceOptions) -> ColumnLayout:
    """The columns of a query with these options. A typed one looks up the current types of its topics."""
    if not options.typed:
        return ColumnLayout(header_list=True) if options.header_list else PLAIN_LAYOUT
    reader = open_range_reader(options.location)
    try:
        schema = common_schema(reader, options)
    finally:
        reader.close()
    from runnel.arrow.typed_values import TypedDecoder

    bad = None if options.mode == "FAILFAST" else options.corrupt or CORRUPT_COLUMN
    typed = TypedDecoder(schema, bad=bad, digits=parse_decimal_type(options.decimal))
    if bad is not None and bad.lower() in {field.name.lower() for field in typed.fields[:-1]}:
        raise InvalidOption("columnNameOfCorruptRecord", bad, "a field of the type has this name; choose another one")
    return ColumnLayout(typed, header_list=options.header_list)


def common_schema(reader: RangeReader, options: SourceOptions) -> Schema:
    """The one schema that all topics of a query have now."""
    found = durable_only(reader.bounds(options.topics), options.topics)
    if not found:
        raise _untyped(f"there is no topic {' or '.join(map(repr, options.topics))} yet, so its type is not known")
    first, *others = [(one, _schema(one)) for one in found]
    for one, schema in others:
        if schema != first[1]:
            raise _untyped(f"topics {first[0].topic!r} and {one.topic!r} have different types; read them one by one")
    return first[1]


def _schema(one: TopicBounds) -> Schema:
    if one.schema is None:
        raise _untyped(f"topic {one.topic!r} has no type")
    return one.schema


def _untyped(why: str) -> InvalidOption:
    way_out = "declare a topic with its type (broker.topic(name, Type).declare()), or read valueFormat='bytes'"
    return InvalidOption("valueFormat", "typed", f"{why}; {way_out}")


def parse_decimal_type(text: str | None) -> Digits | None:
    """Parse `decimalType`: `18,4`, or `decimal(18,4)`."""
    from runnel.arrow.typed_values import Digits

    if text is None:
        return None
    found = _DIGITS.fullmatch(text)
    if found is None:
        raise InvalidOption("decimalType", text, "expected all digits, and those behind the point, such as 18,4")
    return Digits(int(found[1]), int(found[2]))


# -- The columns that the sink takes ---------------------------------------------------------------------


SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("map<string,string>", HEADER_LIST),
}
"""The columns, and the types that Spark may give them."""


BROKERS_COLUMNS = ("epoch", "offset", "sequence", "time", "traceparent")
"""Of a table: columns that the broker fills in. Inserted rows have nulls there."""


def without_brokers_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that are inserted into a table, without the columns that the broker fills in."""
    for name in BROKERS_COLUMNS:
        if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
            why = f"the broker fills it in; insert {', '.join(SINK_COLUMNS)} only: INSERT INTO t (key, value) …"
            raise InvalidOption("columns", name, why)
    return batch.select([name for name in batch.schema.names if name in SINK_COLUMNS])


def check_sink_columns(given: Mapping[str, str], topic: str | None) -> None:
    """Raise unless rows of these columns (name to Spark's type) can be written; `topic`: the option of that name."""
    for name, kind in given.items():
        if name not in SINK_COLUMNS:
            raise InvalidOption(
                "columns", sorted(given), f"{_unknown_column(name)}; select those that are to be written"
            )
        if kind not in SINK_COLUMNS[name]:
            why = f"the column {name!r} is {kind}, and has to be {' or '.join(SINK_COLUMNS[name])}"
            raise InvalidOption("columns", sorted(given), f"{why}; cast it, or turn it into text with to_json")
    if "value" not in given:
        why = "there is no column 'value'; to write whole rows, make one: select(to_json(struct('*')).alias('value'))"
        raise InvalidOption("columns", sorted(given), why)
    if topic is None and "topic" not in given:
        raise InvalidOption("topic", None, "name the topic with the option topic, or give each row a column 'topic'")


def _unknown_column(name: str) -> str:
    near = get_close_matches(name.lower(), SINK_COLUMNS, 1)
    return f"the sink has no column {name!r}; " + (
        f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(SINK_COLUMNS)}"
    )
