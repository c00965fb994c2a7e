"""Sets of offsets: as ranges (`RangeSet`), or as bitmaps that also count the bytes of records (`OffsetBitmap`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
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
        return f"<RangeSet {' '.join(f'[{first}, {end})' for first, end in self)}>"

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
        """Raise `floor` over the adjacent range, forget ranges below; the new floor."""
        keep = bisect_right(self._firsts, floor)
        if keep:
            floor = max(floor, self._ends[keep - 1])
            del self._firsts[:keep], self._ends[:keep]
        return floor


def to_ranges(places: Iterable[int]) -> list[int]:
    """Single places, in any order, as flat ranges."""
    flat: list[int] = []
    for place in sorted(set(places)):
        if flat and flat[-1] == place:
            flat[-1] += 1
        else:
            flat += (place, place + 1)
    return flat


def merge_ranges(flat: list[int]) -> list[int]:
    """Flat ranges, in any order and over each other, as those that they add up to."""
    numbers = iter(flat)
    pairs = sorted(zip(numbers, numbers, strict=True))  # in order, each is put in at the end, or joined to the last
    return RangeSet(number for pair in pairs for number in pair).flat()


def ranges_without(flat: list[int], places: Iterable[int]) -> list[int]:
    """Flat ranges, less some single places."""
    kept = RangeSet(flat)
    for place in places:
        kept.remove(place)
    return kept.flat()


# -- As bitmaps ------------------------------------------------------------------------------------------
# One bit each: small where offsets lie close. The bytes of their records are known for each 64 of them, a
# *lane*; part of a lane counts as that part of its bytes. The lanes of a page lie in one number, as its bits do.


PAGE = 1024
_SHIFT, _MASK = 10, PAGE - 1
_LANE = 64
_LANE_SHIFT, _LANE_MASK = 6, (1 << _LANE) - 1
_WIDTH = 40  # bits of the bytes of a lane
_MOST = (1 << _WIDTH) - 1
_LARGEST = _MOST // _LANE  # bytes of one record: a lane never runs over into the next


BitmapPages = list[
    tuple[int, bytes, bytes]
]  # a set as stored: the number of each page, its bits, and its bytes by lane


class OffsetBitmap:
    """Offsets that were put in, in any order."""

    __slots__ = ("_count", "_pages", "_sizes")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._pages: dict[int, int] = {}
        self._sizes: dict[int, int] = {}  # by page: the bytes of its lanes
        self._count = 0
        for offset in offsets:
            self.add(offset)

    def __repr__(self) -> str:
        return f"<OffsetBitmap of {self._count}>"

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

    def below(self, end: int | None = None) -> OffsetBitmap:
        """A copy, of those below `end`; None: of all."""
        copy = OffsetBitmap()
        copy._pages, copy._sizes, copy._count = dict(self._pages), dict(self._sizes), self._count
        if end is not None and self._pages:
            copy.discard(end, (max(self._pages) + 1) << _SHIFT)
        return copy

    def encode(self, first: int = 0, end: int = 1 << 64) -> BitmapPages:
        """Those of [first, end), to be stored."""
        found: BitmapPages = []
        for page, mask in self._masks(first, end):
            if bits := self._pages[page] & mask:
                sizes = sum(size << lane * _WIDTH for lane, size in self._lanes(page, bits))
                found.append((page, _packed(bits), _packed(sizes)))
        return found

    def put(self, pages: BitmapPages) -> None:
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

    def remove(self, others: OffsetBitmap, first: int, end: int) -> None:
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
        if high - low >= len(self._pages):  # after a crash offsets continue far higher: most pages do not exist
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
