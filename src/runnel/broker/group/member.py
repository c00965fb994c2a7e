"""A member of a group: what it may hold, and what it holds.

Below: nothing. Above: lease, machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.broker.group.machine import Group


class Member:
    """Somebody who takes part. `held` never exceeds `prefetch`, nor `held_bytes` its bound, except by one record."""

    __slots__ = ("acked", "granted", "group", "held", "held_bytes", "moved", "name", "prefetch", "prefetch_bytes")

    def __init__(self, group: Group, name: str, prefetch: int, prefetch_bytes: int | None) -> None:
        self.group, self.name, self.prefetch, self.prefetch_bytes = group, name, prefetch, prefetch_bytes
        self.held = self.held_bytes = 0
        self.granted = self.acked = 0
        self.moved = float("-inf")  # when it last took something up, or settled it

    def __repr__(self) -> str:
        return f"<Member {self.name!r} holds {self.held} of {self.prefetch}>"

    @property
    def room(self) -> int:
        """How many more records it may be granted."""
        if self.prefetch_bytes is not None and self.held_bytes >= self.prefetch_bytes:
            return 0
        return self.prefetch - self.held
