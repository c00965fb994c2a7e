"""A streaming read as Spark calls it: offsets and partitions on the driver, records on the executors.

The driver's side lives in a process of its own for as long as the query runs, and keeps its connection.
Below: course, task, cursor. Above: format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from runnel.core.errors import InvalidOption
from runnel.spark.batch_reader import read_partition
from runnel.spark.course import Course
from runnel.spark.cursor import QueryCursor
from runnel.spark.layout import PLAIN, Layout
from runnel.spark.offsets import StreamOffset
from runnel.spark.options import SourceOptions
from runnel.spark.partition import RangePartition
from runnel.spark.ranges import split
from runnel.spark.reading import Reading, open_reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: SourceOptions, schema: StructType, layout: Layout = PLAIN) -> None:
        if options.ending is not None:
            raise InvalidOption("endingOffsets", options.ending, "a stream has no end; read a batch, or availableNow")
        self._options, self._schema, self._layout = options, schema, layout
        self._reading: Reading | None = None
        self._open: Course | None = None
        self._cursor: QueryCursor | None = None

    def __repr__(self) -> str:
        return f"<StreamReader of {', '.join(self._options.topics)}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reading": None, "_open": None, "_cursor": None}  # executors open their own

    @property
    def _course(self) -> Course:
        if self._open is None:
            self._reading = open_reading(self._options.place)
            self._open = Course(self._reading, self._options)
        return self._open

    # -- on the driver ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins."""
        return self._course.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What a trigger takes at most. With both limits, both hold."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next trigger goes."""
        limited = not isinstance(limit, ReadAllAvailable)
        done = StreamOffset.from_json(start)
        self._show(done)  # Spark asks when the batch before is committed; `commit` comes with the batch behind it
        return self._course.latest(done, limited=limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the topics, for the query's progress."""
        seen = self._course.report()
        return None if seen is None else seen.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query reads what is there now, and ends."""
        self._course.prepare()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What each task of a trigger reads."""
        behind = StreamOffset.from_json(end)
        ranges = self._course.ranges(StreamOffset.from_json(start), behind)
        tasks = split(ranges, self._options.min_partitions)
        return [RangePartition(behind.journal, one) for one in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """All before `end` was processed, and will not be asked for again."""
        self._show(StreamOffset.from_json(end))

    def _show(self, done: StreamOffset) -> None:
        """Have the broker see how far the query has come."""
        if self._options.cursor is not None:
            if self._cursor is None:
                self._cursor = QueryCursor(self._options.place, self._options.cursor, hold=self._options.hold)
            self._cursor.store(done.positions)

    def stop(self) -> None:
        """The query has ended."""
        if self._cursor is not None:
            self._cursor.close()
        if self._reading is not None:
            self._reading.close()
            self._reading = self._open = None

    # -- on an executor -----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_partition(self._options, self._schema, self._layout, partition)
