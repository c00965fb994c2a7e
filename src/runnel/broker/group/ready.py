"""What may be handed out next.

Records without key, delay or priority are kept as ranges: a million of them cost what one
costs. The others are items. Of each key only the first unsettled item is ever ready, so no
order of acks, failures or members can turn two records of a key around.

What waits long, and can be read again, lets go of its value: only its place is kept. When its time
has come it is called back (`call_back`), and is ready when it `came`.
Below: schedule. Above: machine.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from runnel.broker.group.lease import Stock
from runnel.broker.group.schedule import Row, Schedule
from runnel.core.record import Meta

FAIRNESS = 8  # every so many picks the oldest goes first, whatever its priority
NEAR = 1.0  # seconds: what is due sooner keeps what it holds
STEP = 1024  # places that are called back at once: a million may be due at one moment, and others want the loop

PLAIN = Meta()


def is_special(meta: Meta) -> bool:
    """Whether a record with this meta must be kept track of by itself."""
    return meta.key is not None or meta.priority > 0 or meta.due is not None or meta.expires is not None


class Item:
    """One place that is kept track of by itself. `meta` says what is special about it."""

    __slots__ = ("attempts", "meta", "place", "reason", "size", "stock", "time")

    def __init__(self, place: int, meta: Meta, size: int, stock: Stock, attempts: int = 0) -> None:
        self.place, self.meta, self.size = place, meta, size
        self.stock: Stock | None = stock  # None: it was let go of, and is to be read again
        self.attempts = attempts  # how often it was handed to somebody
        self.reason = ""  # why the last attempt failed
        self.time = 0.0  # when it was published, once its stock cannot tell

    def __repr__(self) -> str:
        return f"<Item at {self.place}, {self.attempts} attempts>"


class Stretch(NamedTuple):
    """Plain places [first, end) that nobody has seen."""

    first: int
    end: int
    stock: Stock


class Ready:
    """The queue of a group: plain stretches, ready items by priority, items that wait for their key or time."""

    def __init__(self) -> None:
        self.count = 0  # places that are ready
        self.waiting = 0  # items behind another of their key
        self.scheduled = 0  # items whose time has not come
        self.parked = 0  # items behind another of their key that hold nothing: their own time had not come either
        self.due = 0  # items whose time has come, and that are to be read again
        self.let_go = 0  # bytes that were brought, and are not held
        self._plain: deque[Stretch] = deque()
        self._fresh: list[deque[Item]] = [deque() for _ in range(10)]  # by priority; in order of place
        self._again: list[list[tuple[int, Item]]] = [[] for _ in range(10)]  # heaps by place: those that came back
        self._urgent = 0  # ready items with a priority above 0
        self._items = 0  # ready items
        self._keys: dict[bytes, deque[Item] | None] = {}  # keys with an item out or ready, and those behind it
        self._schedule = Schedule()
        self._due = [Schedule() for _ in range(10)]  # by priority, at one moment: so they are in order of place
        self._away: dict[int, Row] = {}  # those of them that somebody reads
        self._picks = self._calls = 0

    # -- in -----------------------------------------------------------------------------------------------------

    def add_plain(self, stretch: Stretch) -> None:
        """Plain places, later than all before."""
        self._plain.append(stretch)
        self.count += stretch.end - stretch.first

    def add(self, item: Item, now: float, again_at: float = 0.0) -> None:
        """A new item, later than all before. One that was tried in an earlier life waits until `again_at`."""
        key, due = item.meta.key, max(item.meta.due or 0.0, again_at)
        if key is not None:
            if key in self._keys:
                behind = self._keys[key]
                if behind is None:
                    behind = self._keys[key] = deque()
                behind.append(item)
                if self._lets_go(item, due, now, item.meta.due):
                    self.parked += 1
                else:
                    self.waiting += 1
                return
            self._keys[key] = None
        if due > now:
            self.delay(item, due, now)
            return
        priority = item.meta.priority
        self._fresh[priority].append(item)
        self._came(priority)

    def put_back(self, item: Item) -> None:
        """An item that was out is ready again, before all that is later."""
        priority = item.meta.priority
        heappush(self._again[priority], (item.place, item))
        self._came(priority)

    def _came(self, priority: int) -> None:
        self.count += 1
        self._items += 1
        if priority:
            self._urgent += 1

    def put_back_plain(self, stretch: Stretch) -> None:
        """Plain places that were granted and never seen."""
        rest = list(self._plain)
        insort(rest, stretch, key=_first)
        self._plain = deque(rest)
        self.count += stretch.end - stretch.first

    def delay(self, item: Item, due: float, now: float) -> None:
        """An item that is ready again at `due`. It lets go of its value if it can, and of its neighbours always."""
        if item.stock is not None and not self._lets_go(item, due, now, None):
            item.stock = item.stock.only(item.place)
        self.scheduled += 1
        self._schedule.push(due, item.place, None if _is_bare(item) else item, item.time)

    def _lets_go(self, item: Item, due: float, now: float, keep_due: float | None) -> bool:
        """Whether `item` waits long enough to let go of its value, and can have it again; then it does."""
        stock = item.stock
        if stock is None or not stock.is_kept or due - now < NEAR:
            return False
        item.time = stock.time(item.place)
        self.let_go += item.size
        item.size, item.stock, item.meta = 0, None, _traits(item.meta, keep_due)
        return True

    def release_due(self, now: float) -> None:
        """What was scheduled until `now` is ready, or to be called back; of the latter so many at once."""
        calls = 0
        while calls < STEP and (due := self._schedule.next_due()) is not None and due <= now:
            row = self._schedule.pop()
            self.scheduled -= 1
            if row.item is not None and row.item.stock is not None:
                self.put_back(row.item)
            else:
                self._call(row.place, row.item, row.time)
                calls += 1

    def _call(self, place: int, item: Item | None, time: float) -> None:
        self._due[0 if item is None else item.meta.priority].push(0.0, place, item, time)
        self.due += 1

    # -- what was let go --------------------------------------------------------------------------------------

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

    def came(self, place: int, stock: Stock) -> int:
        """What lies at a place that was called back was read, and is ready; its size. Nobody else's is taken."""
        row = self._away.pop(place, None)
        if row is None:
            return 0
        item = row.item or Item(place, PLAIN, 0, stock)
        item.stock, item.size = stock, stock.size(place)
        self.due -= 1
        self.let_go -= item.size
        self.put_back(item)
        return item.size

    def gone(self, place: int, now: float) -> bool:
        """What lies at a place that was called back cannot be read: it is done with. False: it was not called."""
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

    def pick(self, limit: int) -> Stretch | Item | None:
        """The next item, or up to `limit` plain places."""
        if not self._items:
            return self._cut(limit, None) if self._plain else None
        priority = self._choose() if self._urgent else 0
        fresh, again = self._fresh[priority], self._again[priority]
        if not fresh and not again:
            return self._cut(limit, None)  # the oldest is plain
        from_fresh = bool(fresh) and (not again or fresh[0].place < again[0][0])
        place = fresh[0].place if from_fresh else again[0][0]
        if self._plain and priority == 0 and self._plain[0].first < place:
            return self._cut(limit, place)
        self.count -= 1
        self._items -= 1
        if priority:
            self._urgent -= 1
        return fresh.popleft() if from_fresh else heappop(again)[1]

    def _choose(self) -> int:
        """The priority to serve: the highest, but every so often the one with the oldest record."""
        heads = {priority: head for priority in range(10) if (head := self._head(priority)) is not None}
        self._picks += 1
        if self._picks % FAIRNESS:
            return max(heads)
        return min(heads, key=heads.__getitem__)

    def _head(self, priority: int) -> int | None:
        """The least place that is ready at `priority`."""
        fresh, again = self._fresh[priority], self._again[priority]
        heads = [fresh[0].place] if fresh else []
        if again:
            heads.append(again[0][0])
        if priority == 0 and self._plain:
            heads.append(self._plain[0].first)
        return min(heads, default=None)

    def _cut(self, limit: int, before: int | None) -> Stretch:
        """Up to `limit` places from the first stretch, none of them at or after `before`."""
        first, end, stock = self._plain[0]
        stop = min(end, first + limit) if before is None else min(end, first + limit, before)
        if stop == end:
            self._plain.popleft()
        else:
            self._plain[0] = Stretch(stop, end, stock)
        self.count -= stop - first
        return Stretch(first, stop, stock)

    def settled(self, item: Item, now: float) -> None:
        """`item` is done with for good: the next of its key may go."""
        key = item.meta.key
        if key is None:
            return
        behind = self._keys[key]
        if not behind:
            del self._keys[key]
            return
        following = behind.popleft()
        if following.stock is None:
            self.parked -= 1
        else:
            self.waiting -= 1
        due = following.meta.due
        if due is not None and due > now:
            self.delay(following, due, now)
        elif following.stock is None:
            self._call(following.place, following, following.time)
        else:
            self.put_back(following)

    def oldest(self) -> int | None:
        """The least place that is anywhere in here."""
        heads = [self._schedule.least(), min(self._away, default=None)]
        heads += [queue.next_place() for queue in self._due]
        heads += [self._head(priority) for priority in range(10)]
        # What waits for its key is later than what it waits for, which is out, scheduled or ready.
        return min((head for head in heads if head is not None), default=None)

    def time_at(self, place: int) -> float | None:
        """When what lies at a place was published, if it is ready, scheduled or called back."""
        if self._plain and self._plain[0].first == place:
            return self._plain[0].stock.time(place)
        for item in chain(*self._fresh, (item for heap in self._again for _, item in heap)):
            if item.place == place and item.stock is not None:
                return item.stock.time(place)
        row = self._away.get(place)
        for queue in (self._schedule, *self._due):
            row = row or queue.find(place)
        if row is None or row.item is None or row.item.stock is None:
            return None if row is None else row.time
        return row.item.stock.time(place)


def _next_place(queue: Schedule) -> int:
    place = queue.next_place()
    assert place is not None, "it is not empty"
    return place


def _traits(meta: Meta, due: float | None) -> Meta:
    """What a group must know of a record whose value it does not hold. No headers: they come with the value."""
    if meta.key is None and meta.expires is None and not meta.priority and due is None:
        return PLAIN
    if not meta.headers and meta.due == due:
        return meta
    return Meta(key=meta.key, due=due, expires=meta.expires, priority=meta.priority)


def _is_bare(item: Item) -> bool:
    """Whether there is nothing to know of an item but its place."""
    return item.stock is None and item.meta is PLAIN and not item.attempts and not item.reason


def _first(stretch: Stretch) -> int:
    return stretch.first
