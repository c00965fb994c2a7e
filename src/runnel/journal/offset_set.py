"""A set of offsets, a bit each: small where they lie close, and as large as they are many where they do not.

How many bytes they stand for is known for each 64 of them, a *lane*: of a part of a lane, it is that part of its bytes.
The lanes of a page lie in one number, as its bits do.
Below: nothing. Above: compaction (fills it), living, cleaner (ask it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

PAGE = 1024
_SHIFT, _MASK = 10, PAGE - 1
_LANE = 64
_LANE_SHIFT, _LANE_MASK = 6, (1 << _LANE) - 1
_WIDTH = 40  # bits of the bytes of a lane
_MOST = (1 << _WIDTH) - 1
_LARGEST = _MOST // _LANE  # bytes of one record: a lane never runs over into the next


Pages = list[
    tuple[int, bytes, bytes]
]  # a set as it is stored: the number of each page, its bits, and its bytes by lane


class OffsetSet:
    """Offsets that were put in, in any order."""

    __slots__ = ("_count", "_pages", "_sizes")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._pages: dict[int, int] = {}
        self._sizes: dict[int, int] = {}  # by page: the bytes of its lanes
        self._count = 0
        for offset in offsets:
            self.add(offset)

    def __repr__(self) -> str:
        return f"<OffsetSet of {self._count}>"

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return bool(self._pages.get(offset >> _SHIFT, 0) >> (offset & _MASK) & 1)

    def add(self, offset: int, size: int = 0) -> None:
        """Put an offset in, and the bytes of its record; 0: they are not known."""
        page, bit = offset >> _SHIFT, 1 << (offset & _MASK)
        bits = self._pages.get(page, 0)
        if not bits & bit:
            self._pages[page] = bits | bit
            self._count += 1
            if size:
                lane = (offset & _MASK) >> _LANE_SHIFT
                self._sizes[page] = self._sizes.get(page, 0) + (min(size, _LARGEST) << lane * _WIDTH)

    def below(self, end: int | None = None) -> OffsetSet:
        """A copy, of those below `end`; None: of all."""
        copy = OffsetSet()
        copy._pages, copy._sizes, copy._count = dict(self._pages), dict(self._sizes), self._count
        if end is not None and self._pages:
            copy.discard(end, (max(self._pages) + 1) << _SHIFT)
        return copy

    def encode(self, first: int = 0, end: int = 1 << 64) -> Pages:
        """Those of [first, end), to be stored."""
        found: Pages = []
        for page, mask in self._masks(first, end):
            if bits := self._pages[page] & mask:
                sizes = sum(size << lane * _WIDTH for lane, size in self._lanes(page, bits))
                found.append((page, _packed(bits), _packed(sizes)))
        return found

    def put(self, pages: Pages) -> None:
        """Put those in that were stored. None of them may be in already."""
        for page, bits, sizes in pages:
            more = int.from_bytes(bits, "little")
            self._pages[page] = self._pages.get(page, 0) | more
            self._count += more.bit_count()
            if sizes:
                self._sizes[page] = self._sizes.get(page, 0) + int.from_bytes(sizes, "little")

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

    def size(self, first: int, end: int) -> int:
        """The bytes of those of [first, end), about; 0: not known."""
        return sum(size for page, mask in self._masks(first, end) for _, size in self._lanes(page, mask))

    def discard(self, first: int, end: int) -> int:
        """Take out all of [first, end); how many that were."""
        before = self._count
        for page, mask in self._masks(first, end):
            self._take(page, mask)
        return before - self._count

    def remove(self, others: OffsetSet, first: int, end: int) -> None:
        """Take out those of [first, end) that are in `others`."""
        for page, mask in others._masks(first, end):
            if page in self._pages:
                self._take(page, others._pages[page] & mask)

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

    def _take(self, page: int, mask: int) -> None:
        """Take some bits out of a page, and their part of its bytes."""
        bits = self._pages[page]
        left = bits & ~mask
        self._count -= bits.bit_count() - left.bit_count()
        if not left:
            del self._pages[page]
            self._sizes.pop(page, None)
        elif left != bits:
            if page in self._sizes:
                self._sizes[page] = sum(size << lane * _WIDTH for lane, size in self._lanes(page, left))
            self._pages[page] = left

    def _lanes(self, page: int, mask: int) -> Iterator[tuple[int, int]]:
        """The bytes of some bits of a page, by lane, where there are any."""
        bits, sizes = self._pages[page], self._sizes.get(page, 0)
        some = bits & mask
        lane = 0
        while sizes:
            if size := sizes & _MOST:
                yield lane, size * (some & _LANE_MASK).bit_count() // (bits & _LANE_MASK).bit_count()
            bits, some, sizes, lane = bits >> _LANE, some >> _LANE, sizes >> _WIDTH, lane + 1

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


def _packed(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "little")
