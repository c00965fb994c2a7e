"""Ranges against a plain set of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.format.offset_sets import RangeSet, merge_ranges, to_ranges

RANGE = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def numbers(ranges: RangeSet) -> set[int]:
    return {number for first, end in ranges for number in range(first, end)}


def check(ranges: RangeSet, model: set[int]) -> None:
    assert numbers(ranges) == model
    assert ranges.flat() == to_ranges(model)
    assert list(zip(*[iter(ranges.flat())] * 2, strict=True)) == list(ranges)
    assert len(ranges) == len(ranges.flat()) // 2
    assert ranges.end == max(model, default=-1) + 1
    for number in range(-1, 60):
        assert (number in ranges) == (number in model)
        end = next(end for end in range(number, 61) if end not in model)
        assert ranges.end_of(number) == (end if number in model else None)
        assert ranges.count(number, number + 7) == len(model & set(range(number, number + 7)))


@given(st.lists(RANGE | st.integers(0, 50), max_size=25))
def test_they_hold_what_a_set_would(steps: list[tuple[int, int] | int]) -> None:
    ranges, model, floor = RangeSet(), set[int](), 0
    for step in steps:
        if isinstance(step, int):
            floor = max(floor, step)
            raised = floor
            while raised in model:
                raised += 1
            assert ranges.cut_below(floor) == raised
            floor = raised
            model = {number for number in model if number >= floor}
        else:
            ranges.add(*step)
            model |= set(range(*step))
        check(ranges, model)


@given(st.lists(st.integers(0, 60)))
def test_single_places_in_any_order_become_ranges(places: list[int]) -> None:
    assert numbers(RangeSet(to_ranges(places))) == set(places)


@given(st.lists(RANGE, max_size=10))
def test_flat_ranges_come_back(added: list[tuple[int, int]]) -> None:
    ranges = RangeSet(number for pair in added for number in pair)
    assert list(RangeSet(ranges.flat())) == list(ranges)


@given(st.lists(RANGE, max_size=10))
def test_ranges_in_any_order_are_made_compact(added: list[tuple[int, int]]) -> None:
    flat = [number for pair in added for number in pair]
    assert merge_ranges(flat) == RangeSet(flat).flat()


def test_neighbours_are_joined() -> None:
    ranges = RangeSet([0, 2, 4, 6])
    ranges.add(2, 4)
    assert list(ranges) == [(0, 6)]


def test_an_empty_range_adds_nothing() -> None:
    ranges = RangeSet()
    ranges.add(3, 3)
    ranges.add(5, 2)
    assert not len(ranges)


def test_half_a_range_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        RangeSet([1, 2, 3])


def test_they_show_themselves() -> None:
    assert repr(RangeSet([1, 3, 7, 8])) == "<RangeSet [1, 3) [7, 8)>"
