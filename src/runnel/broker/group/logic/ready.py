"""Which records may be handed out next: order per key, priorities, delays.

Records without key, delay or priority are kept as ranges, so a million of them cost what one costs. Of each key only
the first unsettled record is ever ready, so no order of acks, failures or members can swap two records of a key.

`Schedule` holds records that wait for a time. New rows are a heap; enough of them are sorted into a run of flat
arrays, which is only read from its front. A million places take 24 MB, where a heap of tuples takes 150, and since runs
are never merged no call takes long.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from runnel.broker.group.logic.leases import GroupRecords
from runnel.core.record import Meta

SORTED_RUN = 1024  # rows that are sorted at once


class ScheduledPlace(NamedTuple):
    """One place and its moment. `item` is None where nothing else is to be known; `time` is when it was published."""

    due: float
    place: int
    item: QueuedRecord | None
    time: float


class SortedRun:
    """Rows in the order of their moments. Taken from the front only."""

    __slots__ = ("_at", "_dues", "_items", "_least", "_places", "_times")

    def __init__(self, rows: list[ScheduledPlace]) -> None:
        self._dues = array("d", [row.due for row in rows])
        self._places = array("q", [row.place for row in rows])
        self._times = array("d", [row.time for row in rows])
        items = [row.item for row in rows]
        self._items = items if any(item is not None for item in items) else None  # most often there are none
        self._at = 0
        self._least: int | None = None  # of the places, set on first access

    def __len__(self) -> int:
        return len(self._places) - self._at

    def front(self) -> tuple[float, int]:
        """The moment and place that are next."""
        return self._dues[self._at], self._places[self._at]

    def row(self, at: int) -> ScheduledPlace:
        """The row at an index."""
        return ScheduledPlace(
            self._dues[at], self._places[at], None if self._items is None else self._items[at], self._times[at]
        )

    def rows(self) -> Iterator[ScheduledPlace]:
        """Those that were not taken."""
        return map(self.row, range(self._at, len(self._places)))

    def pop(self) -> ScheduledPlace:
        """Take the next one."""
        row = self.row(self._at)
        self._at += 1
        if row.place == self._least:
            self._least = None
        if self._at * 2 > len(self._places):  # or one row, due much later than the others, would keep them all
            for column in (self._dues, self._places, self._times, self._items):
                if column is not None:
                    del column[: self._at]
            self._at = 0
        return row

    def least(self) -> int:
        """The least place."""
        if self._least is None:
            self._least = min(self._places[self._at :])
        return self._least

    def find(self, place: int) -> ScheduledPlace | None:
        """The row of a place."""
        try:
            return self.row(self._places.index(place, self._at))
        except ValueError:
            return None


class Schedule:
    """Places by their moments. At one moment the least place comes first."""

    __slots__ = ("_count", "_fronts", "_young")

    def __init__(self) -> None:
        self._young: list[ScheduledPlace] = []
        self._fronts: list[tuple[float, int, SortedRun]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ScheduledPlace]:
        """All rows, in no order."""
        yield from self._young
        for _, _, run in self._fronts:
            yield from run.rows()

    def push(self, due: float, place: int, item: QueuedRecord | None, time: float) -> None:
        """Put a place in, which must not be there."""
        heappush(self._young, ScheduledPlace(due, place, item, time))
        self._count += 1
        if len(self._young) == SORTED_RUN:
            run, self._young = SortedRun(sorted(self._young)), []
            heappush(self._fronts, (*run.front(), run))

    def next_due(self) -> float | None:
        """The first moment."""
        front = self._front()
        return None if front is None else front[0]

    def next_place(self) -> int | None:
        """The place that is next."""
        front = self._front()
        return None if front is None else front[1]

    def _front(self) -> tuple[float, int] | None:
        young = self._young[0][:2] if self._young else None
        stored = self._fronts[0][:2] if self._fronts else None
        return young if stored is None or (young is not None and young < stored) else stored

    def pop(self) -> ScheduledPlace:
        """Take the row that is next; there must be one."""
        self._count -= 1
        if not self._fronts or (self._young and self._young[0][:2] < self._fronts[0][:2]):
            return heappop(self._young)
        run = heappop(self._fronts)[2]
        row = run.pop()
        if len(run):
            heappush(self._fronts, (*run.front(), run))
        return row

    def least(self) -> int | None:
        """The least place, whatever its moment."""
        places = [row.place for row in self._young]
        places += [run.least() for _, _, run in self._fronts]
        return min(places, default=None)

    def find(self, place: int) -> ScheduledPlace | None:
        """The row of a place, if it is here."""
        for row in self._young:
            if row.place == place:
                return row
        for _, _, run in self._fronts:
            if (found := run.find(place)) is not None:
                return found
        return None


# -- The queue -------------------------------------------------------------------------------------------
# A record that waits long, and can be read again, drops its value: only its place is kept. When it is due
# it is called back (`call_back`), and is ready when it `came`.


FAIRNESS = 8  # every so many picks the oldest goes first, whatever its priority
NEAR = 1.0  # seconds: records due sooner keep their value
STEP = 1024  # places that are called back at once: a million may be due at one moment, and others want the loop

PLAIN = Meta()


def is_special(meta: Meta) -> bool:
    """Whether a record with this meta needs an item of its own."""
    return meta.key is not None or meta.priority > 0 or meta.due is not None or meta.expires is not None


class QueuedRecord:
    """One place with an item of its own. `meta` has its key, priority and times."""

    __slots__ = ("attempts", "contents", "meta", "place", "reason", "size", "time")

    def __init__(self, place: int, meta: Meta, size: int, contents: GroupRecords, attempts: int = 0) -> None:
        self.place, self.meta, self.size = place, meta, size
        self.contents: GroupRecords | None = contents  # None: it was dropped, and must be read again
        self.attempts = attempts  # how often it was delivered
        self.reason = ""  # why the last attempt failed
        self.time = 0.0  # the publish time, once its stock is dropped

    def __repr__(self) -> str:
        return f"<QueuedRecord at {self.place}, {self.attempts} attempts>"


class PlainRange(NamedTuple):
    """Plain places [first, end) that were never delivered."""

    first: int
    end: int
    contents: GroupRecords


class ReadyQueue:
    """The queue of a group: plain stretches, ready items by priority, items that wait for their key or time."""

    def __init__(self) -> None:
        self.count = 0  # places that are ready
        self.waiting = 0  # items behind another of their key
        self.scheduled = 0  # items whose time has not come
        self.parked = 0  # items behind another of their key that hold nothing: their own time had not come either
        self.due = 0  # items whose time has come, and that are to be read again
        self.let_go = 0  # bytes that were brought, and are not held
        self._plain: deque[PlainRange] = deque()
        self._fresh: list[deque[QueuedRecord]] = [deque() for _ in range(10)]  # by priority; in order of place
        # heaps by place: those that came back
        self._again: list[list[tuple[int, QueuedRecord]]] = [[] for _ in range(10)]
        self._ready = [0] * 10  # ready items by priority
        self._priorities = 0  # a bit for each priority that has any
        self._keys: dict[bytes, deque[QueuedRecord] | None] = {}  # keys with an item out or ready, and those behind it
        self._schedule = Schedule()
        self._due = [Schedule() for _ in range(10)]  # by priority, at one moment: so they are in order of place
        self._away: dict[int, ScheduledPlace] = {}  # those of them that are being read
        self._picks = self._calls = 0

    # -- in -----------------------------------------------------------------------------------------------------

    def add_plain(self, stretch: PlainRange) -> None:
        """Plain places, later than all before."""
        self._plain.append(stretch)
        self.count += stretch.end - stretch.first

    def add(self, item: QueuedRecord, now: float, again_at: float = 0.0) -> None:
        """A new item, later than all before. One that was tried in an earlier life waits until `again_at`."""
        meta = item.meta
        key, priority = meta.key, meta.priority
        due = again_at if meta.due is None or meta.due < again_at else meta.due
        if key is not None:
            if key in self._keys:
                behind = self._keys[key]
                if behind is None:
                    behind = self._keys[key] = deque()
                behind.append(item)
                if self._lets_go(item, due, now, meta.due):
                    self.parked += 1
                else:
                    self.waiting += 1
                return
            self._keys[key] = None
        if due > now:
            self.delay(item, due, now)
            return
        self._fresh[priority].append(item)
        self.count += 1
        self._ready[priority] += 1
        self._priorities |= 1 << priority

    def put_back(self, item: QueuedRecord) -> None:
        """An item that was out is ready again, before all that is later."""
        priority = item.meta.priority
        heappush(self._again[priority], (item.place, item))
        self.count += 1
        self._ready[priority] += 1
        self._priorities |= 1 << priority

    def put_back_plain(self, stretch: PlainRange) -> None:
        """Plain places that were granted and never seen."""
        rest = list(self._plain)
        insort(rest, stretch, key=_first)
        self._plain = deque(rest)
        self.count += stretch.end - stretch.first

    def delay(self, item: QueuedRecord, due: float, now: float) -> None:
        """An item that is ready again at `due`. It drops its value if possible, and always its neighbours."""
        if item.contents is not None and not self._lets_go(item, due, now, None):
            item.contents = item.contents.only(item.place)
        self.scheduled += 1
        self._schedule.push(due, item.place, None if _is_bare(item) else item, item.time)

    def _lets_go(self, item: QueuedRecord, due: float, now: float, keep_due: float | None) -> bool:
        """Drop the value of `item` if it waits long and can be read again; whether it did."""
        contents = item.contents
        if contents is None or not contents.is_kept or due - now < NEAR:
            return False
        item.time = contents.time(item.place)
        self.let_go += item.size
        item.size, item.contents, item.meta = 0, None, _traits(item.meta, keep_due)
        return True

    def release_due(self, now: float) -> None:
        """Make records scheduled until `now` ready, or call them back; of the latter so many at once."""
        calls = 0
        while calls < STEP and (due := self._schedule.next_due()) is not None and due <= now:
            row = self._schedule.pop()
            self.scheduled -= 1
            if row.item is not None and row.item.contents is not None:
                self.put_back(row.item)
            else:
                self._call(row.place, row.item, row.time)
                calls += 1

    def _call(self, place: int, item: QueuedRecord | None, time: float) -> None:
        self._due[0 if item is None else item.meta.priority].push(0.0, place, item, time)
        self.due += 1

    # -- reading dropped records again --------------------------------------------------------------------------

    def call_back(self, limit: int) -> list[int]:
        """Up to `limit` places that are to be read now, in order. Each then `came`, or is `gone`."""
        places: list[int] = []
        while len(places) < limit:
            queues = [queue for queue in self._due if queue]  # the most urgent last
            if not queues:
                break
            self._calls += 1
            queue = queues[-1]
            if len(queues) > 1 and not self._calls % FAIRNESS:
                queue = min(queues, key=_next_place)
            row = queue.pop()
            self._away[row.place] = row
            places.append(row.place)
        return sorted(places)

    def came(self, place: int, contents: GroupRecords) -> int:
        """The record at a called-back place was read, and is ready; its size. Other places are ignored."""
        row = self._away.pop(place, None)
        if row is None:
            return 0
        item = row.item or QueuedRecord(place, PLAIN, 0, contents)
        item.contents, item.size = contents, contents.size(place)
        self.due -= 1
        self.let_go -= item.size
        self.put_back(item)
        return item.size

    def gone(self, place: int, now: float) -> bool:
        """The record at a called-back place cannot be read: forget it. False: the place was not called back."""
        row = self._away.pop(place, None)
        if row is None:
            return False
        self.due -= 1
        if row.item is not None:
            self.settled(row.item, now)
        return True

    def next_due(self) -> float | None:
        """When `release_due` has something to do next."""
        return self._schedule.next_due()

    # -- out ----------------------------------------------------------------------------------------------------

    def pick(self, limit: int) -> PlainRange | QueuedRecord | None:
        """The next item, or up to `limit` plain places."""
        priorities = self._priorities
        if not priorities:
            return self._cut(limit, None) if self._plain else None
        priority = 0 if priorities == 1 else self._choose()
        fresh, again = self._fresh[priority], self._again[priority]
        if not fresh and not again:
            return self._cut(limit, None)  # the oldest is plain
        from_fresh = bool(fresh) and (not again or fresh[0].place < again[0][0])
        if priority == 0 and self._plain:
            place = fresh[0].place if from_fresh else again[0][0]
            if self._plain[0].first < place:
                return self._cut(limit, place)
        self.count -= 1
        self._ready[priority] -= 1
        if not self._ready[priority]:
            self._priorities ^= 1 << priority
        return fresh.popleft() if from_fresh else heappop(again)[1]

    def _choose(self) -> int:
        """The priority to serve: the highest, but every so often the one with the oldest record."""
        self._picks += 1
        if self._picks % FAIRNESS:
            return self._priorities.bit_length() - 1
        oldest, chosen = None, 0
        for priority in range(self._priorities.bit_length()):
            head = self._head(priority) if self._ready[priority] or not priority else None
            if head is not None and (oldest is None or head < oldest):
                oldest, chosen = head, priority
        return chosen

    def _head(self, priority: int) -> int | None:
        """The least place that is ready at `priority`."""
        fresh, again = self._fresh[priority], self._again[priority]
        heads = [fresh[0].place] if fresh else []
        if again:
            heads.append(again[0][0])
        if priority == 0 and self._plain:
            heads.append(self._plain[0].first)
        return min(heads, default=None)

    def _cut(self, limit: int, before: int | None) -> PlainRange:
        """Up to `limit` places from the first stretch, none of them at or after `before`."""
        first, end, contents = self._plain[0]
        stop = min(end, first + limit) if before is None else min(end, first + limit, before)
        if stop == end:
            self._plain.popleft()
        else:
            self._plain[0] = PlainRange(stop, end, contents)
        self.count -= stop - first
        return PlainRange(first, stop, contents)

    def settled(self, item: QueuedRecord, now: float) -> None:
        """`item` is done with for good: the next of its key may go."""
        key = item.meta.key
        if key is None:
            return
        behind = self._keys[key]
        if not behind:
            del self._keys[key]
            return
        following = behind.popleft()
        if following.contents is None:
            self.parked -= 1
        else:
            self.waiting -= 1
        due = following.meta.due
        if due is not None and due > now:
            self.delay(following, due, now)
        elif following.contents is None:
            self._call(following.place, following, following.time)
        else:
            self.put_back(following)

    def oldest(self) -> int | None:
        """The least place that is anywhere in here."""
        heads = [self._schedule.least(), min(self._away, default=None)]
        heads += [queue.next_place() for queue in self._due]
        heads += [self._head(priority) for priority in range(10)]
        # A record that waits for its key is later than the one before it, which is leased, scheduled or ready.
        return min((head for head in heads if head is not None), default=None)

    def time_at(self, place: int) -> float | None:
        """The publish time of the record at a place, if it is ready, scheduled or called back."""
        if self._plain and self._plain[0].first == place:
            return self._plain[0].contents.time(place)
        for item in chain(*self._fresh, (item for heap in self._again for _, item in heap)):
            if item.place == place and item.contents is not None:
                return item.contents.time(place)
        row = self._away.get(place)
        for queue in (self._schedule, *self._due):
            row = row or queue.find(place)
        if row is None or row.item is None or row.item.contents is None:
            return None if row is None else row.time
        return row.item.contents.time(place)


def _next_place(queue: Schedule) -> int:
    place = queue.next_place()
    assert place is not None, "it is not empty"
    return place


def _traits(meta: Meta, due: float | None) -> Meta:
    """The meta of a record whose value the group does not hold. No headers: they are read with the value."""
    if meta.key is None and meta.expires is None and not meta.priority and due is None:
        return PLAIN
    if not meta.headers and meta.due == due:
        return meta
    return Meta(key=meta.key, due=due, expires=meta.expires, priority=meta.priority)


def _is_bare(item: QueuedRecord) -> bool:
    """Whether there is nothing to know of an item but its place."""
    return item.contents is None and item.meta is PLAIN and not item.attempts and not item.reason


def _first(stretch: PlainRange) -> int:
    return stretch.first
