"""Parts of a broker put together without one: a timeline, logs on it, policies with an owner that takes notes."""

import asyncio
from typing import Any

from runnel.broker.read.cursor import Cursor, LogCursor
from runnel.broker.read.overflow import OVERFLOW_POLICIES, OverflowPolicy
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.log import Log, LogRun
from runnel.broker.topic.readers import TopicReaders
from runnel.broker.topic.timeline import Timeline
from runnel.core.batch import Slice
from runnel.core.options import Policy, PolicyKind, TopicOptions
from runnel.core.record import Record
from runnel.testing.clock import JumpingClock


def make_timeline(clock: JumpingClock | None = None) -> Timeline:
    """A timeline on a clock that stands still, without a loop: turns end when `_tick` is called."""
    return Timeline(clock or JumpingClock())


def make_log(name: str = "t", epoch: int = 1, **options: Any) -> Log:
    return Log(name, epoch, TopicOptions.of(options))


def put(timeline: Timeline, log: Log, *values: bytes) -> int:
    """Append; the first offset."""
    return timeline.append(log, values, None, sum(map(len, values)))


class Notes:
    """The owner of a flow, and all that a gate asks of a reader."""

    def __init__(self, label: str = "notes") -> None:
        self.label = label
        self.task: asyncio.Task[Any] | None = None
        self.handed_on: list[Record[bytes]] = []
        self.disconnected: list[int] = []
        self.room_made = self.woken = self.hurries = 0
        self.limits: list[bool] = []
        self.members = 1
        self.position = 0
        self.overflow: OverflowPolicy

    def dropped(self, slices: list[Slice]) -> None:
        self.handed_on += [record for part in slices for record in part.records]

    def disconnect(self, drops: int) -> None:
        self.disconnected.append(drops)

    def made_room(self) -> None:
        self.room_made += 1

    def wake(self) -> None:
        self.woken += 1

    def report(self) -> None: ...

    def hurry(self, count: int = 0, size: int = 0) -> None:
        self.hurries += 1

    def limit(self, *, limited: bool) -> None:
        self.limits.append(limited)

    def covers(self, topic: str) -> bool:
        return True

    def note(self, run: LogRun) -> bool:
        cursor = self.overflow.cursor
        assert isinstance(cursor, PatternCursor)
        return cursor.note(run)

    def join(self, log: Log) -> None: ...

    def part(self, log: Log) -> None: ...

    def settle(self) -> None:
        self.overflow.settle()

    def watch(self, log: Log, watch: Any) -> None: ...

    def end(self, error: Any = None) -> None: ...


def make_flow(
    cursor: Cursor, policy: Policy | str, buffer: int = 1024, buffer_bytes: int = 10**6, *, eager: bool = False
) -> tuple[Any, Notes]:
    """A flow of that policy, and its owner."""
    chosen, owner = Policy.of(policy), Notes()
    overflow = OVERFLOW_POLICIES[chosen.kind](cursor, chosen, buffer, buffer_bytes, owner, eager=eager)
    owner.overflow = overflow
    return overflow, owner


def on_log(timeline: Timeline, log: Log, position: int = 0) -> LogCursor:
    return LogCursor(timeline, log, position)


class Covered:
    """Some topics, as a cursor over them knows them."""

    def __init__(self, *logs: Log) -> None:
        self.logs = set(logs)

    def covers(self, log: Log) -> bool:
        return log in self.logs


class Noting(Notes):
    """A reader of several topics that does nothing but note their runs for a cursor."""

    def __init__(self, cursor: PatternCursor) -> None:
        super().__init__()
        self.overflow = OVERFLOW_POLICIES[PolicyKind.DROP_OLDEST](cursor, Policy(), 10**9, 10**9, self)


def over(timeline: Timeline, *logs: Log) -> PatternCursor:
    """A cursor over these topics, for a flow whose owner has to be `attached` to them."""
    return PatternCursor(timeline, Covered(*logs), 0)


def on_all(timeline: Timeline, *logs: Log) -> PatternCursor:
    """A cursor over these topics, which tell it of what is published."""
    cursor = over(timeline, *logs)
    for log in logs:
        attached(log, Noting(cursor), pattern=True)
    return cursor


def attached(log: Log, *readers: Notes, pattern: bool = False) -> TopicReaders:
    """The readers of `log`, with these."""
    log.readers = log.readers or TopicReaders()
    if pattern:
        log.readers.cover((*log.readers.patterns, *readers))
    else:
        for reader in readers:
            log.readers.attach(reader)
    return log.readers
