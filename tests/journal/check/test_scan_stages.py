"""Scanning stages: what is missing of a commit is known to the offset, as long as its topic wants it."""

from __future__ import annotations

import pytest

from runnel.core.batch_format import pack, unpack
from runnel.journal.check.scan import JournalScan, StageScan, placed_batches
from runnel.journal.format.ledger import Ledger, StageState, TopicState, staged_part
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.read.segment_reader import StageCommit
from tests.journal.cleaned_segments import clean, journal_with_stages

INFO = SegmentInfo(1, 1, 100)
STAGED = StageCommit(1, 10, 15, 50, 7, 4, (2, 3, 1))


def ledger(first: int = 0) -> Ledger:
    made = Ledger()
    made.topics[1] = TopicState(1, "t", 1, {}, None, first, 20)
    return made


def surveyed(*ordinals: int, counts: tuple[int, ...] = (2, 3, 1)) -> StageScan:
    made = StageScan()
    for ordinal in ordinals:
        made.note_staged(staged_part(4, ordinal, pack([b"x"] * counts[ordinal]), 1), INFO, 64)
    made.note_commit(STAGED, INFO, 64)
    return made


def missing(survey: StageScan, state: Ledger) -> list[list[tuple[int, int]]]:
    return [ranges for _, ranges in survey.broken(state)]


def test_where_everything_is_there_nothing_is_broken() -> None:
    assert missing(surveyed(0, 1, 2), ledger()) == []


@pytest.mark.parametrize(
    ("kept", "lost"), [((0, 2), [(12, 15)]), ((), [(10, 12), (12, 15), (15, 16)]), ((1,), [(10, 12), (15, 16)])]
)
def test_what_is_missing_is_known_to_the_offset(kept: tuple[int, ...], lost: list[tuple[int, int]]) -> None:
    assert missing(surveyed(*kept), ledger()) == [lost]


def test_what_the_topic_let_go_of_is_not_missed() -> None:
    assert missing(surveyed(1, 2), ledger(first=12)) == []
    assert missing(surveyed(1, 2), ledger(first=11)) == [[(10, 12)]]
    assert missing(surveyed(), Ledger()) == []  # the topic is deleted


def test_a_batch_with_another_count_is_not_the_one_that_was_committed() -> None:
    assert missing(surveyed(0, 1, 2, counts=(2, 2, 1)), ledger()) == [[(12, 15)]]


def test_open_stages_that_are_not_whole_are_known() -> None:
    state = ledger()
    state.stages[4] = StageState(4, "w", 1, 0, 0, 1, 0, [2, 3, 1], 10)
    assert surveyed(0, 1).torn(state) == [4]
    assert surveyed(0, 1, 2).torn(state) == []


@pytest.mark.parametrize("cleaned", [False, True])
def test_the_batches_of_a_stage_can_be_had_with_their_places(cleaned: bool) -> None:
    storage = journal_with_stages()
    if cleaned:
        clean(storage)
    survey = JournalScan(storage).run()
    (commit,) = [one for one in survey.stages._commits if one.staged.stage == 1]
    assert isinstance(commit.staged, StageCommit)
    parts = list(survey.stages.batches_of(commit.staged, storage))
    assert [(part.topic, part.base, part.last) for part in parts] == [(3, 0, 1), (3, 2, 3), (3, 4, 5)]
    assert [part.sequence for part in parts] == [6, 8, 10]
    assert [unpack(part.body).values[0] for part in parts] == [b"s0", b"s1", b"s2"]


def test_offsets_of_a_stage_follow_its_counts() -> None:
    assert list(placed_batches(STAGED)) == [(0, 10, 12), (1, 12, 15), (2, 15, 16)]
