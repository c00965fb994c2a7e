"""The way of records into the lake: tasks read their ranges and write Parquet files, the driver commits the files.

A file that no commit names is seen by no reader. A commit that is repeated adds nothing: the lake keeps the next offset
of every topic beside the files. After the commit the broker learns up to where its topics are archived.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from runnel.arrow.layout import ColumnLayout
from runnel.core.errors import NotArchived, NotSupported, OffsetOutOfRange, RunnelError, TopicDeleted, UnknownTopic
from runnel.lake import Lake, LakeFile
from runnel.lake.layout import record_schema
from runnel.spark.options import BrokerLocation, broker_location
from runnel.spark.pipelines.access import has_listener
from runnel.spark.pipelines.range_source import ranges_of
from runnel.spark.sink import BATCH_ID, QUERY_ID
from runnel.spark.source import freeze_modules, read_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("runnel.spark.pipelines")

FORMAT = "runnel_lake"

FILE_COLUMNS = "file string not null, records bigint not null"
"""Of a row that names a file: the `LakeFile` as JSON, and how many records it holds."""

REFUSALS = 16  # topics that a broker may refuse before the rest of a batch is left to the next one


def record_files(ranges: DataFrame, lake: Lake, location: BrokerLocation, *, fail: bool) -> DataFrame:
    """Files with the records of these ranges: each task reads its own from the broker, and writes them to the lake.

    No reader sees the files before they are committed. `fail`: whether missing records end the query.
    """
    layout = ColumnLayout(header_list=True)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = pa.schema([pa.field("file", pa.string(), False), pa.field("records", pa.int64(), False)])
        files = lake.write(_records(batches, location, layout, fail=fail))
        said = pa.array([msgspec.json.encode(one).decode() for one in files], pa.string())
        counts = pa.array([one.rows for one in files], pa.int64())
        freeze_modules()
        yield pa.RecordBatch.from_arrays([said, counts], schema=schema)

    return ranges.mapInArrow(write, FILE_COLUMNS)


def _records(
    batches: Iterator[pa.RecordBatch], location: BrokerLocation, layout: ColumnLayout, *, fail: bool
) -> Iterator[pa.RecordBatch]:
    """The records of a task's ranges."""
    for batch in batches:
        for journal, several in groupby(ranges_of(batch), lambda one: one[0]):
            wanted = [one for _, one in several]
            yield from read_task(location, journal, wanted, record_schema(), layout, fail=fail)


def register(spark: SparkSession) -> str:
    """Make the format known to a session; its name."""
    spark.dataSource.register(LakeFormat)
    return FORMAT


def sink_options(lake: Lake, broker: Mapping[str, str]) -> dict[str, str]:
    """The options of the format. `broker`: where to report archived positions; empty: nowhere."""
    said = {
        "location": lake.storage.uri,
        "buckets": lake.buckets,
        "storage": dict(lake.storage.options or {}),
        "broker": dict(broker),
    }
    return {"lake": json.dumps(said)}


class LakeFormat(DataSource):
    """Adds files to a lake."""

    @classmethod
    def name(cls) -> str:
        """The data source behind `format`."""
        return FORMAT

    def __repr__(self) -> str:
        return "<LakeFormat>"  # storage options may be secret

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A streaming write."""
        if overwrite:
            raise NotSupported("overwriting a lake", "records are only added to it; use outputMode('append')")
        said = json.loads(self.options["lake"])
        return LakeWriter(Lake(said["location"], said["storage"], buckets=said["buckets"]), said["broker"])


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """The files of one task, and of which query it is a part."""

    query: str
    files: tuple[LakeFile, ...]


class LakeWriter(DataSourceStreamArrowWriter):
    """The sink of a query."""

    def __init__(self, lake: Lake, broker: Mapping[str, str]) -> None:
        self._lake, self._broker = lake, dict(broker)

    def __repr__(self) -> str:
        return f"<LakeWriter of {self._lake!r}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take up the files of one partition. On an executor."""
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise NotSupported("this way of streaming", "Spark does not say which batch of which query a task is for")
        said = (one for batch in iterator for one in batch.column("file").to_pylist())
        return WrittenMessage(query, tuple(msgspec.json.decode(one, type=LakeFile) for one in said))

    # Spark names the parameters.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Add the files of a batch to the table. On the driver."""
        written = [one for one in messages if isinstance(one, WrittenMessage)]
        if not written:
            return  # a batch without tasks has no rows
        files = [file for one in written for file in one.files]
        done = self._lake.commit(files, application=f"spark/{written[0].query}", version=batchId)
        if self._broker:
            confirm(self._broker, done.next_offsets)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: a file that was not committed is removed by the lake's maintenance, when no task can need it."""


def confirm(broker: Mapping[str, str], next_offsets: Mapping[tuple[str, int], int]) -> None:
    """Report to the broker up to where topics are archived. A refused report is logged: the next one is later.

    A folder that no process has open has no cleaner that waits for it.
    """
    location = broker_location(broker)
    if not next_offsets or (location.path is not None and not has_listener(location.path)):
        return
    from runnel.spark.connection import open_connection

    newest: dict[str, tuple[int, int]] = {}
    for (topic, epoch), offset in next_offsets.items():
        newest[topic] = max(newest.get(topic, (0, 0)), (epoch, offset))
    with open_connection(location) as connection:
        for _ in range(REFUSALS):
            try:
                connection.ask("confirm_archived", positions=[[topic, *place] for topic, place in newest.items()])
                return
            except (NotArchived, OffsetOutOfRange, TopicDeleted, UnknownTopic) as error:
                # One that the broker reads no history of, or that is deleted: the others are confirmed without it.
                log.debug("topic %r is not confirmed: %s", error.topic, error)
                if newest.pop(error.topic, None) is None or not newest:
                    return
            except RunnelError as error:
                log.warning("the broker did not take up to where its topics are archived: %s", error)
                return
