"""Duplicate detection, by message id or by the sequence numbers of a producer.

A record that is being written counts as stored until the write failed. A duplicate of it waits for the same commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING

from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import PendingBatch
from runnel.broker.topic.timeline import Timeline
from runnel.core.deduplication import (
    MAX_MESSAGE_ID_SECONDS,
    MessageIdLimit,
    MessageIdWindow,
    ProducerTable,
    check_remembered,
    forgotten_of_all,
)
from runnel.core.errors import InvalidOption
from runnel.core.position import Position
from runnel.core.publishing import Append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runnel.journal.format.ledger import Ledger


class Deduplicator:
    """Recent publishes, and those under way."""

    def __init__(self, timeline: Timeline, logs: Mapping[str, Log]) -> None:
        self._timeline, self._logs = timeline, logs
        self.producers = ProducerTable()
        self._ids_allowed = MessageIdLimit()
        self._ids_forgotten = -inf  # up to when a message id may have been stored that the journal forgot early
        self._turn, self._time = datetime.min, 0.0  # of the loop, and its time in seconds

    def __repr__(self) -> str:
        return f"<Deduplicator, {len(self.producers)} producers, {sum(map(len, self._windows()))} message ids>"

    def restore(self, ledger: Ledger) -> None:
        """Load the journal's state. The journal changes its own copy, in another thread."""
        self.producers = ledger.producers.copy()
        self._ids_forgotten = forgotten_of_all(ledger.ids.values())
        for log in self._logs.values():
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
            return self.find_id(log, entry.message_id, entry.sent)
        if entry.message_id is not None:
            why = "its producer numbers it, which is to the same end; give one or the other"
            raise InvalidOption("message_id", entry.message_id, why)
        if entry.producer_sequence < 0:
            following = self.next(entry.producer)
            entry.producer_sequence = -1 - entry.producer_sequence if following is None else following
            return None
        count = len(entry.values)
        entry.known = self.producers.find(entry.producer, entry.producer_sequence, count, self._now(), entry.sent)
        return entry.known

    def remember(self, log: Log, entry: Append, first: int) -> None:
        """`entry` is appended, or handed over, at offset `first`."""
        if entry.producer:
            position, count = log.position(first), len(entry.values)
            self.producers.remember(entry.producer, entry.producer_sequence, count, position, self._now())
        elif entry.message_id is not None:
            self.remember_id(log, entry.message_id, first)

    def find_id(self, log: Log, message_id: str, sent: float | None = None) -> Position | None:
        """Where a record with this id was stored before, or will be; None: it is new.

        `sent`: it is a retry, and was sent first at this time. Raises if it may have been stored and forgotten.
        """
        now = self._now()
        found = None if log.ids is None else log.ids.find(message_id, now, sent)
        if found is None and sent is not None:
            check_remembered(sent, max(self._ids_forgotten, now - MAX_MESSAGE_ID_SECONDS))
        return found

    def claim(self, log: Log, message_id: str, offset: int) -> int | None:
        """Note that a record with this id is about to be appended at `offset`; or where one was stored before."""
        if log.ids is None:
            log.ids = MessageIdWindow()
        now = self._time if self._timeline.turn is self._turn else self._now()
        found = log.ids.claim(message_id, log.epoch, offset, now)
        if found is None:
            self._ids_allowed.left -= 1
            if self._ids_allowed.left < 0:
                self._ids_allowed.take(0, self._windows)
        return found

    def remember_id(self, log: Log, message_id: str, offset: int) -> None:
        """A record with this id is appended, or handed over, at `offset`."""
        if log.ids is None:
            log.ids = MessageIdWindow()
        log.ids.remember(message_id, log.epoch, offset, self._now())
        self._ids_allowed.take(1, self._windows)

    def _now(self) -> float:
        """The append time of the current publish, approximate before it is written."""
        now = self._timeline.now()
        if now is not self._turn:
            self._turn, self._time = now, now.timestamp()
        return self._time

    def _windows(self) -> Iterator[MessageIdWindow]:
        return (log.ids for log in self._logs.values() if log.ids is not None)

    # -- what failed --------------------------------------------------------------------------------------------

    def failed(self, pending_batch: PendingBatch) -> None:
        """Records will not come, nor will any behind them: or a retry would be answered as a duplicate."""
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
