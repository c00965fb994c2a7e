"""Positions of named subscriptions and progress of groups that wait for the next commit.

A position or an ack is accepted at once, and written within `SOON` seconds with whatever else is written then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from runnel.broker.durable.holds import RetentionHold, RetentionHolds
from runnel.broker.durable.pending_acks import PendingAcks
from runnel.broker.topic.named_positions import NamedPositions, NamedSubscription, Place
from runnel.core.position import Position
from runnel.journal.format.entry import Part, PartKind, state_part
from runnel.journal.format.ledger import CursorState, GroupState, Ledger, cursor_forgotten_part, cursor_part, group_part

if TYPE_CHECKING:
    from runnel.broker.durable.commit_queue import CommitQueue

SOON = 0.005

Written = tuple[str, Position | int, bool]  # and whether it holds


class DurableGroup(Protocol):
    """A group whose progress is stored."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""

    @property
    def options(self) -> object:
        """Its options."""

    @property
    def position(self) -> int:
        """Where it reads on."""

    def wake(self) -> None:
        """There may be something to do."""


class PendingState:
    """Changes since the last commit."""

    commits: CommitQueue  # set by the store, which makes them all
    holding: RetentionHolds

    def __init__(self, positions: NamedPositions) -> None:
        self._names = positions
        self._moved: dict[NamedSubscription, None] = {}
        self._positions: set[str] = set()  # names without a reader whose position is new
        self._written: dict[str, Written] = {}
        self._groups: dict[int, PendingAcks] = {}
        self._dirty: dict[PendingAcks, None] = {}  # those of them that have something to be written
        self._next_group = 1
        self._due = False

    @property
    def is_urgent(self) -> bool:
        """Whether something must go out now, and not only soon."""
        return any(pending_acks.is_urgent for pending_acks in self._dirty)

    def restore(self, ledger: Ledger) -> None:
        """Take up what the journal knows of names."""
        self._next_group = ledger.next_group
        for cursor in ledger.cursors.values():
            place = Position(cursor.epoch, cursor.place) if cursor.epoch else cursor.place
            self._names.stored[cursor.name] = (cursor.pattern, place)
            self._written[cursor.name] = (cursor.pattern, place, cursor.hold)
            if cursor.hold:
                self.holding.restore(RetentionHold(cursor.name, cursor.pattern, place))

    def touch(self) -> None:
        """Something is new: it goes out with the next commit, or soon."""
        if not self._due and not self.commits.stopped:
            self._due = True
            self.commits.loop.call_later(SOON, self._go)

    def _go(self) -> None:
        self._due = False
        self.commits.flush_soon()

    # -- names --------------------------------------------------------------------------------------------------

    def moved(self, subscription: NamedSubscription) -> None:
        """A named subscription moved."""
        self._moved[subscription] = None
        if not self._due:
            self.touch()

    def keep(self, name: str) -> None:
        """The position of `name` was set."""
        self._positions.add(name)
        self.touch()

    def hold(self, subscription: NamedSubscription, name: str, place: Place, *, hold: bool) -> None:
        """From now on `name` holds what it has not read, or does not any more."""
        if hold:
            self.holding.begin(name, *place)
        else:
            self.holding.release(name)
        self.moved(subscription)

    def hold_at(self, name: str, topic: str, place: Position | int, *, hold: bool) -> None:
        """From now on `name`, which has no reader, holds the records behind `place`, or holds none."""
        if not hold:
            self.holding.release(name)
        elif name not in self.holding.holds:  # else it moves there when that is being written
            self.holding.begin(name, topic, place)

    def forget(self, name: str) -> None:
        """The position of `name` is deleted."""
        self.holding.release(name)
        self._positions.discard(name)
        self._written.pop(name, None)
        self.commits.tell(cursor_forgotten_part(name))

    # -- groups -------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Schedule a commit of the changes for the end of this loop iteration."""
        self.commits.flush_soon()

    def call_later(self, seconds: float, again: Callable[[], None]) -> bool:
        """Have `again` called, to try once more what found no room; False: the journal takes nothing more."""
        if self.commits.stopped or self.commits.has_failed:
            return False
        self.commits.loop.call_later(seconds, again)
        return True

    async def flushed(self) -> None:
        """Return when all settlements so far are on disk."""
        await self.commits.flushed()

    def keep_group(self, reader: DurableGroup, known: GroupState | None) -> PendingAcks:
        """Begin to remember what a group does."""
        group_id = self._next_group if known is None else known.id
        pending_acks = PendingAcks(group_id, self._dirty, self.touch, reader.wake)
        self._groups[group_id] = pending_acks
        if known is None:
            self._next_group += 1
            self.place_group(reader, pending_acks)
        return pending_acks

    def place_group(self, reader: DurableGroup, pending_acks: PendingAcks) -> None:
        """A group begins, or begins again somewhere else: all that it settled counts no more."""
        pending_acks.forget()
        options = msgspec.to_builtins(reader.options)
        told = GroupState(pending_acks.id, reader.name, reader.pattern, options, reader.position)
        self.commits.tell(group_part(told))

    def forget_group(self, pending_acks: PendingAcks) -> None:
        """A group is over."""
        self._groups.pop(pending_acks.id, None)
        pending_acks.forget()
        self.commits.tell(state_part(PartKind.GROUP_DELETED, topic=pending_acks.id))

    # -- changes -------------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[Part], list[Callable[[], None]], list[Callable[[], None]]]:
        """The parts to write; what to call when they are, and when they are not."""
        parts: list[Part] = []
        landed: list[Callable[[], None]] = []
        undo: list[Callable[[], None]] = []
        if self._dirty:
            dirty = list(self._dirty)
            self._dirty.clear()
            for pending_acks in dirty:
                if pending_acks.id in self._groups and (found := pending_acks.take()) is not None:
                    parts.append(found[0])
                    landed.append(found[1])
                    undo.append(found[2])
        if self._moved or self._positions:
            moved, self._moved = self._moved, {}
            for one in moved:
                one.hurry()
            names, self._positions = self._positions, set()
            places = {name: self._names.stored[name] for name in names}
            # The position of an open subscription is newer than the stored one of its name.
            places |= {one.name: place for one in moved if one.name and (place := one.place()) is not None}
            written = {name: (*place, name in self.holding.holds) for name, place in places.items()}
            news = {name: place for name, place in written.items() if self._written.get(name) != place}
            for name, told in news.items():
                parts.append(cursor_part(_cursor(name, *told)))
                self.holding.moved(name, told[1])  # what it passed may go with the next commit, not before
            before = {name: self._written.get(name) for name in news}
            self._written.update(news)
            if news:
                undo.append(lambda: self._unwrite(before))
        return parts, landed, undo

    def _unwrite(self, before: dict[str, Written | None]) -> None:
        for name, place in before.items():
            if place is None or (name not in self._names.stored and name not in self._names.open):
                self._written.pop(name, None)
            else:
                self._written[name] = place
            if (subscription := self._names.open.get(name)) is not None:
                self._moved[subscription] = None
            elif name in self._names.stored:
                self._positions.add(name)


def _cursor(name: str, pattern: str, place: Position | int, hold: bool) -> CursorState:
    if isinstance(place, Position):
        return CursorState(name, pattern, place.epoch, place.offset, hold)
    return CursorState(name, pattern, 0, place, hold)
