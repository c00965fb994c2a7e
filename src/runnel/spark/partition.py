"""What travels to an executor: the ranges of one task, as Spark wants it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from runnel.spark.ranges import OffsetRange


class RangePartition(InputPartition):
    """The ranges of one task, of one journal."""

    def __init__(self, journal: str, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.journal, self.ranges = journal, tuple(ranges)

    def __repr__(self) -> str:
        shown = ", ".join(f"{one.topic} [{one.first}, {one.end})" for one in self.ranges[:3])
        return f"<RangePartition {shown}{', ...' if len(self.ranges) > 3 else ''}>"
