"""Topics in memory that NATS clients made by publishing: bounded in number, and reclaimed when they are idle.

NATS subjects cost nothing, so programs put ids into them. A topic that was made by a publish to a subject without a
topic goes after a minute without a publish, or when there are too many, unless a reader has subscribed to its name.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_TOPICS = 10_000
IDLE_SECONDS = 60.0
SPARE = 8  # beyond the bound one in so many goes, the oldest first: the next publishes look for none


class MemoryTopics:
    """The topics that were made here, each with the time of its last publish.

    >>> made = MemoryTopics(backend.reclaim, limit=10_000)
    >>> made.used("sensor.17", now)
    """

    def __init__(self, reclaim: Callable[[str], bool], *, limit: int = MAX_TOPICS, idle: float = IDLE_SECONDS) -> None:
        self._reclaim, self._limit, self._idle = reclaim, limit, idle
        self._allowed = limit  # more than the limit while there are many that are read
        self._used: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, topic: str) -> bool:
        return topic in self._used

    def used(self, topic: str, now: float) -> None:
        """Note a publish to a topic that was made here, or is made now."""
        self._used[topic] = now
        if len(self._used) > self._allowed:
            self._reclaim_oldest(topic)

    def sweep(self, now: float) -> None:
        """Reclaim the topics that were idle for long."""
        self._forget([topic for topic, used in self._used.items() if used + self._idle <= now])
        self._allowed = max(self._limit, len(self._used))

    def _reclaim_oldest(self, but: str) -> None:
        oldest = sorted((used, topic) for topic, used in self._used.items() if topic != but)
        self._forget([topic for _, topic in oldest[: max(1, self._limit // SPARE)]])
        self._allowed = max(self._limit, len(self._used) + self._limit // SPARE)

    def _forget(self, topics: list[str]) -> None:
        for topic in topics:
            if self._reclaim(topic):
                del self._used[topic]
