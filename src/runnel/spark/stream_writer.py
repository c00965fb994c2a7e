"""`df.writeStream.format("runnel")`: each micro-batch is staged by its tasks and committed once, by its number.

Below: staging, committing, access. Above: format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from runnel.core.errors import NotSupported
from runnel.spark.access import open_line
from runnel.spark.committing import Writer, commit_batch, sweep
from runnel.spark.message import Staged, keys_of, writer_of
from runnel.spark.options import SinkOptions
from runnel.spark.staging import Staging

if TYPE_CHECKING:
    import pyarrow as pa

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark calls the two properties of a task that say which batch of which query it is part of."""


class RunnelStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query. Spark makes one for the tasks of a batch and another for its commit."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._life = uuid4().hex[:16]  # of two drivers, or of one before and after a crash, the stages differ

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition of a batch. On an executor."""
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise NotSupported("this way of streaming", "Spark does not say which batch of which query a task is for")
        writer = Writer(query, self._life)
        with open_line(self._options.place) as line:
            staging = Staging(line, writer, int(batch), context.taskAttemptId(), self._options.topic)
            staging.write(iterator)
        return Staged(writer, tuple(staging.keys), staging.records)

    # Spark names the parameters.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make a batch visible, unless it is. On the driver."""
        writer = writer_of(messages)
        if writer is None:
            return  # a batch without tasks has no rows
        with open_line(self._options.place) as line:
            commit_batch(line, writer, batchId, keys_of(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop what was staged, as far as anybody told. On the driver."""
        writer = writer_of(messages)
        if writer is None:
            return  # the tasks that failed dropped their own; the next commit sweeps what is left
        with open_line(self._options.place) as line:
            sweep(line, writer, batchId)
