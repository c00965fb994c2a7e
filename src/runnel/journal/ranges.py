"""Sets of whole numbers, kept as ranges: what a group has settled above its floor."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """Disjoint ranges [first, end) in order; neighbours are joined."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, flat: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        numbers = iter(flat)
        for first, end in zip(numbers, numbers, strict=True):
            self.add(first, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._ends, strict=True))

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, number: int) -> bool:
        return self.end_of(number) is not None

    def __repr__(self) -> str:
        return f"<Ranges {' '.join(f'[{first}, {end})' for first, end in self)}>"

    @property
    def end(self) -> int:
        """The end of the last range; 0 when there is none."""
        return self._ends[-1] if self._ends else 0

    def count(self, first: int, end: int) -> int:
        """How many numbers of [first, end) are in. Looks at the ranges that lie there, and at no other."""
        found = 0
        for at in range(bisect_right(self._ends, first), bisect_left(self._firsts, end)):
            found += min(end, self._ends[at]) - max(first, self._firsts[at])
        return found

    def flat(self) -> list[int]:
        """All of it as first, end, first, end, and so on."""
        return [number for pair in self for number in pair]

    def end_of(self, number: int) -> int | None:
        """The end of the range that holds `number`."""
        at = bisect_right(self._firsts, number) - 1
        return self._ends[at] if at >= 0 and number < self._ends[at] else None

    def add(self, first: int, end: int) -> None:
        """Put [first, end) in."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def remove(self, number: int) -> None:
        """Take `number` out, if it is in."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0 and number < self._ends[at]:
            first, end = self._firsts[at], self._ends[at]
            halves = [half for half in ((first, number), (number + 1, end)) if half[0] < half[1]]
            self._firsts[at : at + 1] = [half[0] for half in halves]
            self._ends[at : at + 1] = [half[1] for half in halves]

    def cut_below(self, floor: int) -> int:
        """Raise `floor` over the range that touches it, forget what lies below; the new floor."""
        keep = bisect_right(self._firsts, floor)
        if keep:
            floor = max(floor, self._ends[keep - 1])
            del self._firsts[:keep], self._ends[:keep]
        return floor


def joined(places: Iterable[int]) -> list[int]:
    """Single places, in any order, as flat ranges."""
    flat: list[int] = []
    for place in sorted(set(places)):
        if flat and flat[-1] == place:
            flat[-1] += 1
        else:
            flat += (place, place + 1)
    return flat


def compact(flat: list[int]) -> list[int]:
    """Flat ranges, in any order and over each other, as those that they add up to."""
    numbers = iter(flat)
    pairs = sorted(zip(numbers, numbers, strict=True))  # in order, each is put in at the end, or joined to the last
    return Ranges(number for pair in pairs for number in pair).flat()


def without(flat: list[int], places: Iterable[int]) -> list[int]:
    """Flat ranges, less some single places."""
    kept = Ranges(flat)
    for place in places:
        kept.remove(place)
    return kept.flat()
