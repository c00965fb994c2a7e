"""Positions of named subscriptions: where each name stands, and which names are in use.

Where the broker is durable, a change is handed to `PositionStore`, which writes it with the next commit.
"""

from __future__ import annotations

from typing import Protocol

from runnel.core.errors import NameInUse, UnknownName
from runnel.core.position import Position

Place = tuple[str, Position | int]  # the pattern, and a position or (of a pattern) a sequence


class NamedSubscription(Protocol):
    """A subscription whose position is stored under its name."""

    @property
    def name(self) -> str | None:
        """The name."""

    def place(self) -> Place | None:
        """The current state of the name; None once it has ended."""

    def hurry(self) -> None:
        """A caller requested its place: notify it of the next move."""


class PositionStore(Protocol):
    """Where positions are made durable."""

    def moved(self, subscription: NamedSubscription) -> None:
        """A named subscription moved."""

    def keep(self, name: str) -> None:
        """The position of `name` was set."""

    def forget(self, name: str) -> None:
        """The position of `name` is not wanted any more."""

    def hold(self, subscription: NamedSubscription, name: str, place: Place, *, hold: bool) -> None:
        """From now on `name` holds what it has not read, or does not any more."""

    def hold_at(self, name: str, topic: str, place: Position | int, *, hold: bool) -> None:
        """From now on `name`, under which no subscription is open, holds the records behind `place`, or does not."""


class NamedPositions:
    """All names of a broker."""

    def __init__(self) -> None:
        self.open: dict[str, NamedSubscription] = {}  # the open subscriptions that have a name
        self.stored: dict[str, Place] = {}  # where names were when they left
        self.store: PositionStore | None = None  # set when the folder is open

    def keep(self, name: str, pattern: str, place: Position | int) -> None:
        """Remember where `name` stands, as durably as this broker remembers anything."""
        self.stored[name] = (pattern, place)
        if self.store is not None:
            self.store.keep(name)

    def forget(self, name: str) -> None:
        """Forget where `name` stands, and what it holds."""
        if name in self.open:
            raise NameInUse(name)
        if self.stored.pop(name, None) is None:
            raise UnknownName(name)
        if self.store is not None:
            self.store.forget(name)
