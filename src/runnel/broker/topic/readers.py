"""The readers of a topic, and how their bounds hold back publishers.

Asked only when a publish leaves the fast path. A publisher that waits for a `block` subscriber queues its append here,
and the reader that makes room appends it. So order holds, and a cancelled publisher has written nothing.

Readers of patterns are not attached to topics. A topic looks them up by its name when it is published to and patterns
came or went since it last did; so a subscription to a pattern costs its tokens, however many topics there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol

from runnel.broker.topic.log import CHUNK, SMALL, Log, LogRun
from runnel.core.errors import RunnelError
from runnel.core.options import KEEP_BYTES, KEEP_COUNT, Policy
from runnel.core.pattern import PatternTable
from runnel.core.publishing import Append

PUBLISH_TURN = 4096  # records after which an awaited publish yields to the event loop
ENTER_TURN = 64  # subscriptions after which entering one yields to the event loop
UNKNOWN = -1  # up to where a reader has room, before that was looked at
SWEEP = 8  # topics that forget the readers of patterns they looked up, whenever such a reader leaves


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
    """The lag that one reader may have, as publishers check it. `read.overflow` has one class for each policy."""

    strict: ClassVar[bool]
    until: float  # the place up to which it cannot overflow; inf: publishers need not wait for it
    # It has room as long as neither the end of the log nor the bytes ever appended to it exceed these.
    clear_end: int
    clear_bytes: int

    @property
    def owner(self) -> LaggingReader:
        """The reader that the limit belongs to."""

    @property
    def policy(self) -> Policy:
        """The options that the reader gave."""

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
    def progress(self) -> int:
        """Grows whenever it takes records, and where they count until it is done with them, whenever it is."""

    def needed(self) -> int:
        """How many of the newest records it may still want."""

    def needed_bytes(self) -> int:
        """How many bytes of the newest records it may still want."""

    def room(self) -> int:
        """How many small records may come before it must be checked again."""

    def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """Whether publishers may continue with `count` records of `size` bytes, behind the pending ones."""

    def spare(self) -> int:
        """At least how many more small records it can take without a drop; negative: it has dropped some."""

    def spares(self, count: int, size: int) -> bool:
        """Whether it can take so much without a drop, or has nothing else ahead."""

    def caught_up(self) -> bool:
        """The reader has read everything: awaited publishes give way to it; whether they did not before."""

    def appended(self) -> None:
        """Look at the bounds right after an append."""

    def pressed(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> None:
        """A publisher waits until so much fits: the reader must report when it has made that much room."""

    def settle(self) -> None:
        """Drop what exceeds the bounds now."""


class TopicReader(Protocol):
    """A reader of logs: a subscription, or a group."""

    @property
    def overflow(self) -> LagLimit:
        """The lag that it may have."""

    @property
    def label(self) -> str:
        """How errors and statistics call it."""

    @property
    def members(self) -> int:
        """How many tasks read through it."""

    def wake(self) -> None:
        """Something is about to be appended."""

    def covers(self, topic: str) -> bool:
        """Whether it reads a topic that its pattern matches."""

    def note(self, run: LogRun) -> bool:
        """A run of a topic that its pattern covers begins; whether it has noted so many that it should `settle`."""

    def join(self, log: Log) -> None:
        """A topic was made that its pattern covers."""

    def part(self, log: Log) -> None:
        """A topic of its pattern was deleted."""

    def settle(self) -> None:
        """Apply the bounds to the noted records."""

    def watch(self, log: Log, watch: ProcessedWaiter) -> None:
        """Tell when the record at an offset of `log` was processed."""

    def end(self, error: RunnelError | None = None) -> None:
        """No more records."""


class TopicReaders:
    """The readers of one log: those on this topic alone, and those whose pattern covers it."""

    __slots__ = (
        "_clear_bytes",
        "_clear_end",
        "_crowded",
        "blocked",
        "demanding",
        "limited",
        "line",
        "parked",
        "patterns",
        "readers",
        "until",
        "waiting",
    )

    def __init__(self) -> None:
        self.readers: dict[TopicReader, None] = {}
        self.patterns: tuple[TopicReader, ...] = ()  # as found when they were last looked up
        self.limited: dict[LagLimit, None] = {}  # those that publishers have to ask
        self.demanding: dict[LagLimit, None] = {}  # those that may want more kept than is kept anyway
        self.parked: dict[TopicReader, None] = {}
        self.blocked: deque[BlockedPublish] | None = None
        self.line: asyncio.Lock | None = None  # awaited publishes that give way to readers, in their order
        self.waiting = 0  # how many those are
        self._clear_end = self._clear_bytes = 0  # all that are limited have room up to here
        self._crowded: list[TopicReader] = []  # readers of patterns that have noted many runs
        self.until: float = UNKNOWN  # the offset up to which no reader of this topic alone can overflow

    def attach(self, reader: TopicReader) -> None:
        """A reader of this topic alone came."""
        self.readers[reader] = None
        self._add(reader.overflow)
        self.until = UNKNOWN

    def detach(self, reader: TopicReader) -> bool:
        """A reader of this topic alone left, and with it what it asked for; whether it may have wanted more kept."""
        self.readers.pop(reader, None)
        self.parked.pop(reader, None)
        return self._remove(reader.overflow)

    def cover(self, patterns: tuple[TopicReader, ...]) -> bool:
        """These are the readers whose patterns cover the topic now; whether one before may have wanted more kept."""
        demanded = False
        for reader in self.patterns:
            demanded = self._remove(reader.overflow) or demanded
        self.patterns = patterns
        for reader in patterns:
            self._add(reader.overflow)
        return demanded

    def _add(self, overflow: LagLimit) -> None:
        if overflow.limited:
            self.limit(overflow, limited=True)
        if overflow.history or overflow.buffer > KEEP_COUNT or overflow.buffer_bytes > KEEP_BYTES:
            self.demanding[overflow] = None

    def limit(self, overflow: LagLimit, *, limited: bool) -> None:
        """Have publishers ask `overflow`, or not any more."""
        self._clear_end = 0
        if limited:
            self.limited[overflow] = None
        else:
            self.limited.pop(overflow, None)

    def _remove(self, overflow: LagLimit) -> bool:
        self.limited.pop(overflow, None)
        is_demanding = overflow in self.demanding
        self.demanding.pop(overflow, None)
        return is_demanding

    def __iter__(self) -> Iterator[TopicReader]:
        yield from self.readers
        yield from self.patterns

    def park(self, reader: TopicReader) -> None:
        """`reader` has read everything, and is to be woken; so it keeps up, whatever it did before."""
        self.parked[reader] = None
        if reader.overflow.caught_up():
            self.until = UNKNOWN

    def wake(self) -> None:
        """Wake all readers that may wait: records are about to be appended, or became visible."""
        if self.parked:
            parked, self.parked = self.parked, {}
            for reader in parked:
                reader.wake()
        for reader in self.patterns:
            reader.wake()

    def note(self, run: LogRun) -> None:
        """A run begins: have the readers of patterns note it."""
        self._crowded += [reader for reader in self.patterns if reader.note(run)]

    def room(self, log: Log, sequence: int) -> int:
        """How many small records may be appended to `log`, whose next one has `sequence`, before the next look."""
        if self.waiting:
            return 0  # none of them shall be overtaken
        end = log.end
        room = self.until - end
        if room < 0 or self.patterns:
            room = self._runway(end, sequence)
        if self.limited and not self._is_clear(log, CHUNK, CHUNK * SMALL):
            for overflow in self.limited:
                room = min(room, overflow.room())
        return CHUNK if room > CHUNK else max(0, int(room))

    def needed(self) -> int:
        """How many of the newest records some reader may still want."""
        return max((overflow.needed() for overflow in self.demanding), default=0)

    def needed_bytes(self) -> int:
        """How many bytes of the newest records some reader may still want."""
        return max((overflow.needed_bytes() for overflow in self.demanding), default=0)

    def refusing(self, log: Log, entry: Append) -> LagLimit | None:
        """A reader that has no room for `entry`, and the pending records of `log` before it; None: none."""
        count, size, way = len(entry.values), entry.size, log.on_the_way()
        if self._is_clear(log, count + way[0], size + way[1]):
            return None
        for overflow in self.limited:
            if not overflow.fits(count, size, *way):
                return overflow
        self._clear_end = min((overflow.clear_end for overflow in self.limited), default=0)
        self._clear_bytes = min((overflow.clear_bytes for overflow in self.limited), default=0)
        return None

    def _is_clear(self, log: Log, count: int, size: int) -> bool:
        """Whether all had room for so much at the last check: thousands of groups need not be checked again."""
        return log.end + count <= self._clear_end and log.count_bytes() + size <= self._clear_bytes

    def appended(self) -> None:
        """Let every bounded reader apply its policy to the appended records."""
        if self._crowded:
            crowded, self._crowded = self._crowded, []
            for reader in crowded:
                reader.settle()
        if self.limited and not self._clear_end:  # a reader with room does nothing
            for overflow in tuple(self.limited):
                overflow.appended()

    def release(self, log: Log, append: Callable[[Append], int]) -> None:
        """Room was made: publish what waited, first come first served, while it fits."""
        while self.blocked:
            entry, first, go = self.blocked[0]
            if not first.done() and (refusing := self.refusing(log, entry)) is not None:
                refusing.pressed(len(entry.values), entry.size, *log.on_the_way())
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

    # -- readers that keep up -----------------------------------------------------------------------------------

    def hurried(self, end: int, sequence: int, count: int, size: int) -> list[LagLimit]:
        """The readers that keep up, and would drop records if so much were published before they run again."""
        units = max(count, size // SMALL + 1)
        hurried: list[LagLimit] = []
        if end + units > self.until:
            self.until = inf
            for reader in self.readers:
                self.until = min(self.until, _look(reader.overflow, end, count, size, hurried))
        for reader in self.patterns:
            if sequence + units > reader.overflow.until:
                _look(reader.overflow, sequence, count, size, hurried)
        return hurried

    def _runway(self, end: int, sequence: int) -> float:
        """How many small records may come behind this place before a reader that keeps up could drop some."""
        if end > self.until:
            self.until = min((_measured(reader.overflow, end) for reader in self.readers), default=inf)
        runway = self.until - end
        for reader in self.patterns:
            overflow = reader.overflow
            until = overflow.until if overflow.until >= sequence else _measured(overflow, sequence)
            runway = min(runway, until - sequence)
        return runway


def _look(overflow: LagLimit, place: int, count: int, size: int, hurried: list[LagLimit]) -> float:
    """Add `overflow` to `hurried` if it keeps up and has no room for so much; up to where it has room."""
    until = _measured(overflow, place)
    if place + max(count, size // SMALL + 1) > until and not overflow.spares(count, size):
        hurried.append(overflow)
        return UNKNOWN
    return until


def _measured(overflow: LagLimit, place: int) -> float:
    """Up to where `overflow` has room, whose log ends at `place`. One that drops records already does not keep up."""
    if overflow.until != inf:
        spare = overflow.spare()
        overflow.until = place + spare if spare >= 0 else inf
    return overflow.until


class PatternReaders:
    """The readers of patterns, found by the names of the topics that they cover."""

    __slots__ = ("_covered", "_table", "version")

    def __init__(self) -> None:
        self.version = 0  # counts joins and leaves of readers: earlier lookups may be outdated
        self._table: PatternTable[TopicReader] = PatternTable()
        self._covered: dict[Log, None] = {}  # topics that have looked readers up

    def changed(self) -> None:
        """A reader came or went, or reads other topics: every topic looks its readers up again."""
        self.version += 1

    def add(self, patterns: Sequence[str], reader: TopicReader) -> None:
        """A reader came."""
        self.changed()
        for one in patterns:
            self._table.add(one, reader)

    def remove(self, patterns: Sequence[str], reader: TopicReader) -> None:
        """A reader left."""
        self.changed()
        for one in patterns:
            self._table.remove(one, reader)
        # Topics that are not published to any more must not keep it in memory for ever.
        for _ in range(min(SWEEP, len(self._covered))):
            self.forget(next(iter(self._covered)))

    def covering(self, topic: str) -> list[TopicReader]:
        """The readers of patterns that read `topic`."""
        return [reader for reader in self._table.covering(topic) if reader.covers(topic)]

    def cover(self, log: Log) -> None:
        """Look up the readers of `log`."""
        log.looked_up = self.version
        found = tuple(self.covering(log.name))
        if found:
            self._covered[log] = None
            log.readers = log.readers or TopicReaders()
        if log.readers is not None and log.readers.cover(found):
            log.look_again()

    def forget(self, log: Log) -> None:
        """Let `log` look its readers up again on the next access."""
        if log in self._covered and log.readers is not None:
            del self._covered[log]
            log.looked_up = UNKNOWN
            log.readers.cover(())


class AttachedReaders:
    """Every open subscription and group of a broker, in the order in which they came."""

    __slots__ = ("_all", "_came", "patterns")

    def __init__(self) -> None:
        self._all: dict[TopicReader, None] = {}
        self._came = 0
        self.patterns = PatternReaders()

    def __iter__(self) -> Iterator[TopicReader]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, reader: object) -> bool:
        return reader in self._all

    def add(self, reader: TopicReader) -> bool:
        """A reader is notified of publishes from now on; whether so many came that others should run."""
        self._all[reader] = None
        self._came += 1
        return self._came % ENTER_TURN == 0

    def remove(self, reader: TopicReader) -> None:
        """A reader is no longer notified."""
        del self._all[reader]
