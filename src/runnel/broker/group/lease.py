"""A lease: places granted to one member in one go, until a deadline.

A fresh stretch of records is one lease, however many there are; acks in order only move
its lower end. Every grant has its own lease, so that an ack from an earlier grant is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runnel.broker.group.member import Member
    from runnel.broker.group.ready import Item


class Stock(Protocol):
    """What lies at places: opaque to the group, except for its sizes and times, and that it can be made smaller."""

    @property
    def is_kept(self) -> bool:
        """Whether it can be read again from where it came, so that nobody has to hold on to it."""

    def size(self, place: int) -> int:
        """How many bytes lie at `place`."""

    def weight(self, first: int, end: int) -> int:
        """How many bytes lie at [first, end)."""

    def time(self, place: int) -> float:
        """When what lies at `place` was published."""

    def only(self, place: int) -> Stock:
        """The stock of one place, which holds on to nothing else."""


class Notes(Protocol):
    """Somebody who writes down what is settled, and what failed and is to be tried again."""

    def settled(self, place: int) -> None:
        """One place is done with."""

    def settled_range(self, first: int, end: int) -> None:
        """Places [first, end) are done with."""

    def failed(self, place: int, attempts: int, due: float, reason: str) -> None:
        """An attempt failed; the next one is not before `due`."""


class Lease:
    """Places [first, end) at one member. `low` is the first that is not settled, `handed` the first not yet seen.

    `deadline` moves when the member shows that it works; `queued` is the deadline under which the
    group looks at the lease again, and `renewal` the number of that note.
    """

    __slots__ = (
        "_settled",
        "attempt",
        "deadline",
        "end",
        "ended",
        "first",
        "handed",
        "item",
        "low",
        "member",
        "on_end",
        "promised",
        "queued",
        "renewal",
        "stock",
    )

    def __init__(
        self, member: Member, first: int, end: int, attempt: int, deadline: float, stock: Stock, item: Item | None
    ) -> None:
        self.member, self.first, self.end, self.attempt = member, first, end, attempt
        self.deadline = self.queued = deadline
        self.stock, self.item = stock, item  # an item, when the place is kept track of by itself
        self.low = self.handed = first
        self.renewal = 0
        self.ended = False  # expired, or its member left: acks come too late
        self.on_end: Callable[[], None] | None = None  # who must hear of it at once, being far away
        self.promised: dict[int, bool] | None = None  # to be acked by a transaction; True: nobody else looks after it
        self._settled: set[int] | None = None  # above `low`, for acks out of order

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{len(self)} open"
        return f"<Lease of {self.member.name!r} [{self.first}, {self.end}), attempt {self.attempt}, {state}>"

    def lapse(self) -> None:
        """It is over: what was not settled is no longer the member's."""
        self.ended = True
        if self.on_end is not None:
            self.on_end()

    def __len__(self) -> int:
        """How many places are not settled."""
        return self.end - self.low - (len(self._settled) if self._settled else 0)

    def is_open(self, place: int) -> bool:
        """Whether `place` is still to be settled."""
        return self.low <= place < self.end and not (self._settled and place in self._settled)

    def open_places(self) -> Iterator[int]:
        """The places still to be settled, in order."""
        return filter(self.is_open, range(self.low, self.end))

    def open_bytes(self, first: int, end: int) -> int:
        """How many bytes are still to be settled in [first, end)."""
        first = max(first, self.low)
        if self._settled:
            return sum(self.stock.size(place) for place in range(first, end) if self.is_open(place))
        return self.stock.weight(first, end) if first < end else 0

    def open_ranges(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The places still to be settled in [first, end), as ranges."""
        first = max(first, self.low)
        if not self._settled:
            if first < end:
                yield first, end
            return
        for place in range(first, end):
            if self.is_open(place):
                yield place, place + 1

    def settle(self, place: int) -> None:
        """`place`, which is open, is done with."""
        if place != self.low:
            if self._settled is None:
                self._settled = set()
            self._settled.add(place)
            return
        self.low += 1
        if self._settled:
            while self.low in self._settled:
                self._settled.remove(self.low)
                self.low += 1

    def settle_range(self, first: int, end: int) -> int:
        """All that is open in [first, end) is done with; how many that was."""
        before = len(self)
        if first <= self.low and not self._settled:
            self.low = max(self.low, end)
        else:
            for place in range(max(first, self.low), end):
                if self.is_open(place):
                    self.settle(place)
        return before - len(self)

    def reopen(self, first: int, end: int) -> None:
        """Places [first, end), which were settled, are not after all."""
        if first < self.low:
            done = set(range(min(end, self.low), self.low))
            self._settled = done if self._settled is None else self._settled | done
            self.low = first
        if self._settled:
            self._settled.difference_update(range(first, end))
