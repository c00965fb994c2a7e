"""What is no longer wanted: whole segments, and never one that somebody needs; and where a topic is to begin."""

from __future__ import annotations

from runnel.journal.format.index import WINDOW, TopicRange
from runnel.journal.format.ledger import trim_part
from runnel.journal.options import JournalOptions
from runnel.journal.write import retention
from runnel.testing import MemoryStorage
from tests.journal.written_journal import Writer


def filled(count: int = 30) -> Writer:
    """Two topics: `a` in every segment, `b` in the first alone."""
    writer = Writer()
    a, b = writer.topic("a"), writer.topic("b")
    writer.publish(b, b"early")
    for number in range(count):
        writer.publish(a, b"%03d" % number * 100)
    assert len(writer.journal.history.sources) > 3
    return writer


def leaving(writer: Writer, keep: int, first: int = 0) -> retention.KeptBytes:
    return retention.first_within_bytes(writer.journal.history, 1, first, keep)


def starts(writer: Writer) -> list[int]:
    """The first offset of `a` in each segment, and the end."""
    ranges = [found for _, found in writer.journal.history.ranges(1)]
    return [*(found.first for found in ranges), ranges[-1].end]


def size_of(writer: Writer) -> int:
    return sum(found.bytes for _, found in writer.journal.history.ranges(1))


def test_so_many_bytes_are_kept_to_about_a_record_and_never_less_than_one() -> None:
    writer = filled()
    size = size_of(writer)
    each = size / 30
    for keep in range(0, size + 200, 37):
        first, held = leaving(writer, keep)
        assert abs((30 - first) * each - min(keep, size)) <= 2 * each or (first == 29 and keep < each)
        assert held == min(keep, size)
        assert first <= 29


def test_what_is_kept_never_grows_with_a_smaller_limit() -> None:
    writer = filled(100)
    firsts = [leaving(writer, keep).first for keep in range(0, size_of(writer), 53)]
    assert firsts == sorted(firsts, reverse=True)
    assert (firsts[0], leaving(writer, size_of(writer)).first) == (99, 0)


def test_a_topic_that_begins_later_already_stays_there() -> None:
    writer = filled()
    assert leaving(writer, 10**9, first=17).first == 17
    assert leaving(writer, 1, first=17).first == 29


def test_windows_tell_where_in_a_long_segment_the_bytes_lie() -> None:
    writer = Writer(None, JournalOptions(segment_bytes=1 << 22, min_free=0))
    topic = writer.topic("a")
    for number in range(200):  # the second half is ten times as large as the first
        writer.publish(topic, bytes(1000 if number < 100 else 10_000))
    assert len(writer.journal.history.sources) == 1
    sizes = [len(found.body) for found in writer.written]
    for keep in range(10_000, sum(sizes), 10_000):
        assert abs(sum(sizes[leaving(writer, keep).first :]) - keep) < WINDOW, "to the window, whatever is in it"


def young(writer: Writer, time: int, first: int = 0, topic: int = 1) -> retention.FirstKept:
    return retention.first_not_older(writer.journal.history, topic, first, time)


def test_the_first_record_that_is_not_older_is_found_to_the_batch_and_with_its_time() -> None:
    writer = filled()
    for record in writer.written:
        if record.topic == 1:
            assert young(writer, record.time) == (record.base, record.time)
    last = writer.written[-1]
    assert young(writer, last.time + 1) == (None, None)
    assert young(writer, 0) == young(writer, writer.written[1].time)
    assert young(writer, 0, topic=77) == (None, None)


def test_it_is_found_in_segments_with_many_windows_and_in_windows_with_one_entry_alone() -> None:
    writer = Writer(None, JournalOptions(segment_bytes=1 << 22, min_free=0))
    a, b = writer.topic("a"), writer.topic("b")
    for number in range(120):
        writer.publish_together((a, [bytes(100)] * 3), (b, [bytes(70_000 if number % 3 else 10)]))
    for record in writer.written:
        assert young(writer, record.time, topic=record.topic) == (record.base, record.time)


def test_what_is_damaged_keeps_nothing() -> None:
    writer = filled()
    source = writer.journal.history.sources[0]
    assert isinstance(writer.storage, MemoryStorage)
    content = writer.storage._names[source.info.name].content
    third = writer.written[3]
    at = bytes(content).index(third.body)
    content[at] ^= 1
    assert young(writer, third.time) == (writer.written[4].base, writer.written[4].time)


def test_a_segment_is_wanted_while_any_topic_has_records_in_it() -> None:
    writer = filled()
    sources, topics = writer.journal.history.sources, writer.journal.ledger.topics
    assert all(retention.is_wanted(source, topics) for source in sources[:-1])
    writer.write([trim_part(1, 30, 30)])
    assert [retention.is_wanted(source, topics) for source in sources[:-1]] == [True, *[False] * (len(sources) - 2)]
    writer.write([trim_part(2, 1, 1)])
    assert not retention.is_wanted(sources[0], topics)


def test_records_of_topics_that_are_gone_are_not_wanted_but_what_is_being_written_stays() -> None:
    writer = filled()
    sources = writer.journal.history.sources
    assert not any(retention.is_wanted(source, {}) for source in sources)
    assert retention.unwanted_segments(sources, {}) == sources[:-1]
    assert retention.unwanted_segments(sources, writer.journal.ledger.topics) == []


def test_a_topic_that_wants_a_segment_is_asked_first_the_next_time() -> None:
    writer = filled()
    source, topics = writer.journal.history.sources[0], writer.journal.ledger.topics
    assert retention.is_wanted(source, topics)
    assert source.pin == 1
    source.close()
    assert retention.is_wanted(source, topics)
    assert source._index is None, "there was no need to look into the index"
    writer.write([trim_part(1, 30, 30)])
    assert retention.is_wanted(source, topics)
    assert source.pin == 2


def test_the_bytes_of_a_stage_that_is_named_count_where_its_name_lies() -> None:
    found = TopicRange(first=10, end=130, records=120, bytes=400)
    stages = [(30, 80, 5_000), (80, 110, 900)]
    assert retention._spread(found, stages) == [(10, 30, 200), (30, 80, 5_000), (80, 110, 900), (110, 130, 200)]
    assert retention._spread(TopicRange(0, 50, 50, 30), [(0, 50, 5_000)]) == [(0, 50, 5_000)]
    assert retention._spread(TopicRange(0, 5, 5, 50), []) == [(0, 5, 50)]
