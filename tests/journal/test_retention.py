"""What is no longer wanted: whole segments, the oldest first, and never one that somebody needs."""

from __future__ import annotations

from typing import Any

import pytest

from runnel.core.options import TopicOptions
from runnel.journal import retention
from runnel.journal.ledger import trim_part
from tests.journal.rig import Writer


def filled(count: int = 30) -> Writer:
    """Two topics: `a` in every segment, `b` in the first alone."""
    writer = Writer()
    a, b = writer.topic("a"), writer.topic("b")
    writer.publish(b, b"early")
    for number in range(count):
        writer.publish(a, b"%03d" % number * 100)
    assert len(writer.journal.history.sources) > 3
    return writer


def kept(writer: Writer, now: int = 0, **options: Any) -> int:
    journal = writer.journal
    return retention.first_kept(journal.history, journal.ledger.topics[1], TopicOptions(**options), now)


def starts(writer: Writer) -> list[int]:
    """The first offset of `a` in each segment, and the end."""
    ranges = [found for _, found in writer.journal.history.ranges(1)]
    return [*(found.first for found in ranges), ranges[-1].end]


def test_without_retention_everything_is_kept() -> None:
    assert kept(filled()) == 0


@pytest.mark.parametrize("count", [*range(1, 32), 1000])
def test_at_least_so_many_records_are_kept_and_no_whole_segment_more(count: int) -> None:
    writer = filled()
    first = kept(writer, retention_count=count)
    assert first in starts(writer)
    assert 30 - first >= min(count, 30)
    later = [start for start in starts(writer)[:-1] if start > first]
    assert all(30 - start < count for start in later)


def test_at_least_so_many_bytes_are_kept_and_no_whole_segment_more() -> None:
    writer = filled()
    ranges = [found for _, found in writer.journal.history.ranges(1)]
    each = ranges[0].bytes // ranges[0].records
    assert kept(writer, retention_bytes=each * 30 + 1) == 0
    for size in range(1, each * 30, each // 2):
        first = kept(writer, retention_bytes=size)
        assert (30 - first) * each >= size
        later = [start for start in starts(writer)[:-1] if start > first]
        assert all((30 - start) * each < size for start in later)


def test_what_is_too_old_goes_once_its_whole_segment_is() -> None:
    writer = filled()
    sources = [source for source, _ in writer.journal.history.ranges(1)]
    second = sources[1].info.last_time
    age = 10.0
    assert kept(writer, now=second + 10_000_000, retention_age=age) == starts(writer)[1]
    assert kept(writer, now=second + 10_000_001, retention_age=age) == starts(writer)[2]
    assert kept(writer, now=0, retention_age=age) == 0


def test_a_topic_that_nobody_publishes_to_any_more_is_emptied_once_all_of_it_is_too_old() -> None:
    writer = filled()
    journal, options = writer.journal, TopicOptions(retention_age=10.0)
    (source, found), *more = journal.history.ranges(2)
    late = source.info.last_time + 10_000_000
    assert (more, found.end) == ([], 1)
    assert retention.first_kept(journal.history, journal.ledger.topics[2], options, late) == 0
    assert retention.first_kept(journal.history, journal.ledger.topics[2], options, late + 1) == 1


def test_one_that_is_full_is_never_emptied_by_count_or_bytes() -> None:
    writer = filled()
    journal, options = writer.journal, TopicOptions(retention_count=1, retention_bytes=1)
    assert retention.first_kept(journal.history, journal.ledger.topics[2], options, 0) == 0


def test_the_segment_that_is_being_written_stays_however_old_it_is() -> None:
    writer = filled()
    assert kept(writer, now=10**15, retention_age=1.0, retention_count=1, retention_bytes=1) == starts(writer)[-2]


def test_any_of_several_bounds_is_enough() -> None:
    writer = filled()
    assert kept(writer, retention_count=1000, retention_bytes=1) == starts(writer)[-2]


def test_a_topic_that_was_trimmed_further_stays_there() -> None:
    writer = filled()
    writer.write([trim_part(1, 29, 30)])
    assert kept(writer, retention_count=1000) == 29


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
    assert retention.unwanted(sources, {}) == sources[:-1]
    assert retention.unwanted(sources, writer.journal.ledger.topics) == []


def test_a_topic_that_wants_a_segment_is_asked_first_the_next_time() -> None:
    writer = filled()
    source, topics = writer.journal.history.sources[0], writer.journal.ledger.topics
    assert retention.is_wanted(source, topics)
    assert source.pin == 1
    writer.write([trim_part(1, 30, 30)])
    assert retention.is_wanted(source, topics)
    assert source.pin == 2
