"""Who reads a log, and what their bounds mean for those who publish to it.

A gate is asked only on the long way of a publish. Publishers that must wait for a
`block` subscriber queue here with what they want to publish; whoever makes room
appends it for them, so order holds and a cancelled publisher has written nothing.
Below: flow. Above: timeline, broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from runnel.broker.log import CHUNK, KEEP_BYTES, KEEP_COUNT, Log
from runnel.core.errors import RunnelError
from runnel.core.position import Position
from runnel.core.record import Meta

if TYPE_CHECKING:
    from runnel.broker.flow import Flow


TURN = 4096


class Entry(msgspec.Struct, eq=False, gc=False):
    """What one publish appends, all or nothing."""

    values: Sequence[bytes]
    metas: Sequence[Meta | None] | None
    size: int
    message_id: str | None = None
    checked: bool = False  # against the type of its topic
    extra: int = 0  # bytes of keys and headers
    producer: int = 0  # who numbers its records; 0: nobody
    producer_sequence: int = 0  # the number of the first; below 0: the next one, or -1 - n where none is known
    known: Position | None = None  # where it was stored before, says its number
    is_awaited: bool = False  # whether the task that publishes it waits until there is room
    landed: asyncio.Future[None] | None = None  # done when it is durable, if a task waited for room
    expected_offset: int | None = None  # what its first record must get, or nothing is appended
    appended: bool = False  # or handed over: it cannot be taken back any more
    packed: bytes | None = None  # the batch that it came as, from afar: stored and sent on as it is
    gathering: Any = None  # the batch that it is on its way in, if it came packed


class Blocked(NamedTuple):
    """A publish that waits for room; the future gives its first offset. `go`: what to do instead of appending it."""

    entry: Entry
    first: asyncio.Future[int]
    go: Callable[[], int] | None = None


class Watch(NamedTuple):
    """Somebody who waits until a place was processed."""

    place: int
    passed: asyncio.Future[None]

    def tell(self) -> None:
        """It was."""
        if not self.passed.done():
            self.passed.set_result(None)


class GateReader(Protocol):
    """Whoever reads logs: a subscription, or a group."""

    @property
    def flow(self) -> Flow:
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

    def watch(self, log: Log, watch: Watch) -> None:
        """Tell when the record at an offset of `log` was processed."""

    def end(self, error: RunnelError | None = None) -> None:
        """No more records."""


class Gate:
    """The readers of one log: those on this topic alone, and those whose pattern covers it."""

    __slots__ = ("blocked", "demanding", "limited", "parked", "patterns", "readers", "turn")

    def __init__(self) -> None:
        self.readers: dict[GateReader, None] = {}
        self.patterns: tuple[GateReader, ...] = ()
        self.limited: tuple[Flow, ...] = ()  # those that publishers have to ask
        self.demanding: tuple[Flow, ...] = ()  # those that may want more kept than is kept anyway
        self.parked: dict[GateReader, None] = {}
        self.blocked: deque[Blocked] | None = None
        self.turn = TURN  # records after which a publisher lets the readers run, so that none has to drop

    def attach(self, reader: GateReader, *, pattern: bool) -> None:
        """A reader came."""
        if pattern:
            self.patterns += (reader,)
        else:
            self.readers[reader] = None
        flow = reader.flow
        self.turn = max(1, min(self.turn, flow.buffer // 2))
        if flow.limited:
            self.limited += (flow,)
        if flow.history or flow.buffer > KEEP_COUNT or flow.buffer_bytes > KEEP_BYTES:
            self.demanding += (flow,)

    def detach(self, reader: GateReader) -> None:
        """A reader left, and with it what it asked for."""
        self.readers.pop(reader, None)
        self.parked.pop(reader, None)
        flow = reader.flow
        if reader in self.patterns:
            self.patterns = tuple(other for other in self.patterns if other is not reader)
        if flow.limited:
            self.limited = tuple(other for other in self.limited if other is not flow)
        if flow in self.demanding:
            self.demanding = tuple(other for other in self.demanding if other is not flow)
        if flow.buffer // 2 <= self.turn < KEEP_COUNT // 2:
            self.turn = min((max(1, other.flow.buffer // 2) for other in self), default=TURN)

    def __iter__(self) -> Iterator[GateReader]:
        yield from self.readers
        yield from self.patterns

    def wake(self) -> None:
        """Something is about to be appended: everybody who sleeps shall look."""
        if self.parked:
            parked, self.parked = self.parked, {}
            for reader in parked:
                reader.wake()
        for reader in self.patterns:
            reader.wake()

    def room(self) -> int:
        """How many small records may be appended before the bounds are looked at again."""
        room = min(CHUNK, self.turn)
        for flow in self.limited:
            room = min(room, flow.room())
        return max(0, room)

    def needed(self) -> int:
        """How many of the newest records some reader may still want."""
        return max((min(flow.buffer + flow.history, flow.cursor.pending()) for flow in self.demanding), default=0)

    def needed_bytes(self) -> int:
        """How many bytes of the newest records some reader may still want."""
        return max((flow.buffer_bytes + flow.history_bytes for flow in self.demanding), default=0)

    def refusing(self, log: Log, entry: Entry) -> Flow | None:
        """A reader that has no room for `entry`, and what is on its way to `log` before it; None: go ahead."""
        count, size, way = len(entry.values), entry.size, log.on_the_way()
        return next((flow for flow in self.limited if not flow.fits(count, size, *way)), None)

    def appended(self) -> None:
        """Let every bounded reader deal with what was appended."""
        for flow in self.limited:
            flow.appended()

    def release(self, log: Log, append: Callable[[Entry], int]) -> None:
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
            except Exception as error:  # the publisher's affair, and never that of whoever made room
                offset, wrong = 0, error
            if first.done():
                continue  # cancelled by somebody whom the append told
            if wrong is None:
                first.set_result(offset)
            else:
                first.set_exception(wrong)
