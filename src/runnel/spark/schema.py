"""The columns of a record, for Arrow and for Spark.

Spark compares the two to the letter, so Arrow's are made from what Spark was told. A query may name fewer columns in
any order with `.schema(...)`: the others are not made.
Below: nothing; Arrow and Spark are loaded when they are asked for. Above: columns, format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runnel.core.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: dict[str, tuple[str, bool]] = {
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


def spark_schema() -> StructType:
    """The columns of records as they are."""
    from pyspark.sql import types

    kinds: dict[str, types.DataType] = {
        "string": types.StringType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "binary": types.BinaryType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType(), False),
    }
    return types.StructType([types.StructField(name, kinds[kind], null) for name, (kind, null) in COLUMNS.items()])


def check_schema(asked: StructType, known: StructType | None = None) -> None:
    """Raise unless a query can have these columns, of those that there are (`known`; None: a record's own)."""
    there = {field.name: field.dataType.simpleString() for field in (known or spark_schema()).fields}
    if not asked.fields:
        raise InvalidOption("schema", "", f"name a column at least: {', '.join(there)}")
    for field in asked.fields:
        kind = there.get(field.name)
        if kind is None:
            raise InvalidOption("schema", field.name, f"a record has no such column; it has {', '.join(there)}")
        if field.dataType.simpleString() != kind:
            raise InvalidOption("schema", field.name, f"it is {kind}, not {field.dataType.simpleString()}")
