"""Records that retention and compaction must keep.

These are records that named subscriptions with `hold=True` have not read, and unconfirmed records of topics with
`retention_until="archived"`.

Each durable log knows from which offset on it is held (`Log.held`). The position of a pattern is looked up in the
indexes in a thread; until that is known, everything is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.topic.log import Log
from runnel.core.errors import ArchiveBehind, DiskFull
from runnel.core.pattern import is_pattern, matches
from runnel.core.position import Position
from runnel.core.topic_bounds import estimated_bytes
from runnel.journal.format.removed_offsets import count_skipped
from runnel.journal.write import retention

Place = Position | int

NAMED = 5  # topics that a message names


class RetentionHold:
    """One hold: its pattern, its position, and (of a pattern) the offsets in each topic."""

    def __init__(self, name: str, pattern: str, place: Place) -> None:
        self.name, self.pattern, self.place = name, pattern, place
        self.is_pattern = is_pattern(pattern)
        self.floors: dict[int, int] = {}  # by topic id, of a pattern; a topic that is not here is held from 0 on
        self.segment: int | None = None  # the number of the one that they were looked up at; not itself: it may go
        self.since, self.until = 0, 0  # the sequences from which they hold; until 0: the name is being written
        self.looking = False

    def __repr__(self) -> str:
        return f"<RetentionHold {self.name!r} on {self.pattern!r} at {self.place}>"

    def covers(self, topic: str) -> bool:
        """Whether it reads a topic."""
        return matches(self.pattern, topic) if self.is_pattern else self.pattern == topic

    def floor(self, log: Log) -> int:
        """From where on it holds a log that it covers."""
        if isinstance(self.place, Position):
            return self.place.offset if self.place.epoch == log.epoch else 0
        return 0 if log.stored is None else self.floors.get(log.stored.id, 0)

    def is_stale(self, active: int | None) -> bool:
        """Whether it has left the segment that its floors were looked up at. `active` is the one being written."""
        if isinstance(self.place, Position) or self.looking:
            return False
        if self.segment is None or self.place < self.since:
            return True
        return self.place >= self.until if self.until else self.segment != active


def named(topics: Iterable[str]) -> list[str]:
    """The first few of these, for a message."""
    names = list(topics)
    return names if len(names) <= NAMED else [*names[:NAMED], f"and {len(names) - NAMED:,} more"]


class RetentionHolds:
    """All holds of one broker."""

    def __init__(self, reads: JournalReads, logs: Mapping[str, Log]) -> None:
        self._reads, self._all_logs = reads, logs
        self.released: Callable[[list[Log]], None] = lambda logs: None  # these may be taken from again
        self.holds: dict[str, RetentionHold] = {}
        self._archived: set[Log] = set()  # logs that keep records until they are archived

    def __repr__(self) -> str:
        return f"<RetentionHolds, {len(self.holds)} hold>"

    def begin(self, name: str, pattern: str, place: Place) -> None:
        """`name` holds, from `place` on."""
        hold = RetentionHold(name, pattern, place)
        for log in self._logs(hold):
            log.begin_at(log.first, log.reason, force=True)  # records that a count has released do not come back
        self.restore(hold)

    def restore(self, hold: RetentionHold) -> None:
        """One holds that did so in an earlier life, and nothing was taken from it since."""
        self.holds[hold.name] = hold
        self._moved(hold)

    def release(self, name: str) -> None:
        """`name` holds nothing any more."""
        hold = self.holds.pop(name, None)
        if hold is not None:
            self._apply(self._logs(hold))

    def moved(self, name: str, place: Place) -> None:
        """Where `name` stands is being written, whether it holds or not."""
        hold = self.holds.get(name)
        if hold is not None and hold.place != place:
            hold.place = place
            self._moved(hold)

    def adopt(self, log: Log) -> None:
        """A topic became durable, or was trimmed."""
        if log.options.retention_until is not None:
            self._archived.add(log)
            self._apply([log])
        elif self.holds:
            self._apply([log])

    def configured(self, log: Log) -> None:
        """The options of a topic changed: it may be kept until archived now, or no longer."""
        if log.options.retention_until is None:
            self._archived.discard(log)
        else:
            self._archived.add(log)
        self._apply([log])

    def forget(self, log: Log) -> None:
        """A topic was deleted."""
        self._archived.discard(log)

    def confirmed(self, log: Log, before: int) -> None:
        """The source of history of `log` has all records below an offset."""
        if before > log.confirmed and not log.deleted:
            log.confirmed = before
            self._apply([log])
            self.released([log])  # even if retention had not reached the confirmed offset before

    def unconfirmed_bytes(self, log: Log) -> int:
        """About how many bytes of a topic on disk stay until the archive has confirmed them."""
        first = log.unconfirmed
        if log.stored is None or first is None or first >= log.end:
            return 0
        known = self._reads.journal.ledger.topics.get(log.stored.id)
        gone = () if known is None else known.gone
        given, waiting = (log.end - at - count_skipped(gone, at, log.end) for at in (0, first))
        return estimated_bytes(log.count_bytes(), given, waiting)

    def unconfirmed(self) -> dict[str, int]:
        """The same of every topic of which something stays, the largest first."""
        found = {log.name: self.unconfirmed_bytes(log) for log in self._archived}
        return {name: size for name, size in sorted(found.items(), key=lambda one: (-one[1], one[0])) if size}

    def explained(self, full: DiskFull) -> DiskFull:
        """`full`; or that the archive is behind, if there would be room without the unconfirmed records."""
        waiting = self.unconfirmed()
        if not waiting or sum(waiting.values()) < full.needed - full.free:
            return full
        return ArchiveBehind(full.free, full.needed, sum(waiting.values()), named(waiting))

    def at(self, log: Log, offset: int) -> list[RetentionHold]:
        """The names that hold records of `log` before `offset`."""
        return [hold for hold in self.holds.values() if hold.covers(log.name) and hold.floor(log) < offset]

    # -- working it out -----------------------------------------------------------------------------------------

    def _logs(self, hold: RetentionHold) -> list[Log]:
        logs = self._all_logs
        if not hold.is_pattern:
            return [log for log in (logs.get(hold.pattern),) if log is not None]
        return [log for log in logs.values() if log.stored is not None and hold.covers(log.name)]

    def _moved(self, hold: RetentionHold) -> None:
        if not hold.is_pattern:
            self._apply(self._logs(hold))
            return
        if isinstance(hold.place, int) and hold.place < hold.since:
            hold.floors = {}  # it went back: until it is known what that means, it holds everything
        if hold.is_stale(self._active()):
            self._look(hold)

    def _active(self) -> int | None:
        sources = self._reads.journal.history.sources
        return sources[-1].info.number if sources else None

    def _apply(self, logs: Iterable[Log]) -> None:
        """Tell logs from where on they are held now."""
        released = []
        for log in logs:
            floors = [hold.floor(log) for hold in self.holds.values() if hold.covers(log.name)]
            if (unconfirmed := log.unconfirmed) is not None:
                floors.append(unconfirmed)
            first, before, log.held = log.first, log.held, min(floors, default=None)
            if before is not None and (log.held is None or (log.held > before and first >= before)):
                released.append(log)  # retention had come to it
        if released:
            self.released(released)

    def _look(self, hold: RetentionHold) -> None:
        """Find out, in a thread, what a place in the order of sequences means in each topic. Until then, no less."""
        logs = self._logs(hold)
        self._apply(logs)  # a new one holds everything at first
        history, place = self._reads.journal.history, hold.place
        assert isinstance(place, int), "only a pattern stands at a sequence"
        ends = {log.stored.id: log.end for log in logs if log.stored is not None}
        hold.looking = True

        def looking() -> tuple[int | None, int, int, dict[int, int]]:
            source = retention.segment_at_sequence(history, place)
            floors = retention.held_floors(history, place, ends)
            if source is None:
                return None, 0, 0, floors
            info = source.info  # looked at once: it may be sealed meanwhile
            return info.number, min(place, info.first_sequence), info.end_sequence if info.sealed else 0, floors

        def found(told: Any) -> None:
            hold.looking = False
            if self.holds.get(hold.name) is not hold or isinstance(told, OSError):
                return  # what could not be read is looked up again when it moves on
            hold.segment, hold.since, hold.until, hold.floors = told
            if isinstance(hold.place, int) and hold.place < hold.since:
                hold.floors = {}
            self._apply(self._logs(hold))
            if hold.segment is not None and hold.is_stale(self._active()):
                self._look(hold)  # it moved on meanwhile

        self._reads.look(looking, found)
