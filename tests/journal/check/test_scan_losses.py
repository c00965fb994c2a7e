"""Losses: a hole is no loss, unless something broke since its topic was last met."""

from __future__ import annotations

from runnel.journal.check.scan import LossTracker
from runnel.journal.write.journal import SKIPPED_OFFSETS


def lost(losses: LossTracker) -> dict[int, list[tuple[int, int]]]:
    return {topic: list(ranges) for topic, ranges in losses}


def test_a_hole_is_no_loss() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.meet(1, 9, 12)
    assert lost(losses) == {}
    assert losses.expected(1, 0) == 12


def test_what_is_missing_behind_something_that_broke_is_lost_once_and_for_each_topic() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.meet(2, 0, 1)
    losses.broke()
    losses.meet(1, 9, 12)
    losses.meet(1, 14, 15)
    losses.meet(2, 1, 2)
    losses.meet(2, 7)
    assert lost(losses) == {1: [(5, 9)]}


def test_a_topic_that_was_never_met_lost_what_lies_behind_its_beginning() -> None:
    losses = LossTracker()
    losses.begin(1, 4)
    losses.begin(1, 2)
    losses.broke()
    losses.meet(1, 6)
    assert lost(losses) == {1: [(4, 6)]}
    assert losses.expected(2, 33) == 33


def test_what_is_known_to_be_lost_is_not_lost_again_as_a_hole() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.broke()
    losses.lose(1, 5, 8)
    losses.meet(1, 8, 9)
    assert lost(losses) == {1: [(5, 8)]}


def test_offsets_that_an_unclean_start_skipped_are_never_lost() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.broke()
    losses.meet(1, 5 + SKIPPED_OFFSETS, 6 + SKIPPED_OFFSETS)
    assert lost(losses) == {}


def test_an_end_that_was_known_before_says_nothing_of_what_broke_since() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.broke()
    losses.meet(1, 2)
    losses.meet(1, 8, 9)
    assert lost(losses) == {1: [(5, 8)]}
