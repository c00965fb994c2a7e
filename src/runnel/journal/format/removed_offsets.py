"""Removed offsets: ranges of a topic that are no longer there, each with its reason (retention, compaction, …)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

import msgspec

from runnel.core.topic_bounds import TRIMMED

MAX_RANGES = 16  # of one topic; beyond that the two oldest become one


class RemovalReason(IntEnum):
    """The reason why a range of a topic was removed, or is full of holes."""

    UNKNOWN = 0  # an earlier version did not say
    COUNT = 1
    BYTES = 2
    AGE = 3
    ASKED = 4  # a user trimmed the topic
    COMPACTED = 5  # only the newest record of each key is left
    SKIPPED = 6  # never given: skipped after a crash or a restore
    SEVERAL = 7
    ARCHIVED = 8  # confirmed to be in a source of history

    @property
    def words(self) -> str:
        """The reason, for people."""
        return _WORDS[self]


_WORDS = {
    RemovalReason.UNKNOWN: "no longer kept",
    RemovalReason.COUNT: "retention_count",
    RemovalReason.BYTES: "retention_bytes",
    RemovalReason.AGE: "retention_age",
    RemovalReason.ASKED: TRIMMED,
    RemovalReason.COMPACTED: "compacted by key",
    RemovalReason.SKIPPED: "never given: skipped after a crash or a restore",
    RemovalReason.SEVERAL: "several reasons",
    RemovalReason.ARCHIVED: "archived (retention_until)",
}


_EXPLAINED = (RemovalReason.COMPACTED, RemovalReason.SKIPPED)


class RemovedRange(msgspec.Struct, array_like=True, gc=False):
    """Offsets [first, end), why they are gone (or full of holes), and when that was last stored, in microseconds."""

    first: int
    end: int
    reason: int
    time: int = 0


def add_removed(
    ranges: tuple[RemovedRange, ...], first: int, end: int, reason: int, time: int
) -> tuple[RemovedRange, ...]:
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
        # Trimmed ranges stay separate: below their end no record may be served, from the journal or a source.
        asked = [one for one in kept if one.reason == RemovalReason.ASKED]
        one, two = asked[:2] if len(asked) > 1 else [one for one in kept if one.reason != RemovalReason.ASKED][:2]
        joined = one.reason if one.reason == two.reason else RemovalReason.SEVERAL
        kept = [other for other in kept if other is not one and other is not two]
        kept.append(RemovedRange(one.first, max(one.end, two.end), joined, max(one.time, two.time)))
        kept.sort(key=_place)
    return tuple(kept)


def trimmed_below(ranges: Iterable[RemovedRange]) -> int:
    """Below which offset a user trimmed the topic; 0: never."""
    return max((one.end for one in ranges if one.reason == RemovalReason.ASKED), default=0)


def count_unexplained(ranges: Sequence[RemovedRange], first: int, end: int) -> int:
    """How many of the offsets [first, end) had a record that key compaction did not take."""
    count, place = 0, first
    for one in ranges:  # sorted by their first offsets; they may overlap
        if one.reason in _EXPLAINED and one.end > place and one.first < end:
            count += max(0, one.first - place)
            place = one.end
    return count + max(0, end - place)


def count_skipped(ranges: Sequence[RemovedRange], first: int, end: int) -> int:
    """How many of the offsets [first, end) were never given: a crash or a restore skipped them."""
    holes = [one for one in ranges if one.reason == RemovalReason.SKIPPED and one.first < end and first < one.end]
    return sum(min(one.end, end) - max(one.first, first) for one in holes)


def removed_with_reasons(ranges: Iterable[RemovedRange]) -> tuple[tuple[int, int, str], ...]:
    """The ranges, with their reasons in words."""
    return tuple((one.first, one.end, RemovalReason(one.reason).words) for one in ranges)


def _place(one: RemovedRange) -> tuple[int, int]:
    return one.first, one.end
