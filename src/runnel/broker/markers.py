"""Markers: named values that move forward, written in the same entry as the records of their transaction.

A marker stores the progress of a program: the last row of a table, the number of a batch. A transaction whose marker is
stored already, or further, was done before. A marker that is being written counts for later transactions: if it fails,
so do they.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runnel.core.markers import Marker
from runnel.journal.format.entry import Part
from runnel.journal.format.ledger import marker_part
from runnel.runtime.waiting import resolve_waiter

if TYPE_CHECKING:
    from runnel.core.markers import MarkerValue


class PendingMarkers:
    """The markers of one transaction on its way, and the waiters for their commit."""

    __slots__ = ("marks", "waiters")

    def __init__(self, marks: Sequence[Marker]) -> None:
        self.marks = {mark.name: mark.value for mark in marks}
        self.waiters: list[asyncio.Future[None]] = []


class Markers:
    """All marks of a broker."""

    def __init__(self) -> None:
        self.values: dict[str, MarkerValue] = {}  # those that are as durable as they get
        self._coming: dict[str, PendingMarkers] = {}  # the last one that has a mark of that name

    def __repr__(self) -> str:
        return f"<Markers, {len(self.values)} known, {len(self._coming)} on their way>"

    def are_past(self, marks: Sequence[Marker]) -> bool:
        """Whether one of them is there already, or further. A conflict of any of them comes first, and raises."""
        past = [mark.is_past(self._current(mark.name)) for mark in marks]
        return any(past)

    def _current(self, name: str) -> MarkerValue | None:
        flight = self._coming.get(name)
        return self.values.get(name) if flight is None else flight.marks[name]

    def joined(self, marks: Sequence[Marker]) -> asyncio.Future[None] | None:
        """Done when the writes under way of `marks` are durable; None: all are."""
        flights = {flight for mark in marks if (flight := self._coming.get(mark.name)) is not None}
        if not flights:
            return None
        # The last of them: commits land in order.
        flight = next(flight for flight in reversed(self._coming.values()) if flight in flights)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        return waiter

    # -- a transaction's marks ----------------------------------------------------------------------------------

    @staticmethod
    def parts(marks: Sequence[Marker]) -> list[Part]:
        """The entry part that stores them."""
        return [marker_part(mark.name, mark.value) for mark in marks]

    def hand_over(self, marks: Sequence[Marker]) -> PendingMarkers:
        """They are on their way."""
        flight = PendingMarkers(marks)
        for name in flight.marks:
            self._coming.pop(name, None)  # the last to come is last in order, too
            self._coming[name] = flight
        return flight

    def land(self, flight: PendingMarkers) -> None:
        """They are durable."""
        values = self.values
        for name, value in flight.marks.items():
            if value is None:
                values.pop(name, None)
            else:
                values[name] = value
        self._end(flight, None)

    def fail(self, flight: PendingMarkers, error: Exception) -> None:
        """The write of these failed; later ones fail with it."""
        self._end(flight, error)

    def _end(self, flight: PendingMarkers, error: Exception | None) -> None:
        for name in flight.marks:
            if self._coming.get(name) is flight:
                del self._coming[name]
        for waiter in flight.waiters:
            resolve_waiter(waiter, error)
