"""A set of offsets, a bit each: small where they lie close, and as large as they are many where they do not.

Below: nothing. Above: compaction (fills it), living, cleaner (ask it).
"""

from __future__ import annotations

from collections.abc import Iterable

PAGE = 1024
_SHIFT, _MASK = 10, PAGE - 1


class OffsetSet:
    """Offsets that were put in, in any order."""

    __slots__ = ("_count", "_pages")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._pages: dict[int, int] = {}
        self._count = 0
        for offset in offsets:
            self.add(offset)

    def __repr__(self) -> str:
        return f"<OffsetSet of {self._count}>"

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return bool(self._pages.get(offset >> _SHIFT, 0) >> (offset & _MASK) & 1)

    def add(self, offset: int) -> None:
        """Put an offset in."""
        page, bit = offset >> _SHIFT, 1 << (offset & _MASK)
        bits = self._pages.get(page, 0)
        if not bits & bit:
            self._pages[page] = bits | bit
            self._count += 1

    def below(self, end: int | None = None) -> OffsetSet:
        """A copy, of those below `end`; None: of all."""
        copy = OffsetSet()
        copy._pages, copy._count = dict(self._pages), self._count
        if end is not None and self._pages:
            copy.discard(end, (max(self._pages) + 1) << _SHIFT)
        return copy

    def lowest(self) -> int | None:
        """The least of them."""
        if not self._pages:
            return None
        page = min(self._pages)
        bits = self._pages[page]
        return (page << _SHIFT) + (bits & -bits).bit_length() - 1

    def count(self, first: int, end: int) -> int:
        """How many of [first, end) are in."""
        return sum((self._pages[page] & mask).bit_count() for page, mask in self._masks(first, end))

    def discard(self, first: int, end: int) -> int:
        """Take out all of [first, end); how many that were."""
        gone = 0
        for page, mask in self._masks(first, end):
            bits = self._pages[page]
            gone += (bits & mask).bit_count()
            if left := bits & ~mask:
                self._pages[page] = left
            else:
                del self._pages[page]
        self._count -= gone
        return gone

    def remove(self, others: OffsetSet, first: int, end: int) -> None:
        """Take out those of [first, end) that are in `others`."""
        for page, mask in others._masks(first, end):
            if gone := self._pages.get(page, 0) & others._pages[page] & mask:
                self._count -= gone.bit_count()
                if left := self._pages[page] & ~gone:
                    self._pages[page] = left
                else:
                    del self._pages[page]

    def spans_without(self, first: int, end: int) -> list[tuple[int, int]]:
        """The stretches of [first, end) that are not in."""
        if first >= end:
            return []
        if not self.count(first, end):
            return [(first, end)]
        spans: list[tuple[int, int]] = []
        start = first
        for offset in range(first, end):
            if offset in self:
                if offset > start:
                    spans.append((start, offset))
                start = offset + 1
        if end > start:
            spans.append((start, end))
        return spans

    def _masks(self, first: int, end: int) -> list[tuple[int, int]]:
        """The pages in which something of [first, end) may lie, and which bits of them that is."""
        if first >= end:
            return []
        low, high = first >> _SHIFT, (end - 1) >> _SHIFT
        within: Iterable[int] = range(low, high + 1)
        if high - low >= len(self._pages):  # after a crash offsets go on far higher: most pages are not there
            within = [page for page in self._pages if low <= page <= high]
        masks = []
        for page in within:
            if page in self._pages:
                mask = (1 << PAGE) - 1
                if page == low:
                    mask &= -1 << (first & _MASK)
                if page == high:
                    mask &= (1 << ((end - 1) & _MASK) + 1) - 1
                masks.append((page, mask))
        return masks
