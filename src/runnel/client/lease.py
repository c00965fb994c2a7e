"""A lease as its member far away knows it: records that were granted together, and what is settled of them.

The server decides; what is here says at once whether something can still be settled, without asking.
Below: arrival. Above: delivery, settlements, group_subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runnel.client.arrival import unpacked
from runnel.core.batch import Slice
from runnel.core.record import Record
from runnel.wire.layouts import Grant

if TYPE_CHECKING:
    from runnel.client.group_subscription import RemoteGroupSubscription


class RemoteLease:
    """Places [first, end) at one member. `low` is the first that is not settled, `handed` the first not yet seen."""

    __slots__ = (
        "_grants",
        "_parts",
        "_settled",
        "attempt",
        "begun",
        "encoding",
        "end",
        "ended",
        "first",
        "handed",
        "low",
        "member",
        "number",
        "promised",
    )

    def __init__(self, member: RemoteGroupSubscription[Any], grants: list[Grant], end: int) -> None:
        self.member, self.number, self.attempt = member, grants[0].lease, grants[0].attempt
        self.first = self.low = self.handed = grants[0].place
        self.end = end
        self.ended = False  # it lapsed, or its connection was lost: what is said of it comes too late
        self.begun = False  # whether the server was told that somebody works on it
        self.promised: dict[int, bool] | None = None  # to be acked by a transaction; True: nobody else looks after it
        self.encoding: str | None = None  # how its values are written, once it was opened
        self._grants = grants
        self._parts: list[tuple[int, Slice]] | None = None  # the place of the first record of each slice
        self._settled: set[int] | None = None  # above `low`, for acks out of order

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{len(self)} open"
        return f"<RemoteLease {self.number} [{self.first}, {self.end}), attempt {self.attempt}, {state}>"

    def __len__(self) -> int:
        """How many places are not settled."""
        return self.end - self.low - (len(self._settled) if self._settled else 0)

    # -- records ------------------------------------------------------------------------------------------------

    def open(self, *, verify: bool) -> list[Slice]:
        """Its records, unpacked once; or `BadBatch`."""
        if self._parts is None:
            parts: list[tuple[int, Slice]] = []
            for grant in self._grants:
                found, self.encoding = unpacked(grant, verify=verify)
                parts.append((grant.place, found))
            self._parts, self._grants = parts, []
        return [part for _, part in self._parts]

    def records(self, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at places [first, end)."""
        return tuple(record for part in self._between(first, end) for record in part.records)

    def values(self, first: int, end: int) -> tuple[bytes, ...]:
        """The values at places [first, end)."""
        parts = list(self._between(first, end))
        return parts[0].values if len(parts) == 1 else tuple(value for part in parts for value in part.values)

    def _between(self, first: int, end: int) -> Iterator[Slice]:
        assert self._parts is not None, "it was opened when it was begun"
        for place, part in self._parts:
            low, high = max(first, place), min(end, place + len(part))
            if low < high:
                shift = part.start - place
                yield part if high - low == len(part) else part.cut(low + shift, high + shift)

    # -- settling -----------------------------------------------------------------------------------------------

    def is_open(self, place: int) -> bool:
        """Whether `place` is still to be settled."""
        return self.low <= place < self.end and not (self._settled and place in self._settled)

    def open_ranges(self, first: int, end: int) -> list[tuple[int, int]]:
        """The places still to be settled in [first, end), as ranges."""
        first, end = max(first, self.low), min(end, self.end)
        if not self._settled:
            return [(first, end)] if first < end else []
        found: list[tuple[int, int]] = []
        for place in range(first, end):
            if place not in self._settled:
                if found and found[-1][1] == place:
                    found[-1] = (found[-1][0], place + 1)
                else:
                    found.append((place, place + 1))
        return found

    def settle(self, first: int, end: int) -> None:
        """The places [first, end), all of them open, are done with."""
        if first == self.low:
            self.low = end
            if self._settled:
                while self.low in self._settled:
                    self._settled.remove(self.low)
                    self.low += 1
            return
        if self._settled is None:
            self._settled = set()
        self._settled.update(range(first, end))

    def reopen(self, first: int, end: int) -> None:
        """Places [first, end), which were settled, are not after all."""
        if first < self.low:
            done = set(range(min(end, self.low), self.low))
            self._settled = done if self._settled is None else self._settled | done
            self.low = first
        if self._settled:
            self._settled.difference_update(range(first, end))
