"""Offset ranges as Arrow record batches, from any source: losses go to the `DataLossPolicy`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from runnel.arrow.columns import RecordBatchBuilder, RowBuffer
from runnel.arrow.layout import PLAIN_LAYOUT, ColumnLayout
from runnel.arrow.range_reader import DataLossPolicy, DecodedBatch, FoundPart, LakeRows
from runnel.arrow.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from runnel.arrow.lake_columns import LakeColumns


class RangeBatches:
    """Reads ranges as record batches of one schema, whose columns are what `layout` says."""

    def __init__(self, schema: pa.Schema, loss: DataLossPolicy, layout: ColumnLayout = PLAIN_LAYOUT) -> None:
        self._schema, self._layout, self._loss = schema, layout, loss
        self._builder = RecordBatchBuilder(schema, layout)

    def __repr__(self) -> str:
        return f"<RangeBatches {', '.join(self._schema.names)}>"

    @cached_property
    def _lake_columns(self) -> LakeColumns:
        from runnel.arrow.lake_columns import LakeColumns  # most tasks read no lake

        return LakeColumns(self._schema, self._layout)

    def of(self, parts: Iterable[FoundPart], wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records read of a range, in order."""
        rows = self._buffer(wanted)
        for found in parts:
            if isinstance(found, DecodedBatch):
                rows.add(found, time.time())
                if not rows.is_full:
                    continue
            if rows.count:
                yield self._builder.batch(rows)
                rows = self._buffer(wanted)
            if isinstance(found, LakeRows):
                yield from self._lake_columns.batches(found.table, time.time())
            elif not isinstance(found, DecodedBatch):
                first, end = max(found.first, wanted.first), min(found.end, wanted.end)
                if first < end:
                    self._loss.tell(wanted.topic, first, end, found.reason)
        if rows.count:
            yield self._builder.batch(rows)

    def _buffer(self, wanted: OffsetRange) -> RowBuffer:
        return self._builder.buffer(wanted.topic, wanted.epoch)
