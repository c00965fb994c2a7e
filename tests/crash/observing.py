"""What an open journal does hold, read in every way: through the ledger and `JournalReader`, by topic and by sequence.

Raises `Violation` when two ways disagree, or something is told to be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from runnel.journal.format.entry import STAGE_TOPIC
from runnel.journal.format.ledger import BlockStageState
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.read.journal_reader import JournalReader, ReadPlan
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    FoundItem,
    LostRange,
    StageCommit,
    blocks_commit,
)
from runnel.journal.read.staged_blocks import read_committed_blocks
from runnel.journal.write.journal import Journal
from tests.crash.model import GroupView, StageView, State, Stored, TopicView, Violation, brief, records_in

Item = FoundItem


def topic_items(history: JournalReader, topic: int, offset: int) -> Iterator[Item]:
    """All that is found of a topic from `offset` on."""
    plan, position = history.plan(topic, offset), 0
    while plan is not None:
        parsed = history.parse(plan, history.fetch(plan), {topic}, by_sequence=False)
        yield from parsed.items
        position = _further(plan, position, parsed.position)
        plan = history.plan(topic, max(offset, parsed.place), plan, position)
        offset = max(offset, parsed.place)


def sequence_items(history: JournalReader, topics: Iterable[int], sequence: int) -> Iterator[Item]:
    """All that is found of `topics` from `sequence` on, in order."""
    wanted = set(topics)
    plan = history.plan_sequence(sequence)
    while plan is not None:
        parsed = history.parse(plan, history.fetch(plan), wanted, by_sequence=True)
        yield from parsed.items
        plan = history.plan_sequence(max(sequence, parsed.place), plan, parsed.position)
        sequence = max(sequence, parsed.place)


def read_topic(history: JournalReader, topic: int, offset: int) -> Iterator[Stored]:
    """The records of a topic from `offset` on."""
    for item in topic_items(history, topic, offset):
        yield from (record for _, record in records_of(history, item))


def read_sequence(
    history: JournalReader, topics: Mapping[int, TopicView], sequence: int
) -> Iterator[tuple[int, Stored]]:
    """The records of `topics` from `sequence` on, in order, with their topics.

    A stage may be gone before the entry that made it visible, once its topic begins behind it.
    """
    for item in sequence_items(history, topics, sequence):
        if isinstance(item, BlocksCommit):
            if all(last < topics[topic].first for topic, (_, last) in item.shares.items()):
                continue
        elif isinstance(item, StageCommit) and item.last < topics[item.topic].first:
            continue
        yield from records_of(history, item)


def _further(plan: ReadPlan, before: int, position: int) -> int:
    if position <= plan.position:
        raise Violation(f"reading {plan} does not get on from {before}")
    return position


def records_of(history: JournalReader, item: Item) -> Iterator[tuple[int, Stored]]:
    """The records in what was read, with their topics."""
    if isinstance(item, LostRange):
        raise Violation(f"{item} though nothing was damaged")
    if isinstance(item, BlocksCommit):
        by_sequence = len(item.shares) > 1
        place = item.sequence if by_sequence else item.base
        for found in read_committed_blocks(history, item, place, by_sequence=by_sequence):
            if not isinstance(found, int):
                yield from records_of(history, found)
        return
    if isinstance(item, StageCommit):
        runs = [RecordRun(item.base, item.sequence, item.time, item.last - item.base + 1)]
        records = [record for batch in staged(history, item.stage) for record in batch]
    elif item.runs is not None:
        runs = list(item.runs)
        records = list(records_in(item.body)[item.at : item.at + sum(run.count for run in runs)])
    else:
        runs = [RecordRun(item.base, item.sequence, item.time, item.last - item.base + 1)]
        records = list(records_in(item.body))
    places = [(run, at) for run in runs for at in range(run.count)]
    if len(places) != len(records):
        raise Violation(f"{len(records)} records at {len(places)} places from {item.base} to {item.last}")
    for (run, at), (value, key) in zip(places, records, strict=True):
        yield item.topic, Stored(run.offset + at, run.sequence + at, run.time, value, key)


def staged(history: JournalReader, stage: int) -> list[tuple[tuple[bytes, bytes | None], ...]]:
    """The batches of a stage, in order."""
    topic, ordinal = STAGE_TOPIC | stage, 0
    batches: list[tuple[tuple[bytes, bytes | None], ...]] = []
    plan = history.plan(topic, 0)
    while plan is not None:
        parsed = history.parse(plan, history.fetch(plan), {topic}, by_sequence=False)
        for item in parsed.items:
            if not isinstance(item, FoundBatch) or item.base != len(batches):
                raise Violation(f"{item} is where batch {len(batches)} of stage {stage} should be")
            batches.append(records_in(item.body))
        ordinal = max(ordinal, parsed.place)
        plan = history.plan(topic, ordinal, plan, parsed.position)
    return batches


def staged_blocks(history: JournalReader, stage: BlockStageState) -> tuple[tuple[int, bytes, bytes | None], ...]:
    """Topic, value and key of the records of an open stage of many topics, in order."""
    shares = {topic: (0, records - 1) for topic, (records, _) in stage.topics.items()}
    if not shares:
        return ()
    commit = blocks_commit(stage.id, 0, stage.total, 0, shares)
    found = list(records_of(history, commit))
    if len(shares) > 1 and [record.sequence for _, record in found] != list(range(stage.total)):
        raise Violation(f"stage {stage.id} holds {len(found)} records, and not in order")
    return tuple((topic, record.value, record.key) for topic, record in found)


def observe(journal: Journal) -> State:
    """What an open journal holds, read in every way."""
    ledger, history = journal.ledger, journal.history
    topics: dict[int, TopicView] = {}
    for number, topic in ledger.topics.items():
        read = read_topic(history, number, topic.first)
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
    cursors = {
        name: (cursor.pattern, cursor.epoch, cursor.place, cursor.hold) for name, cursor in ledger.cursors.items()
    }
    stages = {
        number: StageView(tuple(stage.key), stage.topic, blocks=staged_blocks(history, stage))
        if isinstance(stage, BlockStageState)
        else StageView(tuple(stage.key), stage.topic, tuple(staged(history, number)))
        for number, stage in ledger.stages.items()
    }
    producers = {producer: ledger.producers.next(producer, ledger.time / 1e6) or 0 for producer in ledger.producers}
    ids = {
        topic: frozenset((name, offset, round(time * 1e6)) for name, time, offset in window.encode(everything=True)[2])
        for topic, window in ledger.ids.items()
    }
    found = State(topics, cursors, groups, dict(ledger.marks), stages, producers, ids, ledger.time)
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


def _check_sequences(history: JournalReader, topics: Mapping[int, TopicView], end: int) -> None:
    by_topic = sorted((record.sequence, number, record) for number, topic in topics.items() for record in topic.records)
    middle = by_topic[len(by_topic) // 2][0] if by_topic else 0
    for asked in (0, middle) if middle % 2 else (0,):
        read = read_sequence(history, topics, asked)
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
    for name, (pattern, epoch, place, _) in found.cursors.items():
        if place > (sequence if epoch == 0 else ends.get(epoch, place)):
            raise Violation(f"cursor {name} on {pattern} is at {place}, ahead of the log")
    for group in found.groups.values():
        end = by_name.get(group.pattern, sequence)
        if max(group.settled, default=group.floor) > end or group.floor > end:
            raise Violation(f"{group} is ahead of the log, which ends at {end}")
