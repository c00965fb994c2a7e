"""What travels to an executor arrives as it was."""

from __future__ import annotations

import pickle

from runnel.arrow.ranges import OffsetRange
from runnel.spark.source import RangePartition


def test_a_partition_travels() -> None:
    ranges = [OffsetRange("t", 1, at, at + 5) for at in range(5)]
    sent = RangePartition("j", ranges)
    came = pickle.loads(pickle.dumps(sent))
    assert (came.journal, came.ranges) == ("j", tuple(ranges))
    assert repr(came) == "<RangePartition t [0, 5), t [1, 6), t [2, 7), ...>"
