"""The source as Spark calls it: batch and streaming reads.

The driver plans offset ranges and packs them into partitions; executors read exactly these ranges as Arrow record
batches. Executors import this module, so what only the driver needs is imported inside functions.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from runnel.arrow.layout import PLAIN_LAYOUT, ColumnLayout
from runnel.arrow.location import open_range_reader
from runnel.arrow.range_reader import DataLossPolicy, RangeReader
from runnel.arrow.ranges import OffsetRange, split
from runnel.core.errors import InvalidOption
from runnel.spark.offsets import StreamOffset
from runnel.spark.options import BrokerLocation, SourceOptions
from runnel.spark.planning import PushedFilters, StreamPlanner, plan_batch, push_filters

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from runnel.spark.cursor import QueryCursor


class FilterPushdown:
    """`reader.pushFilters`, as something that Spark takes for not overridden until it calls it.

    A reader that overrides it is refused in a session without `spark.sql.python.filterPushdown.enabled`. Here it works
    in both, and filters are pushed down where the session does that.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters  # what Spark looks at

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that make the read smaller; Spark applies the others."""
        self._reader.filters, rest = push_filters(filters, self._reader.layout.own)
        return rest


class BatchReader(DataSourceReader):
    """Reads the existing records, or a part of them."""

    def __init__(self, options: SourceOptions, schema: StructType, layout: ColumnLayout = PLAIN_LAYOUT) -> None:
        self._options, self._schema, self.layout = options, schema, layout
        self.filters = PushedFilters()
        self.pushFilters: Any = FilterPushdown(self)

    def __repr__(self) -> str:
        return f"<BatchReader of {', '.join(self._options.topics)}>"

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["pushFilters"]  # executors push nothing
        return state

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges of each task. All is decided here: later records belong to another read."""
        reader = open_range_reader(self._options.location)
        try:
            found = plan_batch(reader, self._options, self.filters)
        finally:
            reader.close()
        tasks = split(found.ranges, self._options.min_partitions, most=self._options.partition_records)
        return [RangePartition(found.journal, ranges) for ranges in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. On an executor."""
        return read_partition(self._options, self._schema, self.layout, partition)


def read_partition(
    options: SourceOptions, schema: StructType, layout: ColumnLayout, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The records of a partition, as Arrow, with the columns that Spark requested."""
    from pyspark.sql.pandas.types import to_arrow_schema

    assert isinstance(partition, RangePartition), "we made them ourselves"
    if not partition.ranges:
        return iter(())
    arrow = to_arrow_schema(schema, timezone="UTC")
    fail = options.fail_on_data_loss
    return _read_and_freeze(read_task(options.location, partition.journal, partition.ranges, arrow, layout, fail=fail))


def _read_and_freeze(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    finally:
        freeze_modules()  # not before: the first task loads the reader of its place, and Arrow, when it reads


@cache
def freeze_modules() -> None:
    """Once in a process, exempt loaded objects from garbage collection: Spark runs a collection after each Python task.

    With pyspark, Arrow, numpy and a client loaded a collection takes 15 to 20 ms of CPU, in which the next task waits.
    """
    gc.collect()
    gc.freeze()


# -- Streaming reads -------------------------------------------------------------------------------------
# The driver's reader runs in a separate process while the query runs, and keeps its connection.


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: SourceOptions, schema: StructType, layout: ColumnLayout = PLAIN_LAYOUT) -> None:
        if options.ending is not None:
            raise InvalidOption("endingOffsets", options.ending, "a stream has no end; read a batch, or availableNow")
        self._options, self._schema, self._layout = options, schema, layout
        self._reader: RangeReader | None = None
        self._open_planner: StreamPlanner | None = None
        self._cursor: QueryCursor | None = None

    def __repr__(self) -> str:
        return f"<StreamReader of {', '.join(self._options.topics)}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_open_planner": None, "_cursor": None}  # executors open their own

    @property
    def _planner(self) -> StreamPlanner:
        if self._open_planner is None:
            self._reader = open_range_reader(self._options.location)
            self._open_planner = StreamPlanner(self._reader, self._options)
        return self._open_planner

    # -- on the driver ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins."""
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The most that a trigger takes. With both limits, both hold."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next trigger."""
        limited = not isinstance(limit, ReadAllAvailable)
        done = StreamOffset.from_json(start)
        self._show(done)  # Spark asks when the batch before is committed; `commit` comes with the batch behind it
        return self._planner.latest(done, limited=limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the topics and the lag of the query, for its progress."""
        return self._planner.report()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query reads the existing records, and ends."""
        self._planner.prepare()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of each task of a trigger."""
        behind = StreamOffset.from_json(end)
        ranges = self._planner.ranges(StreamOffset.from_json(start), behind)
        tasks = split(ranges, self._options.min_partitions, most=self._options.partition_records)
        return [RangePartition(behind.journal, one) for one in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """All before `end` was processed, and will not be requested again."""
        self._show(StreamOffset.from_json(end))

    def _show(self, done: StreamOffset) -> None:
        """Show the progress of the query on the broker."""
        if self._options.cursor is not None:
            if self._cursor is None:
                from runnel.spark.cursor import QueryCursor  # the driver's: it loads TLS and the wire

                self._cursor = QueryCursor(self._options.location, self._options.cursor, hold=self._options.hold)
            self._cursor.store(done.positions)

    def stop(self) -> None:
        """The query has ended."""
        if self._cursor is not None:
            self._cursor.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = self._open_planner = None

    # -- on an executor -----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_partition(self._options, self._schema, self._layout, partition)


# -- Partitions: what the driver sends to an executor ----------------------------------------------------


class RangePartition(InputPartition):
    """The ranges of one task, of one journal."""

    def __init__(self, journal: str, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.journal, self.ranges = journal, tuple(ranges)

    def __repr__(self) -> str:
        shown = ", ".join(f"{one.topic} [{one.first}, {one.end})" for one in self.ranges[:3])
        return f"<RangePartition {shown}{', ...' if len(self.ranges) > 3 else ''}>"


# -- Tasks: what an executor does ------------------------------------------------------------------------
# A task reads its ranges and nothing else, and checks that all of each range was there.


def read_task(
    location: BrokerLocation,
    journal: str,
    ranges: Sequence[OffsetRange],
    schema: pa.Schema,
    layout: ColumnLayout = PLAIN_LAYOUT,
    *,
    fail: bool,
) -> Iterator[pa.RecordBatch]:
    """The record batches of a task. With `fail`, a record that is not there any more is an error."""
    from runnel.arrow.columns import merged

    return merged(_batches(location, journal, ranges, schema, layout, fail=fail))


def _batches(
    location: BrokerLocation,
    journal: str,
    ranges: Sequence[OffsetRange],
    schema: pa.Schema,
    layout: ColumnLayout,
    *,
    fail: bool,
) -> Iterator[pa.RecordBatch]:
    from runnel.arrow.record_batches import RangeBatches

    data_loss = DataLossPolicy(fail=fail)
    reader = open_range_reader(location)
    try:
        if reader.journal != journal:
            for one in ranges:
                data_loss.tell(one.topic, one.first, one.end, "the journal is another one now")
            return
        reader.expect(ranges)
        batches = RangeBatches(schema, data_loss, layout)
        for wanted in ranges:
            yield from batches.of(reader.read(wanted), wanted)
    finally:
        reader.close()
