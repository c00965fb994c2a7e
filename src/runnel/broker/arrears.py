"""What a pattern has not read of each topic, of what is on disk only: how much that is, and what retention took of it.

A sequence says nothing about how many records of one's own lie before it. Offsets do.
Below: log, journal.history. Above: pattern_cursor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from runnel.broker.log import Log, Run
from runnel.broker.timeline import Timeline
from runnel.core.batch import Slice

if TYPE_CHECKING:
    from runnel.broker.store import Store

logger = logging.getLogger("runnel")

MANY = 256  # topics whose offsets are looked up one by one; of more, only a bound is known


class Arrears:
    """The next offset due in each topic, and how many records are. Only what is on disk counts."""

    __slots__ = ("_due", "_timeline", "count")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._due: dict[Log, int] = {}
        self.count = 0

    def begin(self, logs: Iterable[Log], sequence: int, store: Store) -> None:
        """Everything from `sequence` on that is not in memory is due."""
        self._due, self.count = {}, 0
        until = self._timeline.in_memory_from
        edges = {log: log.offset_behind(until) for log in logs if log.stored is not None}
        stored = {log.stored.id: log for log, edge in edges.items() if log.stored is not None and log.first < edge}
        due = {log: log.first for log in stored.values()}
        is_bound = len(stored) > MANY
        if sequence > 0 and not is_bound:
            try:
                found = store.journal.history.offsets_at(sequence, stored)
                due = {stored[topic]: max(offset, stored[topic].first) for topic, offset in found.items()}
            except OSError as error:  # of one old segment: no reason not to open. Whoever reads there is told
                logger.warning("how much lies ahead of sequence %d is not known exactly: %s", sequence, error)
                is_bound = True
        for log, offset in due.items():
            if offset < edges[log]:
                self._due[log] = offset
                self.count += edges[log] - offset
        if is_bound:
            self.count = min(self.count, max(0, until - sequence))

    def add(self, runs: Iterable[tuple[Run, int]]) -> None:
        """Runs that were ahead in memory, and are on disk only."""
        for run, start in runs:
            self._due.setdefault(run.log, start)
            self.count += run.end - start

    def read(self, log: Log, found: Slice, skipped: int = 0) -> int:
        """`found` is next of its topic; how many records before it, or in it, retention took.

        Of its records `skipped` were not due any more: see `skip`.
        """
        due = self._due.get(log)
        if due is None:
            return 0
        self._due[log] = found.end
        self.count = max(0, self.count - (found.end - due - skipped))
        return max(0, min(self._timeline.first(log), found.end) - due)

    def skip(self, count: int) -> int:
        """Some of what is due will not be read; how many."""
        skipped = min(count, self.count)
        self.count -= skipped
        return skipped

    def close(self, until: int) -> tuple[int, int]:
        """Nothing more is to be read before `until`; how many of those still due retention took, or a deletion."""
        gone = deleted = 0
        for log, due in self._due.items():
            if log.deleted:
                deleted += max(0, log.end - due)
            else:
                gone += max(0, min(self._timeline.first(log), log.offset_behind(until)) - due)
        self._due, self.count = {}, 0
        return gone, deleted
