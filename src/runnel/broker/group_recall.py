"""Reading again what a group let go of: delayed records, and those that failed, when their time has come.

What is still in memory comes at once. The rest is read from disk, in a thread, a chunk at a time: one
read is under way, neighbours share it, and nothing is read before the group has room for it.
Below: group, catch_up, group_bringing. Above: group_reader.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from runnel.broker.attachment import Attachment
from runnel.broker.catch_up import END, CatchUp
from runnel.broker.cursor import DELETED, RETENTION
from runnel.broker.group.machine import Group
from runnel.broker.group_bringing import Stock
from runnel.broker.log import Log
from runnel.core.batch import Slice
from runnel.journal.history import Lost

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.store import Store

BATCH = 256  # places asked of the group at a time; what is more urgent waits for no more than these
TURN = 1024  # places brought back in one turn of the loop
WAYS = 4  # chunks in hand: what failed now and what failed a minute ago lie far apart, and are due side by side

NOT_FOUND = "no longer on disk: retention took it, or its topic was deleted"
SUSPECT = "perhaps damaged on disk, and so is an index"


class Gone(NamedTuple):
    """What is wanted before `end` cannot be read: never again (`for_good`), or not in this life of the broker."""

    end: int
    reason: str
    for_good: bool


class Way:
    """A chunk of the journal in hand, from where on it was not taken yet."""

    __slots__ = ("at", "catch_up")

    def __init__(self, catch_up: CatchUp) -> None:
        self.catch_up = catch_up
        self.at = 0


class Recall:
    """The way back of what one group let go. `missed` is told what cannot be read any more, and why."""

    def __init__(
        self,
        bus: Bus,
        attachment: Attachment,
        group: Group,
        wake: Callable[[], None],
        missed: Callable[[int, str], None],
    ) -> None:
        self._bus, self._attachment, self._group = bus, attachment, group
        self._wake, self._missed = wake, missed
        self._wanted: deque[int] = deque()  # places that the group has called back, in order
        self._ways: list[Way] = []  # the one used last is last

    def __repr__(self) -> str:
        return f"<Recall of group {self._group.name!r}, {len(self._wanted)} wanted>"

    def forget(self) -> None:
        """The group was reset: nothing is wanted any more."""
        self._wanted.clear()
        self._ways.clear()

    def bring(self, now: float) -> None:
        """Bring back what is due and can be had at once; what is on disk is asked for, and the group woken later."""
        lost: Counter[str] = Counter()
        self._group.release(now)
        brought = 0
        while True:
            if not self._wanted:
                if brought >= TURN:
                    break
                self._wanted.extend(self._group.recall(BATCH))
                if not self._wanted:
                    if not self._group.scheduled:
                        self._ways.clear()  # nothing will be wanted that is near
                    break
            if (room := self._group.room()) <= 0:
                break
            place = self._wanted[0]
            found = self._find(place, self._in_a_row(room))
            if found is None:
                break
            end = found.end if isinstance(found, Gone) else place + len(found.slice)
            if isinstance(found, Stock):
                self._group.came(place, end, found)
            while self._wanted and self._wanted[0] < end:
                gone = self._wanted.popleft()
                brought += 1
                if isinstance(found, Gone) and self._group.gone(gone, now, for_good=found.for_good):
                    lost[found.reason] += 1
        for reason, count in lost.items():
            self._missed(count, reason)

    def has_more(self) -> bool:
        """Whether `bring` would have something to do: there was too much for once, or it is due since."""
        return not self._wanted and self._group.due > 0 and self._group.room() > 0

    def _in_a_row(self, limit: int) -> int:
        """How many of the places that are wanted follow one another, from the first on."""
        count, first = 1, self._wanted[0]
        while count < min(limit, len(self._wanted)) and self._wanted[count] == first + count:
            count += 1
        return count

    # -- finding ------------------------------------------------------------------------------------------------

    def _find(self, place: int, limit: int) -> Stock | Gone | None:
        """Up to `limit` records from `place` on. None: they are being read."""
        if self._attachment.is_pattern:
            run = self._bus.timeline.run_at(place)
            if run is None:
                return self._read(place, limit)
            log, offset = run.log, run.offset + place - run.sequence
            limit = min(limit, run.end - offset)
        else:
            (log,) = self._attachment.logs
            offset = place
            limit = min(limit, log.end - offset)
        if log.deleted:
            return Gone(place + limit, DELETED, for_good=True)
        if (first := self._bus.timeline.first(log)) > offset:
            return Gone(place + min(limit, first - offset), RETENTION, for_good=True)
        if offset < log.base:
            return self._read(place, limit)
        return Stock(place, log.slice(offset, offset + limit), is_kept=True)

    def _read(self, place: int, limit: int) -> Stock | Gone | None:
        """The same of what is not in memory."""
        store = self._bus.store
        assert store is not None, "only what is on disk was let go"
        if not any(log.stored is not None for log in self._attachment.logs):
            return Gone(place + 1, NOT_FOUND, for_good=True)
        way = self._way(place, store)
        try:
            found = way.catch_up.take(place, limit)
        except OSError as error:  # of an index, or of what follows some damage
            self._ways.remove(way)
            return Gone(place + 1, f"cannot be read: {error}", for_good=False)
        if found is None:
            return None
        if found is END:
            suspect = store.journal.history.suspect
            return Gone(place + 1, SUSPECT if suspect else NOT_FOUND, for_good=not suspect)
        first = self._place_of(found)
        if first > place:
            way.catch_up.put_back(found)
            return Gone(first, NOT_FOUND, for_good=True)
        way.at = place + len(found) if isinstance(found, Slice) else found.end  # who wants it once more reads it again
        if isinstance(found, Lost):
            return Gone(found.end, found.reason, for_good=False)
        log = self._bus.catalog.logs.get(found.topic)
        if log is None or log.epoch != found.epoch:
            return Gone(place + len(found), DELETED, for_good=True)
        if (gone := self._bus.timeline.first(log) - found.start) > 0:
            if gone < len(found):
                way.catch_up.put_back(found.cut(found.start + gone, found.end))
                way.at = place + gone
            return Gone(place + min(gone, len(found)), RETENTION, for_good=True)
        return Stock(place, found, is_kept=True)

    def _place_of(self, found: Slice | Lost) -> int:
        if isinstance(found, Lost):
            return found.first
        return found.sequence if self._attachment.is_pattern else found.start

    def _way(self, place: int, store: Store) -> Way:
        """The chunk in hand that `place` is in, or comes right behind; else a new one."""
        near = [way for way in self._ways if way.at <= place <= way.catch_up.reach]
        if near:
            way = near[-1]
            self._ways.remove(way)
        else:
            del self._ways[: max(0, len(self._ways) + 1 - WAYS)]
            sequence = self._attachment.is_pattern
            way = Way(CatchUp(store, self._stored_logs, self._wake, sequence=sequence, on_demand=True))
        way.at = place
        self._ways.append(way)
        return way

    def _stored_logs(self) -> dict[int, Log]:
        return {log.stored.id: log for log in self._attachment.logs if log.stored is not None}
