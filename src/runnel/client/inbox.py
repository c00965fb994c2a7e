"""What a far subscription received and has not handed out: frames in order, and the gaps between them.

It knows how far the subscription has come, whatever becomes of its connection: what follows the last record that was
received is asked for again, and what comes twice is left out.
Pure: no loop, no clock, no socket.
Below: arrival. Above: subscription.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from runnel.client.arrival import Arrival, count_of
from runnel.core.batch import Slice
from runnel.core.errors import BadBatch
from runnel.core.missed import Missed, joined
from runnel.core.record import Gap
from runnel.wire.frame import HEADER_SIZE
from runnel.wire.layouts import read_deliver


class Taken(NamedTuple):
    """What is read next: what was missed, then records, whose values are all written alike; and where they end."""

    slices: list[Slice]
    missed: Missed | None
    encoding: str | None
    end: int


LARGE = 256  # records: so many are handed out as they came, if nobody said how many he wants


class Inbox:
    """Records on this side of the wire. A place is an offset or, for a pattern, a sequence."""

    def __init__(self, credit: int, *, verify: bool, typed: bool = False) -> None:
        self.credit, self._verify, self._typed = credit, verify, typed
        self.is_pattern = False
        self.next = 0  # the place behind all that was received
        self.records = 0  # received and not taken
        self.bytes = 0  # of credit that they hold
        self.returned = 0  # bytes of credit that can be given back
        self.taken = 0  # records that came over the present connection and are taken, whatever becomes of them
        self._known = 0  # what comes before this place was received over an earlier connection
        self._items: deque[Arrival | Missed] = deque()

    def __repr__(self) -> str:
        return f"<Inbox {self.records} records, next {self.next}>"

    def __len__(self) -> int:
        """How many frames and gaps wait."""
        return len(self._items)

    # -- connections --------------------------------------------------------------------------------------------

    def begin(self, place: int, *, is_pattern: bool) -> None:
        """The subscription stands for the first time: at `place`."""
        self.next, self.is_pattern = place, is_pattern

    def resume(self) -> None:
        """There is another connection, over which what is here may come again: it is left out.

        What waits here holds no credit any more: the connection that gave it is gone.
        """
        if self.kept:
            self._let_go()
        self._known, self.bytes, self.returned, self.taken = self.next, 0, 0, 0
        for item in self._items:
            if isinstance(item, Arrival):
                item.cost = 0

    def _let_go(self) -> None:
        """Have too much of what came last sent again. Who does not read would keep more with every connection."""
        items, held = self._items, sum(item.size for item in self._items if isinstance(item, Arrival))
        while held > self.credit and not (isinstance(items[-1], Arrival) and not items[-1].cost):
            last = items.pop()
            if isinstance(last, Missed):
                self.next = last.first
            else:
                held -= last.size
                self.records -= last.count
                self.next = last.place(is_pattern=self.is_pattern)

    def clear(self) -> None:
        """Nobody reads it any more."""
        self._items.clear()
        self.records = self.bytes = 0

    # -- what comes ---------------------------------------------------------------------------------------------

    def deliver(self, extra: int, payload: bytes) -> None:
        """The records of a DELIVER."""
        where, cost = read_deliver(extra, payload), HEADER_SIZE + len(payload)
        place, count = where.sequence if self.is_pattern else where.offset, count_of(where.batch)
        skipped = 0
        if place < self._known:
            skipped = min(count, self._known - place)
            self.taken += skipped
            if skipped == count:
                self.returned += cost
                return
        elif not count:
            self._items.append(Missed(place, place + 1, 1, "a batch came without its records"))
            self.returned += cost
            self.next = max(self.next, place + 1)
            return
        self._items.append(Arrival(where, cost, skipped))
        self.records += count - skipped
        self.bytes += cost
        self.next = place + count

    def miss(self, gap: Gap) -> None:
        """What a GAP tells. The part of it that is here already was not missed."""
        first, count = gap.first, gap.count or 0
        if first < self._known:
            if gap.end <= self._known:
                return
            first = self._known
            count = min(count, gap.end - first)
        self._items.append(Missed(first, gap.end, count, gap.reason))
        self.next = max(self.next, gap.end)

    # -- what is taken ------------------------------------------------------------------------------------------

    @property
    def kept(self) -> int:
        """Records that came over an earlier connection, and wait here: the server knows nothing of them any more."""
        return sum(item.count for item in self._items if isinstance(item, Arrival) and not item.cost)

    @property
    def is_full(self) -> bool:
        """Whether all credit is out: nothing more comes before some of this is taken."""
        return self.bytes >= self.credit

    def take(self, limit: int, *, as_it_came: bool = False) -> Taken | None:
        """Up to `limit` records, and what was missed before them; None: there is nothing here.

        `as_it_came`: a large batch is not joined to others, which would only copy it.
        """
        items = self._items
        if not items:
            return None
        slices: list[Slice] = []
        missed: Missed | None = None
        encoding: str | None = None
        end = 0
        while items and limit > 0:
            item = items[0]
            found = item if isinstance(item, Missed) else self._opened(item)
            if isinstance(found, Missed):
                items[0] = found
                if slices:
                    break  # told with what follows it
                missed = joined(missed, found)
                end = max(end, found.end)
                items.popleft()
                continue
            assert isinstance(item, Arrival)
            if slices and self._typed and item.encoding != encoding:
                break
            encoding = item.encoding
            if len(found) > limit:
                found = item.first(limit)
            else:
                items.popleft()
                self._spend(item)
            slices.append(found)
            self.records -= len(found)
            self.taken += len(found) if item.cost else 0
            limit -= len(found)
            end = (found.sequence if self.is_pattern else found.start) + len(found)
            if as_it_came and len(found) >= LARGE:
                break
        return Taken(slices, missed, encoding, end)

    def _opened(self, item: Arrival) -> Slice | Missed:
        """Its records; or, where they cannot be read, that they were missed."""
        try:
            return item.opened(verify=self._verify)
        except BadBatch as error:
            place = item.place(is_pattern=self.is_pattern)
            self._spend(item)
            self.records -= item.count
            self.taken += item.count if item.cost else 0
            return Missed(place, place + item.count, item.count, f"what came could not be read: {error.why}")

    def _spend(self, item: Arrival) -> None:
        self.bytes -= item.cost
        self.returned += item.cost
