"""Parts of a broker put together without one: a timeline, logs on it, policies with an owner that takes notes."""

import asyncio
from collections.abc import Callable
from typing import Any

from runnel.broker.read.cursor import Cursor, LogCursor
from runnel.broker.read.overflow import OVERFLOW_POLICIES, OverflowPolicy
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import TopicReaders
from runnel.broker.topic.timeline import Timeline
from runnel.core.batch import Slice
from runnel.core.options import Policy, TopicOptions
from runnel.core.record import Record
from runnel.testing.clock import JumpingClock


def make_timeline(clock: JumpingClock | None = None, before_compacting: Callable[[], None] = lambda: None) -> Timeline:
    """A timeline on a clock that stands still, without a loop: turns end when `_tick` is called."""
    return Timeline(clock or JumpingClock(), before_compacting)


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
        self.room_made = self.woken = 0
        self.members = 1
        self.is_pattern = False
        self.overflow: OverflowPolicy

    def dropped(self, slices: list[Slice]) -> None:
        self.handed_on += [record for part in slices for record in part.records]

    def disconnect(self, drops: int) -> None:
        self.disconnected.append(drops)

    def made_room(self) -> None:
        self.room_made += 1

    def wake(self) -> None:
        self.woken += 1

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


def on_all(timeline: Timeline, *logs: Log, position: int = 0) -> PatternCursor:
    return PatternCursor(timeline, set(logs), position)


def attached(log: Log, *readers: Notes, pattern: bool = False) -> TopicReaders:
    """The gate of `log`, with these readers."""
    log.topic_readers = log.topic_readers or TopicReaders()
    for reader in readers:
        log.topic_readers.attach(reader, pattern=pattern)
    return log.topic_readers
