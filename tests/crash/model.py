"""What a journal should hold, worked out without the journal's own code. `observing` says what it does hold.

A `State` never changes; `after` gives the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from runnel.core.batch_format import UnpackedBatch, read_batch_header, unpack
from runnel.journal.format.entry import Draft, Part, PartKind

decode = msgspec.msgpack.decode

WINDOW = 110 * 1_000_000  # microseconds for which a message id is remembered at least


class Violation(AssertionError):
    """The journal broke a promise."""


class Stored(NamedTuple):
    """One record."""

    offset: int
    sequence: int
    time: int
    value: bytes
    key: bytes | None = None


class TopicView(NamedTuple):
    """One topic, with the records that it holds."""

    name: str
    epoch: int
    options: bytes
    first: int
    end: int
    bytes: int
    last_time: int
    records: tuple[Stored, ...]

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner may take what a later record of the same key stands for."""
        return b"compact" in self.options

    def lacks(self, found: TopicView) -> str | None:
        """What `found` should have besides what it has, or has and should not; None: nothing."""
        latest = {record.key: record.offset for record in self.records}
        there = set(found.records)
        if more := there - set(self.records):
            return f"{sorted(more)[:3]} were never there"
        for record in self.records:
            superseded = record.key is not None and latest[record.key] > record.offset
            if record not in there and not superseded and not (record.key and not record.value):
                return f"{record} is missing, and no later one has its key"
        return None


class GroupView(NamedTuple):
    """One group: the places that it has settled above its floor, and those that failed."""

    name: str
    pattern: str
    floor: int
    settled: frozenset[int]
    failed: tuple[tuple[Any, ...], ...]


class StageView(NamedTuple):
    """One open stage: whose it is, for which topic (0: for many), and its batches, or the records of its blocks."""

    key: tuple[Any, ...]
    topic: int
    batches: tuple[tuple[tuple[bytes, bytes | None], ...], ...] = ()
    blocks: tuple[tuple[int, bytes, bytes | None], ...] = ()  # topic, value and key, in order

    def is_for(self, topic: int) -> bool:
        """Whether it goes when the topic does."""
        return self.topic == topic or any(one[0] == topic for one in self.blocks)


class State(NamedTuple):
    """Everything that a journal keeps."""

    topics: Mapping[int, TopicView] = {}
    cursors: Mapping[str, tuple[Any, ...]] = {}
    groups: Mapping[int, GroupView] = {}
    marks: Mapping[str, Any] = {}
    stages: Mapping[int, StageView] = {}
    producers: Mapping[int, int] = {}  # the number that comes next of each
    ids: Mapping[int, frozenset[tuple[str, int, int]]] = {}  # message ids of each topic, with offsets and times
    time: int = 0  # of the last entry

    def after(self, draft: Draft) -> State:
        """What it keeps once this entry is written."""
        topics, cursors, groups = dict(self.topics), dict(self.cursors), dict(self.groups)
        marks, stages, producers, ids = dict(self.marks), dict(self.stages), dict(self.producers), dict(self.ids)
        committed: set[int] = set()  # stages of many topics
        for part in draft.parts:
            match part.kind:
                case PartKind.BATCH:
                    topics[part.topic] = appended(topics[part.topic], part, records_in(part.body), len(part.body))
                    header = read_batch_header(part.body)
                    if header.producer:
                        producers[header.producer] = header.producer_sequence + header.count
                case PartKind.TOPIC:
                    number, name, epoch, options = decode(part.body)[:4]
                    made = TopicView(name, epoch, repr(options).encode(), 0, 0, 0, 0, ())
                    known = topics.get(number)
                    topics[number] = made if known is None else known._replace(options=made.options)
                case PartKind.TOPIC_DELETED:
                    gone = topics.pop(part.topic)
                    groups = {number: group for number, group in groups.items() if group.pattern != gone.name}
                    stages = {number: stage for number, stage in stages.items() if not stage.is_for(part.topic)}
                    ids.pop(part.topic, None)
                case PartKind.TRIM:
                    known = topics[part.topic]
                    kept = tuple(record for record in known.records if record.offset >= part.base)
                    topics[part.topic] = known._replace(
                        first=max(known.first, part.base), end=max(known.end, part.last), records=kept
                    )
                case PartKind.CURSOR:
                    name, *rest = decode(part.body)
                    cursors[name] = tuple(rest)
                case PartKind.CURSOR_FORGOTTEN:
                    cursors.pop(decode(part.body), None)
                case PartKind.GROUP:
                    number, name, pattern, _, floor, _, _ = decode(part.body)
                    groups[number] = GroupView(name, pattern, floor, frozenset(), ())
                case PartKind.PROGRESS:
                    groups[part.topic] = progressed(groups[part.topic], *decode(part.body))
                case PartKind.GROUP_DELETED:
                    del groups[part.topic]
                case PartKind.MARK:
                    name, value = decode(part.body)
                    marks[name] = value
                    if value is None:
                        del marks[name]
                case PartKind.MESSAGE_IDS:
                    names, offsets = decode(part.body)
                    more = {(name, offset, part.time) for name, offset in zip(names, offsets, strict=True)}
                    ids[part.topic] = ids.get(part.topic, frozenset()) | more
                case PartKind.STAGE:
                    number, writer, batch, piece, attempt, topic = decode(part.body)[:6]
                    stages[number] = StageView((writer, batch, piece, attempt), topic)
                case PartKind.STAGED:
                    stage = stages[part.topic]
                    stages[part.topic] = stage._replace(batches=(*stage.batches, records_in(part.body)))
                case PartKind.STAGE_COMMIT:
                    number, _, size = decode(part.body)
                    values = tuple(one for batch in stages.pop(number).batches for one in batch)
                    topics[part.topic] = appended(topics[part.topic], part, values, size)
                case PartKind.STAGED_BLOCK:
                    stage = stages[part.topic]
                    if part.base != len(stage.blocks):
                        raise Violation(f"a block begins with record {part.base} behind {len(stage.blocks)}")
                    stages[part.topic] = stage._replace(blocks=(*stage.blocks, *records_in_block(part.body)))
                case PartKind.BLOCKS_COMMIT:
                    number, _, _, size = _COMMIT.unpack(part.body)
                    committed.add(number)
                    topics[part.topic] = with_blocks(topics[part.topic], part, stages[number].blocks, size)
                case PartKind.STAGE_DROPPED:
                    del stages[part.topic]
        for number in committed:
            del stages[number]
        time = max(self.time, draft.time)
        return State(topics, cursors, groups, marks, stages, producers, ids, time)

    def differs(self, found: State, *, exact: bool) -> str | None:
        """How `found` is not this; None when it is. Unless `exact`, offsets may have been skipped at the ends."""
        if self.cursors != found.cursors:
            return f"cursors {dict(found.cursors)} instead of {dict(self.cursors)}"
        if self.groups != found.groups:
            return f"groups {dict(found.groups)} instead of {dict(self.groups)}"
        if self.topics.keys() != found.topics.keys():
            return f"topics {sorted(found.topics)} instead of {sorted(self.topics)}"
        for what in ("marks", "stages", "producers"):
            if getattr(self, what) != getattr(found, what):
                return f"{what} {getattr(found, what)} instead of {getattr(self, what)}"
        for number, ids in self.ids.items():
            there = found.ids.get(number, frozenset())
            recent = {one for one in ids if one[2] > max(self.time, found.time) - WINDOW}
            if not (there <= ids and recent <= there):
                return f"message ids {sorted(there)} of topic {number} instead of {sorted(ids)}"
        for number, topic in self.topics.items():
            other = found.topics[number]
            if not exact and other.end > topic.end:
                other = other._replace(end=topic.end)
            if topic.is_compacted:
                if (wrong := topic.lacks(other)) is not None:
                    return f"topic {number}: {wrong}"
                other = other._replace(records=topic.records)
            if other != topic:
                return f"topic {number}: {brief(other)} instead of {brief(topic)}"
        return None


def brief(topic: TopicView) -> str:
    """A topic in a line."""
    offsets = [record.offset for record in topic.records]
    return f"{topic._replace(records=())} with {len(offsets)} records {offsets[:3]}..{offsets[-3:]}"


def appended(topic: TopicView, part: Part, records: tuple[tuple[bytes, bytes | None], ...], size: int) -> TopicView:
    """A topic and one more batch."""
    if part.last - part.base + 1 != len(records):
        raise Violation(f"{len(records)} records from {part.base} to {part.last}")
    if part.base < topic.end:
        raise Violation(f"offset {part.base} is given again in {brief(topic)}")
    more = tuple(
        Stored(part.base + at, part.sequence + at, part.time, value, key)
        for at, (value, key) in enumerate(records)
        if part.base + at >= topic.first
    )
    return topic._replace(
        end=part.last + 1, bytes=topic.bytes + size, last_time=part.time, records=topic.records + more
    )


def with_blocks(
    topic: TopicView, part: Part, records: tuple[tuple[int, bytes, bytes | None], ...], size: int
) -> TopicView:
    """A topic and its records of a stage of many topics, whose first record has the sequence of the part."""
    mine = [(at, value, key) for at, (number, value, key) in enumerate(records) if number == part.topic]
    if part.last - part.base + 1 != len(mine) or part.base < topic.end:
        raise Violation(f"{len(mine)} records from {part.base} to {part.last} in {brief(topic)}")
    more = tuple(
        Stored(part.base + at, part.sequence + number, part.time, value, key)
        for at, (number, value, key) in enumerate(mine)
        if part.base + at >= topic.first
    )
    return topic._replace(
        end=part.last + 1, bytes=topic.bytes + size, last_time=part.time, records=topic.records + more
    )


_COMMIT = Struct("<QQQQ")  # stage, records, bytes, bytes of the topic
_BLOCK = Struct("<IIIIQ")  # crc, crc, topics, records, first
_TOPIC = Struct("<IIIIQ")  # topic, start, length, records, before
_RUN = Struct("<QQQI")  # offset, sequence, time, records


@lru_cache(4096)
def records_in_block(body: bytes) -> tuple[tuple[int, bytes, bytes | None], ...]:
    """Topic, value and key of the records of a staged block, in order. Read by what the reference says."""
    _, _, topics, count, first = _BLOCK.unpack_from(body)
    at = _BLOCK.size + topics * _TOPIC.size
    found: dict[int, tuple[int, bytes, bytes | None]] = {}
    for topic, start, length, records, _ in _TOPIC.iter_unpack(body[_BLOCK.size : at]):
        if start != at:
            raise Violation(f"the batch of topic {topic} begins at {start} and not at {at}")
        runs = int.from_bytes(body[at + 4 : at + 8], "little")
        table, batch = body[at + 8 : at + 8 + runs * _RUN.size], body[at + 8 + runs * _RUN.size : at + length]
        numbers = [number + more for _, number, _, held in _RUN.iter_unpack(table) for more in range(held)]
        if len(numbers) != records:
            raise Violation(f"{len(numbers)} records of topic {topic} instead of {records}")
        for number, (value, key) in zip(numbers, records_in(batch), strict=True):
            found[number] = (topic, value, key)
        at += length
    if sorted(found) != list(range(first, first + count)):
        raise Violation(f"a block of the records {sorted(found)[:3]}.. instead of {count} from {first}")
    return tuple(found[number] for number in sorted(found))


@lru_cache(4096)
def records_in(body: bytes) -> tuple[tuple[bytes, bytes | None], ...]:
    """The values and keys of a packed batch; the same ones are read over and over here."""
    batch: UnpackedBatch = unpack(body)
    return tuple(zip(batch.values, batch.keys or [None] * len(batch), strict=True))


def progressed(group: GroupView, ranges: list[int], failed: list[list[Any]]) -> GroupView:
    """A group that settled and failed some more."""
    settled = set(group.settled)
    for first, end in zip(ranges[::2], ranges[1::2], strict=True):
        settled.update(range(first, end))
    failures = {one[0]: tuple(one) for one in group.failed} | {one[0]: tuple(one) for one in failed}
    floor = group.floor
    while floor in settled:
        floor += 1
    settled = {place for place in settled if place >= floor}
    # A failure of something settled in an earlier entry is kept until the group settles more: so says the ledger too.
    left = {place: one for place, one in failures.items() if place >= floor and not (ranges and place in settled)}
    return group._replace(floor=floor, settled=frozenset(settled), failed=tuple(sorted(left.values())))
