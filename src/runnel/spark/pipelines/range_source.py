"""Offset ranges of topics as a stream: which records each task is to copy, and not the records themselves.

Records that only Python reads and writes need not go through Java. A row says which offsets of a topic a task reads;
the task reads them from the broker itself. Ranges, limits and checkpoints are those of `format("runnel")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from runnel.arrow.ranges import OffsetRange
from runnel.spark.options import SourceOptions
from runnel.spark.source import RangePartition, StreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "runnel_ranges"

RANGE_COLUMNS = {"journal": "string", "topic": "string", "epoch": "bigint", "first": "bigint", "end": "bigint"}


def read_ranges(spark: SparkSession, broker: Mapping[str, str], topics: str, **options: object) -> DataFrame:
    """A streaming DataFrame with a row for each range. `options` are those of `format("runnel")`."""
    spark.dataSource.register(RangeSource)
    said = {name: str(one) for name, one in {**options, **broker, "topic": topics}.items()}
    return spark.readStream.format(FORMAT).options(**said).load()


class RangeSource(DataSource):
    """Topics as ranges of offsets."""

    @classmethod
    def name(cls) -> str:
        """The data source behind `format`."""
        return FORMAT

    def __repr__(self) -> str:
        return "<RangeSource>"  # options may be secret

    def schema(self) -> str:
        """The columns of a range."""
        return ", ".join(f"{name} {kind} not null" for name, kind in RANGE_COLUMNS.items())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read."""
        return RangeStreamReader(SourceOptions.parse(self.options), schema)


class RangeStreamReader(StreamReader):
    """Plans as the reader of records does; a task yields its ranges."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The ranges of one task. On an executor."""
        import pyarrow as pa

        assert isinstance(partition, RangePartition), "we made them ourselves"
        if partition.ranges:
            kinds = {"string": pa.string(), "bigint": pa.int64()}
            schema = pa.schema([pa.field(name, kinds[kind], False) for name, kind in RANGE_COLUMNS.items()])
            rows = [one._asdict() | {"journal": partition.journal} for one in partition.ranges]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def ranges_of(batch: pa.RecordBatch) -> Iterator[tuple[str, OffsetRange]]:
    """The ranges in a batch of such rows, each with its journal."""
    for row in batch.to_pylist():
        yield row["journal"], OffsetRange(row["topic"], row["epoch"], row["first"], row["end"])
