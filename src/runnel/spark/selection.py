"""What a batch read reads: ranges of the topics that there are, as options and filters narrow them.

Below: offsets, filters, losses, reading. Above: batch_reader.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from runnel.core.bounds import TopicBounds
from runnel.core.errors import UnknownTopic
from runnel.core.pattern import is_pattern
from runnel.core.position import Position
from runnel.spark.filters import Narrowing
from runnel.spark.losses import Losses
from runnel.spark.offsets import EARLIEST, LATEST, Where, read_where
from runnel.spark.options import SourceOptions
from runnel.spark.ranges import OffsetRange
from runnel.spark.reading import Reading, durable


class Selection(NamedTuple):
    """The journal that was looked at, and what is to be read of it."""

    journal: str
    ranges: list[OffsetRange]


def select(reading: Reading, options: SourceOptions, narrowing: Narrowing) -> Selection:
    """What a batch read reads now."""
    starting = read_where("startingOffsets", options.starting, EARLIEST, options.topics)
    ending = read_where("endingOffsets", options.ending, LATEST, options.topics)
    losses = Losses(fail=options.fail_on_data_loss)
    topics = _bounds(reading, options, None)
    for name in (*options.topics, *starting.topics, *ending.topics):
        if not is_pattern(name) and name not in topics:
            raise UnknownTopic(name)
    begins = _resolved(reading, options, starting, topics)
    ends = _resolved(reading, options, ending, topics)
    ranges = []
    for one in topics.values():
        begin, behind = begins[one.topic], ends[one.topic]
        if (begin.epoch, behind.epoch) != (one.epoch, one.epoch):
            losses.tell(one.topic, begin.offset, behind.offset, "the topic was deleted and made again")
            continue
        first, end = begin.offset, behind.offset
        if first < one.first < end or first < end <= one.first:
            losses.tell(one.topic, first, min(one.first, end), f"the topic begins at offset {one.first} now")
        ranges.append(OffsetRange(one.topic, one.epoch, max(first, one.first), min(end, one.end), one.record_bytes))
    return Selection(reading.journal, _narrowed(reading, options, narrowing, ranges))


def _bounds(reading: Reading, options: SourceOptions, time: datetime | None) -> dict[str, TopicBounds]:
    found = durable(reading.bounds(options.topics, time), options.topics)
    return {one.topic: one for one in found}


def _resolved(
    reading: Reading, options: SourceOptions, where: Where, topics: dict[str, TopicBounds]
) -> dict[str, Position]:
    if where.time is None:
        return where.resolve(topics.values())
    timed = _bounds(reading, options, where.time)
    return where.resolve(timed.get(name, one) for name, one in topics.items())


def _narrowed(
    reading: Reading, options: SourceOptions, narrowing: Narrowing, ranges: list[OffsetRange]
) -> list[OffsetRange]:
    """Without what the filters leave out."""
    ranges = [one for one in ranges if narrowing.takes(one.topic)]
    since = _at(reading, options, narrowing.since)
    until = _at(reading, options, narrowing.until)
    kept = []
    for one in ranges:
        first = max(one.first, narrowing.first, since.get(one.topic, 0))
        end = min(one.end, narrowing.end, until.get(one.topic, one.end))
        if first < end:
            kept.append(one._replace(first=first, end=end))
    return kept


def _at(reading: Reading, options: SourceOptions, time: datetime | None) -> dict[str, int]:
    if time is None:
        return {}
    found = _bounds(reading, options, time.astimezone(UTC))
    return {one.topic: one.at for one in found.values() if one.at is not None}
