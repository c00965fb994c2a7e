from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.offset_set import OffsetSet

OFFSETS = st.integers(0, 5000) | st.integers(2**31, 2**31 + 3000)
RANGES = st.tuples(OFFSETS, OFFSETS).map(sorted)


@given(st.lists(OFFSETS, max_size=60), st.lists(RANGES, max_size=4), RANGES)
def test_it_is_a_set(offsets: list[int], discarded: list[list[int]], asked: list[int]) -> None:
    found, model = OffsetSet(offsets), set(offsets)
    for first, end in discarded:
        gone = {offset for offset in model if first <= offset < end}
        assert found.discard(first, end) == len(gone)
        model -= gone
    first, end = asked
    assert len(found) == len(model)
    assert bool(found) == bool(model)
    assert found.lowest() == min(model, default=None)
    assert found.count(first, end) == len([one for one in model if first <= one < end])
    assert all((offset in found) == (offset in model) for offset in [*offsets, first, end, 0])
    assert repr(found) == f"<OffsetSet of {len(model)}>"


@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(0, 3000), st.integers(0, 3000))
def test_what_is_not_in_it_comes_as_spans(offsets: list[int], first: int, end: int) -> None:
    spans = OffsetSet(offsets).spans_without(first, end)
    assert [offset for low, high in spans for offset in range(low, high)] == [
        offset for offset in range(first, end) if offset not in offsets
    ]
    assert all(low < high for low, high in spans)
    assert all(one[1] < two[0] for one, two in pairwise(spans))


@given(st.lists(OFFSETS, max_size=60), st.lists(OFFSETS, max_size=60), OFFSETS, RANGES)
def test_a_part_of_it_is_copied_and_taken_out_again(
    offsets: list[int], others: list[int], end: int, within: list[int]
) -> None:
    found, model = OffsetSet([*offsets, *others]), {*offsets, *others}
    part = found.below(end)
    assert len(part) == len([one for one in model if one < end])
    assert all((one in part) == (one < end) for one in model)
    first, last = within
    found.remove(OffsetSet(others), first, last)
    left = {one for one in model if one not in others or not first <= one < last}
    assert len(found) == len(left)
    assert all((one in found) == (one in left) for one in model)
    assert found.lowest() == min(left, default=None)
    assert len(found.below()) == len(left)
    assert len(part) == len([one for one in model if one < end]), "a copy does not change"
