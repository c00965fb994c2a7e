from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.format.offset_sets import OffsetBitmap

OFFSETS = st.integers(0, 5000) | st.integers(2**31, 2**31 + 3000)
RANGES = st.tuples(OFFSETS, OFFSETS).map(sorted)


@given(st.lists(OFFSETS, max_size=60), st.lists(RANGES, max_size=4), RANGES)
def test_it_is_a_set(offsets: list[int], discarded: list[list[int]], asked: list[int]) -> None:
    found, model = OffsetBitmap(offsets), set(offsets)
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
    assert repr(found) == f"<OffsetBitmap of {len(model)}>"


@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(0, 3000), st.integers(0, 3000))
def test_what_is_not_in_it_comes_as_spans(offsets: list[int], first: int, end: int) -> None:
    spans = OffsetBitmap(offsets).spans_without(first, end)
    assert [offset for low, high in spans for offset in range(low, high)] == [
        offset for offset in range(first, end) if offset not in offsets
    ]
    assert all(low < high for low, high in spans)
    assert all(one[1] < two[0] for one, two in pairwise(spans))


@given(st.lists(OFFSETS, max_size=60), st.lists(OFFSETS, max_size=60), OFFSETS, RANGES)
def test_a_part_of_it_is_copied_and_taken_out_again(
    offsets: list[int], others: list[int], end: int, within: list[int]
) -> None:
    found, model = OffsetBitmap([*offsets, *others]), {*offsets, *others}
    part = found.below(end)
    assert len(part) == len([one for one in model if one < end])
    assert all((one in part) == (one < end) for one in model)
    first, last = within
    found.remove(OffsetBitmap(others), first, last)
    left = {one for one in model if one not in others or not first <= one < last}
    assert len(found) == len(left)
    assert all((one in found) == (one in left) for one in model)
    assert found.lowest() == min(left, default=None)
    assert len(found.below()) == len(left)
    assert len(part) == len([one for one in model if one < end]), "a copy does not change"


SIZED = st.dictionaries(OFFSETS, st.integers(1, 1 << 24), max_size=60)


def sized(sizes: dict[int, int]) -> OffsetBitmap:
    found = OffsetBitmap()
    for offset, size in sizes.items():
        found.add(offset, size)
        found.add(offset, size)  # the second time it is in
    return found


@given(SIZED, RANGES)
def test_the_bytes_of_all_are_known_and_of_a_part_never_more_than_that(sizes: dict[int, int], asked: list[int]) -> None:
    found, whole = sized(sizes), sum(sizes.values())
    assert found.size(0, 1 << 40) == whole
    first, end = asked
    parts = found.size(0, first) + found.size(first, end) + found.size(end, 1 << 40)
    assert whole - 3 * len(sizes) <= parts <= whole, "each is about right, and together they are not more"
    assert OffsetBitmap(sizes).size(0, 1 << 40) == 0, "nobody told"


@given(SIZED, RANGES, OFFSETS)
def test_what_is_taken_out_takes_its_part_of_the_bytes_along(sizes: dict[int, int], taken: list[int], end: int) -> None:
    found, first, last = sized(dict.fromkeys(sizes, 100)), *taken
    part, removed = found.below(end), found.below()
    removed.remove(part, first, last)
    found.discard(first, last)
    for left in (found, part, removed):
        assert left.size(0, 1 << 40) == 100 * len(left)
        assert left.size(first, last) == 100 * left.count(first, last)
        left.discard(0, 1 << 40)
        left.add(first, 7)
        assert left.size(0, 1 << 40) == 7, "nothing is left of the others"


def test_large_and_small_ones_are_distinguished_where_they_do_not_lie_close() -> None:
    found = sized({**dict.fromkeys(range(128), 1 << 20), **dict.fromkeys(range(128, 1024), 3)})
    assert found.size(0, 128) == 128 << 20
    assert found.size(128, 1024) == 896 * 3
    found.discard(0, 100)
    assert found.size(128, 1024) == 896 * 3
    assert found.size(0, 128) == 28 << 20


def test_bytes_without_measure_change_nothing_of_what_lies_beside() -> None:
    found = sized({**dict.fromkeys(range(64), 1 << 60), **dict.fromkeys(range(64, 128), 3)})
    assert found.size(64, 128) == 64 * 3


@given(SIZED, OFFSETS, OFFSETS)
def test_it_is_stored_and_put_in_again(sizes: dict[int, int], first: int, end: int) -> None:
    found = sized(sizes)
    copy, part, two = OffsetBitmap(), OffsetBitmap(), OffsetBitmap()
    copy.put(found.encode())
    assert copy.encode() == found.encode()
    assert (len(copy), copy.size(0, 1 << 62)) == (len(found), found.size(0, 1 << 62))
    part.put(found.encode(first, end))
    assert len(part) == found.count(first, end)
    assert {offset for offset in sizes if offset in part} == {offset for offset in sizes if first <= offset < end}
    two.put([*found.encode(0, first), *found.encode(first)])  # in two pieces, wherever they meet
    assert len(two) == len(found)
    assert all(offset in two for offset in sizes)
