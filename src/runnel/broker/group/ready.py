"""What may be handed out next.

Records without key, delay or priority are kept as ranges: a million of them cost what one
costs. The others are items. Of each key only the first unsettled item is ever ready, so no
order of acks, failures or members can turn two records of a key around.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from runnel.broker.group.lease import Stock
from runnel.core.record import Meta

FAIRNESS = 8  # every so many picks the oldest goes first, whatever its priority

PLAIN = Meta()


def is_special(meta: Meta) -> bool:
    """Whether a record with this meta must be kept track of by itself."""
    return meta.key is not None or meta.priority > 0 or meta.due is not None or meta.expires is not None


class Item:
    """One place that is kept track of by itself. `meta` says what is special about it."""

    __slots__ = ("attempts", "meta", "place", "reason", "size", "stock")

    def __init__(self, place: int, meta: Meta, size: int, stock: Stock, attempts: int = 0) -> None:
        self.place, self.meta, self.size, self.stock = place, meta, size, stock
        self.attempts = attempts  # how often it was handed to somebody
        self.reason = ""  # why the last attempt failed

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
        self._plain: deque[Stretch] = deque()
        self._fresh: list[deque[Item]] = [deque() for _ in range(10)]  # by priority; in order of place
        self._again: list[list[tuple[int, Item]]] = [[] for _ in range(10)]  # heaps by place: those that came back
        self._urgent = 0  # ready items with a priority above 0
        self._items = 0  # ready items
        self._keys: dict[bytes, deque[Item] | None] = {}  # keys with an item out or ready, and those behind it
        self._schedule: list[tuple[float, int, Item]] = []
        self._picks = 0

    # -- in -----------------------------------------------------------------------------------------------------

    def add_plain(self, stretch: Stretch) -> None:
        """Plain places, later than all before."""
        self._plain.append(stretch)
        self.count += stretch.end - stretch.first

    def add(self, item: Item, now: float, again_at: float = 0.0) -> None:
        """A new item, later than all before. One that was tried in an earlier life waits until `again_at`."""
        key = item.meta.key
        if key is not None:
            if key in self._keys:
                behind = self._keys[key]
                if behind is None:
                    behind = self._keys[key] = deque()
                behind.append(item)
                self.waiting += 1
                return
            self._keys[key] = None
        due = max(item.meta.due or 0.0, again_at)
        if due > now:
            self.delay(item, due)
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

    def delay(self, item: Item, due: float) -> None:
        """An item that is ready again at `due`. It lets go of its neighbours."""
        item.stock = item.stock.only(item.place)
        heappush(self._schedule, (due, item.place, item))
        self.scheduled += 1

    def release_due(self, now: float) -> None:
        """What was scheduled until `now` is ready."""
        while self._schedule and self._schedule[0][0] <= now:
            self.put_back(heappop(self._schedule)[2])
            self.scheduled -= 1

    def next_due(self) -> float | None:
        """When `release_due` has something to do next."""
        return self._schedule[0][0] if self._schedule else None

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
        self.waiting -= 1
        due = following.meta.due
        if due is not None and due > now:
            self.delay(following, due)
        else:
            self.put_back(following)

    def oldest(self) -> int | None:
        """The least place that is anywhere in here."""
        heads = [place for _, place, _ in self._schedule]
        heads += [head for priority in range(10) if (head := self._head(priority)) is not None]
        # What waits for its key is later than what it waits for, which is out, scheduled or ready.
        return min(heads, default=None)

    def _items_here(self) -> Iterator[Item]:
        """The items that are ready or scheduled."""
        return chain(*self._fresh, (item for heap in self._again for _, item in heap), (s[2] for s in self._schedule))

    def stock_at(self, place: int) -> Stock | None:
        """What lies at a place that is ready or scheduled."""
        if self._plain and self._plain[0].first == place:
            return self._plain[0].stock
        return next((item.stock for item in self._items_here() if item.place == place), None)


def _first(stretch: Stretch) -> int:
    return stretch.first
