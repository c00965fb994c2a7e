"""Why records of a topic are not there any more: ranges of offsets, each with a reason."""

from __future__ import annotations

from enum import IntEnum

import msgspec

MAX_RANGES = 16  # of one topic; beyond that the two oldest become one


class Reason(IntEnum):
    """Why a range of a topic is gone, or full of holes."""

    UNKNOWN = 0  # an earlier version did not say
    COUNT = 1
    BYTES = 2
    AGE = 3
    ASKED = 4  # somebody trimmed the topic
    COMPACTED = 5  # only the newest record of each key is left
    SKIPPED = 6  # never given: skipped after a crash or a restore
    SEVERAL = 7

    @property
    def words(self) -> str:
        """The reason, for people."""
        return _WORDS[self]


_WORDS = {
    Reason.UNKNOWN: "no longer kept",
    Reason.COUNT: "retention_count",
    Reason.BYTES: "retention_bytes",
    Reason.AGE: "retention_age",
    Reason.ASKED: "trimmed",
    Reason.COMPACTED: "compacted by key",
    Reason.SKIPPED: "never given: skipped after a crash or a restore",
    Reason.SEVERAL: "several reasons",
}


class Gone(msgspec.Struct, array_like=True, gc=False):
    """Offsets [first, end), why they are gone (or full of holes), and when that was last said, in microseconds."""

    first: int
    end: int
    reason: int
    time: int = 0


def note(ranges: list[Gone], first: int, end: int, reason: int, time: int) -> list[Gone]:
    """`ranges` and one more. Neighbours with one reason become one range, and there are never many."""
    if end <= first:
        return ranges
    kept: list[Gone] = []
    for one in ranges:
        if one.reason == reason and one.first <= end and first <= one.end:
            first, end, time = min(one.first, first), max(one.end, end), max(one.time, time)
        else:
            kept.append(one)
    kept.append(Gone(first, end, reason, time))
    kept.sort(key=_place)
    while len(kept) > MAX_RANGES:
        one, two = kept[0], kept[1]
        joined = one.reason if one.reason == two.reason else Reason.SEVERAL
        kept[:2] = [Gone(one.first, max(one.end, two.end), joined, max(one.time, two.time))]
    return kept


def skipped(ranges: list[Gone], first: int, end: int) -> int:
    """How many of the offsets [first, end) were never given: a crash or a restore skipped them."""
    holes = [one for one in ranges if one.reason == Reason.SKIPPED and one.first < end and first < one.end]
    return sum(min(one.end, end) - max(one.first, first) for one in holes)


def _place(one: Gone) -> tuple[int, int]:
    return one.first, one.end
