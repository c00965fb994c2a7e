"""State that is not records: where named subscriptions stand, what groups have done. Kept with the next commit.

A position or an ack is accepted at once and written within `SOON` seconds, with whatever else is
written then.
Below: group_keeper, journal.ledger. Above: store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.broker.group.options import GroupOptions
from runnel.broker.group_keeper import GroupKeeper
from runnel.broker.holding import Hold, Holding
from runnel.core.errors import UnknownTopic
from runnel.core.position import Position
from runnel.journal.entry import Kind, Part, state
from runnel.journal.group_state import GroupState
from runnel.journal.ledger import CursorState, Ledger
from runnel.journal.parts import cursor_forgotten_part, cursor_part, group_part

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.commits import Commits
    from runnel.broker.group_reader import GroupReader
    from runnel.broker.subscription import Subscription

SOON = 0.005

logger = logging.getLogger("runnel")

Place = tuple[str, Position | int]
Written = tuple[str, Position | int, bool]  # and whether it holds


class StateKeeper:
    """What is new since the last commit."""

    commits: Commits  # set by the store, which makes them all
    holding: Holding

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._moved: dict[Subscription[Any], None] = {}
        self._positions: set[str] = set()  # names whose position is new, though nobody reads under them now
        self._written: dict[str, Written] = {}
        self._groups: dict[int, GroupKeeper] = {}
        self._next_group = 1
        self._due = False

    @property
    def is_urgent(self) -> bool:
        """Whether something must go out now, and not only soon."""
        return any(keeper.is_urgent for keeper in self._groups.values())

    def restore(self, ledger: Ledger) -> None:
        """Take up what the journal knows."""
        self._next_group = ledger.next_group
        for cursor in ledger.cursors.values():
            place = Position(cursor.epoch, cursor.place) if cursor.epoch else cursor.place
            self._bus.positions[cursor.name] = (cursor.pattern, place)
            self._written[cursor.name] = (cursor.pattern, place, cursor.hold)
            if cursor.hold:
                self.holding.restore(Hold(cursor.name, cursor.pattern, place))
        for group in ledger.groups.values():
            try:
                self._bus.groups.revive(group, msgspec.convert(group.options, GroupOptions))
            except UnknownTopic:  # with auto_create off; it is still there when the topic is declared and joined
                logger.warning("group %r waits for its topic %r, which is not there", group.name, group.pattern)

    def touch(self) -> None:
        """Something is new: it goes out with the next commit, or soon."""
        if not self._due and not self.commits.stopped:
            self._due = True
            self.commits.loop.call_later(SOON, self._go)

    def _go(self) -> None:
        self._due = False
        self.commits.flush_soon()

    # -- names --------------------------------------------------------------------------------------------------

    def moved(self, subscription: Subscription[Any]) -> None:
        """A named subscription moved."""
        self._moved[subscription] = None
        if not self._due:
            self.touch()

    def keep(self, name: str) -> None:
        """The position of `name` was set."""
        self._positions.add(name)
        self.touch()

    def hold(self, subscription: Subscription[Any], name: str, place: Place, *, hold: bool) -> None:
        """From now on `name` holds what it has not read, or does not any more."""
        if hold:
            self.holding.begin(name, *place)
        else:
            self.holding.release(name)
        self.moved(subscription)

    def hold_at(self, name: str, topic: str, place: Position, *, hold: bool) -> None:
        """From now on `name`, under which nobody reads, holds what lies behind `place`, or does not any more."""
        if not hold:
            self.holding.release(name)
        elif name not in self.holding.holds:  # else it moves there when that is being written
            self.holding.begin(name, topic, place)

    def forget(self, name: str) -> None:
        """Nobody wants the position of `name` any more."""
        self.holding.release(name)
        self._positions.discard(name)
        self._written.pop(name, None)
        self.commits.tell(cursor_forgotten_part(name))

    # -- groups -------------------------------------------------------------------------------------------------

    def keep_group(self, reader: GroupReader, known: GroupState | None) -> GroupKeeper:
        """Begin to remember what a group does."""
        group_id = self._next_group if known is None else known.id
        keeper = GroupKeeper(group_id, self.touch, reader.wake)
        self._groups[group_id] = keeper
        if known is None:
            self._next_group += 1
            self.place_group(reader, keeper)
        return keeper

    def place_group(self, reader: GroupReader, keeper: GroupKeeper) -> None:
        """A group begins, or begins again somewhere else: all that it settled counts no more."""
        keeper.forget()
        options = msgspec.to_builtins(reader.options)
        told = GroupState(keeper.id, reader.name, reader.pattern, options, reader.flow.cursor.position)
        self.commits.tell(group_part(told))

    def forget_group(self, keeper: GroupKeeper) -> None:
        """A group is over."""
        self._groups.pop(keeper.id, None)
        keeper.forget()
        self.commits.tell(state(Kind.GROUP_DELETED, topic=keeper.id))

    # -- what is new --------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[Part], list[Callable[[], None]], list[Callable[[], None]]]:
        """The parts to write; what to call when they are, and when they are not."""
        parts: list[Part] = []
        landed: list[Callable[[], None]] = []
        undo: list[Callable[[], None]] = []
        for keeper in self._groups.values():
            if (found := keeper.take()) is not None:
                parts.append(found[0])
                landed.append(found[1])
                undo.append(found[2])
        if self._moved or self._positions:
            moved, self._moved = self._moved, {}
            names, self._positions = self._positions, set()
            places = {name: self._bus.positions[name] for name in names}
            # Those who read under a name now know better than where it was left.
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
            if place is None or (name not in self._bus.positions and name not in self._bus.named):
                self._written.pop(name, None)
            else:
                self._written[name] = place
            if (subscription := self._bus.named.get(name)) is not None:
                self._moved[subscription] = None
            elif name in self._bus.positions:
                self._positions.add(name)


def _cursor(name: str, pattern: str, place: Position | int, hold: bool) -> CursorState:
    if isinstance(place, Position):
        return CursorState(name, pattern, place.epoch, place.offset, hold)
    return CursorState(name, pattern, 0, place, hold)
