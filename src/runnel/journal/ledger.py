"""The state that the entries of a journal add up to: topics, cursors, groups, the next sequence.

The same `apply` runs when an entry is written and when it is read again, so what a restart finds
is what was there. What changed since the last checkpoint is remembered, for the next one.
Below: entry, group_state. Above: journal, recovery, checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from runnel.core.journal_errors import FormatUnknown
from runnel.journal.entry import Kind, Part, state
from runnel.journal.group_state import GroupState

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class TopicState(msgspec.Struct, array_like=True, gc=False):
    """A durable topic: its records are [first, end), less the holes."""

    id: int
    name: str
    epoch: int
    options: dict[str, Any]
    schema: dict[str, Any] | None = None  # of a typed topic, with its encoding under "encoding"
    first: int = 0
    end: int = 0
    bytes: int = 0  # of all batches ever appended
    last_time: int = 0


class CursorState(msgspec.Struct, array_like=True, gc=False):
    """Where a named subscription stands: an offset in an epoch, or (epoch 0) a sequence."""

    name: str
    pattern: str
    epoch: int
    place: int


class Ledger:
    """Everything durable that is not a record."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicState] = {}
        self.cursors: dict[str, CursorState] = {}
        self.groups: dict[int, GroupState] = {}
        self.next_topic = 1
        self.next_group = 1
        self.epoch = 0  # the highest ever given
        self.sequence = 0  # the next one
        self.reserved = 0  # sequences below this may have been given to records that are not stored
        self.time = 0  # of the last entry, in microseconds
        self.changed_topics: set[int] = set()
        self.changed_cursors: set[str] = set()
        self.changed_groups: set[int] = set()

    def __repr__(self) -> str:
        return f"<Ledger, {len(self.topics)} topics, {len(self.cursors)} cursors, {len(self.groups)} groups>"

    # -- entries ------------------------------------------------------------------------------------------------

    def apply(self, parts: Iterable[Part], time: int) -> None:
        """An entry was written, or read."""
        if time > self.time:
            self.time = time
        for part in parts:
            if part.kind == Kind.BATCH:
                topic = self.topics.get(part.topic)
                if part.sequence + part.count > self.sequence:
                    self.sequence = part.sequence + part.count
                if topic is not None:  # None: it was deleted, later, and the checkpoint already knows
                    topic.end = part.last + 1
                    topic.bytes += len(part.body)
                    topic.last_time = part.time
                    self.changed_topics.add(part.topic)
            else:
                self._apply_state(part)

    def _apply_state(self, part: Part) -> None:
        kind = part.kind
        if kind == Kind.TOPIC:
            topic = msgspec.convert(_decode(part.body), TopicState)
            known = self.topics.get(topic.id)
            if known is not None:
                topic.first, topic.end, topic.bytes, topic.last_time = (
                    known.first,
                    known.end,
                    known.bytes,
                    known.last_time,
                )
            self.topics[topic.id] = topic
            self.changed_topics.add(topic.id)
            self.next_topic = max(self.next_topic, topic.id + 1)
            self.epoch = max(self.epoch, topic.epoch)
        elif kind == Kind.TOPIC_DELETED:
            self._delete_topic(part.topic)
        elif kind == Kind.TRIM:
            if (known := self.topics.get(part.topic)) is not None:
                known.first = max(known.first, part.base)
                known.end = max(known.end, part.last)
                self.changed_topics.add(part.topic)
        elif kind == Kind.CURSOR:
            cursor = msgspec.convert(_decode(part.body), CursorState)
            self.cursors[cursor.name] = cursor
            self.changed_cursors.add(cursor.name)
        elif kind == Kind.GROUP:
            group = GroupState.decode(_decode(part.body))
            self.groups[group.id] = group
            self.changed_groups.add(group.id)
            self.next_group = max(self.next_group, group.id + 1)
        elif kind == Kind.PROGRESS:
            if (found := self.groups.get(part.topic)) is not None:
                found.progress(*_decode(part.body))
                self.changed_groups.add(part.topic)
        elif kind == Kind.GROUP_DELETED:
            if self.groups.pop(part.topic, None) is not None:
                self.changed_groups.add(part.topic)
        elif kind == Kind.SEQUENCE:
            self.reserved = max(self.reserved, part.base)
            self.epoch = max(self.epoch, part.last)
        elif kind < Kind.OPTIONAL:
            raise FormatUnknown(f"an entry part of kind {kind}", kind, Kind.TRIM)

    def _delete_topic(self, topic: int) -> None:
        deleted = self.topics.pop(topic, None)
        if deleted is None:
            return
        self.changed_topics.add(topic)
        for group in [one for one in self.groups.values() if one.pattern == deleted.name]:
            del self.groups[group.id]  # a group on one topic ends with it
            self.changed_groups.add(group.id)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def changes(self, *, everything: bool) -> list[list[Any]]:
        """What a checkpoint has to hold, in pieces: all of it, or what changed. Forgets nothing: see `checked`."""
        topics = list(self.topics) if everything else sorted(self.changed_topics)
        cursors = list(self.cursors) if everything else sorted(self.changed_cursors)
        groups = list(self.groups) if everything else sorted(self.changed_groups)
        scalars = [self.next_topic, self.next_group, self.epoch, self.sequence, self.reserved, self.time]
        pieces: list[list[Any]] = [["ledger", scalars]]
        for start in range(0, len(topics), 1000):
            ids = topics[start : start + 1000]
            pieces.append(["topics", [self.topics.get(one, one) for one in ids]])
        for start in range(0, len(cursors), 1000):
            names = cursors[start : start + 1000]
            pieces.append(["cursors", [self.cursors.get(one, one) for one in names]])
        for one in groups:
            found = self.groups.get(one)
            pieces.append(["groups", [one if found is None else found.encode()]])
        return pieces

    def checked(self) -> None:
        """A checkpoint holds all that changed."""
        self.changed_topics.clear()
        self.changed_cursors.clear()
        self.changed_groups.clear()

    def restore(self, pieces: Iterable[list[Any]]) -> None:
        """Take in a checkpoint on top of what is known. What it names alone was deleted."""
        for kind, items in pieces:
            if kind == "ledger":
                self.next_topic, self.next_group, self.epoch, self.sequence, self.reserved, self.time = items
            for item in items if kind != "ledger" else ():
                if kind == "topics":
                    if isinstance(item, int):
                        self.topics.pop(item, None)
                    else:
                        topic = msgspec.convert(item, TopicState)
                        self.topics[topic.id] = topic
                elif kind == "cursors":
                    if isinstance(item, str):
                        self.cursors.pop(item, None)
                    else:
                        cursor = msgspec.convert(item, CursorState)
                        self.cursors[cursor.name] = cursor
                elif isinstance(item, int):
                    self.groups.pop(item, None)
                else:
                    group = GroupState.decode(item)
                    self.groups[group.id] = group


# -- parts, as the broker makes them ----------------------------------------------------------------------------


def topic_part(topic: TopicState) -> Part:
    """A topic was made, or its options changed."""
    return state(Kind.TOPIC, _encode(topic))


def trim_part(topic: int, first: int, end: int) -> Part:
    """A topic begins at `first` now, and goes on at `end` at the earliest."""
    return Part(Kind.TRIM, b"", 0, topic, first, end)


def sequence_part(reserved: int, epoch: int) -> Part:
    """Sequences below `reserved`, and epochs up to `epoch`, may have been given."""
    return Part(Kind.SEQUENCE, b"", 0, 0, reserved, epoch)


def cursor_part(cursor: CursorState) -> Part:
    """A named subscription moved."""
    return state(Kind.CURSOR, _encode(cursor))


def group_part(group: GroupState) -> Part:
    """A group was made, or set back."""
    return state(Kind.GROUP, _encode(group.encode()))


def progress_part(group: int, settled: list[int], failed: list[tuple[int, int, float, str]]) -> Part:
    """A group settled places (flat ranges), and failed at others."""
    return state(Kind.PROGRESS, _encode([settled, failed]), group)
