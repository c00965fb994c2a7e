"""Maintenance of a table beside its writers: compaction of small files, erasure below a floor, removal of old files.

A commit that replaces files is made only if no other commit came since the snapshot that it was planned with, and if
all of the files are still there: two runs at once repeat and lose nothing. Files are removed only when no snapshot of
the last days names them, and when they are so old that no writer may commit them any more. A full vacuum is never made.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import msgspec

from runnel.core.errors import InvalidOption, LakeBusy, LakeDamaged
from runnel.lake import exact_table
from runnel.lake.delta_log import LOG
from runnel.lake.exact_table import ATTEMPTS, ExactTable, TopicEpoch
from runnel.lake.files import LakeFile, LakeRange, join_ranges
from runnel.lake.snapshot import LakeSnapshot, TableFile
from runnel.lake.storage import need

MAINTENANCE = "runnel maintenance"
"""The application of commits that replace files. Its version is the one of the table that they were made from."""

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
    """The results of maintenance: compacted files, erased rows, removed files."""

    compacted: int = 0
    into: int = 0
    erased_rows: int = 0
    removed_files: int = 0

    def __add__(self, other: MaintenanceReport) -> MaintenanceReport:
        """Both together."""
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return MaintenanceReport(*(one + two for one, two in zip(mine, others, strict=True)))


class MaintainedTable(ExactTable):
    """A table that can be maintained beside its writers. A class below says how its files are read and written."""

    prefix = ""
    """Of the names of the columns topic, epoch, offset, sequence, time and day."""

    @property
    def buckets(self) -> int:
        """Into how many folders a day is split."""
        return 1

    def _partition(self, day: date, bucket: int) -> dict[str, str | None]:
        """A partition, as the Delta log writes it."""
        raise AssertionError("each kind has its own")

    def rewritten(
        self, files: Iterable[TableFile], gone: Mapping[TopicEpoch, int] | None = None
    ) -> tuple[list[LakeFile], int]:
        """The rows of files of one partition in new files, less those below `gone`; and how many rows there were."""
        raise AssertionError("each kind has its own")

    def ranges_of(self, path: str) -> list[LakeRange]:
        """The records of a file, from its rows or its footer."""
        raise AssertionError("each kind has its own")

    def _action(self, file: LakeFile, *, data_change: bool = True) -> Any:
        return need("deltalake.transaction").AddAction(
            file.path,
            file.size,
            self._partition(file.day, file.bucket),
            int(file.written * 1000),
            data_change,
            file.stats(self.prefix),
        )

    def _remove_action(self, file: TableFile, *, data_change: bool) -> Any:
        return need("deltalake.transaction").RemoveAction(
            file.path, data_change, int(time.time() * 1000), file.size, self._partition(file.day, file.bucket)
        )

    @property
    def commit_age(self) -> float:
        """Seconds after which a file that was written is not committed any more."""
        return exact_table.COMMIT_AGE

    def snapshot(self, known: LakeSnapshot | None = None) -> LakeSnapshot:
        """The newest snapshot; `known` itself, if nothing was committed since."""
        with self._lock:
            table = self._fresh()
            if known is not None and known.version == table.version():
                return known
            actions = need("pyarrow").table(table.get_add_actions(flatten=True))
            return LakeSnapshot(table.version(), actions, self._next_offsets(table), self.prefix)

    def maintain(
        self,
        gone: Mapping[TopicEpoch, int] | None = None,
        *,
        min_files: int = MIN_FILES,
        safe_age: float = SAFE_AGE,
        progress: Progress | None = None,
    ) -> MaintenanceReport:
        """Compact small files, erase trimmed and deleted records, remove unneeded files. Safe beside writers.

        - `gone`: by topic and epoch, the offset below which no record may be kept: it was trimmed, or its topic
          deleted (then any offset behind its end). Next offsets stay, so it is not archived again.
        - `min_files`: small files of one day and bucket from which on they are made one.
        - `safe_age`: seconds for which files are kept that no snapshot names any more: readers of older snapshots
          need them. Files that failed writers left are removed after that time, too.
        - `progress`: is called with what is done now, how much of it is done, and how much there is.
        """
        least = 2 * self.commit_age
        if safe_age < least:
            why = f"expected {least / 3600:g} hours or more: a writer may still commit files that are younger"
            raise InvalidOption("safe_age", safe_age, why)
        if min_files < 2:
            raise InvalidOption("min_files", min_files, "expected 2 or more")
        tell = progress or (lambda what, done, total: None)
        erased = sum(_erased(self, gone or {}, tell))
        compacted, into = _compact(self, min_files, tell)
        removed = _remove(self, safe_age, tell)
        return MaintenanceReport(compacted, into, erased, removed)

    def replace(self, files: Sequence[TableFile], made: Sequence[LakeFile], *, data_change: bool) -> bool:
        """Have the table name `made` in place of `files`, in one commit; False: one of them is not there any more.

        Delta accepts two commits that remove the same file, so this one is made only if no other came in between.
        """
        errors = need("deltalake.exceptions")
        old, new = {file.path for file in files}, {file.path for file in made}
        actions = [self._remove_action(file, data_change=data_change) for file in files]
        actions += [self._action(file, data_change=data_change) for file in made]
        failure: Exception | None = None
        with self._lock:
            for _ in range(ATTEMPTS):
                table = self._fresh()
                live = set(need("pyarrow").table(table.get_add_actions(flatten=True))["path"].to_pylist())
                if not old <= live:
                    return bool(new) and new <= live  # after an error: it was committed all the same
                base = table.version()
                applications = {MAINTENANCE: base}
                try:
                    self._write_entry(table, actions, applications, retries=0)
                except (errors.DeltaError, OSError) as error:
                    if not isinstance(error, errors.CommitFailedError):
                        self._table = None
                    failure = error
                    continue
                self._checkpoint(self._confirm(base, list(made), applications))
                return True
        raise LakeBusy(self._location, ATTEMPTS, str(failure))

    def vacuum(self, safe_age: float) -> tuple[set[str], int]:
        """Remove files that were replaced before `safe_age` seconds, and old log entries.

        Every path that the log still knows, and how many files were removed.
        """
        hours = math.ceil(safe_age / 3600)
        with self._lock:
            table = self._fresh()
            table.create_checkpoint()
            self._sync_checkpoint(table.version())
            table.cleanup_metadata()
            known = set(need("pyarrow").table(table.get_add_actions(flatten=True))["path"].to_pylist())
            known |= set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False))
            removed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=False)
            self._sync_log(table.version(), self._fresh().version())
            return known, len(set(removed))


# -- Compaction ------------------------------------------------------------------------------------------


def _compact(lake: MaintainedTable, min_files: int, tell: Progress) -> tuple[int, int]:
    """Make small files larger ones, some at a time."""
    bins = list(_bins(lake.snapshot(), min_files, datetime.now(UTC).date()))
    compacted = into = 0
    for number, files in enumerate(bins):
        tell("compacting", number, len(bins))
        made, rows = lake.rewritten(files)
        before = join_ranges(one for file in files for one in lake.ranges_of(file.path))
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


def _erased(lake: MaintainedTable, gone: Mapping[TopicEpoch, int], tell: Progress) -> Iterator[int]:
    """Erase the rows below the floors, file by file; how many each file had."""
    snapshot = lake.snapshot()
    concerned: dict[str, TableFile] = {}
    for (topic, _), floor in gone.items():
        for file in snapshot.of_topic(topic, lake.buckets, 0, floor):
            concerned[file.path] = file
    for number, file in enumerate(concerned.values()):
        tell("erasing", number, len(concerned))
        ranges = lake.ranges_of(file.path)
        if not any(one.first < gone.get(one.key, 0) for one in ranges):
            continue
        made, rows = list[LakeFile](), sum(one.count for one in ranges)
        if any(one.last >= gone.get(one.key, 0) for one in ranges):
            made, rows = lake.rewritten([file], gone)
        if lake.replace([file], made, data_change=True):
            yield rows - sum(one.rows for one in made)
    tell("erasing", len(concerned), len(concerned))


# -- Removal of files ------------------------------------------------------------------------------------


def _remove(lake: MaintainedTable, safe_age: float, tell: Progress) -> int:
    """Remove files that no snapshot of the last `safe_age` seconds names, and that no writer may commit any more."""
    tell("removing", 0, 1)
    known, removed = lake.vacuum(safe_age)
    # Files of failed writers are in no log entry: neither in this snapshot, nor replaced by one.
    before = time.time() - safe_age
    for file in lake.records.files("", lambda path: path.endswith(".parquet") and not path.startswith(LOG)):
        if file.modified < before and file.path not in known:
            lake.records.delete(file.path)
            removed += 1
    tell("removing", 1, 1)
    return removed
