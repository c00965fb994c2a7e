"""The log: offsets, bytes, runs and retention, against a list that forgets nothing."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.topic.log import CHUNK, Log
from runnel.broker.topic.pending_batch import DurableTopic
from runnel.core.columns import KEYS
from runnel.core.options import KEEP_COUNT
from runnel.core.record import Meta
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.testing.clock import START, JumpingClock
from tests.broker.broker_parts import make_log, make_timeline, put
from tests.carried import columns_of

APPENDS = st.lists(st.lists(st.integers(0, 30).map(bytes), min_size=1, max_size=6), min_size=1, max_size=25)
BEGIN = datetime.fromtimestamp(START, UTC)


def filled(appends: list[list[bytes]], log: Log) -> list[bytes]:
    """Every list in a turn of its own; all values ever appended."""
    timeline = make_timeline()
    everything: list[bytes] = []
    for values in appends:
        assert put(timeline, log, *values) == len(everything)
        everything += values
        timeline._tick()
    return everything


@given(APPENDS)
def test_it_ends_where_the_next_record_goes_and_counts_every_byte(appends: list[list[bytes]]) -> None:
    log = make_log()
    everything = filled(appends, log)
    assert (log.first, log.end) == (0, len(everything))
    assert log.count_bytes() == log.live_bytes == sum(map(len, everything))


@given(APPENDS, st.data())
def test_bytes_before_an_offset_are_the_sum_of_what_lies_before(
    appends: list[list[bytes]], data: st.DataObject
) -> None:
    log = make_log()
    everything = filled(appends, log)
    offset = data.draw(st.integers(0, len(everything)))
    assert log.bytes_before(offset) == sum(map(len, everything[:offset]))
    if offset < len(everything):
        exact = sum(map(len, everything[offset:]))
        run = log.runs[log._run_at(offset)]
        assert exact <= log.bytes_from(offset) <= exact + run.size


@given(APPENDS, st.integers(0, 400), st.data())
def test_the_offset_that_leaves_so_many_bytes_is_the_least(
    appends: list[list[bytes]], limit: int, data: st.DataObject
) -> None:
    log = make_log()
    everything = filled(appends, log)
    start = data.draw(st.integers(0, len(everything) - 1))
    found = log.offset_leaving(limit, start)
    fitting = [at for at in range(len(everything)) if sum(map(len, everything[at:])) <= limit]
    least = min(fitting, default=len(everything) - 1)  # one record always stays
    assert found == max(start, least)


@given(APPENDS, st.integers(1, 20))
def test_retention_count_holds_at_once(appends: list[list[bytes]], kept: int) -> None:
    log = make_log(retention_count=kept)
    everything = filled(appends, log)
    assert (log.first, log.end) == (max(0, len(everything) - kept), len(everything))


@given(APPENDS, st.integers(1, 120))
def test_retention_bytes_keeps_as_much_as_fits_and_one_at_least(appends: list[list[bytes]], limit: int) -> None:
    log = make_log(retention_bytes=limit)
    everything = filled(appends, log)
    kept = everything[log.first :]
    assert sum(map(len, kept)) <= limit or len(kept) == 1
    assert log.live_bytes == sum(map(len, kept))
    if log.first:
        assert sum(map(len, everything[log.first - 1 :])) > limit


@given(APPENDS, st.data())
def test_a_slice_holds_values_keys_times_and_sequences(appends: list[list[bytes]], data: st.DataObject) -> None:
    log = make_log()
    everything = filled(appends, log)
    start = data.draw(st.integers(0, len(everything) - 1))
    end = data.draw(st.integers(start + 1, len(everything)))
    part = log.slice(start, end)
    assert part.values == tuple(everything[start:end])
    assert [record.offset for record in part.records] == list(range(start, end))
    assert [record.sequence for record in part.records] == list(range(start, end))
    assert log.sequence_of(start) == start


def test_only_records_that_carry_more_have_columns() -> None:
    log, timeline = make_log(), make_timeline()
    timeline.append(log, [b"a", b"b"], columns_of([None, Meta(b"k", expires=5.0)]), 2)
    assert [record.key for record in log.slice(0, 2).records] == [None, b"k"]
    assert log.slice(0, 1).columns is None
    assert make_log().columns is None  # nothing is paid for records that carry nothing


async def test_a_time_finds_the_first_record_that_is_not_older() -> None:
    clock = JumpingClock()
    timeline, log = make_timeline(clock), make_log()
    for _ in range(3):
        put(timeline, log, b"x", b"y")
        timeline._tick()
        await clock.advance(10)
    for seconds, offset in ((-1, 0), (0, 0), (1, 2), (10, 2), (11, 4), (20, 4), (21, 6)):
        assert log.offset_at(BEGIN + timedelta(seconds=seconds)) == offset


def test_a_long_log_is_cut_and_stays_right() -> None:
    log, timeline = make_log(), make_timeline()
    everything = [b"%d" % number for number in range(20_000)]
    for first in range(0, 20_000, 100):
        put(timeline, log, *everything[first : first + 100])
        timeline._tick()
    assert log.base > 0
    assert len(log.values) <= KEEP_COUNT + 4 * CHUNK
    assert len(log.runs) <= len(log.values) / 100 + 2
    assert log.slice(log.first, log.end).values == tuple(everything[log.first :])
    assert log.bytes_before(log.first) == sum(map(len, everything[: log.first]))
    assert log.live_bytes == sum(map(len, everything[log.first :]))
    assert log.end - log.first >= KEEP_COUNT


def test_large_values_are_cut_by_their_bytes() -> None:
    log, timeline = make_log(retention_bytes=100_000), make_timeline()
    for _ in range(2000):
        put(timeline, log, bytes(10_000))
        timeline._tick()
    assert sum(map(len, log.values)) < 3_000_000
    assert log.live_bytes == 100_000


def test_what_records_carry_goes_with_them() -> None:
    log, timeline = make_log(retention_count=10), make_timeline()
    for _ in range(5000):
        timeline.append(log, [b"x"], columns_of([Meta(b"k")]), 1)
    assert log.columns is not None
    assert len(log.columns[KEYS]) == len(log.values) < 3 * CHUNK
    log.cut(log.end)
    assert log.columns is None


def test_a_cleared_log_keeps_its_end_and_nothing_else() -> None:
    log, timeline = make_log(), make_timeline()
    put(timeline, log, b"a", b"b")
    timeline.cool()
    log.clear()
    assert (log.deleted, log.first, log.end, log.values, log.runs, log.trip) == (True, 2, 2, [], [], 0)
    assert log.live_bytes == 0


def test_the_list_of_values_is_never_replaced() -> None:
    # The short way of publishing holds on to it.
    log, timeline = make_log(), make_timeline()
    values = log.values
    for _ in range(10):
        put(timeline, log, *[b"x"] * 1000)
    log.clear()
    assert log.values is values


@pytest.mark.parametrize("count", [1, 1023, 1024])
def test_what_is_kept_by_default_is_at_least_so_much(count: int) -> None:
    log = make_log()
    everything = filled([[b"x"] * count], log)
    assert log.first == 0
    assert len(everything) == log.end


def test_a_log_and_its_runs_say_what_they_are() -> None:
    log, timeline = make_log("orders"), make_timeline()
    put(timeline, log, b"a")
    assert repr(log) == "<Log 'orders' [0, 1)>"
    assert repr(log.runs[0]) == "<LogRun 'orders' [0, open) from 0>"
    timeline.cool()
    assert repr(log.runs[0]) == "<LogRun 'orders' [0, 1) from 0>"
    assert str(log.position(5)) == "1:5"


# -- the tail of a topic on disk ------------------------------------------------------------------------------------


def revived(**options: Any) -> Log:
    """The tail of a topic that has the records [3, 10) of 70 bytes on disk."""
    log = make_log(**options)
    log.stored = DurableTopic(1, 10)
    log.revive(3, 10, 70)
    return log


def test_a_revived_log_is_empty_and_goes_on_where_it_was() -> None:
    log = revived()
    assert (log.first, log.base, log.end, log.values, log.count_bytes()) == (3, 10, 10, [], 70)
    put(make_timeline(), log, b"abc", b"de")
    assert (log.first, log.end, log.count_bytes(), log.bytes_before(11)) == (3, 12, 75, 73)


@given(APPENDS, st.data())
def test_cutting_the_tail_hides_nothing_and_counts_on(appends: list[list[bytes]], data: st.DataObject) -> None:
    log = revived()
    timeline = make_timeline()
    everything: list[bytes] = []
    for values in appends:
        put(timeline, log, *values)
        everything += values
        timeline._tick()
    cut = data.draw(st.integers(0, log.end))
    log.cut(cut)
    base = max(cut, 10)
    assert (log.first, log.base, log.end) == (3, base, 10 + len(everything))
    assert log.values == everything[base - 10 :]
    assert log.count_bytes() == 70 + sum(map(len, everything))
    for offset in range(base, log.end):
        assert log.bytes_before(offset) == 70 + sum(map(len, everything[: offset - 10]))


def test_beginning_later_moves_the_first_offset_and_never_back() -> None:
    log = revived()
    put(make_timeline(), log, b"abc", b"de")
    log.begin_at(5)
    assert log.first == 5
    log.begin_at(4)
    assert log.first == 5
    log.begin_at(11)
    assert (log.first, log.live_bytes) == (11, 2)


def test_what_is_held_stays_whatever_retention_says_unless_by_force() -> None:
    log = revived(retention_count=2)
    log.held = 7
    put(make_timeline(), log, *[b"x"] * 10)
    assert (log.first, log.reason) == (7, RemovalReason.COUNT)
    log.begin_at(9, RemovalReason.AGE)
    assert (log.first, log.reason) == (7, RemovalReason.COUNT)
    log.begin_at(9, RemovalReason.ASKED, force=True)
    assert (log.first, log.reason) == (9, RemovalReason.ASKED)
    log.held = None
    assert (log.first, log.reason) == (18, RemovalReason.COUNT)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"retention_count": 2}, RemovalReason.COUNT),
        ({"retention_bytes": 2}, RemovalReason.BYTES),
        ({"retention_age": 1}, RemovalReason.AGE),
        ({"retention_bytes": 2, "retention_count": 3}, RemovalReason.BYTES),
        ({"retention_bytes": 3, "retention_count": 2}, RemovalReason.COUNT),
    ],
)
def test_it_knows_why_it_begins_where_it_does(options: dict[str, int], why: RemovalReason) -> None:
    log = revived(**options)
    put(make_timeline(), log, *[b"x"] * 10)
    log.trim(BEGIN + timedelta(seconds=60))
    assert log.first >= 18
    assert log.reason is why


def test_what_is_on_disk_stays_in_memory_however_little_is_to_be_kept() -> None:
    log = revived(retention_count=2)
    put(make_timeline(), log, *[b"x"] * 10)
    assert log.trim(BEGIN) == 0
    assert (log.first, log.base, log.end) == (18, 10, 20)


def test_bytes_move_the_first_offset_as_far_as_memory_tells() -> None:
    log = revived(retention_bytes=3)
    put(make_timeline(), log, b"abc", b"de", b"f")
    log.trim(BEGIN)
    assert log.first == 11


async def test_age_moves_the_first_offset_as_far_as_memory_tells() -> None:
    clock, log = JumpingClock(), revived(retention_age=10)
    timeline = make_timeline(clock)
    for _ in range(3):
        put(timeline, log, b"x")
        timeline._tick()
        await clock.advance(3)
    log.trim(BEGIN + timedelta(seconds=9))
    assert log.first == 3, "what is older is for the store to tell"
    log.trim(BEGIN + timedelta(seconds=14))
    assert log.first == 12


@given(APPENDS, APPENDS, st.integers(1, 100), st.integers(0, 10**6))
def test_what_is_passed_by_takes_offsets_and_bytes_and_nothing_else(
    before: list[list[bytes]], after: list[list[bytes]], count: int, size: int
) -> None:
    log, timeline = revived(), make_timeline()
    for values in before:
        put(timeline, log, *values)
        timeline._tick()
    end, known = log.end, log.count_bytes()
    runs = len(log.runs)
    timeline.cool()
    assert log.pass_by(count, size) == runs
    assert (log.base, log.end, log.values, log.runs, log.columns) == (end + count, end + count, [], [], None)
    assert (log.count_bytes(), log.first) == (known + size, 3)
    everything: list[bytes] = []
    for values in after:
        assert put(timeline, log, *values) == end + count + len(everything)
        everything += values
        timeline._tick()
    for at in range(len(everything) + 1):
        assert log.bytes_before(end + count + at) == known + size + sum(map(len, everything[:at]))
    log.begin_at(end + count)
    assert log.live_bytes == sum(map(len, everything))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=10), st.data())
def test_the_first_offset_behind_a_sequence_is_found(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    timeline, log, other = make_timeline(), revived(), make_log("other")
    for count, gap in runs:
        put(timeline, log, *[b"x"] * count)
        if gap:
            put(timeline, other, *[b"y"] * gap)
    timeline.cool()
    log.cut(data.draw(st.integers(log.base, log.end)))
    sequence = data.draw(st.integers(0, timeline.sequence + 3))
    left = [offset for offset in range(log.base, log.end) if log.sequence_of(offset) >= sequence]
    assert log.offset_behind(sequence) == (left[0] if left else log.end)


@given(APPENDS, st.data())
def test_a_stop_that_cuts_no_run_is_the_last_before_the_one_asked_for(
    appends: list[list[bytes]], data: st.DataObject
) -> None:
    log = make_log()
    filled(appends, log)
    ends = [0]
    for values in appends:
        ends.append(ends[-1] + len(values))
    start = data.draw(st.integers(0, log.end - 1))
    stop = data.draw(st.integers(start + 1, log.end))
    whole = [end for end in ends if start < end <= stop]
    assert log.whole_runs(start, stop) == (whole[-1] if whole else stop)
