"""What is on its way to the journal: records gathered into batches, batches and state into commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runnel.broker.gate import Entry
from runnel.broker.log import Log
from runnel.core.record import Meta
from runnel.journal.journal import Draft

BATCH_BYTES = 4 * 1024 * 1024  # a batch that has this much takes no more publishes


class Gathering:
    """Records of one topic that become one batch: published in one go, or while the journal was busy."""

    __slots__ = ("first", "log", "metas", "sequence", "size", "values", "waiters")

    def __init__(self, log: Log, first: int) -> None:
        self.log, self.first = log, first
        self.values: list[bytes] = []
        self.metas: list[Meta | None] | None = None
        self.size = 0
        self.sequence = 0
        self.waiters: list[asyncio.Future[None]] = []

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

    @property
    def is_full(self) -> bool:
        """Whether the next publish goes into another batch."""
        return self.size >= BATCH_BYTES

    def tell(self, error: Exception | None = None) -> None:
        """It is durable and visible, or it failed. Each waiter has a future of its own: none can cancel another."""
        for waiter in self.waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)


class Commit:
    """One entry on its way: what it holds, and who is to be told."""

    __slots__ = ("draft", "flushes", "gatherings", "holds_records", "landed", "round", "sequence", "undo")

    def __init__(self, draft: Draft, gatherings: list[Gathering], sequence: int, round_: int) -> None:
        self.draft, self.gatherings, self.sequence, self.round = draft, gatherings, sequence, round_
        self.holds_records = bool(gatherings)
        self.landed: list[Callable[[], None]] = []  # called when it is durable
        self.flushes: list[asyncio.Future[None]] = []  # who waits for this and all before it
        self.undo: list[Callable[[], None]] = []  # called when it was not written, and may be said again


class Stored:
    """What a log in memory knows about its topic on disk."""

    __slots__ = ("gathering", "id", "next")

    def __init__(self, id: int, next: int) -> None:
        self.id = id
        self.next = next  # the offset that the next record gets; `log.end` is what is visible
        self.gathering: Gathering | None = None  # takes the next publish
