"""Which columns a query has, and what of a record each of them is. It is settled when the query is made, and stays.

Records as they are have the columns of `schema`. Of typed ones the fields of the type are columns, in the place of
`value`; a column of the record's own gives way to a field of its name, with an underscore before its name.
Below: schema, reading, typed. Above: columns, filters' names, format and the readers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from runnel.core.bounds import TopicBounds
from runnel.core.codec import Schema
from runnel.core.errors import InvalidOption
from runnel.spark.options import SourceOptions
from runnel.spark.reading import Reading, durable, open_reading
from runnel.spark.schema import COLUMNS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from runnel.spark.typed import Typed
    from runnel.spark.typed_schema import Digits

BAD = "_corrupt_record"
"""The column of a record that cannot be decoded, if nobody calls it otherwise. Spark's own readers call it so."""

_DIGITS = re.compile(r"\s*(?:decimal\s*\()?\s*(\d+)\s*,\s*(\d+)\s*\)?\s*", re.IGNORECASE)


class Layout:
    """The columns of a query: `own` says what of the record each is; behind them come those of `typed`, if it is.

    It travels to executors, which decode by it whatever became of the topic's type since.
    """

    def __init__(self, typed: Typed | None = None) -> None:
        self.typed = typed
        # Spark does not look at case, so neither does this.
        taken = set() if typed is None else {field.name.lower() for field in typed.fields}
        self.own = {_beside(taken, name): name for name in COLUMNS if typed is None or name != "value"}

    def __repr__(self) -> str:
        return f"<Layout {', '.join(self.own)}{'' if self.typed is None else f', {self.typed!r}'}>"

    def spark(self) -> StructType:
        """The columns as Spark has them."""
        from pyspark.sql.types import StructField, StructType

        plain = spark_schema()
        fields = [StructField(shown, plain[name].dataType, plain[name].nullable) for shown, name in self.own.items()]
        if self.typed is None:
            return StructType(fields)
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema

        return StructType([*fields, *from_arrow_schema(pa.schema(self.typed.fields)).fields])


def _beside(taken: set[str], name: str) -> str:
    """The name of a column of the record's own, where others have the names in `taken`."""
    while name in taken:
        name = f"_{name}"
    return name


PLAIN = Layout()
"""Records as they are."""


def layout_of(options: SourceOptions) -> Layout:
    """The columns of a query with these options. Of a typed one the topics are looked at, as they are now."""
    if not options.typed:
        return PLAIN
    reading = open_reading(options.place)
    try:
        schema = pinned(reading, options)
    finally:
        reading.close()
    from runnel.spark.typed import Typed

    bad = None if options.mode == "FAILFAST" else options.corrupt or BAD
    typed = Typed(schema, bad=bad, digits=digits_of(options.decimal))
    if bad is not None and bad.lower() in {field.name.lower() for field in typed.fields[:-1]}:
        raise InvalidOption("columnNameOfCorruptRecord", bad, "a field of the type has this name; choose another one")
    return Layout(typed)


def pinned(reading: Reading, options: SourceOptions) -> Schema:
    """The one schema that all topics of a query have now."""
    found = durable(reading.bounds(options.topics), options.topics)
    if not found:
        raise _untyped(f"there is no topic {' or '.join(map(repr, options.topics))} yet, so nobody knows its type")
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


def digits_of(text: str | None) -> Digits | None:
    """What `decimalType` says: `18,4`, or `decimal(18,4)`."""
    from runnel.spark.typed_schema import Digits

    if text is None:
        return None
    found = _DIGITS.fullmatch(text)
    if found is None:
        raise InvalidOption("decimalType", text, "expected all digits, and those behind the point, such as 18,4")
    return Digits(int(found[1]), int(found[2]))
