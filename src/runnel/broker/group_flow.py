"""How much may wait in a group before publishers do.

Below: flow, group. Above: group_reader.
"""

from __future__ import annotations

from runnel.broker.cursor import Cursor, Taken
from runnel.broker.flow import Block, Owner
from runnel.broker.group.machine import Group
from runnel.broker.log import CHUNK
from runnel.broker.pattern_cursor import PatternCursor
from runnel.core.policy import Policy
from runnel.journal.group_state import GroupState


class GroupFlow(Block):
    """Lose nothing: publishers wait while the group holds its bound, unless what it reads is on disk."""

    __slots__ = ("_counted", "beyond", "group", "lags", "revived")

    def __init__(
        self, cursor: Cursor, buffer: int, buffer_bytes: int, owner: Owner, group: Group, *, lags: bool
    ) -> None:
        super().__init__(cursor, Policy.block(), buffer, buffer_bytes, owner)
        self.group, self.lags = group, lags
        self.revived: GroupState | None = None  # what it had done in an earlier life, until it has passed that
        self.beyond: PatternCursor | None = None  # of a pattern: behind all of that, to count what came since
        self._counted: tuple[int, int] | None = None  # a place, and how many were settled from there on
        self.history = self.history_bytes = 0  # a group owes everything it has not settled, whenever it was published

    def take(self, limit: int) -> Taken | None:
        """The next records; the group counts them until they are settled."""
        return self.cursor.take(limit)

    def room(self) -> int:
        """How many small records may come before the group must be asked again."""
        if self.lags:
            return CHUNK
        self.held_bytes = self.group.unsettled_bytes
        return super().room()

    def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
        """Whether so much may be published; one record always may when nothing waits."""
        if self.lags:
            return True
        self.held_bytes = self.group.unsettled_bytes
        return super().fits(count, size, coming, coming_bytes)

    def settled_ahead(self) -> int:
        """Records ahead that were settled in an earlier life."""
        known = self.revived
        if known is None:
            return 0
        at = self.cursor.position
        if self._counted is None:
            self._counted = at, known.settled.count(at, known.end)
        then, places = self._counted
        if then != at:  # asked about every record, of very many ranges: count on from where it was
            places -= known.settled.count(then, at)
            self._counted = at, places
        if self.beyond is None:
            return places
        # Settled places of a pattern are not all records of its own, but those that are not settled are.
        unsettled = max(0, known.end - at - places)
        return max(0, self.cursor.known() - self.beyond.known() - unsettled)

    def revive(self, known: GroupState | None, beyond: PatternCursor | None = None) -> None:
        """Pass what was done in an earlier life; None: it is passed."""
        self.revived, self.beyond, self._counted = known, beyond, None

    def look_ahead(self) -> None:
        """Note what lies ahead."""
        self.cursor.pending()
        if self.beyond is not None:
            self.beyond.known()

    def lag(self) -> int:
        """Records published for the group and not settled."""
        return self.group.unsettled + max(0, self.cursor.known() - self.settled_ahead())
