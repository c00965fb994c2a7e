"""Splitting a read over tasks: every offset in one of them, none too large, as many as were asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runnel.arrow.ranges import RANGE_COST, OffsetRange, split

RANGES = st.lists(
    st.builds(
        lambda number, first, count, size: OffsetRange(f"t{number}", 1, first, first + count, size),
        st.integers(0, 9), st.integers(0, 1000), st.integers(0, 400), st.floats(1, 1e5),
    ),
    max_size=30,
)  # fmt: skip


@given(RANGES, st.integers(1, 40), st.integers(1000, 1 << 20))
def test_every_offset_is_in_exactly_one_task(ranges: list[OffsetRange], at_least: int, size: int) -> None:
    tasks = split(ranges, at_least, size)
    wanted = [(at, one.topic, offset) for at, one in enumerate(ranges) for offset in range(one.first, one.end)]
    found = sorted((one.topic, offset) for task in tasks for one in task for offset in range(one.first, one.end))
    assert found == sorted((topic, offset) for _, topic, offset in wanted)
    assert all(one.offsets for task in tasks for one in task)
    assert len(tasks) >= min(at_least, len(wanted))


@given(RANGES, st.integers(1, 40), st.integers(1000, 1 << 20))
def test_no_task_is_much_larger_than_it_should_be(ranges: list[OffsetRange], at_least: int, size: int) -> None:
    for task in split(ranges, at_least, size):
        if len(task) > 1:
            assert sum(one.bytes + RANGE_COST for one in task) <= size + RANGE_COST
        else:
            assert task[0].bytes <= size + task[0].record_bytes


def test_many_quiet_topics_share_a_task() -> None:
    assert len(split([OffsetRange(f"t{number}", 1, 0, 3, 100.0) for number in range(1000)])) == 1


def test_one_busy_topic_is_cut() -> None:
    tasks = split([OffsetRange("t", 1, 7, 1_000_007, 124.0)], task_bytes=32 << 20)
    assert [len(task) for task in tasks] == [1, 1, 1, 1]
    assert {task[0].offsets for task in tasks} == {250_000}


def test_tasks_grow_where_there_is_much_to_read() -> None:
    def tasks(size: int) -> list[int]:
        return [int(task[0].bytes) >> 20 for task in split([OffsetRange("t", 1, 0, size, float(1 << 20))])]

    assert tasks(64) == [32, 32]
    assert tasks(256) == [32] * 8
    assert tasks(512) == [64] * 8
    assert tasks(4096) == [128] * 32


def test_nothing_is_no_task() -> None:
    assert split([]) == []
    assert split([OffsetRange("t", 1, 5, 5)], 8) == []


def test_more_tasks_than_offsets_cannot_be() -> None:
    assert split([OffsetRange("t", 1, 0, 3)], 8) == [[OffsetRange("t", 1, at, at + 1)] for at in range(3)]


@given(st.lists(st.integers(0, 300), max_size=20), st.integers(1, 200), st.integers(1, 9))
def test_no_task_has_more_records_than_it_may(counts: list[int], most: int, at_least: int) -> None:
    ranges = [OffsetRange(f"t{number}", 1, 5, 5 + count, 10.0) for number, count in enumerate(counts)]
    tasks = split(ranges, at_least, most=most)
    assert all(sum(one.offsets for one in task) <= most for task in tasks)
    read = [(one.topic, at) for task in tasks for one in task for at in range(one.first, one.end)]
    assert read == [(one.topic, at) for one in ranges for at in range(one.first, one.end)]
