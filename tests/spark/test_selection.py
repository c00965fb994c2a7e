"""What a batch read reads: from where to where, less what filters leave out; what is gone is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from runnel.arrow.ranges import OffsetRange
from runnel.core.errors import DataLost, InvalidOption, UnknownTopic
from runnel.core.topic_bounds import TopicBounds
from runnel.spark.options import SourceOptions
from runnel.spark.planning import PushedFilters, plan_batch
from tests.spark.rig import Shelf

A, B = TopicBounds("a", 1, 10, 50), TopicBounds("b", 2, 0, 7)
NOON, LATER = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=UTC)


def selected(
    narrowing: PushedFilters = PushedFilters(),  # noqa: B008
    shelf: Shelf | None = None,
    topic: str = "a,b",
    **options: str,
) -> dict[str, tuple[int, int]]:
    shelf = shelf or Shelf(A, B)
    shelf.times = {NOON: {"a": 20, "b": 0}, LATER: {"a": 40, "b": 5}}
    found = plan_batch(shelf, SourceOptions.parse({"path": "data", "topic": topic, **options}), narrowing)
    assert found.journal == "j"
    return {one.topic: (one.first, one.end) for one in found.ranges}


def test_without_a_word_everything_is_read() -> None:
    assert selected() == {"a": (10, 50), "b": (0, 7)}
    assert selected(topic=">") == {"a": (10, 50), "b": (0, 7)}


def test_a_read_begins_and_ends_where_asked() -> None:
    assert selected(startingOffsets='{"a": 15, "b": -2}', endingOffsets='{"a": 30, "b": 2}') == {
        "a": (15, 30),
        "b": (0, 2),
    }
    assert selected(startingOffsets=NOON.isoformat(), endingOffsets=LATER.isoformat()) == {"a": (20, 40), "b": (0, 5)}
    assert selected(startingOffsets="latest") == {}
    mixed = json.dumps({"a": NOON.isoformat(), "b": 3})
    assert selected(startingOffsets=mixed) == {"a": (20, 50), "b": (3, 7)}


@pytest.mark.parametrize(
    ("starting", "ending"),
    [('{"a": 31}', '{"a": 30}'), ("latest", '{"a": 30}'), (LATER.isoformat(), NOON.isoformat())],
)
def test_a_read_that_ends_before_it_begins_is_refused(starting: str, ending: str) -> None:
    with pytest.raises(InvalidOption, match=r"topic 'a' would begin at offset \d+, behind its end at \d+"):
        selected(topic="a", startingOffsets=starting, endingOffsets=ending)


def test_a_topic_that_is_named_must_be_there() -> None:
    with pytest.raises(UnknownTopic):
        selected(topic="a,c")
    assert selected(topic="a,c.*") == {"a": (10, 50)}
    with pytest.raises(UnknownTopic):
        selected(topic=">", startingOffsets='{"c": 3}')


@pytest.mark.parametrize(
    ("starting", "ending", "lost", "left"),
    [
        ('{"a": 4}', "latest", r"offsets \[4, 10\)", (10, 50)),
        ('{"a": 4}', '{"a": 8}', r"offsets \[4, 8\)", None),
        ('{"a": {"epoch": 9, "offset": 4}}', "latest", "made again", None),
    ],
)
def test_removed_records_are_an_error_or_reported(
    starting: str, ending: str, lost: str, left: tuple[int, int] | None
) -> None:
    said = {"topic": "a", "startingOffsets": starting, "endingOffsets": ending}
    with pytest.raises(DataLost, match=lost):
        selected(**said)  # type: ignore[arg-type]
    found = selected(failOnDataLoss="false", **said)  # type: ignore[arg-type]
    assert found.get("a") == left


def test_filters_make_it_smaller() -> None:
    assert selected(PushedFilters(names=frozenset({"b"}))) == {"b": (0, 7)}
    assert selected(PushedFilters(first=5, end=20)) == {"a": (10, 20), "b": (5, 7)}
    assert selected(PushedFilters(first=60)) == {}
    assert selected(PushedFilters(since=NOON, until=LATER)) == {"a": (20, 40), "b": (0, 5)}


def test_ranges_know_what_their_records_weigh() -> None:
    shelf = Shelf(TopicBounds("a", 1, 0, 10, bytes=1240))
    options = SourceOptions.parse({"path": "data", "topic": "a"})
    assert plan_batch(shelf, options, PushedFilters()).ranges == [OffsetRange("a", 1, 0, 10, 124.0)]
