"""A query's way through its topics: nothing is read twice or left out, limits hold, and what is gone is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.arrow.ranges import OffsetRange
from runnel.core.errors import DataLost, NotSupported
from runnel.core.topic_bounds import TopicBounds
from runnel.spark.offsets import StreamOffset, TopicProgress
from runnel.spark.options import SourceOptions
from runnel.spark.planning import StreamPlanner
from tests.spark.rig import Shelf


def course(shelf: Shelf, topic: str = ">", **options: str) -> StreamPlanner:
    return StreamPlanner(shelf, SourceOptions.parse({"path": "data", "topic": topic, **options}))


def topic(name: str, first: int, end: int, epoch: int = 1, **more: object) -> TopicBounds:
    return TopicBounds(name, epoch, first, end, **more)  # type: ignore[arg-type]


def at(**places: int) -> StreamOffset:
    return StreamOffset("j", {name: TopicProgress(1, offset) for name, offset in places.items()})


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 4000)),
)
def test_each_offset_is_read_once_however_topics_grow(
    growth: list[dict[str, int]], records: int | None, size: int | None
) -> None:
    options = {"startingOffsets": "earliest"}
    if records is not None:
        options["maxRecordsPerTrigger"] = str(records)
    if size is not None:
        options["maxBytesPerTrigger"] = str(size)
    shelf = Shelf()
    query = course(shelf, **options)
    place, read, ends = query.initial(), list[tuple[str, int]](), dict[str, int]()
    for grown in [*growth, *[{}] * 400]:
        for name, count in grown.items():
            ends[name] = ends.get(name, 0) + count
            shelf.put(topic(name, 0, ends[name], bytes=100 * ends[name]))
        following = query.latest(place)
        ranges = query.ranges(place, following)
        assert sum(one.offsets for one in ranges) <= (records or 1000)
        if size is not None and sum(one.offsets for one in ranges) > 1:
            assert sum(one.bytes for one in ranges) <= size + 1
        read += [(one.topic, offset) for one in ranges for offset in range(one.first, one.end)]
        place = following
    assert sorted(read) == sorted((name, offset) for name, end in ends.items() for offset in range(end))
    assert len(read) == len(set(read))
    assert query.latest(place) == place


def test_where_nothing_is_said_a_stream_begins_at_the_end() -> None:
    query = course(Shelf(topic("a", 3, 9)))
    assert query.initial() == at(a=9)
    assert query.latest(at(a=9)) == at(a=9)


def test_a_place_in_a_topic_that_is_not_there_yet_is_kept() -> None:
    where = '{"a": {"epoch": 1, "offset": 4}}'
    assert course(Shelf(), startingOffsets=where).initial() == at(a=4)


def test_a_topic_that_comes_later_is_read_from_its_first_record_on() -> None:
    shelf = Shelf(topic("a", 0, 5))
    query = course(shelf)
    shelf.put(topic("b", 0, 7))
    end = query.latest(at(a=5))
    assert end == at(a=5, b=7)
    assert query.ranges(at(a=5), end) == [OffsetRange("b", 1, 0, 7, 1.0)]


def test_of_a_topic_that_comes_later_only_what_is_left_then_was_promised() -> None:
    shelf = Shelf(topic("b", 4, 7))
    query = course(shelf)
    end = query.latest(at())
    assert end == StreamOffset("j", {"b": TopicProgress(1, 7, 4)})
    shelf.put(topic("b", 6, 9))  # the same again, after a crash: what it was to read does not change
    assert query.ranges(at(), end) == [OffsetRange("b", 1, 4, 7, 1.0)]
    following = query.latest(end)
    assert following == StreamOffset("j", {"b": TopicProgress(1, 9, 4)})
    assert query.ranges(end, following) == [OffsetRange("b", 1, 7, 9, 1.0)]


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (topic("a", 6, 9), r"offsets \[5, 6\) of topic 'a'.*begins at offset 6"),
        (topic("a", 0, 4), r"offsets \[4, 5\) of topic 'a'.*it has shrunk"),
        (topic("a", 0, 9, epoch=2), "deleted and made again"),
        (None, "the topic was deleted"),
    ],
)
def test_what_is_gone_is_an_error(there: TopicBounds | None, why: str) -> None:
    query = course(Shelf(*[there] if there else []))
    with pytest.raises(DataLost, match=why):
        query.latest(at(a=5))


@pytest.mark.parametrize(
    ("there", "end", "lost"),
    [
        (topic("a", 6, 9), StreamOffset("j", {"a": TopicProgress(1, 9)}), 1),
        (topic("a", 0, 4), StreamOffset("j", {"a": TopicProgress(1, 4)}), 1),
        (topic("a", 0, 9, epoch=2), StreamOffset("j", {"a": TopicProgress(2, 9)}), 0),
        (topic("a", 2, 9, epoch=2), StreamOffset("j", {"a": TopicProgress(2, 9, 2)}), 0),
        (None, StreamOffset("j", {}), 0),
    ],
)
def test_or_it_is_reported_and_the_query_continues(there: TopicBounds | None, end: StreamOffset, lost: int) -> None:
    query = course(Shelf(*[there] if there else []), failOnDataLoss="false")
    assert query.latest(at(a=5)) == end
    assert query.data_loss.offsets == lost


def test_another_journal_is_never_taken_for_the_one_that_was_read() -> None:
    shelf = Shelf(topic("a", 0, 9), journal="other")
    with pytest.raises(DataLost, match="the journal is another one"):
        course(shelf).latest(at(a=5))
    query = course(shelf, failOnDataLoss="false")
    end = query.latest(at(a=5))
    assert end == StreamOffset("other", {"a": TopicProgress(1, 9)})
    assert query.ranges(at(a=5), end) == [OffsetRange("a", 1, 0, 9, 1.0)]


def test_a_query_that_reads_what_is_there_now_ends_there() -> None:
    shelf = Shelf(topic("a", 0, 9), topic("b", 0, 3))
    query = course(shelf, maxRecordsPerTrigger="5")
    query.prepare()
    shelf.put(topic("a", 0, 100), topic("c", 0, 5))
    place, steps = at(a=2, b=0), 0
    while (following := query.latest(place)) != place:
        place, steps = following, steps + 1
        assert steps < 10
    assert {name: one.offset for name, one in place.topics.items()} == {"a": 9, "b": 3, "c": 0}
    assert steps == 2


def test_once_the_limit_does_not_count() -> None:
    query = course(Shelf(topic("a", 0, 100)), maxRecordsPerTrigger="5")
    assert query.latest(at(a=0), limited=False) == at(a=100)
    assert query.latest(at(a=0)) == at(a=5)


def test_progress_shows_how_far_the_query_is_behind() -> None:
    shelf = Shelf(topic("a", 0, 100))
    query = course(shelf, maxRecordsPerTrigger="5")
    assert query.report() is None
    query.latest(at(a=0))
    said = {"journal": "j", "topics": {"a": [1, 100]}}
    assert query.report() == {**said, "behind": {"records": 95, "topics": {"a": 95}}}
    end = query.latest(at(a=97))
    assert query.report() == {**said, "behind": {"records": 0, "topics": {"a": 0}}}
    shelf.put(topic("a", 0, 120), topic("b", 4, 9))
    query.ranges(at(a=97), end)
    topics = {"a": [1, 120], "b": [1, 9]}
    assert query.report() == {
        "journal": "j",
        "topics": topics,
        "behind": {"records": 25, "topics": {"a": 20, "b": 5}},
    }


def test_what_is_in_memory_is_not_read() -> None:
    shelf = Shelf(topic("a", 0, 9), topic("m", 0, 9, durable=False))
    assert course(shelf, startingOffsets="earliest").initial() == at(a=0)
    with pytest.raises(NotSupported, match="kept in memory only"):
        course(shelf, "a,m").initial()
