from __future__ import annotations

import pytest

from runnel.core.batch_format import pack
from runnel.journal.clean.live_records import LiveSnapshot, TopicName
from runnel.journal.format.entry import STAGE_TOPIC, PartKind, state_part
from runnel.journal.format.index import TopicRange
from runnel.journal.format.ledger import (
    CommittedStage,
    Ledger,
    StageState,
    TopicState,
    stage_commit_part,
    stage_part,
    staged_part,
    topic_part,
    trim_part,
)
from runnel.journal.format.offset_sets import OffsetBitmap
from runnel.journal.format.segment import SegmentInfo

LIVING = LiveSnapshot({1: 0, 2: 50}, {}, frozenset({7}))


def test_it_is_a_copy_of_what_a_ledger_wants() -> None:
    ledger = Ledger()
    ledger.apply([topic_part(TopicState(1, "kept", 5, {"compact": True})), topic_part(TopicState(2, "gone", 6, {}))], 1)
    open_stage, read_stage, dropped = (StageState(number, "w", number, 0, 0, 1, 1) for number in (1, 2, 3))
    for stage in (open_stage, read_stage, dropped):
        ledger.apply([stage_part(stage), staged_part(stage.id, 0, pack([b"x"]), 1)], 1)
    ledger.apply([stage_commit_part(ledger.stages[2], 0, 0, 2), state_part(PartKind.STAGE_DROPPED, topic=3)], 2)
    living = LiveSnapshot.of(ledger, [SegmentInfo(1, 31, end=100), SegmentInfo(2, 32)])
    ledger.apply([trim_part(1, 1, 0), state_part(PartKind.TOPIC_DELETED, topic=2)], 3)
    assert living.firsts == {1: 0, 2: 0}
    assert living.names == {1: TopicName(1, "kept", 5), 2: TopicName(2, "gone", 6)}
    assert living.stages == {1, 2}
    assert living.segments == {31}
    assert living.compacting == {1: (0, 1)}
    assert LiveSnapshot.of(ledger).firsts == {1: 1}


@pytest.mark.parametrize(
    ("topic", "last", "wanted"),
    [
        (1, 0, True),
        (2, 49, False),
        (2, 50, True),
        (3, 9, False),
        (STAGE_TOPIC | 7, 0, True),
        (STAGE_TOPIC | 8, 0, False),
    ],
)
def test_a_batch_is_wanted_when_its_topic_or_stage_is_there_and_begins_before_its_end(
    topic: int, last: int, wanted: bool
) -> None:
    assert LIVING.wants(topic, last) == wanted


@pytest.mark.parametrize(
    ("topic", "found", "share"),
    [
        (1, TopicRange(0, 100, 100, 1000), 1.0),
        (2, TopicRange(0, 100, 100, 1000), 0.5),
        (2, TopicRange(0, 50, 50, 1000), 0.0),
        (2, TopicRange(60, 100, 40, 1000), 1.0),
        (3, TopicRange(0, 100, 100, 1000), 0.0),
        (STAGE_TOPIC | 7, TopicRange(0, 3, 3, 1000), 1.0),
        (STAGE_TOPIC | 8, TopicRange(0, 3, 3, 1000), 0.0),
    ],
)
def test_the_share_of_a_topic_that_is_wanted_follows_from_where_it_begins(
    topic: int, found: TopicRange, share: float
) -> None:
    assert LIVING.share(topic, found) == share


def test_what_compaction_takes_is_not_wanted() -> None:
    living = LiveSnapshot({1: 10}, {}, frozenset(), taken={1: OffsetBitmap([*range(10, 30), *range(200, 300)])})
    assert living.share(1, TopicRange(10, 50, 40, 1000)) == 0.5
    assert living.share(1, TopicRange(200, 300, 100, 1000)) == 0.0


@pytest.mark.parametrize(("size", "share"), [(1, 0.99), (40, 0.6), (100, 0.0), (1 << 24, 0.0)])
def test_what_compaction_takes_is_measured_in_bytes_where_they_are_known(size: int, share: float) -> None:
    taken = OffsetBitmap()
    for offset in range(10, 20):
        taken.add(offset, size)
    living = LiveSnapshot({1: 0}, {}, frozenset(), taken={1: taken})
    assert living.share(1, TopicRange(0, 100, 100, 1000)) == share
    assert living.share(1, TopicRange(20, 100, 80, 1000)) == 1.0


def test_what_compaction_takes_below_the_first_offset_is_not_counted_twice() -> None:
    taken = OffsetBitmap()
    for offset in range(100):
        taken.add(offset, 5)
    living = LiveSnapshot({1: 50}, {}, frozenset(), taken={1: taken})
    assert living.share(1, TopicRange(0, 100, 100, 1000)) == 0.25


def test_of_a_committed_stage_no_more_than_its_name_lies_in_a_segment() -> None:
    stages = [
        CommittedStage(1, 5, 20, 80, 1000),
        CommittedStage(2, 5, 90, 95, 1000),
        CommittedStage(3, 5, 200, 300, 1000),
    ]
    living = LiveSnapshot({5: 0}, {}, frozenset({1, 2, 3}), committed={5: stages})
    found = TopicRange(10, 100, 90, 500)  # 25 records beside stages
    assert list(living.stages_in(5, found)) == stages[:2]
    assert living.share(5, found) == 1.0
    living.taken = {5: OffsetBitmap(range(20, 80))}
    assert living.share(5, found) == 1.0
    living.taken = {5: OffsetBitmap([10])}
    assert living.share(5, found) < 1.0
    living.taken, living.firsts[5] = {}, 50
    assert living.share(5, found) == 15 / 25
    assert living.share(5, TopicRange(200, 300, 100, 20)) == 1.0
    living.firsts[5] = 250
    assert living.share(5, TopicRange(200, 300, 100, 20)) == 1.0, "there is nothing here but a name"
    living.firsts[5] = 300
    assert living.share(5, TopicRange(200, 300, 100, 20)) == 0.0
