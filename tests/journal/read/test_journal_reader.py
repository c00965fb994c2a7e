"""The journal reader: from every start, in every way, over several segments, it is the list that was written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Draft
from runnel.journal.format.index import IndexFile
from runnel.journal.format.ledger import CursorState, cursor_part
from runnel.journal.format.segment import START, entries
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import FoundBatch, FoundItem, LostRange, SegmentReader, rebuild_index
from runnel.testing import MemoryStorage
from tests.journal.written_journal import Writer, batch, flip, read_from, read_sequence, read_topic, small_windows

# An entry: batches of (topic 1-3, count, size of a value). None: state only. "kill", "close": a new life.
BATCH = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 40, 400]))
STEPS = st.lists(
    st.one_of(st.lists(BATCH, min_size=1, max_size=3), st.none(), st.sampled_from(["kill", "close"])), max_size=40
)
Step = list[tuple[int, int, int]] | str | None
Item = FoundItem


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_windows():
        yield


def ran(steps: list[Step]) -> Writer:
    writer = Writer()
    for name in ("a", "b", "c"):
        writer.topic(name)
    for number, step in enumerate(steps):
        if step is None:
            writer.write([cursor_part(CursorState("reader", "a", 1, number))])
        elif step == "kill":
            writer.killed()
        elif step == "close":
            writer.journal.close()
            writer.reopen()
        else:
            assert not isinstance(step, str)
            writer.publish_together(*((topic, [b"%d" % number * size] * count) for topic, count, size in step))
    return writer


@settings(max_examples=60)
@given(STEPS)
def test_reading_by_offset_gives_what_was_written_from_every_start(steps: list[Step]) -> None:
    writer = ran(steps)
    for topic in (1, 2, 3):
        written = writer.of(topic)
        for start in range(writer.journal.ledger.topics[topic].end + 2):
            expected = [one for one in written if one.last >= start]
            assert read_topic(writer.journal.history, topic, start) == expected


@settings(max_examples=60)
@given(STEPS, st.sets(st.integers(1, 3), min_size=1))
def test_reading_by_sequence_gives_what_was_written_from_every_start(steps: list[Step], topics: set[int]) -> None:
    writer = ran(steps)
    written = [one for one in writer.written if one.topic in topics]
    starts = {0, writer.journal.ledger.sequence}
    for one in writer.written:
        starts |= {one.sequence, one.sequence + one.last - one.base, one.sequence + one.last - one.base + 1}
    for start in starts:
        expected = [one for one in written if one.sequence + one.last - one.base >= start]
        assert read_sequence(writer.journal.history, topics, start) == expected


@settings(max_examples=60)
@given(STEPS)
def test_a_start_by_time_misses_nothing_that_is_not_older(steps: list[Step]) -> None:
    writer = ran(steps)
    read = writer.journal.history
    for time in range(writer.now + 3):
        for topic in (1, 2, 3):
            found = read_from(read, {topic}, read.plan_at_time(topic, time), topic)
            assert [one for one in found if isinstance(one, FoundBatch) and one.time >= time] == [
                one for one in writer.of(topic) if one.time >= time
            ]
        found = read_from(read, {1, 2, 3}, read.plan_sequence_at_time(time), None)
        assert [one for one in found if isinstance(one, FoundBatch) and one.time >= time] == [
            one for one in writer.written if one.time >= time
        ]


def test_a_start_by_time_begins_near_and_not_at_the_beginning() -> None:
    writer = ran([[(1, 1, 400)] for _ in range(40)])
    read, late = writer.journal.history, writer.now - 2
    assert len(read_from(read, {1}, read.plan_at_time(1, late), 1)) < 10
    assert len(read_from(read, {1}, read.plan_sequence_at_time(late), None)) < 10


def test_a_reader_at_the_end_goes_on_when_more_is_written() -> None:
    writer = ran([[(1, 2, 40)]])
    read = writer.journal.history
    plan = read.plan(1, 0)
    assert plan is not None
    parsed = read.parse(plan, read.fetch(plan), {1}, by_sequence=False)
    assert parsed.items == writer.written
    assert read.plan(1, parsed.place, plan, parsed.position) is None
    writer.publish(1, b"more")
    more = read.plan(1, parsed.place, plan, parsed.position)
    assert more is not None
    assert (more.position, more.place) == (parsed.position, 2)
    assert read.parse(more, read.fetch(more), {1}, by_sequence=False).items == writer.written[1:]


def test_a_reader_by_sequence_at_the_end_goes_on_when_more_is_written_even_into_the_next_segment() -> None:
    writer = ran([[(1, 2, 40)]])
    read = writer.journal.history
    plan = read.plan_sequence(0)
    assert plan is not None
    parsed = read.parse(plan, read.fetch(plan), {1}, by_sequence=True)
    assert read.plan_sequence(parsed.place, plan, parsed.position) is None
    for number in range(12):
        writer.publish(1, b"%d" % number * 400)
    assert len(read.sources) > 2
    found: list[FoundItem] = []
    position, place = parsed.position, parsed.place
    while (plan := read.plan_sequence(place, plan, position)) is not None:
        parsed = read.parse(plan, read.fetch(plan), {1}, by_sequence=True)
        found += parsed.items
        position, place = parsed.position, parsed.place
    assert found == writer.written[1:]


def test_an_entry_longer_than_a_chunk_is_read_whole() -> None:
    writer = ran([])
    writer.publish(1, b"first")
    writer.publish(1, b"x" * 3000)
    writer.publish(1, b"last")
    assert read_topic(writer.journal.history, 1) == writer.written
    assert read_sequence(writer.journal.history, {1}) == writer.written


def test_where_a_topic_lies_densely_more_is_read_at_a_time() -> None:
    writer = ran([[(1, 1, 40)] for _ in range(20)])
    writer.publish(2, b"alone")
    dense, alone = writer.journal.history.plan(1, 0), writer.journal.history.plan(2, 0)
    assert dense is not None
    assert alone is not None
    assert (dense.size, alone.size <= 256) == (1024, True)


def test_nothing_is_planned_for_a_topic_without_records() -> None:
    writer = ran([[(1, 1, 1)]])
    assert writer.journal.history.plan(2, 0) is None
    assert writer.journal.history.plan_at_time(2, 0) is None
    assert writer.journal.history.plan(99, 0) is None


def test_nothing_is_planned_in_a_journal_without_records() -> None:
    read = ran([None]).journal.history
    assert read.plan_sequence(0) is None
    assert read.plan_sequence_at_time(0) is None


def test_segments_without_records_are_passed_over() -> None:
    writer = ran([[(1, 1, 1)], "kill", "kill", None, "kill", [(1, 1, 1)]])
    assert read_sequence(writer.journal.history, {1}) == read_topic(writer.journal.history, 1) == writer.written


def test_what_is_written_and_not_yet_synced_is_not_read() -> None:
    writer = ran([[(1, 1, 1)]])
    journal = writer.journal
    journal._append([Draft([batch(1, journal.ledger.topics[1].end, journal.ledger.sequence, 99, [b"not yet"])], 99)])
    assert read_topic(journal.history, 1) == writer.written
    assert read_sequence(journal.history, {1}) == writer.written
    journal.sync()
    assert len(read_topic(journal.history, 1)) == 2


def test_a_start_behind_what_is_synced_waits_there_and_misses_nothing() -> None:
    writer = ran([[(1, 1, 1)]])
    journal, read = writer.journal, writer.journal.history
    parts = [batch(1, 1 + at, 1 + at, 100 + at, [b"x" * 500]) for at in range(4)]
    journal._append([Draft([part], part.time) for part in parts])
    plans = [(read.plan_at_time(1, 102), 1), (read.plan_sequence_at_time(102), None), (read.plan_sequence(3), None)]
    ends = []
    for plan, topic in plans:
        assert plan is not None
        parsed = read.parse(plan, read.fetch(plan), {1}, by_sequence=topic is None)
        assert (parsed.items, parsed.position) == ([], read.sources[-1].written)
        ends.append((plan, parsed, topic))
    journal.sync()
    for plan, parsed, topic in ends:
        args = (parsed.place, plan, parsed.position)
        following = read.plan_sequence(*args) if topic is None else read.plan(topic, *args)
        found = read_from(read, {1}, following, topic)
        assert [one for one in found if isinstance(one, FoundBatch) and one.time >= 102] == [
            FoundBatch(part.topic, part.base, part.last, part.sequence, part.time, part.body) for part in parts[2:]
        ]


# -- damage -----------------------------------------------------------------------------------------------------


def long_writer() -> Writer:
    """Three topics over several segments."""
    writer = ran([[(1 + number % 3, 2, 40)] for number in range(60)])
    assert len(writer.journal.history.sources) > 3
    return writer


def spoiled(writer: Writer, damaged: int) -> tuple[list[Item], list[Item]]:
    """What a reader of topic 1, and one of everything, get when one bit of a sealed segment has changed."""
    assert isinstance(writer.storage, MemoryStorage)
    info = writer.journal.history.sources[1].info
    storage = writer.storage.after_kill()
    flip(storage, info.name, damaged)
    read = JournalReader(
        [SegmentReader(storage, source.info) for source in writer.journal.history.sources if source.info.sealed]
    )
    return read_topic(read, 1), read_sequence(read, {1, 2, 3})


def covered(items: list[Item], *, by_sequence: bool) -> list[tuple[int, int, bool]]:
    """The ranges of places, and whether they were read."""
    found = []
    for one in items:
        if isinstance(one, LostRange):
            found.append((one.first, one.end, False))
        elif by_sequence:
            found.append((one.sequence, one.sequence + one.last - one.base + 1, True))
        else:
            found.append((one.base, one.last + 1, True))
    return found


def test_any_damaged_byte_is_reported_and_everything_else_is_read() -> None:
    writer = long_writer()
    info = writer.journal.history.sources[1].info
    sealed = [source.info.end_sequence for source in writer.journal.history.sources if source.info.sealed][-1]
    everything = [one for one in writer.written if one.sequence < sealed]
    whole = list(entries(read_whole(writer.storage, info.name), 64, info, 64))
    for damaged in range(64, info.end, 3):
        hit = next(one for one in whole if one.position <= damaged < one.end)
        hit_sequences = {part.sequence for part in hit.parts}
        by_topic, by_sequence = spoiled(writer, damaged)
        for items, expected, by in ((by_topic, writer.of(1), False), (by_sequence, everything, True)):
            expected = [one for one in expected if one.sequence < sealed]
            assert [one for one in items if isinstance(one, FoundBatch)] == [
                one for one in expected if one.sequence not in hit_sequences
            ]
            ranges = covered(items, by_sequence=by)
            assert all(end == first for (_, end, _), (first, _, _) in pairwise(ranges)), ranges
            lost = [one for one in items if isinstance(one, LostRange)]
            assert len(lost) == (1 if any(one.sequence in hit_sequences for one in expected) else 0)
            assert all(f"damaged on disk ({info.name} at {hit.position})" == one.reason for one in lost)


def test_a_damaged_last_entry_of_a_segment_is_reported_too() -> None:
    writer = long_writer()
    info = writer.journal.history.sources[1].info
    *_, last = entries(read_whole(writer.storage, info.name), 64, info, 64)
    _, items = spoiled(writer, last.position)
    (lost,) = (one for one in items if isinstance(one, LostRange))
    assert (
        (lost.first, lost.end)
        == (last.parts[0].sequence, last.parts[0].sequence + 2)
        == (lost.first, info.end_sequence)
    )


def test_a_damaged_last_entry_of_the_open_segment_is_reported_too() -> None:
    writer = ran([[(1, 2, 40)], [(1, 2, 40)]])
    source = writer.journal.history.sources[-1]
    *_, last = entries(read_whole(writer.storage, source.info.name), 64, source.info, 64)
    flip(writer.storage, source.info.name, last.position)
    for items in (read_topic(writer.journal.history, 1), read_sequence(writer.journal.history, {1})):
        assert items == [writer.written[0], LostRange(2, 4, f"damaged on disk ({source.info.name} at {last.position})")]


# -- indexes ----------------------------------------------------------------------------------------------------


def test_sealed_segments_are_read_through_their_index_file() -> None:
    writer = long_writer()
    sources = [source for source in writer.journal.history.sources if source.info.sealed]
    assert all(isinstance(source.index, IndexFile) for source in sources)
    assert [source.damage for source in sources] == [None] * len(sources)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_an_index_that_is_no_good_is_made_again_from_its_segment(how: str) -> None:
    writer = long_writer()
    assert isinstance(writer.storage, MemoryStorage)
    storage = writer.storage.after_kill()
    infos = [source.info for source in writer.journal.history.sources if source.info.sealed]
    for info in infos:
        if how == "missing":
            storage.remove(info.index_name)
        else:
            flip(storage, info.index_name, 60)
    read = JournalReader([SegmentReader(storage, info) for info in infos])
    expected = [one for one in writer.of(1) if one.sequence < infos[-1].end_sequence]
    assert read_topic(read, 1) == expected
    assert all(source.damage for source in read.sources)


def test_an_index_made_again_is_the_one_that_was_there() -> None:
    writer = long_writer()
    for source in writer.journal.history.sources:
        if source.info.sealed:
            made = rebuild_index(writer.storage, source.info)[0].encode(source.info)
            assert made == read_whole(writer.storage, source.info.index_name)


def test_an_index_made_again_leaves_out_what_is_damaged() -> None:
    writer = long_writer()
    info = writer.journal.history.sources[1].info
    whole = list(entries(read_whole(writer.storage, info.name), 64, info, 64))
    flip(writer.storage, info.name, whole[2].position + 10)
    ranges = dict(rebuild_index(writer.storage, info)[0].topics())
    assert sum(one.records for one in ranges.values()) == 2 * (len(whole) - 1)


def test_the_ranges_of_a_topic_are_reported_segment_by_segment() -> None:
    writer = long_writer()
    ranges = writer.journal.history.ranges(1)
    assert ranges[0][1].first == 0
    assert ranges[-1][1].end == writer.journal.ledger.topics[1].end
    assert sum(found.records for _, found in ranges) == 40


def test_a_source_shows_itself_and_closes_twice() -> None:
    writer = ran([])
    source = writer.journal.history.sources[-1]
    assert repr(source) == f"<SegmentReader 000000000001.seg, {source.written} bytes>"
    assert source.file.name == source.info.name
    source.close()
    source.close()


def test_with_its_index_gone_too_all_damaged_records_are_still_reported() -> None:
    steps: list[Any] = [[(1, 2, 3)], [(2, 1, 1)], [(1, 1, 1)], [(3, 1, 2)], [(1, 3, 1)], "kill", [(1, 1, 1), (2, 2, 1)]]
    size = ran(steps).journal.manifest.segments[0].end
    for at in range(START, size, 5):
        writer = ran(steps)
        storage, infos = (
            writer.storage,
            [source.info for source in writer.journal.history.sources if source.info.sealed],
        )
        storage.remove(infos[0].index_name)
        file = storage.open(infos[0].name, writable=True)
        file.write(at, [bytes([file.read(at, 1)[0] ^ 1])])
        history = JournalReader([SegmentReader(storage, info) for info in infos])
        for topic in (1, 2, 3):
            mine = [
                found for found in writer.written if found.topic == topic and found.base < history_end(history, topic)
            ]
            items = read_topic(history, topic)
            lost = {place for item in items if isinstance(item, LostRange) for place in range(item.first, item.end)}
            for found in mine:
                assert found in items or lost >= set(range(found.base, found.last + 1)), (at, topic, found)
            assert all(item in mine for item in items if isinstance(item, FoundBatch))


def history_end(history: JournalReader, topic: int) -> int:
    """Behind what the indexes know of a topic."""
    return max((found.end for _, found in history.ranges(topic)), default=0)


def test_a_start_behind_what_is_left_of_a_segment_whose_index_is_gone_tells_what_it_held() -> None:
    writer = Writer()
    topic = writer.topic("t")
    for number in range(12):
        writer.publish(topic, b"%d" % number + bytes(900))
    storage, first = writer.storage, writer.journal.history.sources[0]
    end = first.index.range_of(topic).end  # type: ignore[union-attr]
    storage.remove(first.info.index_name)
    flip(storage, first.info.name, first.info.end - 5)  # its last record
    history = JournalReader(
        [SegmentReader(storage, source.info) for source in writer.journal.history.sources if source.info.sealed]
    )
    assert history.ranges(topic)[0][1].end == end - 1
    lost, found, *_ = read_topic(history, topic, end - 1)
    assert isinstance(lost, LostRange)
    assert (lost.first, lost.end) == (end - 1, end)
    assert isinstance(found, FoundBatch)
    assert found.base == end
