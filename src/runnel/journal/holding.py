"""What named subscriptions hold: the offset of each topic from which on nothing may be taken away.

A subscription on one topic holds from its offset on. One on a pattern stands at a sequence, and holds, of
each topic, from its first record in the segment of that sequence: never too little, at most a segment too much.
Below: history, ledger. Above: broker.holding, cli.
"""

from __future__ import annotations

from collections.abc import Mapping

from runnel.core.pattern import is_pattern, matches
from runnel.journal.history import History, Source
from runnel.journal.ledger import CursorState, Ledger

FEW = 64  # topics that are looked up one by one; of more, each index is read from end to end


def source_at(history: History, sequence: int) -> Source | None:
    """The oldest segment that may hold `sequence`, or anything behind it."""
    return next((one for one in tuple(history.sources) if _reaches(one, sequence)), None)


def floors_at(history: History, sequence: int, ends: Mapping[int, int]) -> dict[int, int]:
    """Where each of the topics in `ends` begins in the segment of `sequence`, or behind it; else its end."""
    floors = dict(ends)
    left = set(ends)
    for source in tuple(history.sources):
        if not left:
            break
        if not _reaches(source, sequence):
            continue
        index = source.index
        if len(left) > FEW:
            found = {topic: one.first for topic, one in index.topics() if topic in left}
        else:
            ranges = ((topic, index.range_of(topic)) for topic in left)
            found = {topic: one.first for topic, one in ranges if one is not None}
        for topic, first in found.items():
            floors[topic] = min(first, ends[topic])
        left -= found.keys()
    return floors


def _reaches(source: Source, sequence: int) -> bool:
    return not source.info.sealed or source.info.end_sequence > sequence


def covers(cursor: CursorState, topic: str) -> bool:
    """Whether a subscription reads a topic."""
    return matches(cursor.pattern, topic) if is_pattern(cursor.pattern) else cursor.pattern == topic


def held_by(ledger: Ledger, history: History) -> dict[int, int]:
    """From where on each topic is held, by id, as the journal knows it; those that nobody holds are left out."""
    held: dict[int, int] = {}
    for cursor in [one for one in ledger.cursors.values() if one.hold]:
        topics = [topic for topic in ledger.topics.values() if covers(cursor, topic.name)]
        if is_pattern(cursor.pattern):
            floors = floors_at(history, cursor.place, {topic.id: topic.end for topic in topics})
        else:
            # A topic that was deleted and made again since is not read at all yet.
            floors = {topic.id: cursor.place if topic.epoch == cursor.epoch else 0 for topic in topics}
        for topic, floor in floors.items():
            held[topic] = min(floor, held.get(topic, floor))
    return held


def holders(ledger: Ledger, topic: str) -> list[str]:
    """The names of those who hold a topic."""
    return sorted(one.name for one in ledger.cursors.values() if one.hold and covers(one, topic))
