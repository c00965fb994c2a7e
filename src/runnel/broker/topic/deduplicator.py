"""Duplicate detection, by message id or by the sequence numbers of a producer.

A record that is being written counts as stored until the write failed. A duplicate of it waits for the same commit.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import Append
from runnel.core.deduplication import MessageIdLimit, MessageIdWindow, ProducerTable
from runnel.core.errors import InvalidOption, TopicDeleted, WouldDeadlock
from runnel.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runnel.broker.bus import Bus
    from runnel.broker.topic.pending_batch import PendingBatch
    from runnel.journal.format.ledger import Ledger


class ProducerQueue:
    """Publishes of one producer that wait, one behind the other, until the first of them is handed over."""

    __slots__ = ("head", "length", "turn")

    def __init__(self) -> None:
        self.length, self.turn = 0, asyncio.Lock()
        self.head: Log | None = None  # where the first of them waits for room


class Deduplicator:
    """What was published lately, and is on its way."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.producers = ProducerTable()
        self._ids_allowed = MessageIdLimit()
        self._lines: dict[int, ProducerQueue] = {}  # of the producers that have to wait for room
        self._turn, self._time = datetime.min, 0.0  # of the loop, and its time in seconds

    def __repr__(self) -> str:
        return f"<Deduplicator, {len(self.producers)} producers, {sum(map(len, self._windows()))} message ids>"

    def restore(self, ledger: Ledger) -> None:
        """Take up what the journal knows. The journal goes on with its own: it is written in another thread."""
        self.producers = ledger.producers.copy()
        for log in self._bus.catalog.logs.values():
            if log.stored is not None and (window := ledger.ids.get(log.stored.id)) is not None:
                log.ids = window.copy()

    # -- asking and remembering ---------------------------------------------------------------------------------

    def next(self, producer: int) -> int | None:
        """The number that the next record of `producer` has; None: it is not known (any more)."""
        return self.producers.next(producer, self._now())

    def find(self, log: Log, entry: Append) -> Position | None:
        """Where `entry` was stored before, or will be; None: it is new, and has its numbers now."""
        if not entry.producer:
            assert entry.message_id is not None
            return None if log.ids is None else log.ids.find(entry.message_id, self._now())
        if entry.message_id is not None:
            why = "its producer numbers it, which is to the same end; give one or the other"
            raise InvalidOption("message_id", entry.message_id, why)
        if entry.producer_sequence < 0:
            following = self.next(entry.producer)
            entry.producer_sequence = -1 - entry.producer_sequence if following is None else following
            return None
        count = len(entry.values)
        entry.known = self.producers.find(entry.producer, entry.producer_sequence, count, self._now())
        return entry.known

    def remember(self, log: Log, entry: Append, first: int) -> None:
        """`entry` is appended, or handed over, at offset `first`."""
        position, now = log.position(first), self._now()
        if entry.producer:
            self.producers.remember(entry.producer, entry.producer_sequence, len(entry.values), position, now)
        elif entry.message_id is not None:
            if log.ids is None:
                log.ids = MessageIdWindow()
            log.ids.remember(entry.message_id, position, now)
            self._ids_allowed.take(1, self._windows)

    def _now(self) -> float:
        """The append time of what is appended now, as near as can be told before it is written."""
        now = self._bus.timeline.now()
        if now is not self._turn:
            self._turn, self._time = now, now.timestamp()
        return self._time

    def _windows(self) -> Iterator[MessageIdWindow]:
        return (log.ids for log in self._bus.catalog.logs.values() if log.ids is not None)

    # -- what failed --------------------------------------------------------------------------------------------

    def failed(self, pending_batch: PendingBatch) -> None:
        """Records will not come, nor will any behind them: or a retry would be told that they are there."""
        if pending_batch.log.ids is not None:
            pending_batch.log.ids.forget_from(pending_batch.first)
        if pending_batch.producer:
            self.producers.take_back(pending_batch.producer, pending_batch.producer_sequence)

    def deleted(self, pending_batch: PendingBatch) -> None:
        """Records went with their topic before they were written.

        Their numbers may be given again, unless others of the producer, for other topics, lie behind them.
        """
        if pending_batch.producer:
            end = pending_batch.producer_sequence + pending_batch.count
            if self.next(pending_batch.producer) == end:
                self.producers.take_back(pending_batch.producer, pending_batch.producer_sequence)

    # -- publishing with numbers --------------------------------------------------------------------------------

    async def publish(self, log: Log, entry: Append) -> Position:
        """Publish an entry that a producer numbers, behind what it published before; where its first record is.

        Where the topic is durable, it is on disk then; so is what this is a duplicate of.
        """
        bus, first = self._bus, None
        if entry.producer not in self._lines:
            first = bus.publisher.append_now(log, entry)
        if first is None:
            first = await self._in_line(log, entry)
        elif log.stored is None and bus.is_turn_over(log):
            await asyncio.sleep(0)
        if (landed := entry.landed or self.landing(log, entry, first)) is not None:
            await landed
        return entry.known or log.position(first)

    async def _in_line(self, log: Log, entry: Append) -> int:
        """Append `entry` when those of its producer that came before it are, and there is room; its first offset.

        A producer may publish to several topics, of which one has room and another not: without this the second
        publish would overtake the first, and be refused.
        """
        bus, line = self._bus, self._lines.setdefault(entry.producer, ProducerQueue())
        line.length += 1
        entry.values = tuple(entry.values)  # the caller may go on changing its own
        try:
            self._check_not_ones_own(line)
            async with line.turn:
                bus.loop_owner.check_usable("publishing")
                if log.deleted:
                    raise TopicDeleted(log.name, log.epoch)
                first = bus.publisher.append_now(log, entry)
                if first is None:
                    line.head = log
                    first = await bus.publisher.append_later(log, entry)
                return first
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[entry.producer]

    def waits_for(self, producer: int) -> Log | None:
        """The topic where the first in line of a producer waits for room; None: nobody does."""
        line = self._lines.get(producer)
        return None if line is None or not line.turn.locked() else line.head

    @staticmethod
    def _check_not_ones_own(line: ProducerQueue) -> None:
        """Raise if the first in line waits for a reader that this very task would have to be."""
        if line.turn.locked() and line.head is not None and line.head.topic_readers is not None:
            for overflow in line.head.topic_readers.limited:
                if overflow.owner.task is asyncio.current_task():
                    raise WouldDeadlock(line.head.name, overflow.owner.label)

    def landing(self, log: Log, entry: Append, first: int) -> asyncio.Future[None] | None:
        """Done when all of `entry`, or of what it is a duplicate of, is on disk and visible; None: it is."""
        if entry.known is not None and entry.known.epoch != log.epoch:
            epoch = entry.known.epoch  # the producer published it to another topic, the first time
            there = next((one for one in self._bus.catalog.logs.values() if one.epoch == epoch), None)
            if there is None:
                return None
            log = there
        if log.stored is None or self._bus.store is None:
            return None
        return self._bus.store.commits.waiter(log, first + len(entry.values) - 1)
