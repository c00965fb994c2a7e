"""How much may wait in a group before publishers do.

Below: flow, group. Above: group_reader.
"""

from __future__ import annotations

from runnel.broker.cursor import Cursor, Taken
from runnel.broker.flow import Block, Owner
from runnel.broker.group.machine import Group
from runnel.broker.log import CHUNK
from runnel.core.policy import Policy
from runnel.journal.group_state import GroupState


class GroupFlow(Block):
    """Lose nothing: publishers wait while the group holds its bound, unless what it reads is on disk."""

    __slots__ = ("group", "lags", "revived")

    def __init__(
        self, cursor: Cursor, buffer: int, buffer_bytes: int, owner: Owner, group: Group, *, lags: bool
    ) -> None:
        super().__init__(cursor, Policy.block(), buffer, buffer_bytes, owner)
        self.group, self.lags = group, lags
        self.revived: GroupState | None = None  # what it had done in an earlier life, until it has passed that
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
        if self.revived is None:
            return 0
        at = self.cursor.position
        return sum(end - max(first, at) for first, end in self.revived.settled if end > at)

    def lag(self) -> int:
        """Records published for the group and not settled."""
        pending = self.cursor.pending()
        # What was settled in an earlier life may have gone with its topic since, and is not among what is pending.
        # So this may be too little while that is passed, but never nothing while there is something to look at.
        return self.group.unsettled + max(min(1, pending), pending - self.settled_ahead())
