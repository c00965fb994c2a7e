"""The readers of a topic, and how their bounds hold back publishers.

Asked only when a publish leaves the fast path. A publisher that waits for a `block` subscriber queues its append here,
and the reader that makes room appends it. So order holds, and a cancelled publisher has written nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

from runnel.broker.topic.log import CHUNK, Log
from runnel.core.errors import RunnelError
from runnel.core.options import KEEP_BYTES, KEEP_COUNT, Policy
from runnel.core.publishing import Append

PUBLISH_TURN = 4096


class BlockedPublish(NamedTuple):
    """A publish that waits for room; the future gives its first offset. `go`: what to do instead of appending it."""

    entry: Append
    first: asyncio.Future[int]
    go: Callable[[], int] | None = None


class ProcessedWaiter(NamedTuple):
    """A `publish_and_wait` that waits until a place was processed."""

    place: int
    passed: asyncio.Future[None]

    def tell(self) -> None:
        """It was."""
        if not self.passed.done():
            self.passed.set_result(None)


class LaggingReader(Protocol):
    """The reader that a `LagLimit` belongs to."""

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The one task that can make room, where there is only one."""

    @property
    def label(self) -> str:
        """How errors call it."""

    @property
    def members(self) -> int:
        """How many tasks read through it."""


class LagLimit(Protocol):
    """How far one reader may lag, as publishers need to know it. `read.overflow` has one class for each policy."""

    strict: ClassVar[bool]

    @property
    def owner(self) -> LaggingReader:
        """Whose limit it is."""

    @property
    def policy(self) -> Policy:
        """What the reader asked for."""

    @property
    def limited(self) -> bool:
        """Whether publishers must ask."""

    @property
    def buffer(self) -> int:
        """Records that may be ahead of the reader."""

    @property
    def buffer_bytes(self) -> int:
        """Bytes that may be ahead of the reader."""

    @property
    def history(self) -> int:
        """Records that were there at the start, and come on top."""

    @property
    def history_bytes(self) -> int:
        """Their bytes."""

    def pending(self) -> int:
        """How many records lie ahead of the reader."""

    def room(self) -> int:
        """How many small records may come before it must be asked again."""

    def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """Whether publishers may go on with `count` records of `size` bytes, behind those that are on their way."""

    def appended(self) -> None:
        """Look at the bounds right after an append."""

    def settle(self) -> None:
        """Drop what exceeds the bounds now."""


class TopicReader(Protocol):
    """A reader of logs: a subscription, or a group."""

    @property
    def overflow(self) -> LagLimit:
        """How far it may lag."""

    @property
    def label(self) -> str:
        """How errors and statistics call it."""

    @property
    def members(self) -> int:
        """How many tasks read through it."""

    @property
    def is_pattern(self) -> bool:
        """Whether it reads in the order of sequences."""

    def wake(self) -> None:
        """Something is about to be appended."""

    def join(self, log: Log) -> None:
        """A topic was made that its pattern covers."""

    def part(self, log: Log) -> None:
        """A topic of its pattern was deleted."""

    def settle(self) -> None:
        """Note what lies ahead before records go."""

    def watch(self, log: Log, watch: ProcessedWaiter) -> None:
        """Tell when the record at an offset of `log` was processed."""

    def end(self, error: RunnelError | None = None) -> None:
        """No more records."""


class TopicReaders:
    """The readers of one log: those on this topic alone, and those whose pattern covers it."""

    __slots__ = ("blocked", "demanding", "limited", "parked", "patterns", "readers", "turn")

    def __init__(self) -> None:
        self.readers: dict[TopicReader, None] = {}
        self.patterns: tuple[TopicReader, ...] = ()
        self.limited: tuple[LagLimit, ...] = ()  # those that publishers have to ask
        self.demanding: tuple[LagLimit, ...] = ()  # those that may want more kept than is kept anyway
        self.parked: dict[TopicReader, None] = {}
        self.blocked: deque[BlockedPublish] | None = None
        self.turn = PUBLISH_TURN  # records after which a publisher lets the readers run, so that none has to drop

    def attach(self, reader: TopicReader, *, pattern: bool) -> None:
        """A reader came."""
        if pattern:
            self.patterns += (reader,)
        else:
            self.readers[reader] = None
        overflow = reader.overflow
        self.turn = max(1, min(self.turn, overflow.buffer // 2))
        if overflow.limited:
            self.limited += (overflow,)
        if overflow.history or overflow.buffer > KEEP_COUNT or overflow.buffer_bytes > KEEP_BYTES:
            self.demanding += (overflow,)

    def detach(self, reader: TopicReader) -> None:
        """A reader left, and with it what it asked for."""
        self.readers.pop(reader, None)
        self.parked.pop(reader, None)
        overflow = reader.overflow
        if reader in self.patterns:
            self.patterns = tuple(other for other in self.patterns if other is not reader)
        if overflow.limited:
            self.limited = tuple(other for other in self.limited if other is not overflow)
        if overflow in self.demanding:
            self.demanding = tuple(other for other in self.demanding if other is not overflow)
        if overflow.buffer // 2 <= self.turn < KEEP_COUNT // 2:
            self.turn = min((max(1, other.overflow.buffer // 2) for other in self), default=PUBLISH_TURN)

    def __iter__(self) -> Iterator[TopicReader]:
        yield from self.readers
        yield from self.patterns

    def wake(self) -> None:
        """Wake all parked readers: records are about to be appended."""
        if self.parked:
            parked, self.parked = self.parked, {}
            for reader in parked:
                reader.wake()
        for reader in self.patterns:
            reader.wake()

    def room(self) -> int:
        """How many small records may be appended before the bounds are looked at again."""
        room = min(CHUNK, self.turn)
        for overflow in self.limited:
            room = min(room, overflow.room())
        return max(0, room)

    def needed(self) -> int:
        """How many of the newest records some reader may still want."""
        return max(
            (min(overflow.buffer + overflow.history, overflow.pending()) for overflow in self.demanding), default=0
        )

    def needed_bytes(self) -> int:
        """How many bytes of the newest records some reader may still want."""
        return max((overflow.buffer_bytes + overflow.history_bytes for overflow in self.demanding), default=0)

    def refusing(self, log: Log, entry: Append) -> LagLimit | None:
        """A reader that has no room for `entry`, and what is on its way to `log` before it; None: go ahead."""
        count, size, way = len(entry.values), entry.size, log.on_the_way()
        return next((overflow for overflow in self.limited if not overflow.fits(count, size, *way)), None)

    def appended(self) -> None:
        """Let every bounded reader deal with what was appended."""
        for overflow in self.limited:
            overflow.appended()

    def release(self, log: Log, append: Callable[[Append], int]) -> None:
        """Room was made: publish what waited, first come first served, while it fits."""
        while self.blocked:
            entry, first, go = self.blocked[0]
            if not first.done() and self.refusing(log, entry) is not None:
                return
            self.blocked.popleft()
            if first.done():  # it was cancelled or ran out of time, and has written nothing
                continue
            try:
                offset, wrong = append(entry) if go is None else go(), None
            except Exception as error:  # goes to the publisher, not to the reader that made room
                offset, wrong = 0, error
            if first.done():
                continue  # cancelled by a callback of the append
            if wrong is None:
                first.set_result(offset)
            else:
                first.set_exception(wrong)


class AttachedReaders:
    """Every open subscription and group of a broker, in the order in which they came."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: dict[TopicReader, None] = {}

    def __iter__(self) -> Iterator[TopicReader]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, reader: object) -> bool:
        return reader in self._all

    def add(self, reader: TopicReader) -> None:
        """A reader is told of what is published from now on."""
        self._all[reader] = None

    def remove(self, reader: TopicReader) -> None:
        """A reader is told of nothing more."""
        del self._all[reader]

    def settle(self) -> None:
        """Have every reader of a pattern note what lies ahead of it, before records go."""
        for reader in self._all:
            reader.settle()

    def wake_patterns(self) -> None:
        """Have the readers look again that read several topics in the order of sequences."""
        for reader in self._all:
            if reader.is_pattern:
                reader.wake()
