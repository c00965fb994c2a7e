"""The target of a command, a folder or a server: one implementation of each command serves both.

Which one is in `server_address`. Targets return facts: the plain dicts that `--json` prints.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from runnel.cli.errors import CommandError, unknown_group, unknown_topic
from runnel.cli.folder import add_data, folder_of, open_journal, write_parts
from runnel.cli.server_address import DEFAULT_SERVER, RULE, add_token, location_of, server_of
from runnel.cli.start import Start, api_start, resolve_start, utc_time
from runnel.core.deduplication import producer_id
from runnel.core.errors import (
    InvalidOption,
    NotPrimary,
    OffsetOutOfRange,
    StandbyMissing,
    Superseded,
    TopicConflict,
    TopicHeld,
    UnknownName,
)
from runnel.core.markers import MarkerValue
from runnel.core.options import TopicOptions
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.record import Gap, Record
from runnel.core.statistics import TopicArchiveStatistics
from runnel.core.topic_bounds import estimated_bytes
from runnel.journal.format.entry import PartKind, state_part
from runnel.journal.format.ledger import (
    CursorState,
    GroupState,
    TopicState,
    cursor_forgotten_part,
    group_part,
    topic_part,
    trim_part,
)
from runnel.journal.format.removed_offsets import RemovalReason, count_skipped, trimmed_below
from runnel.journal.read.inspection import Inspection, StoredSize, owner_of
from runnel.journal.write import retention
from runnel.journal.write.journal import Journal
from runnel.opening.opening import visit

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.core.statistics import Statistics, TopicStatistics


def add_target(parser: argparse.ArgumentParser, *, bare: bool = True) -> None:
    """`--server URL`, `--data DIR`, and where `bare` DIR alone."""
    parser.add_argument("--server", metavar="URL", help="a server instead of a folder (default: $RUNNEL_SERVER)")
    add_token(parser)
    add_data(parser, bare=bare, refuse_server=False)
    parser.epilog = f"{parser.epilog or ''}\n{RULE}"


@contextmanager
def open_to_inspect(chosen: argparse.Namespace, *, at_rest: bool = False) -> Iterator[FolderTarget | ServerTarget]:
    """The target, to look at; `at_rest`: a folder as it lies on disk, also while a process has it open."""
    url = server_of(chosen) if at_rest else _running(chosen)
    if url is not None:
        with connect(url) as server:
            yield server
        return
    with Inspection(folder_of(chosen)) as seen:
        yield FolderTarget(seen)


@contextmanager
def open_to_change(chosen: argparse.Namespace, *, create: bool = False) -> Iterator[OwnedFolder | ServerTarget]:
    """The target, to change it."""
    url = _running(chosen) if not create or server_of(chosen) is not None else _shared_by_owner(folder_of(chosen))
    if url is not None:
        with connect(url) as server:
            yield server
        return
    folder = folder_of(chosen)
    with open_journal(folder, create=create) as journal:
        yield OwnedFolder(folder, journal)


def _running(chosen: argparse.Namespace) -> str | None:
    """The running target, as a location to open: a server, or the process that shares the folder; None: no process."""
    url = server_of(chosen)
    if url is not None:
        return url
    if not getattr(chosen, "folder", None) and (there := location_of(chosen)).startswith(DEFAULT_SERVER):
        return there
    return _shared_by_owner(folder_of(chosen))


def _shared_by_owner(folder: Path) -> str | None:
    """The folder, as a location to open, if its owner shares it."""
    owner = owner_of(folder)
    return str(folder) if owner is not None and owner.shares else None


def find_group(target: OwnedFolder | ServerTarget, name: str, pattern: str | None) -> str:
    """The topic or pattern of the group: the given one, or the only one that a group of that name reads."""
    if pattern is not None:
        check_pattern(pattern)
    found = [one["pattern"] for one in target.groups() if one["group"] == name and pattern in (None, one["pattern"])]
    if len(found) == 1:
        return str(found[0])
    if found:
        several = ", ".join(map(repr, found))
        raise CommandError("usage_error", f"there are groups {name!r} on {several}: say which with --topic", 2)
    raise unknown_group(name, pattern, target.name)


# -- A folder --------------------------------------------------------------------------------------------


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

    def options(self, name: str) -> Facts:
        """The options of a topic that are not at their default."""
        return dict(self.topic(name)["options"])

    def groups(self) -> list[Facts]:
        """Every group, and its progress."""
        return [_of_group(group, self._seen) for group in self._seen.groups]

    def cursors(self) -> list[Facts]:
        """Every named subscription."""
        return [_of_cursor(cursor, self._seen) for cursor in self._seen.cursors]

    def marks(self) -> dict[str, MarkerValue]:
        """Every mark."""
        return dict(sorted(self._seen.ledger.marks.items()))

    def producers(self, names: list[str]) -> list[Facts]:
        """Producers that are not forgotten, the one that published last at the end; those of `names`, if there are."""
        found, now, producers = [], time.time(), self._seen.ledger.producers
        named = {producer_id(name): name for name in names}
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
        """The facts about a topic before it is changed."""
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
            write_parts(self._journal, topic_part(topic))
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
        write_parts(self._journal, topic_part(topic))
        return {"topic": topic.name, "epoch": topic.epoch, "options": topic.options}

    def delete(self, name: str) -> Facts:
        """Delete a topic, its records and the groups on it."""
        topic, journal = self._topic(name), self._journal
        groups = [group.name for group in journal.ledger.groups.values() if group.pattern == topic.name]
        files = self._sizes()
        write_parts(journal, state_part(PartKind.TOPIC_DELETED, topic=topic.id))
        journal.retain(time.time_ns() // 1000)
        left = sum(found.bytes for _, found in journal.history.ranges(topic.id))
        journal.close()  # what it may remove, it removes now at the latest
        freed = sum(size for file, size in files.items() if not file.exists())
        facts = {"topic": topic.name, "epoch": topic.epoch, "first": topic.first, "end": topic.end, "groups": groups}
        return facts | {"freed_bytes": freed, "left_bytes": left}

    def trim_place(self, name: str, start: Start, *, force: bool) -> Facts:
        """Where a topic would begin; `TopicHeld` if a subscription holds records that would be removed."""
        topic = self._topic(name)
        before = max(topic.first, self._offset(start, topic))
        held = retention.held_offsets(self._journal.ledger, self._journal.history).get(topic.id, before)
        if held < before and not force:
            raise TopicHeld(topic.name, before, dict.fromkeys(retention.holder_names(self._journal.ledger, name), held))
        return {"topic": topic.name, "epoch": topic.epoch, "before": topic.first, "first": before, "end": topic.end}

    def trim(self, name: str, before: int, *, force: bool) -> int:
        """Remove the records before an offset, as `trim_place` found it; where the topic begins then."""
        now = time.time_ns() // 1000
        write_parts(self._journal, trim_part(self._topic(name).id, before, 0, RemovalReason.ASKED, now))
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
        """Move a group to another position."""
        group = self._group(name, pattern)
        with Inspection(self._folder) as seen:
            place = resolve_start(start, group.pattern, seen, "to")
            topic = seen.topic(group.pattern)
        if topic is not None and place > topic.end:
            raise OffsetOutOfRange(topic.name, place, topic.first, topic.end)
        before = group.floor
        write_parts(self._journal, group_part(GroupState(group.id, group.name, group.pattern, group.options, place)))
        return {"group": group.name, "pattern": group.pattern, "before": before, "floor": place}

    def forget_group(self, name: str, pattern: str) -> Facts:
        """Forget a group."""
        group = self._group(name, pattern)
        write_parts(self._journal, state_part(PartKind.GROUP_DELETED, topic=group.id))
        return {"group": group.name, "pattern": group.pattern, "floor": group.floor}

    def cursor(self, name: str) -> Facts:
        """A named subscription, before it is forgotten."""
        cursor = self._journal.ledger.cursors.get(name)
        if cursor is None:
            raise UnknownName(name)
        return {"name": cursor.name, "pattern": cursor.pattern, "place": cursor.place, "hold": cursor.hold}

    def forget(self, name: str) -> None:
        """Forget a named subscription."""
        write_parts(self._journal, cursor_forgotten_part(name))

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


def _of_topic(topic: TopicState, held: StoredSize) -> Facts:
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
            {"first": one.first, "end": one.end, "reason": RemovalReason(one.reason).name.lower(), "time": one.time}
            for one in topic.gone
        ],
    } | _archive_facts(topic)


def _archive_facts(topic: TopicState) -> Facts:
    """The progress of the archive of a topic that is kept until archived."""
    if topic.options.get("retention_until") is None:
        return {}
    given = topic.end - count_skipped(topic.gone, 0, topic.end)
    waiting = estimated_bytes(topic.bytes, given, max(0, topic.end - max(topic.confirmed, topic.first)))
    archive = TopicArchiveStatistics(topic.confirmed, topic.first, trimmed_below(topic.gone), waiting)
    return {"archive": msgspec.to_builtins(archive)}


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


# -- A server --------------------------------------------------------------------------------------------
# Facts have the names that those of a folder have, where a server knows them. Facts that only the folder has are
# refused, with the reason.


T = TypeVar("T")
PAGE, PAGE_BYTES = 1_000, 4 << 20  # of one answer of the server


@contextmanager
def connect(url: str, *, to_look: bool = False) -> Iterator[ServerTarget]:
    """The server, while the block lasts. It is reached at once or not at all. `to_look`: see `entered_to_look`."""
    with asyncio.Runner() as runner:
        broker = runner.run(entered_to_look(url) if to_look else _enter(visit(url)))
        try:
            yield ServerTarget(url, broker, runner)
        finally:
            runner.run(_leave(broker))


async def _enter(broker: Broker) -> Broker:
    return await broker.__aenter__()


async def entered_to_look(where: str) -> Broker:
    """A broker to look at, entered: also a server that refuses clients, a standby or a primary without its standby."""
    try:
        return await _enter(visit(where, stays=True))
    except (NotPrimary, StandbyMissing, Superseded):
        return await _enter(visit(where, operator=True))


async def _info(broker: Broker) -> Facts:
    """The server's description of itself; empty for a broker without a server."""
    info = getattr(broker, "info", None)
    return {} if info is None else dict(await info())


async def _leave(broker: Broker) -> None:
    await broker.__aexit__(None, None, None)


class ServerTarget:
    """A server, to look at and to change; its other clients see a change at once."""

    def __init__(self, url: str, broker: Broker, runner: asyncio.Runner) -> None:
        self.name = url
        self._broker, self._runner = broker, runner

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def statistics(self, pattern: str | None = None, *, limit: int | None = None) -> Statistics:
        """The counters and contents of the server."""
        return self._broker.statistics(pattern, limit=limit)

    def info(self) -> Facts:
        """The server's facts, and its counters since it started."""
        seen, said = self.statistics(), self._do(_info(self._broker))
        sums = ("published", "published_bytes", "delivered", "dropped")
        held = {"topics": len(seen.topics), "groups": len(seen.groups)}
        part = {} if seen.replication is None else {"replication": msgspec.to_builtins(seen.replication)}
        return {"server": self.name} | said | held | {name: getattr(seen, name) for name in sums} | part

    # -- topics -------------------------------------------------------------------------------------------------

    def topics(self) -> list[Facts]:
        """Every topic, and what it holds."""
        return [_topic_facts(one) for _, one in sorted(self.statistics().topics.items())]

    def topic(self, name: str) -> Facts:
        """One topic, with the groups and the subscriptions on it."""
        seen = self.statistics(name)
        if name not in seen.topics:
            raise unknown_topic(name, self.name)
        return _topic_facts(seen.topics[name]) | {
            "groups": [one.name for one in seen.groups if one.pattern == name],
            "cursors": [one.name for one in seen.subscriptions if one.pattern == name and one.name],
        }

    def options(self, name: str) -> Facts:
        """The options of a topic that are not at their default."""
        for one in self._do(self._broker.backend.sample()).topics:
            if one.figures.name == name:
                return dict(one.options.given())
        raise unknown_topic(name, self.name)

    def create(self, name: str, options: Facts) -> Facts:
        """Make a topic, or find that it is there already with the same options."""
        made = name not in self._do(self._broker.topics())
        self._do(self._broker.topic(name, **options).declare())
        return {"topic": name, "epoch": self.topic(name)["epoch"], "options": options, "made": made}

    def configure(self, name: str, given: Facts) -> Facts:
        """Change options of a topic; None is back to the default."""
        found = self.topic(name)
        return {
            "topic": name,
            "epoch": found["epoch"],
            "options": self._do(self._broker.topic(name).configure(**given)),
        }

    def delete(self, name: str) -> Facts:
        """Delete a topic, its records and the groups on it."""
        found = self.topic(name)
        self._do(self._broker.delete(name))
        return {one: found[one] for one in ("topic", "epoch", "first", "end", "groups")}

    def trim_place(self, name: str, start: Start, *, force: bool) -> Facts:
        """Where a topic would begin; for a time, only the server can say."""
        found = self.topic(name)
        first, end = found["first"], found["end"]
        if start.offset is not None and start.offset > end:
            raise OffsetOutOfRange(name, start.offset, first, end)
        before: int | datetime = end if start.word == "latest" else first
        if start.offset is not None:
            before = max(first, start.offset)
        elif start.time is not None:
            before = utc_time(start.time)
        return {"topic": name, "epoch": found["epoch"], "before": first, "first": before, "end": end}

    def trim(self, name: str, before: int | datetime, *, force: bool) -> int:
        """Remove the records before an offset or a time; where the topic begins then."""
        return self._do(self._broker.topic(name).trim(before, force=force))

    def read(self, pattern: str, start: Start) -> Iterator[Record[bytes] | Gap]:
        """The records that a topic or pattern has now, from a start on, in the order of the broker, and gaps."""
        names = [one["topic"] for one in self.topics() if matches(check_pattern(pattern), one["topic"])]
        if not is_pattern(pattern) and not names:
            raise unknown_topic(pattern, self.name)
        yield from merge(*(self._read_topic(name, start) for name in names), key=_sequence)

    def _read_topic(self, name: str, start: Start) -> Iterator[Record[bytes] | Gap]:
        here, end = api_start(start), None
        while True:
            page = self._do(self._broker.backend.history(name, here, PAGE, PAGE_BYTES))
            end = page.end if end is None else end  # records published while it reads are not read
            if page.gap is not None:
                yield page.gap
            yield from (record for record in page.records if record.offset < end)
            if page.next >= end:
                return
            here = page.next

    # -- groups and subscriptions -------------------------------------------------------------------------------

    def groups(self) -> list[Facts]:
        """Every group, its progress, and its members."""
        found = [_renamed(one, name="group") for one in self.statistics(limit=0).groups]
        return [one | {"state": "paused" if one["paused"] else "active"} for one in found]

    def reset(self, name: str, pattern: str, start: Start) -> Facts:
        """Move a group to another position."""
        if start.offset is not None and is_pattern(pattern):
            raise InvalidOption("to", start.offset, f"offsets differ between the topics of {pattern!r}; give a time")
        self._group(name, pattern)
        self._do(self._steer(name, pattern, "reset", api_start(start)))
        return {"group": name, "pattern": pattern, "lag": self._group(name, pattern)["lag"]}

    def pause(self, name: str, pattern: str) -> None:
        """Stop the deliveries of a group."""
        self._do(self._steer(name, pattern, "pause"))

    def resume(self, name: str, pattern: str) -> None:
        """Resume a paused group."""
        self._do(self._steer(name, pattern, "resume"))

    async def _steer(self, name: str, pattern: str, verb: str, *start: object) -> None:
        getattr(self._broker.group(name, pattern), verb)(*start)

    def forget_group(self, name: str, pattern: str) -> Facts:
        """Forget a group that has no members."""
        lag = self._group(name, pattern)["lag"]
        self._do(self._broker.forget_group(name, pattern))
        return {"group": name, "pattern": pattern, "lag": lag}

    def _group(self, name: str, pattern: str) -> Facts:
        for one in self.groups():
            if (one["group"], one["pattern"]) == (name, pattern):
                return one
        raise unknown_group(name, pattern, self.name)

    def cursors(self) -> list[Facts]:
        """The named subscriptions: those that are open now, and where the others stand."""
        seen = self.statistics()
        opened: list[Facts] = [
            {"name": one.name, "pattern": one.pattern, "lag": one.lag, "delivered": one.delivered}
            for one in seen.subscriptions
            if one.name
        ]
        return opened + [msgspec.to_builtins(one) for one in seen.cursors]

    def cursor(self, name: str) -> Facts:
        """The facts about a named subscription that is to be forgotten; if there is none, its name."""
        found = next((one for one in self.statistics(limit=0).cursors if one.name == name), None)
        return {"name": name} if found is None else msgspec.to_builtins(found)

    def forget(self, name: str) -> None:
        """Forget a named subscription that is closed."""
        self._do(self._broker.forget(name))

    def marks(self) -> dict[str, MarkerValue]:
        """Every mark."""
        return self._do(self._broker.marks())

    def producers(self, names: list[str]) -> list[Facts]:
        """The next numbers of the named producers; only the folder can list them."""
        return [{"producer": one.id, "name": one.name, "next": one.next} for one in map(self._broker.producer, names)]


def _sequence(found: Record[bytes] | Gap) -> int:
    """Where a record stands among those of other topics; a gap comes before them."""
    return found.sequence if isinstance(found, Record) else -1


def _renamed(found: Any, **names: str) -> Facts:
    """A struct's fields as facts, some under another name."""
    return {names.get(name, name): value for name, value in msgspec.to_builtins(found).items()}


def _topic_facts(one: TopicStatistics) -> Facts:
    return {
        "topic": one.name,
        "epoch": one.epoch,
        "first": one.first,
        "end": one.end,
        "bytes": one.kept_bytes,
        "published": one.published,
        "subscribers": one.subscribers,
    } | ({} if one.archive is None else {"archive": msgspec.to_builtins(one.archive)})
