"""What a plain subscriber is owed: its range, its gaps, its sessions, its epochs."""

from collections.abc import Callable

import pytest

from runnel.testing import History
from runnel.testing.verdict import DeliveredOutOfOrder, LostRecord, MissedRecord, WrongGap


def publish(history: History, *offsets: int, epoch: int = 1, topic: str = "t") -> None:
    for offset in offsets:
        history.intend(topic, f"{topic}{epoch}-{offset}", "p")
        history.acknowledged(topic, f"{topic}{epoch}-{offset}", epoch, offset)


def deliver(history: History, subscriber: str, *offsets: int, epoch: int = 1, topic: str = "t") -> None:
    for offset in offsets:
        history.delivered(subscriber, topic, epoch, offset, f"{topic}{epoch}-{offset}")


def found(history: History) -> list[tuple[str, int]]:
    return [(violation.kind, violation.offset) for violation in history.check().violations]


def test_nothing_before_its_start_is_owed() -> None:
    history = History()
    publish(history, 0, 1, 2)
    history.subscribed("s", "t", 1)
    deliver(history, "s", 1, 2)
    assert found(history) == []


def test_a_latest_subscriber_is_owed_what_was_handed_over_after_it_opened() -> None:
    history = History()
    publish(history, 0, 1)
    history.subscribed("s", "t")
    publish(history, 2, 3)
    deliver(history, "s", 3)
    assert found(history) == [("lost", 2)]


def test_a_latest_subscriber_that_saw_nothing_is_owed_the_same() -> None:
    history = History()
    publish(history, 0, 1)
    history.subscribed("s", "t")
    assert found(history) == []
    publish(history, 2)
    assert found(history) == [("lost", 2)]


def test_an_unannounced_subscriber_is_owed_from_its_first_record_on() -> None:
    history = History()
    publish(history, 0, 1, 2)
    deliver(history, "s", 1)
    assert found(history) == [("lost", 2)]


@pytest.mark.parametrize(
    ("end", "lost"),
    [(None, []), (2, []), (3, [("lost", 2)])],
)
def test_after_its_end_nothing_is_owed(end: int | None, lost: list[tuple[str, int]]) -> None:
    history = History()
    publish(history, 0, 1, 2, 3)
    history.subscribed("s", "t", 0)
    deliver(history, "s", 0, 1)
    history.ended("s", "t", end)
    assert found(history) == lost


def test_an_end_without_a_topic_ends_all_of_them() -> None:
    history = History()
    for topic in ("t", "u"):
        publish(history, 0, topic=topic)
        history.subscribed("s", topic, 0)
    history.ended("s")
    assert found(history) == []


@pytest.mark.parametrize("count", [2, None])
def test_a_reported_gap_excuses_what_it_covers(count: int | None) -> None:
    history = History()
    publish(history, 0, 1, 2, 3)
    history.subscribed("s", "t", 0)
    deliver(history, "s", 0)
    history.gap("s", "t", 1, 1, 3, count)
    deliver(history, "s", 3)
    assert found(history) == []


GAPS: list[tuple[str, Callable[[History], None], str]] = [
    ("covers a delivered record", lambda h: h.gap("s", "t", 1, 0, 3, 2), "it got offset 0 ('t1-0')"),
    ("counts too few", lambda h: h.gap("s", "t", 1, 1, 3, 1), "at least 2 records stood there"),
    ("counts too many", lambda h: h.gap("s", "t", 1, 1, 3, 3), "only 2 fit there"),
]


@pytest.mark.parametrize(("tell", "why"), [pytest.param(tell, why, id=name) for name, tell, why in GAPS])
def test_a_wrong_gap_is_found_with_its_reason(tell: Callable[[History], None], why: str) -> None:
    history = History()
    publish(history, 0, 1, 2, 3)
    history.subscribed("s", "t", 0)
    deliver(history, "s", 0)
    tell(history)
    deliver(history, "s", 3)
    [wrong] = history.check().violations
    assert isinstance(wrong, WrongGap)
    assert wrong.why == why
    assert f"but {why}" in str(wrong)


@pytest.mark.parametrize(
    ("first", "end", "count", "why"),
    [(5, 5, 1, "only 0 fit there"), (5, 3, None, "that range ends before it begins")],
)
def test_a_gap_that_makes_no_sense_is_wrong(first: int, end: int, count: int | None, why: str) -> None:
    history = History()
    history.gap("s", "t", 1, first, end, count)
    [wrong] = history.check().violations
    assert isinstance(wrong, WrongGap)
    assert wrong.why == why


def test_an_empty_gap_may_say_that_a_topic_was_made_anew() -> None:
    history = History()
    history.gap("s", "t", 2, 0, 0, 0)
    assert found(history) == []


def test_gaps_that_overlap_count_records_twice() -> None:
    history = History()
    history.gap("s", "t", 1, 0, 5, 5)
    history.gap("s", "t", 1, 3, 8, 5)
    [wrong] = history.check().violations
    assert isinstance(wrong, WrongGap)
    assert wrong.why == "another reported gap reaches to 5"


def test_a_gap_may_count_fewer_than_its_range_where_cleaning_made_holes() -> None:
    history = History()
    publish(history, 0, 1, 2, 3)
    history.cleaned("t", 1, 0, 2)
    history.subscribed("s", "t", 0)
    history.gap("s", "t", 1, 0, 3, 1)
    deliver(history, "s", 3)
    assert found(history) == []


def test_cleaned_records_are_owed_to_no_reader() -> None:
    history = History()
    publish(history, 0, 1, 2)
    history.cleaned("t", 1, 0, 2)
    history.subscribed("s", "t", 0)
    deliver(history, "s", 2)
    assert found(history) == []


@pytest.mark.parametrize(
    ("again", "kinds"),
    [([2, 3], []), ([0, 1, 2, 3], []), ([3], [("lost", 2)]), ([2], [("lost", 3)])],
)
def test_a_name_that_resumes_may_see_again_and_must_not_skip(again: list[int], kinds: list[tuple[str, int]]) -> None:
    history = History()
    publish(history, 0, 1, 2, 3)
    history.subscribed("s", "t", 0)
    deliver(history, "s", 0, 1)
    history.ended("s")
    history.resumed("s", "t")
    deliver(history, "s", *again)
    assert found(history) == kinds


def test_a_name_that_saw_nothing_resumes_where_it_began() -> None:
    history = History()
    history.subscribed("s", "t", 1, 1)
    history.ended("s")
    publish(history, 0, 1)
    history.resumed("s", "t")
    assert found(history) == [("lost", 1)]


def test_a_topic_made_again_starts_anew_and_takes_what_was_unread_with_it() -> None:
    history = History()
    publish(history, 0, 1, 2)
    publish(history, 0, 1, epoch=2)
    history.subscribed("s", "t", 1, 1)
    deliver(history, "s", 1)
    deliver(history, "s", 1, epoch=2)
    assert [(type(v), v.epoch, v.offset) for v in history.check().violations] == [(LostRecord, 2, 0)]


def test_going_back_to_a_dead_epoch_is_out_of_order() -> None:
    history = History()
    publish(history, 0, 1)
    publish(history, 0, epoch=2)
    deliver(history, "s", 0)
    deliver(history, "s", 0, epoch=2)
    deliver(history, "s", 1)
    [wrong] = history.check().violations
    assert isinstance(wrong, DeliveredOutOfOrder)
    assert wrong.after == "records of the later epoch 2"


def pattern_run(*seen: tuple[str, int, int]) -> History:
    """Two topics with sequences 0, 1, 2, 3 in turn; a witness saw all."""
    history = History()
    publish(history, 0, 1)
    publish(history, 0, 1, topic="u")
    for subscriber, records in (("w", [("t", 0, 0), ("u", 0, 1), ("t", 1, 2), ("u", 1, 3)]), ("s", list(seen))):
        history.subscribed(subscriber, "t", 0)
        history.subscribed(subscriber, "u", 0)
        for topic, offset, sequence in records:
            history.delivered(subscriber, topic, 1, offset, f"{topic}1-{offset}", sequence)
    return history


def test_a_pattern_is_read_in_sequence_order() -> None:
    assert found(pattern_run(("t", 0, 0), ("u", 0, 1), ("t", 1, 2), ("u", 1, 3))) == []
    [wrong] = pattern_run(("u", 0, 1), ("t", 0, 0), ("t", 1, 2), ("u", 1, 3)).check().violations
    assert isinstance(wrong, DeliveredOutOfOrder)
    assert wrong.after == "sequence 1, its own being 0"


def test_a_gap_reported_in_sequences_excuses_every_topic_of_a_pattern() -> None:
    history = pattern_run(("t", 0, 0), ("u", 1, 3))
    assert [type(v) for v in history.check().violations] == [LostRecord, MissedRecord]
    history.sequence_gap("s", 1, 3, 2)
    assert found(history) == []


def test_a_gap_reported_in_sequences_that_covers_a_delivered_record_is_wrong() -> None:
    history = pattern_run(("t", 0, 0), ("u", 1, 3))
    history.sequence_gap("s", 1, 4, 3)
    [wrong] = history.check().violations
    assert isinstance(wrong, WrongGap)
    assert wrong.why == "it got sequence 3 ('u' epoch 1 offset 1)"
