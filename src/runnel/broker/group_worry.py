"""Whether a group moves: a warning when nobody settles anything while records wait.

Below: nothing. Above: group_reader.
"""

from __future__ import annotations

import logging
from math import inf

log = logging.getLogger("runnel")

WATCH = 30.0  # seconds without a member, or without anything settled, before that is warned about


class Worry:
    """When something was last settled, and whether it was said that this is long ago."""

    __slots__ = ("_label", "_moved", "_owed", "_settled", "_warned")

    def __init__(self, label: str, now: float) -> None:
        self._label, self._moved = label, now
        self._settled = self._owed = 0
        self._warned = False

    def __repr__(self) -> str:
        return f"<Worry about {self._label!r} since {self._moved:.3f}>"

    def calm(self, now: float) -> None:
        """A member came, or the group was reset: its time begins now."""
        self._moved, self._warned = now, False

    def look(self, now: float, settled: int, owed: int, members: int) -> float:
        """So many were settled up to `now`, and so many could be; warn if that stays so. When to look again."""
        if settled != self._settled or not owed or not self._owed:
            self.calm(now)
        elif now - self._moved >= WATCH and not self._warned:
            self._warned = True
            why, waited = "has settled nothing" if members else "has no member", now - self._moved
            log.warning("group %r %s for %.0f s while %s records wait", self._label, why, waited, f"{owed:,}")
        self._settled, self._owed = settled, owed
        return self._moved + WATCH if owed and not self._warned else inf
