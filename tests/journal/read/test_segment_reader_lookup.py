"""What a read returns: offsets in it are found by sequence and by time, whatever kind it is."""

from __future__ import annotations

import pytest

from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.read.segment_reader import FoundBatch, StageCommit, offset_at, run_at_time, runs_of_item

RUNS = [RecordRun(5, 50, 1, 2), RecordRun(9, 60, 3, 1), RecordRun(10, 70, 3, 4)]
MERGED = FoundBatch(1, 5, 13, 50, 1, b"", RUNS)


@pytest.mark.parametrize("item", [FoundBatch(1, 5, 8, 50, 7, b""), StageCommit(1, 5, 8, 50, 7, 2, (3, 1))])
def test_all_but_merged_batches_are_one_run(item: FoundBatch | StageCommit) -> None:
    assert runs_of_item(item) == (RecordRun(5, 50, 7, 4),)
    assert [offset_at(item, sequence) for sequence in (0, 50, 53, 54)] == [5, 5, 8, None]
    assert run_at_time(item, 7) == RecordRun(5, 50, 7, 4)
    assert run_at_time(item, 8) is None


def test_a_merged_batch_has_the_runs_that_it_says() -> None:
    assert runs_of_item(MERGED) == RUNS
    wanted = {0: 5, 51: 6, 52: 9, 60: 9, 61: 10, 72: 12, 73: 13, 74: None}
    assert {sequence: offset_at(MERGED, sequence) for sequence in wanted} == wanted
    assert [run_at_time(MERGED, time) for time in (0, 1, 2, 3, 4)] == [RUNS[0], RUNS[0], RUNS[1], RUNS[1], None]
