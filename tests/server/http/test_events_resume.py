"""Where a stream begins: exact where it can be, told where it cannot."""

from typing import Any

import pytest

from runnel.core.errors import InvalidOption
from runnel.core.pattern import matches
from runnel.core.position import Position
from runnel.core.topic_bounds import TopicBounds
from runnel.server.http.events import (
    AHEAD,
    OTHER_BROKER,
    TOPIC_DELETED,
    TOPIC_RECREATED,
    StreamStart,
    choose_start,
    needed_bounds,
)
from runnel.server.http.sse import EventId, digest_of

MINE, OTHER = b"mine.", b"other"


TOPICS = [TopicBounds("a", 5, 0, 10), TopicBounds("b.x", 7, 0, 10), TopicBounds("b.y", 8, 0, 10)]


def beginning(*patterns: str, start: Any = None, place: EventId | None = None, end: int = 30) -> StreamStart:
    needed = needed_bounds(patterns, place)
    topics = [topic for topic in TOPICS if any(matches(one, topic.topic) for one in needed)]
    return choose_start(patterns, start, place, tag=MINE, topics=topics, end=end)


def test_one_topic_that_is_there_is_read_by_offset() -> None:
    assert beginning("a") == ("a", "latest", None, None)
    assert beginning("a", start="earliest").start == "earliest"
    assert beginning("a", start=3).start == 3
    assert beginning("a", start=-3).start == 7
    assert beginning("a", start=-99).start == 0
    assert beginning("a", start=99).start == 10


@pytest.mark.parametrize("patterns", [("a", "b.x"), ("b.*",), ("later",)])
def test_all_else_is_read_by_sequence_and_makes_no_topic(patterns: tuple[str, ...]) -> None:
    assert beginning(*patterns) == (patterns, "latest", None, None)
    resumed = beginning(*patterns, place=EventId(MINE, 12))
    assert (resumed, resumed.resumed) == ((patterns, None, 12, None), True)


def test_offsets_mean_something_in_one_topic_only() -> None:
    with pytest.raises(InvalidOption, match="offsets differ"):
        beginning("b.*", start=3)
    with pytest.raises(InvalidOption, match="offsets differ"):
        beginning("a", "b.x", start=3)
    assert beginning("later", start=-10).start == "earliest"


def test_an_id_of_the_topics_own_goes_on_by_offset_whatever_start_says() -> None:
    found = beginning("a", start="latest", place=EventId(MINE, 12, 5, 4))
    assert (found, found.resumed) == (("a", None, Position(5, 4), None), True)


def test_an_id_of_an_earlier_life_is_reported_and_reading_continues() -> None:
    found = beginning("a", place=EventId(MINE, 12, 4, 4))
    assert (found.pattern, found.resume) == (("a",), 12)
    assert found.gap is not None
    assert (found.gap.reason, found.gap.count) == (TOPIC_RECREATED, None)
    gone = beginning("later", place=EventId(MINE, 12, 4, 4))
    assert gone.gap is not None


@pytest.mark.parametrize("patterns", [("a",), ("a", "b.x"), ("b.*",)])
def test_an_id_of_another_broker_is_reported_and_all_records_follow(patterns: tuple[str, ...]) -> None:
    found = beginning(*patterns, place=EventId(OTHER, 12, 5, 4))
    assert found.gap is not None
    assert (found.gap.reason, found.start, found.resumed) == (OTHER_BROKER, "earliest", False)
    assert beginning(*patterns, start="latest", place=EventId(OTHER, 12, 5, 4)).start == "latest"


def test_an_id_from_the_future_is_reported() -> None:
    one, many = beginning("a", place=EventId(MINE, 12, 5, 11)), beginning("b.*", place=EventId(MINE, 31))
    for found in (one, many):
        assert found.gap is not None
        assert (found.gap.reason, found.start) == (AHEAD, "earliest")


def test_a_topic_that_was_deleted_since_is_reported() -> None:
    there = digest_of([5, 7])
    assert beginning("a", "b.x", place=EventId(MINE, 12, 5, 3, there)).gap is None
    assert beginning("a", "b.*", place=EventId(MINE, 12, 5, 3, there)).gap is None  # b.y came later
    found = beginning("a", "b.x", place=EventId(MINE, 12, 5, 3, digest_of([5, 6, 7])))
    assert found.gap is not None
    assert (found.gap.reason, found.resume) == (TOPIC_DELETED, 12)
