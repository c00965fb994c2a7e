"""A folder, as the commands on topics, groups, subscriptions and marks see it: to look at, or owned and changed.

What it gives are facts: plain dicts, the same that `--json` prints.
Below: folder, journal. Above: target.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from runnel.cli.folder import write
from runnel.cli.problem import unknown_group, unknown_topic
from runnel.cli.start import Start, place_of
from runnel.core.errors import InvalidOption, OffsetOutOfRange, TopicConflict
from runnel.core.journal_errors import TopicHeld, UnknownName
from runnel.core.mark import MarkValue
from runnel.core.options import TopicOptions
from runnel.core.producers import id_of
from runnel.journal import holding
from runnel.journal.entry import Kind, state
from runnel.journal.gone import Reason
from runnel.journal.group_state import GroupState
from runnel.journal.inspection import Held, Inspection
from runnel.journal.journal import Journal
from runnel.journal.ledger import CursorState, TopicState
from runnel.journal.parts import cursor_forgotten_part, group_part, topic_part, trim_part

Facts = dict[str, Any]


class FolderTarget:
    """A folder that is looked at; any process may, at any time."""

    def __init__(self, seen: Inspection) -> None:
        self._seen = seen
        self.name = repr(str(seen.folder))

    def topics(self) -> list[Facts]:
        """Every topic, and what it holds."""
        held = self._seen.held()
        return [_of_topic(topic, held[topic.name]) for topic in self._seen.topics]

    def topic(self, name: str) -> Facts:
        """One topic, with the groups and the named subscriptions on it."""
        found = next((one for one in self.topics() if one["topic"] == name), None)
        if found is None:
            raise unknown_topic(name, self.name)
        groups = [one["group"] for one in self.groups() if one["pattern"] == name]
        return found | {
            "groups": groups,
            "cursors": [one["name"] for one in self.cursors() if one["pattern"] == name],
        }

    def configure(self, name: str, given: dict[str, Any]) -> Facts:
        """The options of a topic, as they are."""
        return self.topic(name)

    def groups(self) -> list[Facts]:
        """Every group, and how far it has come."""
        return [_of_group(group, self._seen) for group in self._seen.groups]

    def cursors(self) -> list[Facts]:
        """Every named subscription."""
        return [_of_cursor(cursor, self._seen) for cursor in self._seen.cursors]

    def marks(self) -> dict[str, MarkValue]:
        """Every mark."""
        return dict(sorted(self._seen.ledger.marks.items()))

    def producers(self, names: list[str]) -> list[Facts]:
        """Producers that are not forgotten, the one that published last at the end; those of `names`, if there are."""
        found, now, producers = [], time.time(), self._seen.ledger.producers
        named = {id_of(name): name for name in names}
        for producer in producers:
            if named and producer not in named:
                continue
            encoded = producers.encode(producer)
            if isinstance(encoded, list) and producers.next(producer, now) is not None:
                _, last, following, _ = encoded
                name = named.get(producer)
                found.append({"producer": producer, "name": name, "next": following, "time": int(last * 1e6)})
        return sorted(found, key=lambda one: (one["time"], one["producer"]))


class OwnedFolder:
    """A folder that this process owns, to change it."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder, self._journal = folder, journal
        self.name = repr(str(folder))

    # -- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Facts:
        """What is known of a topic before it is changed."""
        topic = self._topic(name)
        return {"topic": topic.name, "epoch": topic.epoch, "first": topic.first, "end": topic.end}

    def create(self, name: str, options: dict[str, Any]) -> Facts:
        """Make a topic, or find that it is there already with the same options."""
        options = durable(options)
        topic = self._find(name)
        made = topic is None
        if topic is None:
            ledger = self._journal.ledger
            # Above every epoch there ever was, as the broker gives them: milliseconds and a counter.
            epoch = max(ledger.epoch + 1, time.time_ns() // 1_000_000 << 11)
            topic = TopicState(ledger.next_topic, name, epoch, options)
            write(self._journal, topic_part(topic))
        else:
            for option in sorted({*options, *topic.options}):
                has, asked = topic.options.get(option), options.get(option)
                if _plain(has) != _plain(asked):
                    raise TopicConflict(name, option, has, asked)
        return {"topic": name, "epoch": topic.epoch, "options": topic.options, "made": made}

    def configure(self, name: str, given: dict[str, Any]) -> Facts:
        """Change options of a topic; None is back to the default."""
        topic = self._topic(name)
        merged = {name: value for name, value in (topic.options | given).items() if value is not None}
        topic = msgspec.structs.replace(topic, options=durable(TopicOptions.of(merged).given()))
        write(self._journal, topic_part(topic))
        return {"topic": topic.name, "epoch": topic.epoch, "options": topic.options}

    def delete(self, name: str) -> Facts:
        """Delete a topic, its records and the groups on it."""
        topic, journal = self._topic(name), self._journal
        groups = [group.name for group in journal.ledger.groups.values() if group.pattern == topic.name]
        files = self._sizes()
        write(journal, state(Kind.TOPIC_DELETED, topic=topic.id))
        journal.retain(time.time_ns() // 1000)
        left = sum(found.bytes for _, found in journal.history.ranges(topic.id))
        journal.close()  # what it may remove, it removes now at the latest
        freed = sum(size for file, size in files.items() if not file.exists())
        facts = {"topic": topic.name, "epoch": topic.epoch, "first": topic.first, "end": topic.end, "groups": groups}
        return facts | {"freed_bytes": freed, "left_bytes": left}

    def trim_place(self, name: str, start: Start, *, force: bool) -> Facts:
        """Where a topic would begin; `TopicHeld` where somebody holds what would go."""
        topic = self._topic(name)
        before = max(topic.first, self._offset(start, topic))
        held = holding.held_by(self._journal.ledger, self._journal.history).get(topic.id, before)
        if held < before and not force:
            raise TopicHeld(topic.name, before, dict.fromkeys(holding.holders(self._journal.ledger, name), held))
        return {"topic": topic.name, "epoch": topic.epoch, "before": topic.first, "first": before, "end": topic.end}

    def trim(self, name: str, before: int, *, force: bool) -> int:
        """Take away the records before an offset, as `trim_place` found it; where the topic begins then."""
        now = time.time_ns() // 1000
        write(self._journal, trim_part(self._topic(name).id, before, 0, Reason.ASKED, now))
        self._journal.retain(now)
        return before

    def _offset(self, start: Start, topic: TopicState) -> int:
        if start.offset is not None:
            if start.offset > topic.end:
                raise OffsetOutOfRange(topic.name, start.offset, topic.first, topic.end)
            return start.offset
        if start.time is not None:
            found = self._journal.history.offset_at(topic.id, start.time)
            return topic.end if found is None else found
        return topic.end if start.word == "latest" else topic.first

    # -- groups and subscriptions -------------------------------------------------------------------------------

    def groups(self) -> list[Facts]:
        """The groups there are: name, pattern, floor."""
        groups = self._journal.ledger.groups.values()
        return [{"group": one.name, "pattern": one.pattern, "floor": one.floor} for one in groups]

    def reset(self, name: str, pattern: str, start: Start) -> Facts:
        """Have a group go on somewhere else."""
        group = self._group(name, pattern)
        with Inspection(self._folder) as seen:
            place = place_of(start, group.pattern, seen, "to")
            topic = seen.topic(group.pattern)
        if topic is not None and place > topic.end:
            raise OffsetOutOfRange(topic.name, place, topic.first, topic.end)
        before = group.floor
        write(self._journal, group_part(GroupState(group.id, group.name, group.pattern, group.options, place)))
        return {"group": group.name, "pattern": group.pattern, "before": before, "floor": place}

    def forget_group(self, name: str, pattern: str) -> Facts:
        """Forget a group."""
        group = self._group(name, pattern)
        write(self._journal, state(Kind.GROUP_DELETED, topic=group.id))
        return {"group": group.name, "pattern": group.pattern, "floor": group.floor}

    def cursor(self, name: str) -> Facts:
        """A named subscription, before it is forgotten."""
        cursor = self._journal.ledger.cursors.get(name)
        if cursor is None:
            raise UnknownName(name)
        return {"name": cursor.name, "pattern": cursor.pattern, "place": cursor.place, "hold": cursor.hold}

    def forget(self, name: str) -> None:
        """Forget a named subscription."""
        write(self._journal, cursor_forgotten_part(name))

    # -- finding ------------------------------------------------------------------------------------------------

    def _group(self, name: str, pattern: str) -> GroupState:
        for group in self._journal.ledger.groups.values():
            if (group.name, group.pattern) == (name, pattern):
                return group
        raise unknown_group(name, pattern, self.name)

    def _find(self, name: str) -> TopicState | None:
        return next((topic for topic in self._journal.ledger.topics.values() if topic.name == name), None)

    def _topic(self, name: str) -> TopicState:
        topic = self._find(name)
        if topic is None:
            raise unknown_topic(name, self.name)
        return topic

    def _sizes(self) -> dict[Path, int]:
        """The files that may go, and their bytes."""
        sealed = [info for info in self._journal.manifest.segments if info.sealed]
        files = [self._folder / name for info in sealed for name in (info.name, info.index_name)]
        return {file: file.stat().st_size for file in files if file.exists()}


def durable(options: dict[str, Any]) -> dict[str, Any]:
    """The options, when a topic on disk can have them."""
    if options.get("durable") is False:
        raise InvalidOption("durable", False, "a topic that is not durable lives in a running broker only")
    return options


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _of_topic(topic: TopicState, held: Held) -> Facts:
    return {
        "topic": topic.name,
        "epoch": topic.epoch,
        "first": topic.first,
        "end": topic.end,
        "records": held.records,
        "bytes": held.bytes,
        "last_time": topic.last_time,
        "options": topic.options,
        "schema": topic.schema,
        "gone": [
            {"first": one.first, "end": one.end, "reason": Reason(one.reason).name.lower(), "time": one.time}
            for one in topic.gone
        ],
    }


def _of_group(group: GroupState, seen: Inspection) -> Facts:
    topic = seen.topic(group.pattern)
    return {
        "group": group.name,
        "pattern": group.pattern,
        "floor": group.floor,
        "end": seen.ledger.sequence if topic is None else topic.end,
        "lag": seen.lag_of(group),
        "settled_ahead": sum(end - first for first, end in group.settled),
        "failed": [
            {"place": place, "attempts": failure.attempts, "due": failure.due, "reason": failure.reason}
            for place, failure in sorted(group.failed.items())
        ],
        "options": group.options,
    }


def _of_cursor(cursor: CursorState, seen: Inspection) -> Facts:
    return {
        "name": cursor.name,
        "pattern": cursor.pattern,
        "epoch": cursor.epoch,
        "place": cursor.place,
        "lag": seen.cursor_lag(cursor),
        "hold": cursor.hold,
    }
