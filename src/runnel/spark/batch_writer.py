"""`df.write.format("runnel")`: tasks stage their rows, the driver commits all of them at once, or none.

Below: staging, committing, access. Above: format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from runnel.spark.access import open_line
from runnel.spark.committing import Writer, commit_job, sweep
from runnel.spark.message import Staged, keys_of
from runnel.spark.options import SinkOptions
from runnel.spark.staging import Staging

if TYPE_CHECKING:
    import pyarrow as pa


class RunnelWriter(DataSourceArrowWriter):
    """One job. With the options `mark` and `markValue` it does nothing if that mark is there already."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = Writer(uuid4().hex, "job")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition. On an executor."""
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        with open_line(self._options.place) as line:
            staging = Staging(line, self._writer, 0, context.taskAttemptId(), self._options.topic)
            staging.write(iterator)
        return Staged(self._writer, tuple(staging.keys), staging.records)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make all of it visible. On the driver."""
        options = self._options
        mark = None if options.mark is None or options.mark_value is None else (options.mark, options.mark_value)
        with open_line(options.place) as line:
            commit_job(line, self._writer, keys_of(messages), mark)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged. On the driver."""
        with open_line(self._options.place) as line:
            sweep(line, self._writer, 0)
