"""Maintenance of a lake beside its writers: compaction of small files, erasure below a floor, removal of old files.

A commit that replaces files is made only if no other commit came since the snapshot that it was planned with, and if
all of the files are still there: two runs at once repeat and lose nothing. Files are removed only when no snapshot of
the last days names them, and when they are so old that no writer may commit them any more. A full vacuum is never made.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.core.errors import InvalidOption, LakeDamaged
from runnel.lake.delta_log import LOG
from runnel.lake.files import FileWriter, LakeFile, join_ranges, read_groups, read_index
from runnel.lake.layout import partition_values
from runnel.lake.snapshot import LakeSnapshot, TableFile
from runnel.lake.storage import need

if TYPE_CHECKING:
    from runnel.lake.table import Lake

SMALL_BYTES = 16 << 20
"""A file of more bytes is not compacted again."""

BIN_BYTES = 64 << 20
"""Of the files that are made one, at most."""

MIN_FILES = 8
"""Small files of one day and bucket that are worth a compaction; of a day that is over, two are."""

SAFE_AGE = 7 * 24 * 3600.0
"""Seconds for which a file is kept that no snapshot names any more, or that none ever named."""

Progress = Callable[[str, int, int], object]


class MaintenanceReport(msgspec.Struct, frozen=True):
    """What maintenance did: files that were compacted into others, rows that were erased, files that were removed."""

    compacted: int = 0
    into: int = 0
    erased_rows: int = 0
    removed_files: int = 0


def maintain(
    lake: Lake,
    gone: Mapping[tuple[str, int], int] | None = None,
    *,
    min_files: int = MIN_FILES,
    safe_age: float = SAFE_AGE,
    progress: Progress | None = None,
) -> MaintenanceReport:
    """See `Lake.maintain`."""
    least = 2 * lake.commit_age
    if safe_age < least:
        why = f"expected {least / 3600:g} hours or more: a writer may still commit files that are younger"
        raise InvalidOption("safe_age", safe_age, why)
    if min_files < 2:
        raise InvalidOption("min_files", min_files, "expected 2 or more")
    tell = progress or (lambda what, done, total: None)
    erased = sum(_erased(lake, gone or {}, tell))
    compacted, into = _compact(lake, min_files, tell)
    removed = _remove(lake, safe_age, tell)
    return MaintenanceReport(compacted, into, erased, removed)


# -- Replacing files -------------------------------------------------------------------------------------


def _rewritten(
    lake: Lake, files: Iterable[TableFile], gone: Mapping[tuple[str, int], int] | None = None
) -> tuple[list[LakeFile], int]:
    """The rows of files of one partition in new files, less those below `gone`; and how many rows there were."""
    writer, rows = FileWriter(lake.records, lake.buckets, gone), 0
    made: list[LakeFile] = []
    for file in files:
        for table in read_groups(lake.records, file.path):
            rows += len(table)
            for batch in table.to_batches():
                made += writer.add(batch)
    made += writer.finish()
    return made, rows


# -- Compaction ------------------------------------------------------------------------------------------


def _compact(lake: Lake, min_files: int, tell: Progress) -> tuple[int, int]:
    """Make small files larger ones, some at a time."""
    bins = list(_bins(lake.snapshot(), min_files, datetime.now(UTC).date()))
    compacted = into = 0
    for number, files in enumerate(bins):
        tell("compacting", number, len(bins))
        made, rows = _rewritten(lake, files)
        before = join_ranges(one for file in files for index in read_index(lake.records, file.path) for one in index)
        after = join_ranges(one for file in made for one in file.ranges)
        if rows != sum(file.rows for file in made) or before != after:
            raise LakeDamaged(files[0].path, "its rows are not those that its footer says; nothing was compacted")
        if lake.replace(files, made, data_change=False):
            compacted, into = compacted + len(files), into + len(made)
    tell("compacting", len(bins), len(bins))
    return compacted, into


def _bins(snapshot: LakeSnapshot, min_files: int, today: date) -> Iterator[list[TableFile]]:
    """Small files of one partition that follow each other by sequence, as many as make a good one."""
    small: dict[tuple[date, int], list[TableFile]] = defaultdict(list)
    for file in snapshot.files:
        if file.size < SMALL_BYTES:
            small[file.day, file.bucket].append(file)
    for (day, _), files in sorted(small.items(), key=lambda one: one[0]):
        if len(files) < (2 if day < today else min_files):
            continue
        bin_: list[TableFile] = []
        size = 0
        for file in sorted(files, key=lambda one: one.first_sequence):
            if size + file.size > BIN_BYTES and len(bin_) > 1:
                yield bin_
                bin_, size = [], 0
            bin_.append(file)
            size += file.size
        if len(bin_) > 1:
            yield bin_


# -- Erasure ---------------------------------------------------------------------------------------------


def _erased(lake: Lake, gone: Mapping[tuple[str, int], int], tell: Progress) -> Iterator[int]:
    """Erase the rows below the floors, file by file; how many each file had."""
    snapshot = lake.snapshot()
    concerned: dict[str, TableFile] = {}
    for (topic, _), floor in gone.items():
        for file in snapshot.of_topic(topic, lake.buckets, 0, floor):
            concerned[file.path] = file
    for number, file in enumerate(concerned.values()):
        tell("erasing", number, len(concerned))
        ranges = [one for group in read_index(lake.records, file.path) for one in group]
        if not any(one.first < gone.get(one.key, 0) for one in ranges):
            continue
        made, rows = list[LakeFile](), sum(one.count for one in ranges)
        if any(one.last >= gone.get(one.key, 0) for one in ranges):
            made, rows = _rewritten(lake, [file], gone)
        if lake.replace([file], made, data_change=True):
            yield rows - sum(one.rows for one in made)
    tell("erasing", len(concerned), len(concerned))


# -- Removal of files ------------------------------------------------------------------------------------


def _remove(lake: Lake, safe_age: float, tell: Progress) -> int:
    """Remove files that no snapshot of the last `safe_age` seconds names, and that no writer may commit any more."""
    tell("removing", 0, 1)
    known, removed = lake.vacuum(safe_age)
    # What is left over from writers that failed is in no log entry: neither in this snapshot, nor replaced by one.
    before = time.time() - safe_age
    for file in lake.records.files("", lambda path: path.endswith(".parquet") and not path.startswith(LOG)):
        if file.modified < before and file.path not in known:
            lake.records.delete(file.path)
            removed += 1
    tell("removing", 1, 1)
    return removed


def remove_action(file: TableFile, *, data_change: bool) -> Any:
    """A file that the table names no more, as the Delta log says it."""
    return need("deltalake.transaction").RemoveAction(
        file.path, data_change, int(time.time() * 1000), file.size, partition_values(file.day, file.bucket)
    )
