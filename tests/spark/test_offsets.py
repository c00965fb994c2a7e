"""Where a query begins, ends and stands: words, times and JSON; the same places are the same text."""

from __future__ import annotations

import json
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
    assert parse_offsets("startingOffsets", text, "latest", ["a", "b"]).resolve([A, B]) == places


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T05:04:05.5+02:00", datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("1767323045000", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_a_start_is_a_time(text: str, time: datetime) -> None:
    where = parse_offsets("startingOffsets", text, "latest", ["a"])
    assert where.time == time
    at = TopicBounds("a", 3, 10, 50, at=20)
    assert where.resolve([at, TopicBounds("b", 4, 5, 7, at=2), TopicBounds("c", 4, 5, 7)]) == {
        "a": Position(3, 20),
        "b": Position(4, 5),
        "c": Position(4, 7),
    }


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
        OffsetSpec("latest", None, {"a": 51}).resolve([A])
