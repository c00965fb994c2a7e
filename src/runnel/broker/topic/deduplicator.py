"""Duplicate detection, by message id or by the sequence numbers of a producer.

A record that is being written counts as stored until the write failed. A duplicate of it waits for the same commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import PendingBatch
from runnel.broker.topic.timeline import Timeline
from runnel.core.deduplication import MessageIdLimit, MessageIdWindow, ProducerTable
from runnel.core.errors import InvalidOption
from runnel.core.position import Position
from runnel.core.publishing import Append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runnel.journal.format.ledger import Ledger


class Deduplicator:
    """What was published lately, and is on its way."""

    def __init__(self, timeline: Timeline, logs: Mapping[str, Log]) -> None:
        self._timeline, self._logs = timeline, logs
        self.producers = ProducerTable()
        self._ids_allowed = MessageIdLimit()
        self._turn, self._time = datetime.min, 0.0  # of the loop, and its time in seconds

    def __repr__(self) -> str:
        return f"<Deduplicator, {len(self.producers)} producers, {sum(map(len, self._windows()))} message ids>"

    def restore(self, ledger: Ledger) -> None:
        """Take up what the journal knows. The journal goes on with its own: it is written in another thread."""
        self.producers = ledger.producers.copy()
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
        now = self._timeline.now()
        if now is not self._turn:
            self._turn, self._time = now, now.timestamp()
        return self._time

    def _windows(self) -> Iterator[MessageIdWindow]:
        return (log.ids for log in self._logs.values() if log.ids is not None)

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
