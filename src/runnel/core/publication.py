"""One publish in a transaction, as its caller holds it: a promise of where the records will be.

Above: broker.transaction, the client.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from runnel.core.errors import NotSupported
from runnel.core.position import Position, Span


class Publication:
    """One publish in a transaction; where it is, once that is committed. Awaiting it is over at once."""

    __slots__ = ("_count", "_first", "topic")

    def __init__(self, topic: str, count: int) -> None:
        self.topic, self._count = topic, count
        self._first: Position | None = None

    def __repr__(self) -> str:
        where = "not committed" if self._first is None else f"from {self._first}"
        return f"<Publication of {self._count} records to {self.topic!r}, {where}>"

    def __await__(self) -> Generator[Any, None, Publication]:
        return self
        yield  # makes this a generator

    @property
    def position(self) -> Position:
        """The position of its record; of several, of the first."""
        if self._first is None:
            why = "it is known when the block is left, and only if the transaction was applied (`tx.applied`)"
            raise NotSupported(f"the position of a publish to {self.topic!r}", why)
        return self._first

    @property
    def span(self) -> Span:
        """The positions of its first and its last record."""
        first = self.position
        return Span(first, Position(first.epoch, first.offset + self._count - 1))

    def holds(self, topic: str, count: int) -> None:
        """It is a stage, of which only now is known for which topic it is, and how large."""
        self.topic, self._count = topic, count

    def put(self, first: Position) -> None:
        """It was committed."""
        self._first = first
