"""Retention: which records and segments are no longer wanted, and which ones a subscription holds. Deletes nothing.

`unwanted_segments` are those in which no topic and no stage has anything left. `first_not_older` and
`first_within_bytes` say where a topic begins under its limits; `held_offsets` from where on nothing may be removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from runnel.core.pattern import is_pattern, matches
from runnel.journal.format.entry import HEADER, STAGE_TOPIC
from runnel.journal.format.index import WINDOW, IndexWindow, TopicRange
from runnel.journal.format.ledger import CommittedStage, CursorState, Ledger, TopicState
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import LostRange, SegmentReader, run_at_time


def is_wanted(source: SegmentReader, topics: Mapping[int, TopicState], stages: Collection[int] = ()) -> bool:
    """Whether any topic still has records in this segment, or any of `stages` staged batches.

    Remembers one that has: the next look is short.
    """
    if source.pin is not None and source.pinned is not None and _wants(source.pin, source.pinned, topics, stages):
        return True  # and the index need not be at hand
    try:
        index = source.index
    except OSError:  # it cannot be read, or there are no handles left: no reason to drop it, nor to write no more
        return True
    for topic, found in index.topics():
        if _wants(topic, found, topics, stages):
            source.pin, source.pinned = topic, found
            return True
    return False


def _wants(topic: int, found: TopicRange, topics: Mapping[int, TopicState], stages: Collection[int]) -> bool:
    if topic >= STAGE_TOPIC:
        return topic & ~STAGE_TOPIC in stages
    known = topics.get(topic)
    return known is not None and known.first < found.end


def unwanted_segments(
    sources: Sequence[SegmentReader], topics: Mapping[int, TopicState], stages: Collection[int] = ()
) -> list[SegmentReader]:
    """The sealed segments in which no topic has records any more, and no stage that counts has batches."""
    return [source for source in sources if source.info.sealed and not is_wanted(source, topics, stages)]


class FirstKept(NamedTuple):
    """The first record of a topic that is not too old, and its time; None: there is none on disk."""

    offset: int | None
    time: int | None


def first_not_older(history: JournalReader, topic: int, first: int, time: int) -> FirstKept:
    """The first offset of a topic that keeps records not older than `time`, to the batch.

    Indexes give it, except for the window that the time falls into: its entries are read, unless it has only one.
    """
    for source in tuple(history.sources):
        if source.info.sealed and source.info.last_time < time:
            continue  # all that is in it is older
        index = source.index
        found = index.range_of(topic)
        if found is None or found.end <= first:
            continue
        before, behind = index.windows_at_time(topic, time)
        if before is not None and (source.is_cleaned or not _is_alone(source, before)):
            young = _read_window(history, source, topic, before, time)
            if young is not None:
                return young
        if behind is not None:
            return FirstKept(behind.base, behind.time)
    return FirstKept(None, None)


def _is_alone(source: SegmentReader, window: IndexWindow) -> bool:
    """Whether a window has no room for a second entry: the first is as long as that."""
    head = source.file.read(window.position, HEADER.size)
    return len(head) == HEADER.size and HEADER.unpack(head)[2] >= WINDOW


def _read_window(
    history: JournalReader, source: SegmentReader, topic: int, window: IndexWindow, time: int
) -> FirstKept | None:
    """The first record from a window on that is not older than `time`, if it is in the same segment."""
    plan = history.plan(topic, window.base)
    while plan is not None and plan.source is source:
        parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
        for item in parsed.items:
            if not isinstance(item, LostRange) and (run := run_at_time(item, time)) is not None:
                return FirstKept(run.offset, run.time)
        plan = history.plan(topic, parsed.place, plan, parsed.position)
    return None


class KeptBytes(NamedTuple):
    """Where a topic begins that keeps only so many bytes, and about how many those are."""

    first: int
    bytes: int


def first_within_bytes(
    history: JournalReader, topic: int, first: int, keep: int, committed: Iterable[CommittedStage] = ()
) -> KeptBytes:
    """Where a topic begins that keeps the newest `keep` bytes of its batches, and one record at least.

    Nothing is read but indexes: of the segment that the place lies in, windows say how its bytes are spread. Of the
    stages that were `committed` by name, a segment has no more than the name; their bytes count where that lies.
    """
    ranges = [(source, found) for source, found in history.ranges(topic) if found.end > first]
    stages = sorted((one.base, one.end, one.bytes) for one in committed if one.topic == topic)
    left = keep
    for source, found in reversed(ranges):
        if inside := [one for one in stages if found.first <= one[0] < found.end]:
            for begin, end, size in reversed(_spread(found, inside)):
                if size > left:
                    place = min(end - (end - begin) * left // size, ranges[-1][1].end - 1)
                    return KeptBytes(max(first, place), keep)
                left -= size
            continue
        if found.bytes > left:
            place = min(_within(source, topic, found, left), ranges[-1][1].end - 1)
            return KeptBytes(max(first, place), keep)
        left -= found.bytes
    return KeptBytes(first, keep - left)


def _spread(found: TopicRange, stages: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The offsets of a topic in a segment, cut at the stages in them, each piece with its bytes, about. In order."""
    plain = max(1, found.records - sum(end - begin for begin, end, _ in stages))
    pieces: list[tuple[int, int, int]] = []
    at = found.first
    for begin, end, size in [*stages, (found.end, found.end, 0)]:
        if begin > at:
            pieces.append((at, begin, (begin - at) * found.bytes // plain))
        if end > begin:
            pieces.append((begin, end, size))
        at = max(at, end)
    return pieces


def _within(source: SegmentReader, topic: int, found: TopicRange, keep: int) -> int:
    """The offset in one segment behind which about `keep` bytes of a topic lie."""
    index = source.index
    begin, end = index.window(topic, found.first)[0], source.written
    target = end - (end - begin) * keep // found.bytes
    upper = index.base_behind(topic, target)
    if upper is None:
        upper, high = found.end, end
        low = index.window(topic, found.end - 1)[0]
    elif upper <= found.first:
        return found.first
    else:
        high = index.window(topic, upper)[0]
        low = index.window(topic, upper - 1)[0]
    lower = index.base_behind(topic, low)
    if lower is None or high <= low:
        return upper
    return lower + (upper - lower) * (target - low) // (high - low)


# -- Holds of named subscriptions ------------------------------------------------------------------------
# A subscription on one topic holds from its offset on. One on a pattern is at a sequence, and holds each topic
# from its first record in the segment of that sequence: never too little, at most a segment too much.


FEW_TOPICS = 64  # topics that are looked up one by one; of more, each index is read from end to end


def segment_at_sequence(history: JournalReader, sequence: int) -> SegmentReader | None:
    """The oldest segment that may hold `sequence`, or anything behind it."""
    return next((one for one in tuple(history.sources) if _reaches(one, sequence)), None)


def held_floors(history: JournalReader, sequence: int, ends: Mapping[int, int]) -> dict[int, int]:
    """Where each of the topics in `ends` begins in the segment of `sequence`, or behind it; else its end."""
    floors = dict(ends)
    left = set(ends)
    for source in tuple(history.sources):
        if not left:
            break
        if not _reaches(source, sequence):
            continue
        index = source.index
        if len(left) > FEW_TOPICS:
            found = {topic: one.first for topic, one in index.topics() if topic in left}
        else:
            ranges = ((topic, index.range_of(topic)) for topic in left)
            found = {topic: one.first for topic, one in ranges if one is not None}
        for topic, first in found.items():
            floors[topic] = min(first, ends[topic])
        left -= found.keys()
    return floors


def _reaches(source: SegmentReader, sequence: int) -> bool:
    return not source.info.sealed or source.info.end_sequence > sequence


def reads_topic(cursor: CursorState, topic: str) -> bool:
    """Whether a subscription reads a topic."""
    return matches(cursor.pattern, topic) if is_pattern(cursor.pattern) else cursor.pattern == topic


def held_offsets(ledger: Ledger, history: JournalReader) -> dict[int, int]:
    """From where on each topic is held, by id, as the journal knows it; topics without a hold are left out."""
    held: dict[int, int] = {}
    for cursor in [one for one in ledger.cursors.values() if one.hold]:
        topics = [topic for topic in ledger.topics.values() if reads_topic(cursor, topic.name)]
        if is_pattern(cursor.pattern):
            floors = held_floors(history, cursor.place, {topic.id: topic.end for topic in topics})
        else:
            # A topic that was deleted and made again since is not read at all yet.
            floors = {topic.id: cursor.place if topic.epoch == cursor.epoch else 0 for topic in topics}
        for topic, floor in floors.items():
            held[topic] = min(floor, held.get(topic, floor))
    return held


def holder_names(ledger: Ledger, topic: str) -> list[str]:
    """The names of the subscriptions and archives that hold a topic."""
    return sorted(one.name for one in ledger.cursors.values() if one.hold and reads_topic(one, topic))
