"""Chunks of the journal that were read lately: readers behind one another share the reading and the checking.

Ten subscribers that fell behind together would otherwise read, check and parse everything ten times.
Below: journal.found. Above: chunks.
"""

from __future__ import annotations

from collections import OrderedDict

from runnel.journal.found import Found, Parsed

LIMIT = 16 * 1024 * 1024  # bytes of batches that are held

Key = tuple[int, int, int, int]  # the id of a segment (to hold it would keep its file), a position, a topic, a place


class Recent:
    """What the last chunks held, of topics that lie densely, up to a limit; the one used last at the end."""

    __slots__ = ("_bytes", "_limit", "_parsed")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit, self._bytes = limit, 0
        self._parsed: OrderedDict[Key, tuple[Parsed, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parsed)

    def find(self, key: Key) -> Parsed | None:
        """What somebody else found there."""
        found = self._parsed.get(key)
        if found is None:
            return None
        self._parsed.move_to_end(key)
        return found[0]

    def keep(self, key: Key, parsed: Parsed) -> None:
        """Somebody read it. What is damaged is looked at anew by everybody: it may be repaired, or read at last."""
        items = list(parsed.items)
        if key in self._parsed or not items or not all(type(item) is Found for item in items):
            return
        size = sum(len(item.body) for item in items if isinstance(item, Found))
        self._parsed[key] = (Parsed(items, parsed.position, parsed.place), size)
        self._bytes += size
        while self._bytes > self._limit and len(self._parsed) > 1:
            _, (_, gone) = self._parsed.popitem(last=False)
            self._bytes -= gone

    def clear(self) -> None:
        """Let go of all of it."""
        self._parsed.clear()
        self._bytes = 0
