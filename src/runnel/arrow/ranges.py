"""Offset ranges, and how a read is split into tasks.

Large ranges are cut, and many small ones share a task. Every offset is in exactly one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

TASK_BYTES = 32 << 20
"""The least bytes of one task, about, where more tasks are not requested. A task of Python takes Spark some 20 ms,
whatever it reads."""

LARGEST_TASK = 128 << 20
"""The most bytes of one task, about: as in Spark's own readers of files."""

ENOUGH_TASKS = 8
"""So many tasks are made of `TASK_BYTES` or more before tasks grow."""

RANGE_COST = 4096
"""The cost of beginning a range, as bytes."""


class OffsetRange(NamedTuple):
    """The records [first, end) of one topic, and for each offset, about: how many bytes, how many records."""

    topic: str
    epoch: int
    first: int
    end: int
    record_bytes: float = 1.0
    density: float = 1.0

    @property
    def offsets(self) -> int:
        """How many offsets it spans: at most so many records."""
        return max(0, self.end - self.first)

    @property
    def records(self) -> int:
        """How many records it has, about, where most offsets are holes; else at most so many."""
        return self.offsets if self.density == 1.0 else int(self.offsets * self.density) + 1

    @property
    def bytes(self) -> float:
        """The cost of reading it, about."""
        return self.offsets * self.record_bytes

    def cut(self, pieces: int) -> Iterator[OffsetRange]:
        """The same in so many pieces, as equal as can be; in fewer, if there are not as many offsets."""
        pieces = max(1, min(pieces, self.offsets))
        for at in range(pieces):
            first = self.first + self.offsets * at // pieces
            end = self.first + self.offsets * (at + 1) // pieces
            yield self._replace(first=first, end=end)


def split(
    ranges: Iterable[OffsetRange], at_least: int = 1, task_bytes: int | None = None, most: int | None = None
) -> list[list[OffsetRange]]:
    """The ranges of each task: at least so many tasks if there are as many offsets, none much larger than `task_bytes`.

    Every offset is in exactly one of them. `most`: of the records that one of them has. Without `task_bytes` tasks are
    larger where there is much to read: see `TASK_BYTES`.
    """
    whole = [one for one in ranges if one.offsets]
    total = sum(one.bytes + RANGE_COST for one in whole)
    total_records = sum(one.records for one in whole)
    if not total:
        return []
    if task_bytes is None:
        task_bytes = min(max(TASK_BYTES, int(total / ENOUGH_TASKS)), LARGEST_TASK)
    size = min(float(task_bytes), total / at_least)
    tasks: list[list[OffsetRange]] = []
    open_bytes, room = size, 0  # of the last task, which takes no more; and how many records it may still take
    for one in whole:
        pieces = max(_pieces(one, size), -(-one.records // (most or one.records)))
        if pieces > 1:
            tasks.extend([piece] for piece in one.cut(pieces))
            open_bytes = size
        elif open_bytes + one.bytes + RANGE_COST <= size and one.records <= room:
            tasks[-1].append(one)
            open_bytes += one.bytes + RANGE_COST
            room -= one.records
        else:
            tasks.append([one])
            open_bytes = one.bytes + RANGE_COST
            room = (most or total_records) - one.records
    while len(tasks) < at_least and (cut := _halved(tasks)):
        tasks = cut
    return tasks


def _pieces(one: OffsetRange, size: float) -> int:
    return -int(-one.bytes // size)


def _halved(tasks: list[list[OffsetRange]]) -> list[list[OffsetRange]] | None:
    """The same with the largest task in two; None: all of them are one offset."""
    at = max(range(len(tasks)), key=lambda at: sum(one.offsets for one in tasks[at]))
    task = tasks[at]
    if len(task) > 1:
        middle = len(task) // 2
        return [*tasks[:at], task[:middle], task[middle:], *tasks[at + 1 :]]
    if task[0].offsets < 2:
        return None
    return [*tasks[:at], *([piece] for piece in task[0].cut(2)), *tasks[at + 1 :]]
