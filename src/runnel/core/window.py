"""Message ids seen lately, so that a retried publish is stored once.

Bounded by count and by age, whichever comes first. Time is an argument.
"""

from __future__ import annotations

from runnel.core.position import Position

MAX_IDS = 65_536
MAX_SECONDS = 120.0


class MessageIds:
    """Where each recent message id was stored."""

    __slots__ = ("_seen", "max_ids", "max_seconds")

    def __init__(self, max_ids: int = MAX_IDS, max_seconds: float = MAX_SECONDS) -> None:
        self.max_ids, self.max_seconds = max_ids, max_seconds
        self._seen: dict[str, tuple[float, Position]] = {}  # oldest first: ids are never stored twice

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, message_id: str, now: float) -> Position | None:
        """Where `message_id` was stored first, if that is still remembered."""
        self._forget(now)
        found = self._seen.get(message_id)
        return found[1] if found else None

    def remember(self, message_id: str, position: Position, now: float) -> None:
        """Note that `message_id` was stored at `position`."""
        self._seen[message_id] = (now, position)
        self._forget(now)

    def forget_from(self, offset: int) -> None:
        """What was to be stored at `offset` and behind it was not."""
        self._seen = {name: found for name, found in self._seen.items() if found[1].offset < offset}

    def _forget(self, now: float) -> None:
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= self.max_ids and self._seen[oldest][0] > now - self.max_seconds:
                return
            del self._seen[oldest]
