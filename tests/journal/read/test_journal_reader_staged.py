"""Placing staged batches: each gets the offsets that its commit gave it, and none is missing in silence."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch_format import pack, unpack
from runnel.journal.format.entry import STAGE_TOPIC
from runnel.journal.read.journal_reader import StagePlacement, stage_topic_of
from runnel.journal.read.segment_reader import STAGED_MISSING, FoundBatch, LostRange, StageCommit

TOPIC = STAGE_TOPIC | 7


def committed(counts: list[int]) -> StageCommit:
    return StageCommit(1, 100, 100 + sum(counts) - 1, 5000, 9, 7, counts)


def in_stage(ordinal: int, count: int) -> FoundBatch:
    return FoundBatch(TOPIC, ordinal, ordinal, 0, 1, pack([b"%d.%d" % (ordinal, at) for at in range(count)]))


COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@given(COUNTS, st.sets(st.integers(0, 7)), st.integers(-3, 45), st.booleans())
def test_received_records_are_placed_and_missing_ones_are_reported(
    counts: list[int], gone: set[int], skip: int, by_sequence: bool
) -> None:
    staged = committed(counts)
    start = 5000 if by_sequence else 100
    placing = StagePlacement(staged, start + skip, by_sequence=by_sequence)
    ends = list(accumulate(counts))
    assert placing.ordinal == sum(end <= skip for end in ends)
    wanted = range(placing.ordinal, len(counts))
    items = [in_stage(at, counts[at]) for at in range(len(counts)) if at not in gone]
    told = [*placing.placed(items), *placing.rest()]
    assert placing.done
    place, values = start + ([0, *ends][wanted.start]), list[bytes]()
    for one in told:
        if isinstance(one, LostRange):
            assert (one.first, one.reason) == (place, STAGED_MISSING)
            place = one.end
        else:
            assert (one.sequence if by_sequence else one.base) == place
            assert (one.topic, one.time, one.sequence - one.base) == (1, 9, 4900)
            assert one.last - one.base + 1 == len(unpack(one.body))
            values += unpack(one.body).values
            place += len(unpack(one.body))
    assert place == start + ends[-1]
    assert values == [b"%d.%d" % (at, n) for at in wanted if at not in gone for n in range(counts[at])]


def test_a_loss_in_the_stage_is_reported_with_its_reason() -> None:
    placing = StagePlacement(committed([2, 3, 4]), 0, by_sequence=False)
    told = list(placing.placed([in_stage(0, 2), LostRange(1, 2, "damaged"), in_stage(2, 4)]))
    assert told[1] == LostRange(102, 105, "damaged")
    assert [type(one) for one in told] == [FoundBatch, LostRange, FoundBatch]
    assert list(placing.rest()) == []


@pytest.mark.parametrize("bad", [in_stage(1, 2), FoundBatch(TOPIC, 1, 1, 0, 1, b"short")])
def test_a_batch_that_is_not_what_was_committed_is_never_served(bad: FoundBatch) -> None:
    placing = StagePlacement(committed([2, 3, 4]), 0, by_sequence=False)
    told = list(placing.placed([in_stage(0, 2), bad, in_stage(2, 4)]))
    assert [type(one) for one in told] == [FoundBatch, LostRange, FoundBatch]
    assert (told[1][0], told[1][1]) == (102, 105)


def test_what_comes_twice_or_was_never_committed_is_left_out() -> None:
    placing = StagePlacement(committed([2, 3]), 0, by_sequence=False)
    told = list(placing.placed([in_stage(0, 2), in_stage(0, 2), in_stage(1, 3), in_stage(2, 9), LostRange(2, 4, "x")]))
    assert [one.base for one in told if isinstance(one, FoundBatch)] == [100, 102]
    assert len(told) == 2
    assert placing.done


def test_a_stage_is_looked_for_as_a_topic_that_no_topic_can_be() -> None:
    assert stage_topic_of(committed([1])) == TOPIC
    assert TOPIC >= STAGE_TOPIC
