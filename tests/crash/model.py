"""What a journal should hold, worked out without the journal's own code, and what it does hold when it is read.

A `State` never changes; `after` gives the next one. `observe` reads everything through the ledger and `History`, by
topic and by sequence, and raises `Violation` when the two disagree or something is told to be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from runnel.core.packing import unpack
from runnel.journal.draft import Draft
from runnel.journal.entry import Kind, Part
from runnel.journal.history import Found, History, Lost, Plan
from runnel.journal.journal import Journal

decode = msgspec.msgpack.decode


class Violation(AssertionError):
    """The journal broke a promise."""


class Stored(NamedTuple):
    """One record."""

    offset: int
    sequence: int
    time: int
    value: bytes


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


class GroupView(NamedTuple):
    """One group: the places that it has settled above its floor, and those that failed."""

    name: str
    pattern: str
    floor: int
    settled: frozenset[int]
    failed: tuple[tuple[Any, ...], ...]


class State(NamedTuple):
    """Everything that a journal keeps."""

    topics: Mapping[int, TopicView] = {}
    cursors: Mapping[str, tuple[Any, ...]] = {}
    groups: Mapping[int, GroupView] = {}

    def after(self, draft: Draft) -> State:
        """What it keeps once this entry is written."""
        topics, cursors, groups = dict(self.topics), dict(self.cursors), dict(self.groups)
        for part in draft.parts:
            match part.kind:
                case Kind.BATCH:
                    topics[part.topic] = appended(topics[part.topic], part)
                case Kind.TOPIC:
                    number, name, epoch, options = decode(part.body)[:4]
                    made = TopicView(name, epoch, repr(options).encode(), 0, 0, 0, 0, ())
                    known = topics.get(number)
                    topics[number] = made if known is None else known._replace(options=made.options)
                case Kind.TOPIC_DELETED:
                    gone = topics.pop(part.topic)
                    groups = {number: group for number, group in groups.items() if group.pattern != gone.name}
                case Kind.TRIM:
                    known = topics[part.topic]
                    kept = tuple(record for record in known.records if record.offset >= part.base)
                    topics[part.topic] = known._replace(
                        first=max(known.first, part.base), end=max(known.end, part.last), records=kept
                    )
                case Kind.CURSOR:
                    name, *rest = decode(part.body)
                    cursors[name] = tuple(rest)
                case Kind.GROUP:
                    number, name, pattern, _, floor, _, _ = decode(part.body)
                    groups[number] = GroupView(name, pattern, floor, frozenset(), ())
                case Kind.PROGRESS:
                    groups[part.topic] = progressed(groups[part.topic], *decode(part.body))
                case Kind.GROUP_DELETED:
                    del groups[part.topic]
        return State(topics, cursors, groups)

    def differs(self, found: State, *, exact: bool) -> str | None:
        """How `found` is not this; None when it is. Unless `exact`, offsets may have been skipped at the ends."""
        if self.cursors != found.cursors:
            return f"cursors {dict(found.cursors)} instead of {dict(self.cursors)}"
        if self.groups != found.groups:
            return f"groups {dict(found.groups)} instead of {dict(self.groups)}"
        if self.topics.keys() != found.topics.keys():
            return f"topics {sorted(found.topics)} instead of {sorted(self.topics)}"
        for number, topic in self.topics.items():
            other = found.topics[number]
            if not exact and other.end > topic.end:
                other = other._replace(end=topic.end)
            if other != topic:
                return f"topic {number}: {brief(other)} instead of {brief(topic)}"
        return None


def brief(topic: TopicView) -> str:
    """A topic in a line."""
    offsets = [record.offset for record in topic.records]
    return f"{topic._replace(records=())} with {len(offsets)} records {offsets[:3]}..{offsets[-3:]}"


def appended(topic: TopicView, part: Part) -> TopicView:
    """A topic and one more batch."""
    values = values_in(part.body)
    if part.base < topic.end:
        raise Violation(f"offset {part.base} is given again in {brief(topic)}")
    more = tuple(
        Stored(part.base + at, part.sequence + at, part.time, value)
        for at, value in enumerate(values)
        if part.base + at >= topic.first
    )
    return topic._replace(
        end=part.last + 1, bytes=topic.bytes + len(part.body), last_time=part.time, records=topic.records + more
    )


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


# -- reading ----------------------------------------------------------------------------------------------------


def read_topic(history: History, topic: int, offset: int) -> list[Found | Lost]:
    """All that is there of a topic from `offset` on."""
    items: list[Found | Lost] = []
    plan, position = history.plan(topic, offset), 0
    while plan is not None:
        items += (parsed := history.parse(plan, history.fetch(plan), {topic}, by_sequence=False)).items
        position = _further(plan, position, parsed.position)
        plan = history.plan(topic, max(offset, parsed.place), plan, position)
        offset = max(offset, parsed.place)
    return items


def read_sequence(history: History, topics: Iterable[int], sequence: int) -> list[Found | Lost]:
    """All that is there of `topics` from `sequence` on."""
    items: list[Found | Lost] = []
    wanted, position = set(topics), 0
    plan = history.plan_sequence(sequence)
    while plan is not None:
        items += (parsed := history.parse(plan, history.fetch(plan), wanted, by_sequence=True)).items
        position = parsed.position
        plan = history.plan_sequence(max(sequence, parsed.place), plan, position)
        sequence = max(sequence, parsed.place)
    return items


def _further(plan: Plan, before: int, position: int) -> int:
    if position <= plan.position:
        raise Violation(f"reading {plan} does not get on from {before}")
    return position


@lru_cache(4096)
def values_in(body: bytes) -> tuple[bytes, ...]:
    """The values of a batch; the same ones are read over and over here."""
    return unpack(body).values


def records_of(items: Iterable[Found | Lost]) -> Iterable[tuple[int, Stored]]:
    """The records in what was read, with their topics."""
    for item in items:
        if isinstance(item, Lost):
            raise Violation(f"{item} though nothing was damaged")
        values = values_in(item.body)
        if len(values) != item.last - item.base + 1:
            raise Violation(f"{len(values)} values from {item.base} to {item.last}")
        for at, value in enumerate(values):
            yield item.topic, Stored(item.base + at, item.sequence + at, item.time, value)


def observe(journal: Journal) -> State:
    """What an open journal holds, read in every way."""
    ledger, history = journal.ledger, journal.history
    topics: dict[int, TopicView] = {}
    for number, topic in ledger.topics.items():
        read = (record for _, record in records_of(read_topic(history, number, topic.first)))
        records = tuple(record for record in read if record.offset >= topic.first)
        topics[number] = TopicView(
            topic.name,
            topic.epoch,
            repr(topic.options).encode(),
            topic.first,
            topic.end,
            topic.bytes,
            topic.last_time,
            records,
        )
        _check_order(topics[number])
    _check_sequences(history, topics, ledger.sequence)
    for source in history.sources:
        if source.damage is not None:
            raise Violation(f"an index had to be made again: {source.damage}")
    groups = {
        number: GroupView(
            group.name,
            group.pattern,
            group.floor,
            frozenset(place for first, end in group.settled for place in range(first, end)),
            tuple(sorted((place, *failure) for place, failure in group.failed.items())),
        )
        for number, group in ledger.groups.items()
    }
    cursors = {name: (cursor.pattern, cursor.epoch, cursor.place) for name, cursor in ledger.cursors.items()}
    found = State(topics, cursors, groups)
    _check_places(found, ledger.sequence)
    return found


def _check_order(topic: TopicView) -> None:
    previous = None
    for record in topic.records:
        if previous is not None and (record.offset <= previous.offset or record.sequence <= previous.sequence):
            raise Violation(f"{record} behind {previous} in {topic.name}")
        previous = record
    if previous is not None and previous.offset >= topic.end:
        raise Violation(f"{previous} at or behind the end of {brief(topic)}")


def _check_sequences(history: History, topics: Mapping[int, TopicView], end: int) -> None:
    by_topic = sorted((record.sequence, number, record) for number, topic in topics.items() for record in topic.records)
    middle = by_topic[len(by_topic) // 2][0] if by_topic else 0
    for asked in (0, middle) if middle % 2 else (0,):
        read = records_of(read_sequence(history, topics, asked))
        found = [
            (record.sequence, number, record)
            for number, record in read
            if record.offset >= topics[number].first and record.sequence >= asked
        ]
        if found != [one for one in by_topic if one[0] >= asked]:
            raise Violation(f"read by sequence from {asked}: {len(found)} records, by topic {len(by_topic)}")
    if by_topic and by_topic[-1][0] >= end:
        raise Violation(f"sequence {by_topic[-1][0]} is stored and {end} is the next one")


def _check_places(found: State, sequence: int) -> None:
    """No cursor and no group is ahead of the log."""
    ends = {topic.epoch: topic.end for topic in found.topics.values()}
    by_name = {topic.name: topic.end for topic in found.topics.values()}
    for name, (pattern, epoch, place) in found.cursors.items():
        if place > (sequence if epoch == 0 else ends.get(epoch, place)):
            raise Violation(f"cursor {name} on {pattern} is at {place}, ahead of the log")
    for group in found.groups.values():
        end = by_name.get(group.pattern, sequence)
        if max(group.settled, default=group.floor) > end or group.floor > end:
            raise Violation(f"{group} is ahead of the log, which ends at {end}")
