"""The leases of a group, and when to look at them.

Most end before their first deadline and were made in the order of those: they cost nothing but their
place in a dict. The others, which were extended or moved on, are in a heap.
Below: lease. Above: machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from runnel.broker.group.lease import Lease


class Leases:
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
