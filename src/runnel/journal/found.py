"""What reading a journal finds: batches, staged ones by reference, and what cannot be read any more.

Below: merged. Above: block, history, and all who read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runnel.journal.merged import Run


class Found(NamedTuple):
    """A batch as it lies on disk, checked.

    Of a merged one, `runs` say where its records belong: those in `body` from number `at` on, in order.
    """

    topic: int
    base: int
    last: int
    sequence: int
    time: int
    body: bytes
    runs: Sequence[Run] | None = None
    at: int = 0


class Staged(NamedTuple):
    """Records that were staged before, and are visible from here on: they lie where their stage does.

    `counts` are the records of its batches, in order.
    """

    topic: int
    base: int
    last: int
    sequence: int
    time: int
    stage: int
    counts: Sequence[int]


class Lost(NamedTuple):
    """Offsets of the topic (or sequences) [first, end) that cannot be read."""

    first: int
    end: int
    reason: str


class Parsed(NamedTuple):
    """What a chunk held, where its whole entries end, and the first place that is not in it."""

    items: Iterable[Found | Staged | Lost]
    position: int
    place: int


def runs_of(item: Found | Staged) -> Sequence[Run]:
    """Where its records belong, as runs: of all but merged batches it is one."""
    if isinstance(item, Found) and item.runs is not None:
        return item.runs
    return (Run(item.base, item.sequence, item.time, item.last - item.base + 1),)


def offset_at(item: Found | Staged, sequence: int) -> int | None:
    """The offset of its first record at `sequence` or behind it; None: all lie before."""
    for run in runs_of(item):
        if run.sequence + run.count > sequence:
            return run.offset + max(0, sequence - run.sequence)
    return None


def run_at_time(item: Found | Staged, time: int) -> Run | None:
    """Its first run that is not older than `time`."""
    return next((run for run in runs_of(item) if run.time >= time), None)
