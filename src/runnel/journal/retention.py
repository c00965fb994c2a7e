"""What is no longer wanted, at the grain of segments. Decides; deletes nothing.

Below: history, ledger. Above: journal (drops segments), broker.store (moves first offsets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.core.options import TopicOptions
from runnel.journal.history import History, Source
from runnel.journal.ledger import TopicState


def is_wanted(source: Source, topics: Mapping[int, TopicState]) -> bool:
    """Whether any topic still has records in this segment. Remembers one that has: the next look is short."""
    index = source.index
    if source.pin is not None:
        found = index.range_of(source.pin)
        known = topics.get(source.pin)
        if found is not None and known is not None and known.first < found.end:
            return True
    for topic, found in index.topics():
        known = topics.get(topic)
        if known is not None and known.first < found.end:
            source.pin = topic
            return True
    return False


def unwanted(sources: Sequence[Source], topics: Mapping[int, TopicState]) -> list[Source]:
    """The sealed segments in which no topic has records any more."""
    return [source for source in sources if source.info.sealed and not is_wanted(source, topics)]


def first_kept(history: History, topic: TopicState, options: TopicOptions, now: int) -> int:
    """The oldest offset that a topic's retention keeps; whole segments go, never a part of one."""
    count, size, age = options.retention_count, options.retention_bytes, options.retention_age
    if not options.retains:
        return topic.first
    ranges = [(source, found) for source, found in history.ranges(topic.id) if found.end > topic.first]
    records, held = sum(found.records for _, found in ranges), sum(found.bytes for _, found in ranges)
    first = topic.first
    for source, found in ranges:
        records, held = records - found.records, held - found.bytes
        too_many = count is not None and records >= count
        too_large = size is not None and held >= size
        too_old = age is not None and source.info.sealed and source.info.last_time < now - age * 1e6
        if not (too_many or too_large or too_old):
            break
        first = found.end
    return first
