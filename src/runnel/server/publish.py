"""A publish under way: who waits for it, what it weighs meanwhile, and how it is taken back.

Below: broker.intake, which calls it. Above: native.
"""

from __future__ import annotations

from typing import Protocol

from runnel.broker.intake import Late
from runnel.core.errors import RunnelError
from runnel.core.position import Span

OVERHEAD = 1 << 10  # about what a publish under way takes besides its bytes
_RAW_LENGTH = slice(16, 20)  # in the header of a batch: see core.packing


class Publisher(Protocol):
    """Who waits for publishes."""

    def published(self, publish: Publish, result: Span | Exception | None) -> None:
        """A publish has come to its end; None: nobody wants to know."""


class Publish:
    """A publish under way: the intake calls it with what became of it."""

    __slots__ = ("_publisher", "id", "size", "take_back")

    def __init__(self, publisher: Publisher, id: int, size: int) -> None:
        self._publisher: Publisher | None = publisher
        self.id, self.size = id, size
        self.take_back: Late | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it is written, and nobody knows when it will be."""
        return self.take_back is not None and self.take_back.is_waiting

    def __call__(self, result: Span | Exception) -> None:
        """It has come to its end."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.published(self, result)

    def give_up(self, answer: RunnelError | None = None) -> None:
        """Nobody waits for it any more: take it back if that can still be done."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.published(self, answer)
            if self.take_back is not None:
                self.take_back()


def weight(batch: bytes) -> int:
    """What a batch takes up while it waits: what its header says it is without compression, if that is more."""
    return OVERHEAD + max(len(batch), int.from_bytes(batch[_RAW_LENGTH], "little"))
