"""The timeline: one order over all logs, given run by run."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.log import CHUNK, Log
from runnel.broker.topic.pending_batch import DurableTopic
from runnel.broker.topic.timeline import CACHED_SLICES, RECORD_COST, Timeline
from runnel.core.schema import Codec
from runnel.testing.clock import START, JumpingClock
from tests.broker.broker_parts import (
    Covered,
    Notes,
    Noting,
    attached,
    make_flow,
    make_log,
    make_timeline,
    on_all,
    on_log,
    put,
)

STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=40)


@given(STEPS)
def test_sequences_follow_the_order_of_appending(steps: list[tuple[int, int, bool]]) -> None:
    timeline = make_timeline()
    logs = [make_log(f"t{number}") for number in range(4)]
    expected: dict[tuple[str, int], int] = {}
    for which, count, ends_turn in steps:
        log = logs[which]
        for at in range(count):
            expected[log.name, log.end + at] = len(expected)
        put(timeline, log, *[b"x"] * count)
        if ends_turn:
            timeline._tick()
    assert timeline.sequence == len(expected)
    found = {(log.name, offset): log.sequence_of(offset) for log in logs for offset in range(log.end)}
    assert found == expected


@given(STEPS, st.data())
def test_the_runs_from_a_sequence_on_hold_all_that_came_since(
    steps: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    timeline = make_timeline()
    logs = [make_log(f"t{number}") for number in range(4)]
    for which, count, _ in steps:
        put(timeline, logs[which], *[b"x"] * count)
    sequence = data.draw(st.integers(0, timeline.sequence))
    held = [run.sequence + at for run in timeline.runs_from(sequence) for at in range(run.end - run.offset)]
    assert [one for one in held if one >= sequence] == list(range(sequence, timeline.sequence))


def test_publishing_to_one_log_in_a_row_is_one_run() -> None:
    timeline, log, other = make_timeline(), make_log("a"), make_log("b")
    for _ in range(5):
        put(timeline, log, b"x")
    assert len(timeline.runs) == 1
    put(timeline, other, b"x")
    put(timeline, log, b"x")
    assert [run.log.name for run in timeline.runs] == ["a", "b", "a"]
    assert timeline.hot is log


def test_a_hot_log_may_be_appended_to_up_to_its_trip_and_a_cool_one_may_not() -> None:
    timeline, log = make_timeline(), make_log()
    put(timeline, log, b"x")
    assert log.trip == 1 + CHUNK
    log.values.append(b"the short way")
    timeline.cool()
    assert (log.trip, timeline.hot, timeline.sequence, log.runs[0].end) == (0, None, 2, 2)


def test_a_typed_log_is_never_appended_to_the_short_way() -> None:
    timeline, log = make_timeline(), make_log()
    log.type = Codec(int)
    put(timeline, log, b"1")
    assert log.trip == 0


def test_the_trip_heeds_the_readers() -> None:
    timeline, log = make_timeline(), make_log()
    overflow, owner = make_flow(on_log(timeline, log), "block", buffer=5)
    attached(log, owner)
    put(timeline, log, b"x")
    assert log.trip == 5, "up to the bound of the reader"
    assert overflow.lag() == 1


async def test_the_time_is_the_turns_and_never_goes_back() -> None:
    clock = JumpingClock()
    timeline, begin = make_timeline(clock), datetime.fromtimestamp(START, UTC)
    assert timeline.now() == begin
    await clock.advance(5)
    assert timeline.now() == begin, "one turn, one time"
    timeline._tick()
    assert timeline.now() == begin + timedelta(seconds=5)
    clock._now -= 100
    timeline._tick()
    assert timeline.now() == begin + timedelta(seconds=5)


async def test_a_look_at_the_time_ends_with_the_turn_even_if_nothing_is_published() -> None:
    clock = JumpingClock()
    timeline = make_timeline(clock)
    timeline.move_in(asyncio.get_running_loop())
    before = timeline.now()
    await clock.advance(5)
    assert timeline.now() == before + timedelta(seconds=5)


async def test_a_long_turn_looks_at_the_clock_again() -> None:
    clock = JumpingClock()
    timeline, log = make_timeline(clock), make_log(retention_count=10_000)
    for _ in range(3):
        put(timeline, log, *[b"x"] * CHUNK)
        await clock.advance(1)
    times = [run.time for run in log.runs]
    assert [(time - times[0]).total_seconds() for time in times] == [0, 1, 2]


def test_how_much_was_published_in_this_turn() -> None:
    timeline, one, two = make_timeline(), make_log("a"), make_log("b")
    put(timeline, one, b"x", b"x")
    put(timeline, two, b"x")
    assert timeline.published_in_turn() == 3
    timeline._tick()
    assert timeline.published_in_turn() == 0
    put(timeline, one, b"x")
    assert timeline.published_in_turn() == 1


def test_beginning_a_run_wakes_the_readers_once() -> None:
    timeline, log, reader = make_timeline(), make_log(), Notes()
    reader.overflow = make_flow(on_log(timeline, log), "drop_oldest")[0]
    topic_readers = attached(log, reader)
    topic_readers.parked[reader] = None
    put(timeline, log, b"x")
    put(timeline, log, b"x")
    assert (reader.woken, topic_readers.parked) == (1, {})


def test_readers_of_the_same_range_share_a_slice_and_few_are_kept() -> None:
    timeline, log = make_timeline(), make_log()
    put(timeline, log, *[b"x"] * 100)
    assert timeline.slice(log, 0, 50) is timeline.slice(log, 0, 50)
    for end in range(1, 60):
        timeline.slice(log, 0, end)
    assert len(timeline._slices) == CACHED_SLICES


def test_a_slice_of_an_open_run_is_not_mistaken_for_a_longer_one() -> None:
    timeline, log = make_timeline(), make_log()
    put(timeline, log, b"a")
    short = timeline.slice(log, 0, 1)
    put(timeline, log, b"b")
    assert timeline.slice(log, 0, 2).values == (b"a", b"b")
    assert short.values == (b"a",)
    assert [record.sequence for record in short.records] == [0]


def test_what_was_forgotten_is_gone_and_its_runs_with_it() -> None:
    timeline, log, other = make_timeline(), make_log("a"), make_log("b")
    for _ in range(CHUNK + 1):
        put(timeline, log, b"x")
        timeline._tick()
    put(timeline, other, b"x")
    timeline.slice(log, 0, 1)
    timeline.cool()
    timeline.forget(log)
    assert log.deleted
    assert timeline._slices == {}
    assert [run.log for run in timeline.runs] == [other]


def test_the_dead_runs_of_many_short_lives_do_not_pile_up() -> None:
    timeline = make_timeline()
    for number in range(10 * CHUNK):
        log = make_log(f"t{number}")
        put(timeline, log, b"x")
        timeline.cool()
        timeline.forget(log)
    assert len(timeline.runs) <= 2 * CHUNK
    assert timeline.sequence == 10 * CHUNK


def test_readers_have_noted_what_they_have_not_read_when_runs_go() -> None:
    timeline = make_timeline()
    logs = [make_log() for _ in range(CHUNK + 1)]
    cursor = on_all(timeline, *logs)
    for log in logs:
        put(timeline, log, b"x")
        timeline.cool()
        timeline.forget(log)
    assert timeline.runs == []
    assert cursor.pending() == CHUNK + 1


async def test_age_is_checked_when_a_reader_reads() -> None:
    clock = JumpingClock()
    timeline, log = make_timeline(clock), make_log(retention_age=10)
    put(timeline, log, b"x")
    assert timeline.first(log) == 0
    timeline._tick()
    await clock.advance(11)
    assert timeline.first(log) == 1


async def test_a_time_finds_its_sequence() -> None:
    clock = JumpingClock()
    timeline, begin = make_timeline(clock), datetime.fromtimestamp(START, UTC)
    for name in ("a", "b"):
        put(timeline, make_log(name), b"x", b"x")
        timeline._tick()
        await clock.advance(10)
    assert [timeline.sequence_at(begin + timedelta(seconds=after)) for after in (0, 1, 10, 11)] == [0, 2, 2, 4]


# -- records that become durable first ------------------------------------------------------------------------------


def stored_log(name: str = "s") -> Log:
    log = make_log(name)
    log.stored = DurableTopic(1, 0)
    return log


def landed(timeline: Timeline, log: Log, *values: bytes) -> None:
    """Hold, land and release, as a commit does."""
    first = timeline.hold(len(values))
    timeline.land(log, first, timeline.now(), values, None, sum(map(len, values)))
    timeline.release(first)
    timeline.landed(log)
    timeline.cut_tail()


def test_nothing_behind_held_sequences_is_visible_before_they_are_released() -> None:
    timeline, log, other = make_timeline(), stored_log(), make_log("m")
    put(timeline, other, b"0")
    first = timeline.hold(2)
    put(timeline, other, b"3")
    assert (first, timeline.sequence, timeline.given) == (1, 1, 4)
    timeline.land(log, first, timeline.now(), [b"1", b"2"], None, 2)
    assert timeline.sequence == 1, "not before all that was held with them has landed"
    timeline.release(first)
    assert timeline.sequence == 4
    assert [(run.log.name, run.sequence) for run in timeline.runs] == [("m", 0), ("s", 1), ("m", 3)]


def test_holding_nothing_delays_no_reader() -> None:
    timeline = make_timeline()
    timeline.hold(0)
    put(timeline, make_log(), b"x")
    assert timeline.sequence == 1


def test_held_sequences_that_will_never_come_are_a_hole() -> None:
    timeline, log = make_timeline(), make_log()
    first = timeline.hold(5)
    timeline.release(first)
    put(timeline, log, b"x")
    assert (log.sequence_of(0), timeline.sequence) == (5, 6)


def test_of_several_that_are_held_the_first_counts() -> None:
    timeline = make_timeline()
    one, two = timeline.hold(2), timeline.hold(3)
    timeline.release(two)
    assert timeline.sequence == one
    timeline.release(one)
    assert timeline.sequence == 5


def test_a_reader_of_patterns_is_woken_whenever_more_of_what_it_noted_may_be_visible() -> None:
    timeline, passing = make_timeline(), make_log("m")
    reader = Noting(PatternCursor(timeline, Covered(passing), 0))
    attached(passing, reader, pattern=True)
    one, two = timeline.hold(1), timeline.hold(1)
    put(timeline, passing, b"quicker")
    woken = reader.woken
    timeline.release(one)
    assert reader.woken > woken
    woken = reader.woken
    timeline.release(two)
    assert reader.woken > woken, "only now its record is visible"
    woken = reader.woken
    timeline.release(timeline.hold(1))
    assert reader.woken == woken, "it waits for nothing any more"


def test_landing_wakes_the_readers() -> None:
    timeline, log, reader = make_timeline(), stored_log(), Notes()
    timeline.tail_bytes = 10**6
    reader.overflow = make_flow(on_log(timeline, log), "drop_oldest")[0]
    topic_readers = attached(log, reader)
    topic_readers.parked[reader] = None
    landed(timeline, log, b"x")
    assert (reader.woken, log.end, log.values) == (1, 1, [b"x"])


def test_the_tail_is_cut_to_its_bound_and_only_durable_records_go() -> None:
    timeline, log, other = make_timeline(), stored_log(), make_log("m")
    timeline.tail_bytes = 10 * (100 + RECORD_COST)
    put(timeline, other, b"x")
    for _ in range(100):
        landed(timeline, log, b"x" * 100)
        kept = log.end - log.base
        assert kept <= 13
        assert timeline._tail_cost == kept * (100 + RECORD_COST)
        assert timeline.in_memory_from == log.sequence_of(log.base)
    assert kept >= 10
    assert (log.first, log.end, other.base) == (0, 100, 0)


def test_with_nothing_in_memory_memory_begins_at_the_end() -> None:
    timeline, log = make_timeline(), stored_log()
    assert timeline.in_memory_from == 0
    timeline.tail_bytes = 1
    landed(timeline, log, b"x" * 100)
    assert (log.base, timeline.in_memory_from) == (1, 1)


def test_a_deleted_topic_leaves_the_tail() -> None:
    timeline, log, other = make_timeline(), stored_log("a"), stored_log("b")
    timeline.tail_bytes = 10**6
    landed(timeline, log, b"x" * 100)
    landed(timeline, other, b"y" * 50)
    timeline.forget(log)
    assert timeline._tail_cost == 50 + RECORD_COST
    assert timeline.in_memory_from <= 1
    timeline.tail_bytes = 1
    timeline.cut_tail()
    assert (timeline._tail_cost, timeline._tail_dead, other.base) == (0, 0, 1)


def test_deleted_topics_cost_the_tail_nothing_for_long() -> None:
    timeline, kept = make_timeline(), stored_log("kept")
    timeline.tail_bytes = 10**9
    landed(timeline, kept, b"y" * 50)
    for number in range(2 * CHUNK + 10):
        log = stored_log(f"t{number}")
        landed(timeline, log, b"x")
        timeline.forget(log)
    assert timeline._tail_cost == 50 + RECORD_COST
    assert len(timeline._tail) <= CHUNK + 10
    landed(timeline, kept, b"z")
    assert (kept.values, timeline.in_memory_from) == ([b"y" * 50, b"z"], 0)


def test_what_a_stage_pushed_out_of_memory_costs_the_tail_nothing() -> None:
    timeline, log = make_timeline(), stored_log()
    timeline.tail_bytes = 10**6
    landed(timeline, log, b"x" * 100)
    land_elsewhere(timeline, log, 5, 500)
    assert timeline._tail_cost == 0
    landed(timeline, log, b"y" * 50)
    assert timeline._tail_cost == 50 + RECORD_COST
    timeline.forget(log)
    assert timeline._tail_cost == 0


def land_elsewhere(timeline: Timeline, log: Log, count: int, size: int) -> int:
    """Records that were staged become visible; their first sequence."""
    first = timeline.hold(count)
    timeline.land_elsewhere(log, first, timeline.now(), count, size)
    timeline.release(first)
    timeline.landed(log)
    return first


def test_what_lands_elsewhere_is_visible_and_not_in_memory() -> None:
    timeline, log, other = make_timeline(), stored_log(), stored_log("other")
    timeline.tail_bytes = 10**6
    landed(timeline, other, b"o")
    landed(timeline, log, b"a", b"b")
    first = land_elsewhere(timeline, log, 5, 500)
    assert (first, timeline.sequence, timeline.in_memory_from) == (3, 8, 8)
    assert (log.first, log.base, log.end, log.values, log.runs) == (0, 7, 7, [], [])
    assert (log.count_bytes(), other.values) == (502, [b"o"])
    run = timeline.run_at(5)
    assert run is not None
    assert (run.log, run.offset, run.end, run.size) == (log, 2, 7, 500)
    landed(timeline, log, b"c")
    assert (log.values, log.sequence_of(7), log.bytes_before(8)) == ([b"c"], 8, 503)
    assert timeline.sequence_of(log, 4) >= 5, "not before it"


def test_those_who_read_in_order_are_sent_to_disk_for_what_lands_elsewhere() -> None:
    timeline, log, memory = make_timeline(), stored_log(), make_log("m")
    timeline.tail_bytes = 10**6
    store: Any = object()
    cursor = PatternCursor(timeline, Covered(log, memory), 0, store)
    for one in (log, memory):
        attached(one, Noting(cursor), pattern=True)
    landed(timeline, log, b"a")
    taken = cursor.take(10)
    assert taken is not None
    assert (len(taken.slices[0]), cursor.is_behind) == (1, False)
    land_elsewhere(timeline, log, 5, 500)
    put(timeline, memory, b"x")
    assert (cursor.is_behind, cursor.pending(), cursor.position) == (True, 6, 1)


def test_a_commit_that_lands_elsewhere_is_not_buried_before_it_is_visible() -> None:
    timeline = make_timeline()
    log, busy, store = stored_log(), stored_log("busy"), object()
    timeline.tail_bytes = 1
    nobody: Any = store
    cursor = PatternCursor(timeline, Covered(log), 0, nobody)
    attached(log, Noting(cursor), pattern=True)
    landed(timeline, busy, b"x")
    timeline._dead = 2 * CHUNK  # so that whoever buries anything compacts
    first = timeline.hold(6)
    timeline.land_elsewhere(log, first, timeline.now(), 5, 50)
    timeline.land(busy, first + 5, timeline.now(), [b"x"], None, 1)
    timeline.release(first)
    timeline.cut_tail()
    assert timeline._dead == 0, "by now it is gone"
    assert timeline.run_at(first) is None
    assert cursor.pending() == 5


def test_the_run_of_a_sequence_is_found_while_it_is_known() -> None:
    timeline, log, other = make_timeline(), make_log(), make_log("m")
    assert timeline.run_at(0) is None
    put(timeline, log, b"0", b"1")
    timeline.release(timeline.hold(1))  # given to a record that never landed
    put(timeline, other, b"3")
    assert [run and (run.log, run.offset) for run in map(timeline.run_at, range(-1, 5))] == [
        None,
        (log, 0),
        (log, 0),
        None,
        (other, 0),
        None,
    ]


def test_sequences_and_time_go_on_behind_an_earlier_life() -> None:
    timeline, log = make_timeline(), make_log()
    later = datetime.fromtimestamp(START + 1000, UTC)
    timeline.go_on_from(77, later)
    put(timeline, log, b"x")
    assert (log.sequence_of(0), log.runs[0].time) == (77, later)
    assert timeline.published_in_turn() == 1


@pytest.mark.parametrize("held", [False, True])
def test_more_sequences_are_reserved_in_time(held: bool) -> None:
    asked: list[int] = []
    timeline = make_timeline()
    timeline.reserve_at, timeline.reserve = 3, lambda: asked.append(timeline.given)
    for _ in range(3):
        if held:
            timeline.release(timeline.hold(1))
        else:
            put(timeline, make_log(), b"x")
            timeline.cool()
    put(timeline, make_log(), b"x")
    assert asked[0] == 3


def test_of_runs_that_are_let_go_it_is_kept_where_the_last_one_ended() -> None:
    timeline, log, other = make_timeline(), make_log(retention_count=10), make_log("u", epoch=2)
    put(timeline, other, b"stays")
    while not log.forgotten:
        put(timeline, log, b"x")
        timeline.cool()
        assert log.end < 20 * CHUNK
    assert 1 < log.forgotten <= timeline.sequence - 10
    assert min(run.sequence for run in timeline.runs if run.log is log) == log.forgotten
    assert other.forgotten == 0
