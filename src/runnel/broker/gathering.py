"""What is on its way to the journal: records gathered into batches, batches and state into commits.

Below: log. Above: commits; topic, whose short way adds to a batch that is gathering already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runnel.broker.gate import Entry
from runnel.broker.log import Log
from runnel.broker.waiting import tell
from runnel.core.record import Meta
from runnel.journal.draft import Draft

BATCH_BYTES = 4 * 1024 * 1024  # a batch that has this much takes no more publishes


class Pending:
    """How much is on its way, and how much may be; where those who wait for it get their futures from."""

    __slots__ = ("bytes", "create_future", "limit")

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes, self.limit = 0, limit
        self.create_future: Callable[[], asyncio.Future[None]] = loop.create_future


class Gathering:
    """Records of one topic that become one batch: published in one go, or while the journal was busy."""

    __slots__ = ("first", "listeners", "log", "metas", "pending", "sequence", "size", "values", "waiters", "weight")

    def __init__(self, log: Log, first: int, pending: Pending) -> None:
        self.log, self.first, self.pending = log, first, pending
        self.values: list[bytes] = []
        self.metas: list[Meta | None] | None = None
        self.size = 0  # of the values
        self.weight = 0  # of the values, and of what they carry
        self.sequence = 0
        self.waiters: list[asyncio.Future[None]] = []
        self.listeners: list[Callable[[Exception | None], None]] = []  # told at once, not at the loop's next turn

    def add(self, entry: Entry) -> None:
        """Take in what one publish appends."""
        if entry.metas is not None:
            if self.metas is None:
                self.metas = [None] * len(self.values)
            self.metas.extend(entry.metas)
        elif self.metas is not None:
            self.metas.extend([None] * len(entry.values))
        self.values.extend(entry.values)
        self.size += entry.size
        self.weight += entry.size + entry.extra
        self.pending.bytes += entry.size + entry.extra

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return self.first + len(self.values)

    @property
    def is_full(self) -> bool:
        """Whether the next publish goes into another batch."""
        return self.weight >= BATCH_BYTES

    def tell(self, error: Exception | None = None) -> None:
        """It is durable and visible, or it failed. Each waiter has a future of its own: none can cancel another."""
        for listener in self.listeners:
            listener(error)
        for waiter in self.waiters:
            tell(waiter, error)


class Commit:
    """One entry on its way: what it holds, and who is to be told."""

    __slots__ = ("draft", "flushes", "frees", "gatherings", "holds_records", "landed", "round", "sequence", "undo")

    def __init__(self, draft: Draft, gatherings: list[Gathering], sequence: int, round_: int) -> None:
        self.draft, self.gatherings, self.sequence, self.round = draft, gatherings, sequence, round_
        self.holds_records = bool(gatherings)
        self.frees = False  # whether it deletes or trims topics, so that segments may be unwanted after it
        self.landed: list[Callable[[], None]] = []  # called when it is durable
        self.flushes: list[asyncio.Future[None]] = []  # who waits for this and all before it
        self.undo: list[Callable[[], None]] = []  # called when it was not written, and may be said again


class Stored:
    """What a log in memory knows about its topic on disk."""

    __slots__ = ("_next", "gathering", "id")

    def __init__(self, id: int, next: int) -> None:
        self.id, self._next = id, next
        self.gathering: Gathering | None = None  # takes the next publish

    @property
    def next(self) -> int:
        """The offset that the next record gets; `log.end` is what is visible."""
        return self._next if self.gathering is None else self.gathering.end

    def close(self, gathering: Gathering) -> None:
        """The next publish does not go into `gathering` any more."""
        if self.gathering is gathering:
            self._next, self.gathering = gathering.end, None

    def take_back(self, offset: int) -> None:
        """The records from `offset` on were never seen, and will not come."""
        self._next, self.gathering = min(self.next, offset), None
