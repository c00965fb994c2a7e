from hypothesis import given
from hypothesis import strategies as st

from runnel.testing.checker import OffsetRanges, PublishOutcome, TopicLog, within

ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: (min(pair), max(pair))))


@given(ranges, st.integers(-1, 31))
def test_an_offset_is_in_ranges_that_hold_it(held: list[tuple[int, int]], offset: int) -> None:
    assert (offset in OffsetRanges(held)) == any(first <= offset < end for first, end in held)


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(0, 30))
def test_within_gives_the_same_whichever_way_it_looks(offsets: set[int], first: int, end: int) -> None:
    assert within(offsets, first, end) == sorted(offset for offset in offsets if first <= offset < end)


def test_one_attempt_of_unknown_outcome_is_enough_to_have_written_it() -> None:
    assert PublishOutcome(handed=2, failed=2).surely_failed
    assert not PublishOutcome(handed=2, failed=1).surely_failed
    assert not PublishOutcome(handed=1, failed=1, acknowledged=[(1, 0)]).surely_failed


def test_the_first_offset_handed_over_after_a_time() -> None:
    places = TopicLog("t")
    for at, offset in ((1.0, 5), (2.0, 7), (3.0, 6)):
        places.intend(offset, "p", at)
        places.outcome(offset).acknowledged.append((1, offset))
    assert [places.first_handed_after(1, at) for at in (0.0, 1.0, 2.5, 3.0)] == [5, 6, 6, None]
    assert places.first_handed_after(2, 0.0) is None


def test_a_reader_of_a_place_is_named() -> None:
    places = TopicLog("t")
    places.readers[1].append(("s", {3}))
    assert (places.reader(1, 3), places.reader(1, 4)) == ("s", "")
