"""What a task tells the driver: the keys of what it staged. This, and nothing else, goes through the driver.

Below: pyspark, committing. Above: the writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from runnel.core.stage import StageKey
from runnel.spark.committing import Writer


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """One task's stages: whose they are, their keys, and how many rows they hold."""

    writer: Writer
    keys: tuple[StageKey, ...]
    records: int


def keys_of(messages: Iterable[WriterCommitMessage | None]) -> list[StageKey]:
    """All stages of a batch, in the order of its tasks."""
    return [key for one in messages if isinstance(one, Staged) for key in one.keys]


def writer_of(messages: Sequence[WriterCommitMessage | None]) -> Writer | None:
    """Who staged them; None: no task got as far as telling."""
    return next((one.writer for one in messages if isinstance(one, Staged)), None)
