"""What a feed took, for the others that stand where it stood: they take the same without looking.

Holds for one moment, in which nothing is published, trimmed or deleted.
Below: core.batch. Above: feed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

from runnel.core.batch import Slice
from runnel.core.record import Gap


class Step:
    """Slices, what was missed before them, and where a feed stands behind them."""

    __slots__ = ("count", "gap", "is_last", "position", "sent", "sequence", "shared", "slices")

    def __init__(self, gap: Gap | None, slices: list[Slice], position: int, sent: int, *, is_last: bool) -> None:
        self.gap, self.slices = gap, slices
        self.position, self.sent = position, sent  # of the cursor; behind the last record
        self.is_last = is_last  # whether there is nothing more, at this moment
        self.count = sum(map(len, slices))
        self.sequence: int | None = None  # behind the last record that it shows
        if slices:
            last = slices[-1]
            stretch = last.stretches[-1]
            self.sequence = stretch.sequence + last.end - stretch.offset
        self.shared: dict[Hashable, Any] = {}  # what a door made of it, for whoever takes it too

    def __repr__(self) -> str:
        return f"<Step of {self.count} records up to {self.sent}>"


Steps: TypeAlias = dict[Hashable, Step]
"""The steps of one moment, by where they begin."""
