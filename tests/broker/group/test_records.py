"""From slices to records that a group can hand out, without those that it had settled before a restart."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.group import records
from runnel.broker.group.logic.group import GroupLogic
from runnel.broker.group.records import GroupSlice, bring_records, bring_unsettled, empty_ranges, pass_settled
from runnel.broker.group.records import group_slice as stock_at_places
from runnel.broker.read.cursor import RETENTION
from runnel.broker.topic.pending_batch import DurableTopic
from runnel.core.backend import Taken
from runnel.core.batch import Slice, SliceRun
from runnel.core.record import Meta, MissedRange
from runnel.journal.format.ledger import DeliveryFailure, GroupState
from tests.broker.broker_parts import make_log, make_timeline, on_log, put
from tests.broker.group.group_builders import make_group, whereabouts
from tests.carried import columns_of

NOW = 100.0
START = 10  # the offset of the first record
TRAITS = (
    None,
    Meta(),
    Meta(key=b"k"),
    Meta(priority=3),
    Meta(due=NOW + 5),
    Meta(expires=NOW + 5),
    Meta(headers={"a": "b"}),
)


def stock_of(metas: list[Meta | None], shift: int = 0) -> GroupSlice:
    """Records from offset 10 on, at places from 10 + shift on."""
    values = tuple(b"x" * at for at in range(len(metas)))
    stretches = [SliceRun(START, START + shift, datetime(2026, 1, 1, tzinfo=UTC))]
    return GroupSlice(START + shift, Slice("t", 1, START, values, stretches, columns_of(metas)))


def in_order(group: GroupLogic, now: float = NOW) -> list[int]:
    group.join("m", 1000)
    return sorted(place for lease in group.grant(now) for place in range(lease.first, lease.end))


@given(st.lists(st.sampled_from(TRAITS), min_size=1, max_size=12), st.sampled_from((0, 1000)))
def test_every_record_is_brought_once_with_its_own_traits(metas: list[Meta | None], shift: int) -> None:
    group, contents = make_group(), stock_of(metas, shift)
    bring_records(group, contents, NOW)
    where = whereabouts(group)
    assert sorted(where) == [START + shift + at for at in range(len(metas))]
    assert group.unsettled_bytes == sum(range(len(metas)))
    for at, meta in enumerate(metas):
        if meta is not None and meta.due is not None:
            assert where[START + shift + at] == "scheduled"


@given(
    st.lists(st.sampled_from(TRAITS), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 14), st.integers(1, 4)), max_size=3),
    st.dictionaries(st.integers(0, 14), st.sampled_from((0.0, NOW + 9)), max_size=4),
    st.sampled_from((0, 1000)),
)
def test_what_was_settled_is_not_brought_again_and_what_failed_waits_for_its_time(
    metas: list[Meta | None], settled: list[tuple[int, int]], failed: dict[int, float], shift: int
) -> None:
    start = START + shift
    known, contents, group = GroupState(1, "g", "t", {}, start), stock_of(metas, shift), make_group()
    for first, count in settled:
        known.settled.add(start + first, start + first + count)
    known.failed = {start + place: DeliveryFailure(3, due, "why") for place, due in failed.items()}
    bring_unsettled(group, contents, known, NOW)
    where = whereabouts(group)
    open_places = [start + at for at in range(len(metas)) if start + at not in known.settled]
    assert sorted(where) == open_places
    for place in open_places:
        meta = metas[place - start]
        if meta is not None and meta.due is not None and place not in known.failed:
            assert where[place] == "scheduled"
        if place in known.failed and known.failed[place].due > NOW and (meta is None or meta.key is None):
            assert where[place] == "scheduled"


def test_what_failed_in_an_earlier_life_goes_on_counting() -> None:
    group, known = make_group(max_deliver=4), GroupState(1, "g", "t", {}, START)
    known.failed = {START: DeliveryFailure(3, 0.0, "why")}
    bring_unsettled(group, stock_of([None]), known, NOW)
    group.join("m", 10)
    (lease,) = group.grant(NOW)
    assert lease.attempt == 4
    lease.handed = lease.end
    (dead,) = group.nack(lease, START, None, "the last straw", NOW)
    assert (dead.attempts, dead.reason) == (4, "the last straw")


def test_settled_places_are_passed_without_being_read_if_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline, log = make_timeline(), make_log()
    put(timeline, log, *[b"x"] * 10)
    cursor, known = on_log(timeline, log), GroupState(1, "g", "t", {}, 0)
    known.settled.add(2, 5)
    known.progress([], [(7, 1, 0.0, "")])
    assert not pass_settled(cursor, known)
    assert cursor.position == 0
    cursor.go_to(2)
    assert not pass_settled(cursor, known)
    assert cursor.position == 2, "so few are read, and left out"
    monkeypatch.setattr(records, "LONG_RANGE", 2)
    assert not pass_settled(cursor, known)
    assert cursor.position == 5
    cursor.go_to(8)
    assert pass_settled(cursor, known), "all of that life is passed"


LOST = "1.seg cannot be read: [Errno 5]"


@pytest.mark.parametrize(
    ("missed", "firsts", "behind", "found"),
    [
        (None, [4], 6, [(2, 4)]),
        (None, [2, 4], 6, []),
        (None, [2, 7, 9], 13, [(4, 7), (11, 13)]),
        (None, [], 9, [(2, 9)]),
        (MissedRange(2, 5, 3, RETENTION), [7], 9, [(2, 7)]),
        (MissedRange(2, 5, 3, RETENTION), [], 5, [(2, 5)]),
        (MissedRange(4, 6, 2, LOST), [], 6, [(2, 4)]),
        (MissedRange(2, 6, 4, f"{RETENTION}; {LOST}"), [8], 10, [(6, 8)]),
    ],
)
def test_holes_are_what_is_neither_brought_nor_only_unreadable(
    missed: MissedRange | None, firsts: list[int], behind: int, found: list[tuple[int, int]]
) -> None:
    group_slices = [stock_of([None] * 2, shift=first - START) for first in firsts]
    taken = Taken([contents.slice for contents in group_slices], missed)
    assert list(empty_ranges(taken, group_slices, 2, behind)) == found


def test_stock_weighs_and_can_be_made_small() -> None:
    contents = stock_of([None] * 5, shift=100)
    assert [contents.size(place) for place in range(110, 115)] == [0, 1, 2, 3, 4]
    assert contents.weight(111, 114) == 6
    assert contents.values(113, 115) == (b"xxx", b"xxxx")
    (record,) = contents.records(113, 114)
    assert (record.offset, record.sequence) == (13, 113)
    only = contents.only(113)
    assert (len(only.slice), only.size(113), only.records(113, 114)) == (1, 3, (record,))
    assert only.only(113) is only
    assert in_order(make_group()) == []


def test_stock_knows_when_each_record_was_published() -> None:
    times = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in range(3)]
    stretches = [SliceRun(8, 108, times[0]), SliceRun(12, 112, times[1]), SliceRun(13, 113, times[2])]
    contents = GroupSlice(110, Slice("t", 1, 10, (b"x",) * 5, stretches, None))
    assert [contents.time(place) for place in range(110, 115)] == [
        time.timestamp() for time in (times[0], times[0], times[1], times[2], times[2])
    ]
    for place in range(110, 115):
        assert contents.only(place).time(place) == contents.time(place)


@pytest.mark.parametrize("by_sequence", [True, False])
def test_only_what_is_on_disk_need_not_be_held(by_sequence: bool) -> None:
    part, log = stock_of([None] * 2, shift=100).slice, make_log()
    assert not stock_at_places(part, None, by_sequence=by_sequence).is_kept
    contents = stock_at_places(part, log, by_sequence=by_sequence)
    assert (contents.first, contents.is_kept) == (110 if by_sequence else 10, False)
    log.stored = DurableTopic(1, 0)
    contents = stock_at_places(part, log, by_sequence=by_sequence)
    assert contents.is_kept
    assert contents.only(contents.first).is_kept
