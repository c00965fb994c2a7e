"""Why offsets are gone: ranges that cover what was said, and are few."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.gone import MAX_RANGES, Gone, Reason, note

SAID = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20), st.sampled_from([1, 2, 5])), max_size=60)


@given(SAID)
def test_every_offset_keeps_its_reason_while_there_are_few_ranges(said: list[tuple[int, int, int]]) -> None:
    ranges: list[Gone] = []
    for time, (first, length, reason) in enumerate(said):
        ranges = note(ranges, first, first + length, reason, time)
        assert ranges == sorted(ranges, key=lambda one: (one.first, one.end))
        assert len(ranges) <= MAX_RANGES
    for first, length, reason in said:
        for offset in range(first, first + length):
            reasons = {one.reason for one in ranges if one.first <= offset < one.end}
            assert reason in reasons or Reason.SEVERAL in reasons


@given(SAID)
def test_neighbours_with_one_reason_are_one_range(said: list[tuple[int, int, int]]) -> None:
    ranges: list[Gone] = []
    for first, length, reason in said:
        ranges = note(ranges, first, first + length, reason, 0)
    for one in ranges:
        for other in ranges:
            if one is not other and one.reason == other.reason != Reason.SEVERAL:
                assert one.end < other.first or other.end < one.first


def test_a_range_between_two_joins_them() -> None:
    ranges = note(note(note([], 0, 5, 1, 10), 8, 10, 1, 20), 5, 8, 1, 15)
    assert ranges == [Gone(0, 10, 1, 20)]


def test_reasons_are_kept_apart() -> None:
    assert note([Gone(0, 5, 1, 10)], 5, 9, 2, 20) == [Gone(0, 5, 1, 10), Gone(5, 9, 2, 20)]


def test_nothing_is_noted_of_an_empty_range() -> None:
    assert note([Gone(0, 5, 1, 10)], 7, 7, 2, 20) == note([Gone(0, 5, 1, 10)], 7, 3, 2, 20) == [Gone(0, 5, 1, 10)]


def test_too_many_ranges_lose_the_reasons_of_the_oldest() -> None:
    ranges: list[Gone] = []
    for number in range(MAX_RANGES + 1):
        ranges = note(ranges, number * 10, number * 10 + 5, number % 2 + 1, number)
    assert len(ranges) == MAX_RANGES
    assert ranges[0] == Gone(0, 15, Reason.SEVERAL, 1)
    assert ranges[1] == Gone(20, 25, 1, 2)


def test_every_reason_has_words() -> None:
    assert Reason.AGE.words == "retention_age"
    assert len({reason.words for reason in Reason}) == len(Reason)
