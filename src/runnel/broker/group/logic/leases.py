"""Leases: places granted to one member in one go, until a deadline.

A range of plain records is one lease, however long; acks in order only move its lower end. Every grant is a lease of
its own, so that an ack for an earlier grant is recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from runnel.broker.group.logic.group import MemberState
    from runnel.broker.group.logic.ready import QueuedRecord


class GroupRecords(Protocol):
    """The records at places: opaque to the group, except for sizes and times, and that it can be cut."""

    @property
    def is_kept(self) -> bool:
        """Whether it can be read again from where it came, so that it need not stay in memory."""

    def size(self, place: int) -> int:
        """How many bytes lie at `place`."""

    def weight(self, first: int, end: int) -> int:
        """How many bytes lie at [first, end)."""

    def time(self, place: int) -> float:
        """The publish time of the record at `place`."""

    def only(self, place: int) -> GroupRecords:
        """The stock of one place, which holds on to nothing else."""


class ProgressRecorder(Protocol):
    """Tracks settled places, and failed ones to be tried again."""

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
        "contents",
        "deadline",
        "end",
        "ended",
        "first",
        "granted",
        "guard",
        "handed",
        "item",
        "low",
        "member",
        "on_end",
        "on_recall",
        "promised",
        "queued",
        "recalled",
        "renewal",
    )

    def __init__(
        self,
        member: MemberState,
        first: int,
        end: int,
        attempt: int,
        deadline: float,
        contents: GroupRecords,
        item: QueuedRecord | None,
    ) -> None:
        self.member, self.first, self.end, self.attempt = member, first, end, attempt
        self.deadline = self.queued = deadline
        self.contents, self.item = contents, item  # an item, when the place has one of its own
        self.low = self.handed = first
        self.granted = 0.0  # when
        self.renewal = 0
        self.ended = False  # expired, or its member left: acks come too late
        self.on_end: Callable[[], None] | None = None  # called at once when it ends: the member is remote
        self.on_recall: Callable[[int], None] | None = None  # asks a remote member for its unseen places from one on
        self.recalled = end  # the first place of that request
        self.guard: AbstractContextManager[Any] | None = None  # held by a thread that hands it out, and by `take_back`
        self.promised: dict[int, bool] | None = None  # to be acked by a transaction; True: no lease holds it
        self._settled: set[int] | None = None  # above `low`, for acks out of order

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{len(self)} open"
        return f"<Lease of {self.member.name!r} [{self.first}, {self.end}), attempt {self.attempt}, {state}>"

    def lapse(self) -> None:
        """It is over: unsettled records no longer belong to the member."""
        self.ended = True
        if self.on_end is not None:
            self.on_end()

    def has_unseen(self) -> bool:
        """Whether its member has not seen all of it."""
        return self.handed < self.end

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
            return sum(self.contents.size(place) for place in range(first, end) if self.is_open(place))
        return self.contents.weight(first, end) if first < end else 0

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


# -- All leases of a group -------------------------------------------------------------------------------
# Most leases end before their first deadline, in the order in which they were made: they cost one place in a
# dict. Those that were extended or moved on are in a heap.


class LeaseTable:
    """Every lease with open places."""

    __slots__ = ("_fresh", "_long", "_renewals", "_renewed")

    def __init__(self) -> None:
        self._fresh: dict[Lease, None] = {}  # in the order of their deadlines
        self._long: dict[Lease, None] = {}  # that outlive their first deadline
        self._renewed: list[tuple[float, int, Lease]] = []  # a heap of when to look at those
        self._renewals = 0

    def __iter__(self) -> Iterator[Lease]:
        return chain(self._fresh, self._long)

    def __len__(self) -> int:
        return len(self._fresh) + len(self._long)

    def add(self, lease: Lease) -> None:
        """A lease was made; none before it has a later deadline."""
        self._fresh[lease] = None

    def remove(self, lease: Lease) -> None:
        """Nothing of a lease is open any more."""
        if self._fresh.pop(lease, self) is self:
            del self._long[lease]

    def to_look_at(self, now: float) -> list[Lease]:
        """Those that were to be looked at until `now`. They may have moved meanwhile: then `renew` them."""
        late: list[Lease] = []
        for lease in self._fresh:
            if lease.queued > now:
                break
            late.append(lease)
        while self._renewed and self._renewed[0][0] <= now:
            _, renewal, lease = heappop(self._renewed)
            if lease.renewal == renewal and lease in self._long:
                late.append(lease)
        return late

    def renew(self, lease: Lease) -> None:
        """Look at the lease at its new deadline."""
        self._fresh.pop(lease, None)
        self._long[lease] = None
        self._renewals += 1
        lease.queued, lease.renewal = lease.deadline, self._renewals
        heappush(self._renewed, (lease.queued, lease.renewal, lease))
        if len(self._renewed) > 2 * len(self._long) + 64:  # mostly of leases that were extended again, or are done
            self._renewed = [note for note in self._renewed if note[1] == note[2].renewal and note[2] in self._long]
            heapify(self._renewed)

    def next_look(self) -> float | None:
        """When one of them is to be looked at."""
        times = [lease.queued for lease in islice(self._fresh, 1)]
        if self._renewed:
            times.append(self._renewed[0][0])
        return min(times, default=None)
