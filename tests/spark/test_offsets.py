"""Where a query begins, ends and stands: words, times and JSON; the same places are the same text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption, OffsetOutOfRange
from runnel.core.position import Position
from runnel.core.topic_bounds import TopicBounds
from runnel.spark.offsets import OffsetSpec, StreamOffset, TopicProgress, parse_offsets

A, B = TopicBounds("a", 3, 10, 50), TopicBounds("b", 4, 0, 7)
NUMBERS = st.integers(0, 2**62)


def no_time(topics: Sequence[str], time: datetime) -> list[TopicBounds]:
    raise AssertionError(f"{topics} are not to be asked about {time}")


@given(st.dictionaries(st.text(min_size=1), st.builds(TopicProgress, NUMBERS, NUMBERS, NUMBERS)), st.randoms())
def test_an_offset_comes_back_from_its_checkpoint_and_is_the_same_text(
    topics: dict[str, TopicProgress], random: st.DataObject
) -> None:
    offset = StreamOffset("j", topics)
    shuffled = list(topics.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    kept = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(kept)) == offset
    assert json.dumps(StreamOffset("j", dict(shuffled)).to_json()) == kept


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"journal": 1, "topics": {}},
        {"journal": "j", "topics": {"a": 5}},
        {"journal": "j", "topics": {"a": [5]}},
        {"o": "latest"},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(kept: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match="not one of a runnel source"):
        StreamOffset.from_json(kept)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (None, {"a": Position(3, 50), "b": Position(4, 7)}),
        ("earliest", {"a": Position(3, 10), "b": Position(4, 0)}),
        (" Latest ", {"a": Position(3, 50), "b": Position(4, 7)}),
        ('{"a": 17}', {"a": Position(3, 17), "b": Position(4, 7)}),
        ('{"a": -2, "b": -1}', {"a": Position(3, 10), "b": Position(4, 7)}),
        ('{"a": "earliest", "b": 0}', {"a": Position(3, 10), "b": Position(4, 0)}),
        ('{"a": {"epoch": 2, "offset": 8}}', {"a": Position(2, 8), "b": Position(4, 7)}),
        ('{"a": 50}', {"a": Position(3, 50), "b": Position(4, 7)}),
        ('{"a": 3}', {"a": Position(3, 3), "b": Position(4, 7)}),  # what is gone is told elsewhere
    ],
)
def test_a_start_is_a_word_or_json_by_topic(text: str | None, places: dict[str, Position]) -> None:
    assert parse_offsets("startingOffsets", text, "latest", ["*"]).resolve([A, B], no_time) == places


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T05:04:05.5+02:00", datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("1767323045000", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_a_start_is_a_time(text: str, time: datetime) -> None:
    where = parse_offsets("startingOffsets", text, "latest", ["*"])
    timed = [TopicBounds("a", 3, 10, 50, at=20), TopicBounds("b", 4, 0, 7, at=2)]

    def bounds_at(topics: Sequence[str], asked: datetime) -> list[TopicBounds]:
        assert (topics, asked) == (["a", "b", "c"], time)
        return timed  # the third one is gone

    found = where.resolve([A, B, TopicBounds("c", 4, 5, 7)], bounds_at)
    assert found == {"a": Position(3, 20), "b": Position(4, 2), "c": Position(4, 7)}


def test_each_topic_may_have_a_time_of_its_own() -> None:
    noon, later = "2026-01-02T12:00:00Z", "1767358800000"
    text = json.dumps({"a": noon, "b": later, "c": 3, "d": noon})
    asked: list[tuple[Sequence[str], int]] = []

    def bounds_at(topics: Sequence[str], time: datetime) -> list[TopicBounds]:
        asked.append((topics, time.hour))
        return [TopicBounds(name, 9, 1, 50, at=time.hour) for name in topics]

    where = parse_offsets("startingOffsets", text, "latest", ["a", "b", "*"])
    found = where.resolve([TopicBounds(name, 9, 1, 50) for name in "abcde"], bounds_at)
    assert {name: place.offset for name, place in found.items()} == {"a": 12, "b": 13, "c": 3, "d": 12, "e": 50}
    assert asked == [(["a", "d"], 12), (["b"], 13)]


def test_a_topic_that_is_named_has_to_be_in_the_json() -> None:
    with pytest.raises(InvalidOption, match="it says nothing of topic 'b', which the query reads; add it"):
        parse_offsets("startingOffsets", '{"a": 1}', "latest", ["a", "b"])
    parse_offsets("startingOffsets", '{"a": 1}', "latest", ["a", "b.*"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("soon", "expected earliest, latest"),
        ("2026-01-02T03:04:05", "a zone"),
        ("99999999999999999999", "no time"),
        ("{nonsense}", "not JSON"),
        ('{"c": 1}', "does not read it"),
        ('{"": 1}', "does not read it"),
        ('{"a": -3}', "expected an offset"),
        ('{"a": "soon"}', "expected earliest, latest"),
        ('{"a": "2026-01-02T03:04:05"}', "a zone"),
        ('{"a": true}', "expected an offset"),
        ('{"a": 1.5}', "expected an offset"),
        ('{"a": {"epoch": 1}}', "expected an offset"),
        ('{"a": {"epoch": "1", "offset": 2}}', "expected an offset"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        parse_offsets("startingOffsets", text, "latest", ["a", "b"])


@pytest.mark.parametrize("text", ["earliest", '{"a": -2}', '{"a": "earliest"}'])
def test_a_read_does_not_end_where_it_begins(text: str) -> None:
    with pytest.raises(InvalidOption, match="nothing to read"):
        parse_offsets("endingOffsets", text, "latest", ["a"])


def test_an_offset_beyond_the_end_is_refused() -> None:
    with pytest.raises(OffsetOutOfRange):
        OffsetSpec("latest", {"a": 51}).resolve([A], no_time)
