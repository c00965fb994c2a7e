"""A batch read as Spark calls it: filters, then partitions on the driver, then records on the executors.

Below: selection, task. Above: format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from runnel.spark.filters import Narrowing, narrow
from runnel.spark.layout import PLAIN, Layout
from runnel.spark.options import SourceOptions
from runnel.spark.partition import RangePartition
from runnel.spark.ranges import split
from runnel.spark.reading import open_reading
from runnel.spark.selection import select
from runnel.spark.task import read_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class Pushing:
    """`reader.pushFilters`, as something that Spark takes for not overridden until it calls it.

    A reader that overrides it is refused in a session without `spark.sql.python.filterPushdown.enabled`. Here it works
    in both, and filters are pushed down where the session does that.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters  # what Spark looks at

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what makes the read smaller; those that are left are Spark's."""
        self._reader.narrowing, rest = narrow(filters, self._reader.layout.own)
        return rest


class BatchReader(DataSourceReader):
    """Reads what is there now, or a part of it."""

    def __init__(self, options: SourceOptions, schema: StructType, layout: Layout = PLAIN) -> None:
        self._options, self._schema, self.layout = options, schema, layout
        self.narrowing = Narrowing()
        self.pushFilters: Any = Pushing(self)

    def __repr__(self) -> str:
        return f"<BatchReader of {', '.join(self._options.topics)}>"

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["pushFilters"]  # executors push nothing
        return state

    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads. All is decided here: records that come later belong to another read."""
        reading = open_reading(self._options.place)
        try:
            found = select(reading, self._options, self.narrowing)
        finally:
            reading.close()
        tasks = split(found.ranges, self._options.min_partitions)
        return [RangePartition(found.journal, ranges) for ranges in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. On an executor."""
        return read_partition(self._options, self._schema, self.layout, partition)


def read_partition(
    options: SourceOptions, schema: StructType, layout: Layout, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """What a partition names, as Arrow, with the columns that Spark asked for."""
    from pyspark.sql.pandas.types import to_arrow_schema

    assert isinstance(partition, RangePartition), "we made them ourselves"
    if not partition.ranges:
        return iter(())
    arrow = to_arrow_schema(schema, timezone="UTC")
    fail = options.fail_on_data_loss
    return read_task(options.place, partition.journal, partition.ranges, arrow, layout, fail=fail)
