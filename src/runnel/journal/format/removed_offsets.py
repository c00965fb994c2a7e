"""Removed offsets: ranges of a topic that are no longer there, each with its reason (retention, compaction, …)."""

from __future__ import annotations

from enum import IntEnum

import msgspec

MAX_RANGES = 16  # of one topic; beyond that the two oldest become one


class RemovalReason(IntEnum):
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
    RemovalReason.UNKNOWN: "no longer kept",
    RemovalReason.COUNT: "retention_count",
    RemovalReason.BYTES: "retention_bytes",
    RemovalReason.AGE: "retention_age",
    RemovalReason.ASKED: "trimmed",
    RemovalReason.COMPACTED: "compacted by key",
    RemovalReason.SKIPPED: "never given: skipped after a crash or a restore",
    RemovalReason.SEVERAL: "several reasons",
}


class RemovedRange(msgspec.Struct, array_like=True, gc=False):
    """Offsets [first, end), why they are gone (or full of holes), and when that was last said, in microseconds."""

    first: int
    end: int
    reason: int
    time: int = 0


def add_removed(ranges: list[RemovedRange], first: int, end: int, reason: int, time: int) -> list[RemovedRange]:
    """`ranges` and one more. Neighbours with one reason become one range, and there are never many."""
    if end <= first:
        return ranges
    kept: list[RemovedRange] = []
    for one in ranges:
        if one.reason == reason and one.first <= end and first <= one.end:
            first, end, time = min(one.first, first), max(one.end, end), max(one.time, time)
        else:
            kept.append(one)
    kept.append(RemovedRange(first, end, reason, time))
    kept.sort(key=_place)
    while len(kept) > MAX_RANGES:
        one, two = kept[0], kept[1]
        joined = one.reason if one.reason == two.reason else RemovalReason.SEVERAL
        kept[:2] = [RemovedRange(one.first, max(one.end, two.end), joined, max(one.time, two.time))]
    return kept


def count_skipped(ranges: list[RemovedRange], first: int, end: int) -> int:
    """How many of the offsets [first, end) were never given: a crash or a restore skipped them."""
    holes = [one for one in ranges if one.reason == RemovalReason.SKIPPED and one.first < end and first < one.end]
    return sum(min(one.end, end) - max(one.first, first) for one in holes)


def _place(one: RemovedRange) -> tuple[int, int]:
    return one.first, one.end
