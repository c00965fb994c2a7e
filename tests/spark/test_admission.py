"""A trigger with a limit ends at one sequence of the broker, near the limit and not beyond it."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from runnel.arrow.ranges import OffsetRange, split
from runnel.core.topic_bounds import TopicBounds
from runnel.spark.offsets import StreamOffset, TopicProgress
from runnel.spark.options import SourceOptions
from runnel.spark.planning import ENOUGH, StreamPlanner, TriggerLimit, cut_at_sequence
from tests.spark.rig import Shelf

TOPICS = "abcd"
PUBLISHED = st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(1, 50)), min_size=1, max_size=30)


def shelf_of(published: list[tuple[str, int]], weight: int = 100) -> Shelf:
    shelf, ends = Shelf(), dict.fromkeys(TOPICS, 0)
    for name, count in published:
        ends[name] += count
        shelf.put(TopicBounds(name, 1, 0, ends[name], bytes=weight * ends[name]))
    return shelf


def sequences(published: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The sequence of each record, by topic and offset."""
    ends, found = dict.fromkeys(TOPICS, 0), dict[tuple[str, int], int]()
    for name, count in published:
        for _ in range(count):
            found[name, ends[name]] = len(found)
            ends[name] += 1
    return found


def planner(shelf: Shelf, **options: str) -> StreamPlanner:
    return StreamPlanner(
        shelf, SourceOptions.parse({"path": "p", "topic": "*", "startingOffsets": "earliest", **options})
    )


@given(PUBLISHED, st.integers(1, 200))
def test_no_trigger_reads_behind_what_a_later_one_reads(published: list[tuple[str, int]], limit: int) -> None:
    shelf, order = shelf_of(published), sequences(published)
    query = planner(shelf, maxRecordsPerTrigger=str(limit))
    place, reached, left = query.initial(), -1, len(order)
    while left:
        end = query.latest(place)
        read = sorted(order[one.topic, at] for one in query.ranges(place, end) for at in range(one.first, one.end))
        assert min(limit, left) * ENOUGH <= len(read) <= limit or len(read) == 1
        assert read[0] == reached + 1
        place, reached, left = end, read[-1], left - len(read)
    assert query.latest(place) == place


@given(PUBLISHED, st.integers(1, 20_000))
def test_bytes_are_kept_to_but_for_a_record_that_is_too_large(published: list[tuple[str, int]], limit: int) -> None:
    query = planner(shelf_of(published), maxBytesPerTrigger=str(limit))
    place = query.initial()
    for _ in range(4):
        end = query.latest(place)
        ranges = query.ranges(place, end)
        assert sum(one.bytes for one in ranges) <= limit or sum(one.offsets for one in ranges) == 1
        place = end


def test_topics_that_are_ahead_wait_for_the_others() -> None:
    """As a checkpoint has it that was written when each topic had a share of the limit."""
    published = [("a", 10), ("b", 10)] * 10
    query = planner(shelf_of(published), maxRecordsPerTrigger="40")
    kept = StreamOffset.from_json({"journal": "j", "topics": {"a": [1, 60], "b": [1, 0]}})
    end = query.latest(kept)
    assert end.topics["a"].offset == 60
    assert 40 * ENOUGH <= end.topics["b"].offset <= 40
    end = query.latest(query.latest(end))
    assert abs(end.topics["a"].offset - end.topics["b"].offset) <= 10


def test_a_hole_in_the_offsets_is_passed() -> None:
    shelf = Shelf(TopicBounds("a", 1, 0, 100), TopicBounds("b", 1, 0, 10))
    shelf.put(TopicBounds("b", 1, 0, 1 << 31))  # after an unclean stop
    query = planner(shelf, maxRecordsPerTrigger="90")
    place = query.initial()
    for _ in range(4):
        place = query.latest(place)
    assert place.topics["a"].offset == 100


def test_few_questions_find_the_cut() -> None:
    """However long the journal is, and however uneven its topics are: it begins where the trigger before ended."""
    shelf = shelf_of([("a", 9_000_000), ("b", 1_000), *[("c", 50_000), ("a", 7), ("b", 1)] * 300])
    for limit in (100, 5000, 100_000):
        query = planner(shelf, maxRecordsPerTrigger=str(limit))
        begun = {"a": 9_000_700, "b": 1100, "c": 5_000_000}
        place = StreamOffset("j", {name: TopicProgress(1, offset) for name, offset in begun.items()})
        asked = []
        for _ in range(5):
            before = shelf.questions
            place = query.latest(place)
            asked.append(shelf.questions - before)
        assert asked[0] <= 50
        assert max(asked[1:]) <= 5


def test_a_limit_is_of_records_and_of_bytes() -> None:
    limit = TriggerLimit(records=10, bytes=1000)

    def of(record_bytes: int) -> TopicBounds:
        return TopicBounds("t", 1, 0, 1000, 1000 * record_bytes)

    assert limit.used({"a": 5, "b": 0}, {"a": of(10), "b": of(1)}) == 0.5
    assert limit.used({"a": 5, "b": 1}, {"a": of(10), "b": of(1950)}) == 2.0
    assert (limit.most(of(10)), limit.most(of(500)), limit.most(of(5000))) == (10, 2, 1)
    assert TriggerLimit().used({"a": 5}, {"a": of(1)}) == 0


def test_where_offsets_are_holes_for_the_most_part_a_limit_is_of_records_all_the_same() -> None:
    sparse = TopicBounds("t", 1, 0, 4_096_000, 100_000, records=1000)
    limit = TriggerLimit(records=10, bytes=500)
    assert limit.used({"t": 4096 * 5}, {"t": sparse}) == 1.0
    assert limit.most(sparse) == 4096 * 5
    tasks = split([OffsetRange("t", 1, 0, 4_096_000, sparse.record_bytes, sparse.density)], most=100)
    assert 10 <= len(tasks) <= 11


def test_a_first_record_that_exceeds_the_limit_is_taken() -> None:
    def offsets_at(sequence: int) -> Mapping[str, int]:
        return {"a": int(sequence > 5), "b": int(sequence > 7)}

    sequence, found = cut_at_sequence(lambda offsets: 3.0 * sum(offsets.values()), offsets_at, 9, 6.0)
    assert (sequence, found) == (6, {"a": 1, "b": 0})
