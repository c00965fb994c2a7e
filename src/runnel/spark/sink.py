"""The sink as Spark calls it: tasks stage their rows, the driver commits all of them at once.

Only the keys of stages go through the driver, but on a NATS cluster, which has no stages: see `cluster_connection`.
A batch job is committed whole or not at all; each micro-batch of a stream is committed once, by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from runnel.core.errors import NotSupported
from runnel.core.stages import StageKey
from runnel.spark.connection import BrokerConnection, CarriedStages, open_connection
from runnel.spark.options import SinkOptions
from runnel.spark.schema import without_brokers_columns
from runnel.spark.staging import TaskStaging, WriterId, commit_batch, commit_job, drop_stale_stages

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """One task's stages: whose they are, their keys, how many rows they hold; and the rows, if the broker has none."""

    writer: WriterId
    keys: tuple[StageKey, ...]
    records: int
    carried: CarriedStages = field(default_factory=dict)


def keys_of(messages: Iterable[WriterCommitMessage | None]) -> list[StageKey]:
    """All stages of a batch, in the order of its tasks."""
    return [key for one in messages if isinstance(one, StagedMessage) for key in one.keys]


def take_over(connection: BrokerConnection, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Hand the stages that came with the messages to a connection."""
    for one in messages:
        if isinstance(one, StagedMessage):
            connection.carried.update(one.carried)


def writer_of(messages: Sequence[WriterCommitMessage | None]) -> WriterId | None:
    """The stages' writer; None: no task has reported it."""
    return next((one.writer for one in messages if isinstance(one, StagedMessage)), None)


def rows_to_write(rows: Iterator[pa.RecordBatch], options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """The columns that are written of the rows that Spark gives."""
    return map(without_brokers_columns, rows) if options.table else rows


# -- Batch writes ----------------------------------------------------------------------------------------


class BatchWriter(DataSourceArrowWriter):
    """One job. With the options `mark` and `markValue` it does nothing if that mark is there already."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = WriterId(uuid4().hex, "job")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition. On an executor."""
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        with open_connection(self._options.location) as connection:
            staging = TaskStaging(connection, self._writer, 0, context.taskAttemptId(), self._options.topic)
            staging.write(rows_to_write(iterator, self._options))
        return StagedMessage(self._writer, tuple(staging.keys), staging.records, connection.carried)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make all of it visible. On the driver."""
        options = self._options
        mark = None if options.mark is None or options.mark_value is None else (options.mark, options.mark_value)
        with open_connection(options.location) as connection:
            take_over(connection, messages)
            commit_job(connection, self._writer, keys_of(messages), mark)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the staged rows. On the driver."""
        with open_connection(self._options.location) as connection:
            drop_stale_stages(connection, self._writer, 0)


# -- Streaming writes ------------------------------------------------------------------------------------


QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's names for the two properties of a task that identify its query and batch."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query. Spark makes one for the tasks of a batch and another for its commit."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._life = uuid4().hex[:16]  # of two drivers, or of one before and after a crash, the stages differ

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition of a batch. On an executor."""
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise NotSupported("this way of streaming", "Spark does not say which batch of which query a task is for")
        writer = WriterId(query, self._life)
        with open_connection(self._options.location) as connection:
            staging = TaskStaging(connection, writer, int(batch), context.taskAttemptId(), self._options.topic)
            staging.write(rows_to_write(iterator, self._options))
        return StagedMessage(writer, tuple(staging.keys), staging.records, connection.carried)

    # Spark names the parameters.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make a batch visible, unless it is. On the driver."""
        writer = writer_of(messages)
        if writer is None:
            return  # a batch without tasks has no rows
        with open_connection(self._options.location) as connection:
            take_over(connection, messages)
            commit_batch(connection, writer, batchId, keys_of(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop the staged rows that tasks reported. On the driver."""
        writer = writer_of(messages)
        if writer is None:
            return  # failed tasks dropped their own; the next commit sweeps the rest
        with open_connection(self._options.location) as connection:
            drop_stale_stages(connection, writer, batchId)
