"""Each rule once, by hand: the fault is found, as the value that names it, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.testing import History
from runnel.testing.checker import OffsetRanges, PublishOutcome, TopicLog, within
from runnel.testing.verdict import (
    DeliveredOutOfOrder,
    DeliveredTwice,
    InventedRecord,
    LostRecord,
    MissedRecord,
    OffsetTakenTwice,
    Violation,
    WrittenOutOfOrder,
    WrittenTwice,
)


def published(*ids: str, topic: str = "t", publisher: str = "p") -> History:
    """A history in which the ids were acknowledged at offsets 0, 1, …"""
    history = History()
    for offset, id in enumerate(ids):
        history.intend(topic, id, publisher)
        history.acknowledged(topic, id, 1, offset)
    return history


def read(history: History, subscriber: str, *seen: tuple[int, str]) -> None:
    history.subscribed(subscriber, "t", 0, 1)
    for offset, id in seen:
        history.delivered(subscriber, "t", 1, offset, id)


A, B, C = (0, "a"), (1, "b"), (2, "c")
LOST = LostRecord(topic="t", epoch=1, offset=2, id="c", publisher="p", reader="s")
MISSED = MissedRecord(topic="t", epoch=1, offset=1, id="b", subscriber="s", witness="w")
TWICE = DeliveredTwice(topic="t", epoch=1, offset=0, id="a", subscriber="s")
BEHIND = DeliveredOutOfOrder(topic="t", epoch=1, offset=1, id="b", subscriber="s", after="offset 2")
GHOST = InventedRecord(topic="t", epoch=1, offset=3, id="x", reader="s", failed=False)
CLASH = OffsetTakenTwice(topic="t", epoch=1, offset=2, id="c", other="b")


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        pytest.param([A, B, C], [], id="all"),
        pytest.param([A, B], [LOST], id="tail lost"),
        pytest.param([A, C], [MISSED], id="hole"),
        pytest.param([A, B, A, C], [TWICE], id="twice"),
        pytest.param([A, C, B], [BEHIND], id="behind"),
        pytest.param([A, B, C, (3, "x")], [GHOST], id="ghost"),
        pytest.param([A, B, (2, "b")], [CLASH], id="clash"),
    ],
)
def test_a_subscriber_is_held_against_the_log(seen: list[tuple[int, str]], found: list[Violation]) -> None:
    history = published("a", "b", "c")
    read(history, "w", A, B, C)
    read(history, "s", *seen)
    assert list(history.check().violations) == found


def test_a_hole_that_everybody_has_is_a_loss() -> None:
    history = published("a", "b", "c")
    read(history, "s", A, C)
    assert [type(v) for v in history.check().violations] == [LostRecord]


def test_gaps_without_a_callback_are_not_lost() -> None:
    published("a", "b").check().raise_if_any()


def test_one_id_at_two_places_was_written_twice() -> None:
    history = published("a", "b")
    history.acknowledged("t", "a", 1, 2)
    assert history.check().violations == (
        WrittenTwice(topic="t", epoch=1, offset=2, id="a", other_epoch=1, other_offset=0),
    )


def test_the_same_id_in_two_topics_is_two_records() -> None:
    history = published("a")
    history.intend("u", "a")
    history.acknowledged("u", "a", 1, 5)
    history.check().raise_if_any()


def test_an_id_of_another_topic_is_an_invention() -> None:
    history = published("a")
    history.delivered("s", "u", 1, 0, "a")
    assert history.check().tally == {"invented": 1}


def test_one_publisher_s_publishes_keep_their_order() -> None:
    history = History()
    for id, offset in (("a", 1), ("b", 0), ("c", 2)):
        history.intend("t", id, "p")
        history.acknowledged("t", id, 1, offset)
    found = WrittenOutOfOrder(topic="t", epoch=1, offset=0, id="b", publisher="p", earlier="a", earlier_offset=1)
    assert history.check().violations == (found,)


def test_two_publishers_owe_each_other_no_order() -> None:
    history = History()
    for id, offset in (("a", 1), ("b", 0)):
        history.intend("t", id, f"publisher of {id}")
        history.acknowledged("t", id, 1, offset)
    history.check().raise_if_any()


def test_a_retried_publish_may_stand_where_either_attempt_put_it() -> None:
    history = History()
    history.intend("t", "a", "p")
    history.unknown("t", "a")
    history.intend("t", "b", "p")
    history.acknowledged("t", "b", 1, 0)
    history.intend("t", "a", "p")
    history.acknowledged("t", "a", 1, 1)
    history.check().raise_if_any()


@pytest.mark.parametrize(
    ("outcomes", "kinds"),
    [
        (["failed"], {"invented": 1}),
        (["failed", "failed"], {"invented": 1}),
        (["unknown", "failed"], {}),
        (["failed", "unknown"], {}),
        (["unknown"], {}),
    ],
)
def test_only_what_surely_failed_each_time_is_an_invention(outcomes: list[str], kinds: dict[str, int]) -> None:
    history = History()
    for outcome in outcomes:
        history.intend("t", "a")
        getattr(history, outcome)("t", "a")
    history.delivered("s", "t", 1, 0, "a")
    assert history.check().tally == kinds


def test_a_publish_of_unknown_outcome_that_was_received_may_be_missed_but_not_lost() -> None:
    history = published("a")
    history.intend("t", "b", "p")
    read(history, "w", A, B)
    read(history, "s", A)
    assert history.check().tally == {"missed": 1}


def test_an_invention_is_charged_to_its_receiver_alone() -> None:
    history = published("a")
    read(history, "s", A)
    read(history, "liar", A, (1, "ghost"))
    found = history.check().violations
    assert [(type(v), v.id) for v in found] == [(InventedRecord, "ghost")]


# -- offset ranges -------------------------------------------------------------------------------------------


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
