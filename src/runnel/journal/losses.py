"""Which offsets of each topic are lost: what was seen to be damaged, and what is missing behind damage.

Below: ranges. Above: survey.
"""

from __future__ import annotations

from collections.abc import Iterator

from runnel.journal.journal import SKIPPED
from runnel.journal.ranges import Ranges


class Losses:
    """Follows every topic from offset to offset through a journal that is read from end to end."""

    def __init__(self) -> None:
        self._expected: dict[int, int] = {}  # the next offset of a topic
        self._breaks = 0  # places so far where nobody can say what was there
        self._looked: dict[int, int] = {}  # how many of them when a topic was last met
        self._lost: dict[int, Ranges] = {}

    def __repr__(self) -> str:
        return f"<Losses of {len(self._lost)} topics>"

    def __iter__(self) -> Iterator[tuple[int, Ranges]]:
        return iter(self._lost.items())

    def expected(self, topic: int, first: int) -> int:
        """The next offset of a topic, which begins at `first`."""
        return self._expected.get(topic, first)

    def begin(self, topic: int, first: int) -> None:
        """A topic begins there, if it was not met before: what lies below was let go of, and is not missing."""
        self._expected.setdefault(topic, first)

    def broke(self) -> None:
        """There were bytes of which nobody can say what they held."""
        self._breaks += 1

    def meet(self, topic: int, base: int, end: int | None = None) -> None:
        """A topic goes on at `base`, up to `end`. What is missing before it was lost, if something broke meanwhile."""
        expected = self._expected.get(topic, 0)
        if end is None and base < expected:
            return  # it was there before: that says nothing of what broke since
        if expected < base < expected + SKIPPED and self._looked.get(topic, 0) < self._breaks:
            self._lost.setdefault(topic, Ranges()).add(expected, base)
        self._expected[topic] = max(expected, base if end is None else end)
        self._looked[topic] = self._breaks

    def lose(self, topic: int, first: int, end: int) -> None:
        """These offsets cannot be read."""
        self._lost.setdefault(topic, Ranges()).add(first, end)
        self._expected[topic] = max(self._expected.get(topic, 0), end)
