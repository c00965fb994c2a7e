"""Cursors: on one log by offset, on the timeline by sequence, both against plain lists."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.read.cursor import DELETED, RETENTION, Cursor, LogCursor
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.log import Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.backend import SLICE, Taken
from runnel.core.record import MissedRange, Record
from tests.broker.broker_parts import Noting, attached, make_log, make_timeline, on_all, on_log, put
from tests.broker.durable_broker import Disk, log_of, open_on
from tests.journal.cleaned_segments import Rec, cleaned
from tests.nightly import examples

Step = tuple[int, list[bytes], bool]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 20).map(bytes), min_size=1, max_size=4), st.booleans()),
    min_size=1,
    max_size=20,
)


def played(steps: list[Step]) -> tuple[Timeline, list[Log], list[tuple[str, int, bytes]]]:
    """Logs a, b and c; and (topic, offset, value) by sequence."""
    timeline, logs = make_timeline(), [make_log("a"), make_log("b"), make_log("c")]
    everything = []
    for which, values, ends_turn in steps:
        log = logs[which]
        everything += [(log.name, log.end + at, value) for at, value in enumerate(values)]
        put(timeline, log, *values)
        if ends_turn:
            timeline._tick()
    return timeline, logs, everything


def records(taken: Taken | None) -> list[Record[bytes]]:
    return [record for part in taken.slices for record in part.records] if taken else []


def told(record: Record[bytes]) -> tuple[str, int, bytes]:
    return record.topic, record.offset, record.value


@given(STEPS, st.integers(1, 9))
def test_a_cursor_reads_its_log_to_the_end_in_pieces(steps: list[Step], limit: int) -> None:
    timeline, (log, *_), everything = played(steps)
    mine = [one for one in everything if one[0] == "a"]
    cursor, found = on_log(timeline, log), []
    assert cursor.pending() == len(mine)
    while (taken := cursor.take(limit)) is not None:
        assert 0 < len(records(taken)) <= limit
        assert taken.missed is None
        found += [told(record) for record in records(taken)]
        assert cursor.pending() == len(mine) - len(found)
        assert cursor.pending_bytes() == sum(len(value) for _, _, value in mine[len(found) :])
        assert cursor.next_bytes() == (len(mine[len(found)][2]) if len(found) < len(mine) else 0)
    assert found == mine
    assert cursor.position == log.end


@given(STEPS, st.integers(1, 9), st.sets(st.integers(0, 2), min_size=1))
def test_a_pattern_cursor_reads_its_logs_in_sequence_order(steps: list[Step], limit: int, covered: set[int]) -> None:
    timeline, logs, everything = played(steps)
    mine = [one for one in everything if one[0] in {logs[at].name for at in covered}]
    cursor, found = on_all(timeline, *(logs[at] for at in covered)), []
    assert cursor.pending() == len(mine)
    while (taken := cursor.take(limit)) is not None:
        assert 0 < len(records(taken)) <= limit
        found += [(record.sequence, told(record)) for record in records(taken)]
        assert cursor.pending() == len(mine) - len(found)
        assert cursor.pending_bytes() == sum(len(value) for _, _, value in mine[len(found) :])
        assert cursor.next_bytes() == (len(mine[len(found)][2]) if len(found) < len(mine) else 0)
    assert found == [(at, one) for at, one in enumerate(everything) if one in mine]


@given(STEPS, st.integers(0, 200), st.integers(0, 30), st.booleans())
def test_the_excess_is_the_least_that_has_to_go(steps: list[Step], limit: int, skipped: int, pattern: bool) -> None:
    timeline, logs, everything = played(steps)
    sizes = [len(value) for name, _, value in everything if pattern or name == "a"]
    cursor: Cursor = on_all(timeline, *logs) if pattern else on_log(timeline, logs[0])
    skipped = min(skipped, len(sizes))
    cursor.skip(skipped, "")
    ahead = sizes[skipped:]
    least = next(gone for gone in range(len(ahead) + 1) if sum(ahead[gone:]) <= limit)
    assert cursor.excess_bytes(limit) == min(least, max(0, len(ahead) - 1))


@examples(40, 100)
@given(STEPS, st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=20))
def test_skipping_and_taking_cover_everything_once(steps: list[Step], moves: list[tuple[bool, int]]) -> None:
    timeline, logs, everything = played(steps)
    cursor, expected = on_all(timeline, *logs), 0
    for skip, count in moves:
        left = len(everything) - expected
        if skip:
            missed = cursor.skip(count, "because")
            gone = min(count, left)
            assert missed == (MissedRange(expected, expected + gone, gone, "because") if gone else None)
            expected += gone
        else:
            found = records(cursor.take(count))
            assert [record.sequence for record in found] == list(range(expected, expected + min(count, left)))
            expected += len(found)
    assert cursor.pending() == len(everything) - expected


def test_readers_side_by_side_meet_on_multiples_of_a_slice() -> None:
    timeline, log = make_timeline(), make_log(retention_count=10_000)
    put(timeline, log, *[b"x"] * 10_000)
    one, two = on_log(timeline, log, 5), on_log(timeline, log, 700)
    for cursor in (one, two):
        cursor.take(SLICE)
        assert cursor.position == SLICE
    first, second = one.take(SLICE), two.take(SLICE)
    assert first is not None
    assert second is not None
    assert first.slices[0] is second.slices[0]


@pytest.mark.parametrize("pattern", [False, True])
def test_records_removed_by_retention_are_reported_before_the_remaining_ones(pattern: bool) -> None:
    timeline, log = make_timeline(), make_log(retention_count=2)
    cursor: Cursor = on_all(timeline, log) if pattern else on_log(timeline, log)
    put(timeline, log, b"a", b"b", b"c", b"d", b"e")
    taken = cursor.take(10)
    assert taken is not None
    assert taken.missed == MissedRange(0, 3, 3, RETENTION)
    assert [record.value for record in records(taken)] == [b"d", b"e"]
    assert cursor.take(10) is None


@pytest.mark.parametrize("pattern", [False, True])
def test_a_deleted_log_is_reported_without_records(pattern: bool) -> None:
    timeline, log = make_timeline(), make_log()
    cursor: Cursor = on_all(timeline, log) if pattern else on_log(timeline, log)
    put(timeline, log, b"a", b"b")
    assert cursor.pending() == 2
    timeline.cool()
    timeline.forget(log)
    if isinstance(cursor, PatternCursor):
        cursor.part(log)
    assert (cursor.pending(), cursor.pending_bytes(), cursor.next_bytes(), cursor.excess_bytes(0)) == (2, 0, 0, 0)
    assert cursor.take(10) == Taken([], MissedRange(0, 2, 2, DELETED))
    assert cursor.take(10) is None


def test_a_gap_in_the_middle_ends_what_is_taken_before_it() -> None:
    timeline, one, two = make_timeline(), make_log("a"), make_log("b")
    cursor = on_all(timeline, one, two)
    for log, value in ((one, b"1"), (two, b"2"), (one, b"3")):
        put(timeline, log, value)
    cursor.collect()
    timeline.cool()
    timeline.forget(two)
    first, second = cursor.take(10), cursor.take(10)
    assert [record.value for record in records(first)] == [b"1"]
    assert second is not None
    assert second.missed == MissedRange(1, 2, 1, DELETED)
    assert [record.value for record in records(second)] == [b"3"]


@pytest.mark.parametrize("pattern", [False, True])
def test_passing_what_is_gone_leaves_what_is_there(pattern: bool) -> None:
    timeline, log = make_timeline(), make_log(retention_count=1)
    cursor: Cursor = on_all(timeline, log) if pattern else on_log(timeline, log)
    put(timeline, log, b"a", b"b", b"c")
    assert cursor.pass_gone() == MissedRange(0, 2, 2, RETENTION)
    assert cursor.pass_gone() is None
    assert cursor.pending() == 1


def test_forgetting_what_is_gone_tells_nothing() -> None:
    timeline, kept, short = make_timeline(), make_log("a"), make_log("b", retention_count=1)
    for _ in range(3):
        put(timeline, kept, b"k")
        put(timeline, short, b"s")
    cursor = on_all(timeline, kept, short)
    cursor.forget_gone()
    taken = cursor.take(10)
    assert taken is not None
    assert taken.missed is None
    assert [(record.topic, record.sequence) for record in records(taken)] == [("a", 0), ("a", 2), ("a", 4), ("b", 5)]


def test_a_topic_that_joins_later_is_read_from_then_on() -> None:
    timeline, one, two = make_timeline(), make_log("a"), make_log("b")
    cursor = on_all(timeline, one)
    put(timeline, one, b"1")
    assert len(records(cursor.take(10))) == 1
    attached(two, Noting(cursor), pattern=True)
    put(timeline, two, b"2")
    assert [record.topic for record in records(cursor.take(10))] == ["b"]


def test_skipping_nothing_is_nothing() -> None:
    timeline, log = make_timeline(), make_log()
    assert on_log(timeline, log).skip(0, "") is None
    assert on_all(timeline, log).skip(5, "") is None


async def test_what_is_known_to_lie_ahead_stays_right_where_a_cleaned_segment_has_holes(tmp_path: Path) -> None:
    records = [Rec(1, 10 * at, 20 * at, 5, b"x") for at in range(100)]
    async with open_on(Disk(), tmp_path, tail_bytes=1) as broker:
        await broker.publish("t", b"x")
        log, store = log_of(broker, "t"), broker.backend.store
        assert store is not None
        assert log.stored is not None
        store.journal.history.sources = [cleaned([records[:50], records[50:]])]
        store.journal.ledger.topics[log.stored.id].compacted = 991
        log.revive(0, 991, 1)
        places = (0, 500, 900, 990, 991)
        known = [LogCursor(broker.backend.timeline, log, place, store.reads).known() for place in places]
        assert known == [100, 50, 10, 1, 0]
