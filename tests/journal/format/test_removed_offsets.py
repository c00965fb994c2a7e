"""Why offsets were removed: ranges that cover what was said, and are few."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.format.removed_offsets import (
    MAX_RANGES,
    RemovalReason,
    RemovedRange,
    add_removed,
    count_unexplained,
    trimmed_below,
)

SAID = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20), st.sampled_from([1, 2, 5])), max_size=60)


@given(SAID)
def test_every_offset_keeps_its_reason_while_there_are_few_ranges(said: list[tuple[int, int, int]]) -> None:
    ranges: tuple[RemovedRange, ...] = ()
    for time, (first, length, reason) in enumerate(said):
        ranges = add_removed(ranges, first, first + length, reason, time)
        assert list(ranges) == sorted(ranges, key=lambda one: (one.first, one.end))
        assert len(ranges) <= MAX_RANGES
    for first, length, reason in said:
        for offset in range(first, first + length):
            reasons = {one.reason for one in ranges if one.first <= offset < one.end}
            assert reason in reasons or RemovalReason.SEVERAL in reasons


@given(SAID)
def test_neighbours_with_one_reason_are_one_range(said: list[tuple[int, int, int]]) -> None:
    ranges: tuple[RemovedRange, ...] = ()
    for first, length, reason in said:
        ranges = add_removed(ranges, first, first + length, reason, 0)
    for one in ranges:
        for other in ranges:
            if one is not other and one.reason == other.reason != RemovalReason.SEVERAL:
                assert one.end < other.first or other.end < one.first


def test_a_range_between_two_joins_them() -> None:
    ranges = add_removed(add_removed(add_removed((), 0, 5, 1, 10), 8, 10, 1, 20), 5, 8, 1, 15)
    assert ranges == (RemovedRange(0, 10, 1, 20),)


def test_reasons_are_kept_apart() -> None:
    assert add_removed((RemovedRange(0, 5, 1, 10),), 5, 9, 2, 20) == (
        RemovedRange(0, 5, 1, 10),
        RemovedRange(5, 9, 2, 20),
    )


def test_nothing_is_noted_of_an_empty_range() -> None:
    assert (
        add_removed((RemovedRange(0, 5, 1, 10),), 7, 7, 2, 20)
        == add_removed((RemovedRange(0, 5, 1, 10),), 7, 3, 2, 20)
        == (RemovedRange(0, 5, 1, 10),)
    )


def test_too_many_ranges_lose_the_reasons_of_the_oldest() -> None:
    ranges: tuple[RemovedRange, ...] = ()
    for number in range(MAX_RANGES + 1):
        ranges = add_removed(ranges, number * 10, number * 10 + 5, number % 2 + 1, number)
    assert len(ranges) == MAX_RANGES
    assert ranges[0] == RemovedRange(0, 15, RemovalReason.SEVERAL, 1)
    assert ranges[1] == RemovedRange(20, 25, 1, 2)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20), st.sampled_from([1, 4, 5])), max_size=80))
def test_what_a_user_trimmed_is_never_forgotten(said: list[tuple[int, int, int]]) -> None:
    ranges: tuple[RemovedRange, ...] = ()
    for first, length, reason in said:
        ranges = add_removed(ranges, first, first + length, reason, 0)
        assert len(ranges) <= MAX_RANGES
    asked = [first + length for first, length, reason in said if reason == RemovalReason.ASKED]
    assert trimmed_below(ranges) == max(asked, default=0)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.sampled_from([1, 5, 6])), max_size=9))
def test_offsets_that_were_compacted_or_never_given_are_explained(said: list[tuple[int, int, int]]) -> None:
    ranges: tuple[RemovedRange, ...] = ()
    for first, length, reason in said:
        ranges = add_removed(ranges, first, first + length, reason, 0)
    explained = {at for first, length, reason in said if reason > 1 for at in range(first, first + length)}
    for first, end in ((0, 70), (10, 30), (25, 26)):
        assert count_unexplained(ranges, first, end) == len(set(range(first, end)) - explained)


def test_every_reason_has_words() -> None:
    assert RemovalReason.AGE.words == "retention_age"
    assert len({reason.words for reason in RemovalReason}) == len(RemovalReason)
