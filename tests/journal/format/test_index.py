"""The index of a segment: its file answers exactly as what it was made from, and begins early enough."""

from __future__ import annotations

import sys
from itertools import product
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format.entry import STAGE_TOPIC
from runnel.journal.format.index import Index, IndexBuilder, IndexFile, SegmentBlock, TopicRange
from runnel.journal.format.segment import SegmentInfo
from tests.journal.written_journal import small_windows

INFO = SegmentInfo(3, 77, end=123456)
WINDOW = 100


class Added(tuple[int, int, int, int, int, int, int]):
    """What was added: position, topic, base, last, sequence, time, size."""

    position = property(lambda self: self[0])
    topic = property(lambda self: self[1])
    base = property(lambda self: self[2])
    last = property(lambda self: self[3])
    sequence = property(lambda self: self[4])
    time = property(lambda self: self[5])


@st.composite
def batches(draw: st.DrawFn, min_size: int = 0) -> list[Added]:
    """Batches as a journal writes them: positions, sequences and times never fall; several may share an entry."""
    position, sequence, time, ends, added = 64, 10, 1000, dict[int, int](), []
    for _ in range(draw(st.integers(min_size, 30))):
        position += draw(st.sampled_from([0, 30, 99, 100, 101, 350]))
        time += draw(st.integers(0, 3))
        topic, count = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        base = ends.get(topic, 5 * topic) + draw(st.sampled_from([0, 0, 0, 7]))
        added.append(Added((position, topic, base, base + count - 1, sequence, time, 50 + count)))
        ends[topic] = base + count
        sequence += count
    return added


def built(added: list[Added]) -> IndexBuilder:
    builder = IndexBuilder()
    with small_windows(WINDOW):
        for one in added:
            builder.add(*one)
    return builder


def answers(index: Index, topics: list[int], added: list[Added]) -> list[object]:
    """All that an index can be asked, around all that is in it."""
    found: list[object] = [list(index.topics()), [index.range_of(topic) for topic in range(6)]]
    for topic in topics:
        found += [index.window(topic, offset) for offset in range(60)]
        found += [index.window_at_time(topic, time) for time in range(998, 1100)]
        found += [index.windows_at_time(topic, time) for time in range(998, 1100)]
    if added:
        found += [index.sequence_window(sequence) for sequence in range(100)]
        found += [index.time_window(time) for time in range(998, 1100)]
    return found


@given(batches())
def test_the_file_answers_exactly_as_what_it_was_made_from(added: list[Added]) -> None:
    builder = built(added)
    topics = sorted({one.topic for one in added})
    file = IndexFile(memoryview(builder.encode(INFO)), INFO)
    assert answers(file, topics, added) == answers(builder, topics, added)


@given(batches(min_size=1))
def test_a_window_begins_at_or_before_what_is_asked_for_and_not_far_before(added: list[Added]) -> None:
    builder = built(added)
    for one in added:
        same = [other for other in added if other.topic == one.topic]
        at, following = builder.window(one.topic, one.base)
        assert at <= one.position < at + WINDOW
        assert at in {other.position for other in same}
        assert following is None or (following >= at + WINDOW and following > one.position)
        assert builder.window_at_time(one.topic, one.time) <= min(o.position for o in same if o.time >= one.time)
        assert builder.sequence_window(one.sequence) <= one.position < builder.sequence_window(one.sequence) + WINDOW
        assert builder.time_window(one.time) <= min(other.position for other in added if other.time >= one.time)


@given(batches(min_size=1))
def test_time_windows_skip_what_is_surely_too_old(added: list[Added]) -> None:
    builder, last = built(added), added[-1].time
    late = builder.time_window(last + 1)
    assert late == max(builder.sequence_window(sequence) for sequence in range(200))
    assert builder.window_at_time(added[-1].topic, last + 1) == builder.window(added[-1].topic, 10**6)[0]


@given(batches())
def test_the_windows_around_a_time_are_neighbours_one_older_and_one_not(added: list[Added]) -> None:
    builder = built(added)
    for topic in {one.topic for one in added}:
        for time in range(998, 1100):
            before, behind = builder.windows_at_time(topic, time)
            assert before is not None or behind is not None
            assert before is None or before.time < time
            assert behind is None or behind.time >= time
            if before is not None:
                assert builder.window(topic, before.base) == (before.position, behind and behind.position)


@given(batches())
def test_it_sums_up_what_a_segment_holds_of_each_topic(added: list[Added]) -> None:
    expected = {}
    for topic in sorted({one.topic for one in added}):
        mine = [one for one in added if one.topic == topic]
        records = sum(one.last - one.base + 1 for one in mine)
        expected[topic] = TopicRange(mine[0].base, mine[-1].last + 1, records, sum(one[6] for one in mine))
    builder = built(added)
    assert dict(builder.topics()) == expected
    assert len(builder) == len(expected)
    assert dict(IndexFile(memoryview(builder.encode(INFO)), INFO).topics()) == expected


def test_a_topic_that_is_not_there_has_no_range_and_no_windows() -> None:
    builder = built([Added((64, 1, 0, 0, 0, 5, 9))])
    for index in (builder, IndexFile(memoryview(builder.encode(INFO)), INFO)):
        assert index.range_of(2) is None
        with pytest.raises(KeyError):
            index.window(2, 0)


def test_others_may_look_at_any_moment_while_it_grows() -> None:
    builder, looks = IndexBuilder(), 0

    def look(frame: FrameType, event: str, arg: object) -> None:
        nonlocal looks
        if frame.f_code is IndexBuilder.add.__code__:  # before and after each append in it
            looks += 1
            for topic, found in list(builder.topics()):
                assert builder.window(topic, 10**6)[0] >= 64
                assert builder.window_at_time(topic, 10**6) >= 64
                assert found.first < 100
            if len(builder):
                assert builder.sequence_window(10**6) >= 64
                assert builder.time_window(10**6) >= 64

    with small_windows(WINDOW):
        for number in range(6):
            before = sys.getprofile()
            sys.setprofile(look)
            try:
                builder.add(64 + 120 * number, 1 + number % 2, number, number, number, number, 9)
            finally:
                sys.setprofile(before)
    assert looks > 6 * 6


@st.composite
def blocks(draw: st.DrawFn) -> list[list[Added]]:
    """Entries of a cleaned segment, block by block: a topic's lie in order, sequences are mixed within a block."""
    position, sequence, time, ends, made = 64, 10, 1000, dict[int, int](), []
    for _ in range(draw(st.integers(0, 5))):
        block = []
        for topic in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4, unique=True)):
            base = ends.get(topic, 5 * topic)
            ends[topic] = base + draw(st.integers(1, 4))
            first = sequence + draw(st.integers(0, 9))
            block.append(Added((position, topic, base, ends[topic] - 1, first, time + draw(st.integers(0, 2)), 50)))
            position += draw(st.sampled_from([10, 150]))
        made.append(block)
        sequence += 20
        time += 3
    return made


def cleaned(made: list[list[Added]]) -> IndexBuilder:
    builder = IndexBuilder()
    for block in made:
        lowest = min(block, key=lambda one: one.sequence)
        builder.begin_block(block[0].position, lowest.sequence, min(one.time for one in block))
        for one in block:
            builder.add(*one, records=1, apart=True)
    return builder


@given(blocks())
def test_in_a_cleaned_segment_every_entry_has_a_window_and_every_block(
    made: list[list[Added]],
) -> None:
    builder = cleaned(made)
    for index in (builder, IndexFile(memoryview(builder.encode(INFO)), INFO)):
        for number, block in enumerate(made):
            lowest = min(one.sequence for one in block)
            following = made[number + 1] if number + 1 < len(made) else None
            behind = None if following is None else min(one.sequence for one in following)
            expected = SegmentBlock(
                block[0].position, None if following is None else following[0].position, lowest, behind
            )
            assert index.block(lowest) == expected
            assert index.block(lowest + 9) == expected
            assert index.block(0, block[0].position) == expected
            found = index.block_at_time(min(one.time for one in block) + 1)
            assert found is not None
            assert found.position <= block[0].position
            for one in block:
                assert index.window(one.topic, one.base)[0] == one.position
                held = index.range_of(one.topic)
                assert held is not None
                assert held.records == sum(other.topic == one.topic for each in made for other in each)
        if made:
            assert index.block(0) == index.block(-1) == index.block(made[0][0].sequence - 20)
            assert index.block_at_time(0) == index.block(0)
        assert index.block(0, 10**6) is None


def test_without_blocks_none_is_found() -> None:
    for index in (IndexBuilder(), IndexFile(memoryview(IndexBuilder().encode(INFO)), INFO)):
        assert index.block(5) is None
        assert index.block_at_time(5) is None


def test_what_is_staged_has_windows_and_no_sequence() -> None:
    builder = IndexBuilder()
    with small_windows(WINDOW):
        builder.add(64, STAGE_TOPIC | 3, 0, 0, 0, 5, 9)
        builder.add(90, STAGE_TOPIC | 3, 1, 1, 0, 5, 9)
        builder.add(500, STAGE_TOPIC | 3, 2, 2, 0, 6, 9)
        assert builder.block(0) is None
        assert builder.end_sequence == 0
        builder.add(600, 1, 0, 1, 40, 7, 9)
    assert builder.window(STAGE_TOPIC | 3, 1) == (64, 500)
    assert builder.window(STAGE_TOPIC | 3, 2) == (500, None)
    assert builder.sequence_window(0) == 600
    assert builder.end_sequence == 42
    assert builder.range_of(STAGE_TOPIC | 3) == TopicRange(0, 3, 3, 27)


EXAMPLE = built([Added((64, 2, 0, 3, 0, 5, 9)), Added((300, 1, 0, 0, 4, 6, 9)), Added((300, 2, 4, 4, 5, 6, 9))])
EXAMPLE_BYTES = EXAMPLE.encode(INFO)


def harmed(data: bytes) -> type[Exception] | None:
    """The error that these bytes are refused with; None: they are taken as whole."""
    try:
        IndexFile(memoryview(data), INFO)
    except (JournalDamaged, FormatUnknown) as error:
        return type(error)
    return None


def test_one_changed_bit_anywhere_is_noticed() -> None:
    for at, bit in product(range(len(EXAMPLE_BYTES)), range(8)):
        data = bytearray(EXAMPLE_BYTES)
        data[at] ^= 1 << bit
        expected = JournalDamaged  # its version, too: it is right but for that, and no later one
        assert harmed(bytes(data)) is expected, f"bit {bit} of byte {at}"


def test_an_index_cut_anywhere_is_damage() -> None:
    for kept in range(len(EXAMPLE_BYTES)):
        assert harmed(EXAMPLE_BYTES[:kept]) is JournalDamaged, f"cut at {kept}"


def test_bytes_behind_the_end_are_damage() -> None:
    with pytest.raises(JournalDamaged):
        IndexFile(memoryview(EXAMPLE_BYTES + b"\0"), INFO)


@pytest.mark.parametrize("other", [SegmentInfo(4, 77, 123456), SegmentInfo(3, 78, 123456), SegmentInfo(3, 77, 123457)])
def test_the_index_of_another_segment_or_of_another_length_is_damage(other: SegmentInfo) -> None:
    with pytest.raises(JournalDamaged, match="another segment"):
        IndexFile(memoryview(EXAMPLE_BYTES), other)


def test_its_sizes_are_these() -> None:
    assert len(IndexBuilder().encode(INFO)) == 52
    assert len(EXAMPLE_BYTES) == 52 + 24 * 2 + 48 * 2 + 24 * 3
