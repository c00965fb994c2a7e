"""Rows of a lake as the record batches that `RecordBatchBuilder` makes of a journal's records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runnel.arrow.columns import ROWS
from runnel.arrow.layout import PLAIN_LAYOUT, ColumnLayout
from runnel.core.trace_context import TRACEPARENT


class LakeColumns:
    """Makes record batches of one schema, whose columns are what `layout` says."""

    def __init__(self, schema: pa.Schema, layout: ColumnLayout = PLAIN_LAYOUT) -> None:
        self.schema, self._layout = schema, layout

    def __repr__(self) -> str:
        return f"<LakeColumns {', '.join(self.schema.names)}>"

    def batches(self, table: pa.Table, now: float) -> Iterator[pa.RecordBatch]:
        """Rows of one topic, less those that have expired."""
        expires = table["expires"]
        if expires.null_count < len(expires):
            table = table.filter(pc.fill_null(pc.greater(expires, now), True))
        for batch in table.combine_chunks().to_batches(ROWS):
            if batch.num_rows:
                yield self._batch(batch)

    def _batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        own = self._layout.own
        typed = self._typed(rows) if any(name not in own for name in self.schema.names) else {}
        arrays = [
            self._column(field, own[field.name], rows) if field.name in own else typed[field.name]
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _typed(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        typed = self._layout.typed
        assert typed is not None, "there are no other columns"
        made = typed.columns(
            tombstones_as_none(rows), lambda at: (rows.column("topic")[at].as_py(), rows.column("offset")[at].as_py())
        )
        return {field.name: column for field, column in zip(typed.fields, made, strict=True)}

    def _column(self, field: pa.Field, name: str, rows: pa.RecordBatch) -> pa.Array:
        if name == "headers":
            return _headers(rows.column(name), field.type)
        if name == "traceparent":
            return _traces(rows.column("headers"), field.type)
        column = rows.column(name)
        return column if column.type.equals(field.type) else column.cast(field.type)


def tombstones_as_none(batch: pa.RecordBatch) -> list[bytes | None]:
    """The values of records; an empty one that has a key is a tombstone: None."""
    values: list[bytes | None] = batch.column("value").to_pylist()
    if b"" not in values:
        return values
    keys = batch.column("key").to_pylist()
    return [None if value == b"" and key is not None else value for value, key in zip(values, keys, strict=True)]


def _headers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of maps or of lists; a record without headers has an empty one, as in the journal."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate((np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32))))
    pairs: Any = column.flatten()  # without the values under nulls
    names, values = pairs.field(0), pairs.field(1)
    if isinstance(kind, pa.MapType):
        return pa.MapArray.from_arrays(offsets, names.cast(kind.key_type), values.cast(kind.item_type), type=kind)
    pair: pa.StructType = kind.value_type
    made = pa.StructArray.from_arrays(
        [names.cast(pair.field(0).type), values.cast(pair.field(1).type)], fields=list(pair)
    )
    return pa.ListArray.from_arrays(offsets, made, type=kind)


def _traces(headers: pa.Array, kind: pa.DataType) -> pa.Array:
    """The trace that each record belongs to, by its header."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), kind)
    found = [
        next((one["value"].decode() for one in pairs or () if one["key"] == TRACEPARENT), None)
        for pairs in headers.to_pylist()
    ]
    return pa.array(found, kind)
