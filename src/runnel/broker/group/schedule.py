"""What waits for a moment, in little room: a million places take 24 MB, and a heap of tuples would take 150.

Rows that came lately are a heap. When there are enough of them they are sorted into a run of flat
arrays, which is only ever read from its front; a small heap knows the fronts. Nothing is ever merged,
so no call takes long.
Below: nothing. Above: ready.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from runnel.broker.group.ready import Item

RUN = 1024  # rows that are sorted at once


class Row(NamedTuple):
    """One place and its moment. `item` is None where nothing else is to be known; `time` is when it was published."""

    due: float
    place: int
    item: Item | None
    time: float


class Run:
    """Rows in the order of their moments. Taken from the front only."""

    __slots__ = ("_at", "_dues", "_items", "_least", "_places", "_times")

    def __init__(self, rows: list[Row]) -> None:
        self._dues = array("d", [row.due for row in rows])
        self._places = array("q", [row.place for row in rows])
        self._times = array("d", [row.time for row in rows])
        items = [row.item for row in rows]
        self._items = items if any(item is not None for item in items) else None  # most often there are none
        self._at = 0
        self._least: int | None = None  # of the places, once it was asked for

    def __len__(self) -> int:
        return len(self._places) - self._at

    def front(self) -> tuple[float, int]:
        """The moment and place that are next."""
        return self._dues[self._at], self._places[self._at]

    def row(self, at: int) -> Row:
        """The row at an index."""
        return Row(self._dues[at], self._places[at], None if self._items is None else self._items[at], self._times[at])

    def rows(self) -> Iterator[Row]:
        """Those that were not taken."""
        return map(self.row, range(self._at, len(self._places)))

    def pop(self) -> Row:
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

    def find(self, place: int) -> Row | None:
        """The row of a place."""
        try:
            return self.row(self._places.index(place, self._at))
        except ValueError:
            return None


class Schedule:
    """Places by their moments. At one moment the least place comes first."""

    __slots__ = ("_count", "_fronts", "_young")

    def __init__(self) -> None:
        self._young: list[Row] = []
        self._fronts: list[tuple[float, int, Run]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        """All rows, in no order."""
        yield from self._young
        for _, _, run in self._fronts:
            yield from run.rows()

    def push(self, due: float, place: int, item: Item | None, time: float) -> None:
        """Put a place in, which must not be there."""
        heappush(self._young, Row(due, place, item, time))
        self._count += 1
        if len(self._young) == RUN:
            run, self._young = Run(sorted(self._young)), []
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

    def pop(self) -> Row:
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

    def find(self, place: int) -> Row | None:
        """The row of a place, if it is here."""
        for row in self._young:
            if row.place == place:
                return row
        for _, _, run in self._fronts:
            if (found := run.find(place)) is not None:
                return found
        return None
