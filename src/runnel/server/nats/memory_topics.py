"""Topics in memory that NATS clients made by publishing: bounded in number and bytes, and reclaimed when they are idle.

NATS subjects cost nothing, so programs put ids into them. A topic that was made by a publish to a subject without a
topic goes after a minute without a publish, or when there are too many or they are too large, unless a reader has
subscribed to its name.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_TOPICS = 10_000
MAX_BYTES = 256 << 20  # of values, of all of them
IDLE_SECONDS = 60.0
SPARE = 8  # beyond the bound one in so many goes, the oldest first: the next publishes look for none


class MemoryTopics:
    """The topics that were made here, each with the time of its last publish.

    >>> made = MemoryTopics(backend.reclaim, size_of, limit=10_000)
    >>> made.used("sensor.17", now, len(value))
    """

    def __init__(
        self,
        reclaim: Callable[[str], bool],
        size_of: Callable[[str], int],
        *,
        limit: int = MAX_TOPICS,
        max_bytes: int = MAX_BYTES,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self._reclaim, self._size_of = reclaim, size_of
        self._limit, self._max_bytes, self._idle = limit, max_bytes, idle
        self._allowed = limit  # more than the limit while there are many that are read
        self._unweighed = 0  # bytes published since the topics were weighed
        self._used: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, topic: str) -> bool:
        return topic in self._used

    def used(self, topic: str, now: float, size: int) -> None:
        """Note a publish of `size` bytes to a topic that was made here, or is made now."""
        self._used[topic] = now
        self._unweighed += size
        if len(self._used) > self._allowed:
            self._reclaim_oldest(topic)
        if self._unweighed > self._max_bytes // SPARE:
            self._reclaim_large(topic)

    def sweep(self, now: float) -> None:
        """Reclaim the topics that were idle for long."""
        self._forget([topic for topic, used in self._used.items() if used + self._idle <= now])
        self._allowed = max(self._limit, len(self._used))

    def _oldest(self, but: str) -> list[str]:
        return [topic for _, topic in sorted((used, topic) for topic, used in self._used.items() if topic != but)]

    def _reclaim_oldest(self, but: str) -> None:
        self._forget(self._oldest(but)[: max(1, self._limit // SPARE)])
        self._allowed = max(self._limit, len(self._used) + self._limit // SPARE)

    def _reclaim_large(self, but: str) -> None:
        """Weigh all, and reclaim the oldest that hold something until the others are within the bound."""
        self._unweighed = 0
        sizes = {topic: self._size_of(topic) for topic in self._used}
        over = sum(sizes.values()) - self._max_bytes
        for topic in self._oldest(but) if over > 0 else ():
            if over > 0 and sizes[topic] and self._forget([topic]):
                over -= sizes[topic]

    def _forget(self, topics: list[str]) -> int:
        """Reclaim those of the topics that are not read; how many."""
        gone = [topic for topic in topics if self._reclaim(topic)]
        for topic in gone:
            del self._used[topic]
        return len(gone)
