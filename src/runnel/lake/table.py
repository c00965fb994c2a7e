"""The lake: the Delta table `records`, with everything that a record of a topic has.

Executors write Parquet files, one driver commits them. A deleted checkpoint, a repeated batch, or a second archive
repeats nothing (`ExactTable`). Maintenance runs beside writers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runnel.core.errors import InvalidOption, LakeBusy, LakeMismatch
from runnel.lake import exact_table, maintenance
from runnel.lake.exact_table import ATTEMPTS, ExactTable, TopicEpoch
from runnel.lake.files import FileWriter, LakeFile, read_groups, write_file
from runnel.lake.layout import (
    BUCKETS,
    BUCKETS_KEY,
    JOURNAL_KEY,
    PARTITIONS,
    partition_values,
    table_schema,
    without_known,
)
from runnel.lake.snapshot import LakeSnapshot, TableFile
from runnel.lake.storage import LakeStorage, need
from runnel.lake.typed_table import TypedTable

if TYPE_CHECKING:
    import pyarrow as pa

MAINTENANCE = "runnel maintenance"
"""The application of commits that replace files. Its version is the one of the table that they were made from."""


class Lake(ExactTable):
    """A lake in a folder, or in object storage; `records` below it is a Delta table that any reader of Delta opens.

    - `storage_options`: of object storage, as `deltalake` takes them (`AWS_REGION`, `AWS_ENDPOINT_URL`, …).
    - `buckets`: of a new lake, into how many folders a day is split by topic.

    It can be pickled: executors get the location and the options. A driver commits with one `Lake` at a time; several
    drivers may commit at once, and each record is still added once.

    >>> lake = Lake("lake/")
    >>> lake.create()
    >>> files = lake.write(batches, behind=lake.next_offsets(["orders"]))
    >>> lake.commit(files, application="archive", version=1).next_offsets
    {('orders', 1): 1000}
    """

    partitions = PARTITIONS

    def __init__(
        self,
        location: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        buckets: int = BUCKETS,
    ) -> None:
        if not 1 <= buckets <= 1024:
            raise InvalidOption("buckets", buckets, "expected a number from 1 to 1024")
        self.storage = LakeStorage(location, storage_options)
        super().__init__(self.storage.below("records"), self.storage.uri)
        self._new_buckets, self._buckets = buckets, 0

    def __repr__(self) -> str:
        return f"<Lake {self.storage.uri}>"

    def __getstate__(self) -> tuple[LakeStorage, int, int]:
        return self.storage, self._new_buckets, self._buckets

    def __setstate__(self, state: tuple[LakeStorage, int, int]) -> None:
        storage, buckets, known = state
        self.__init__(storage.uri, storage.options, buckets=buckets)  # type: ignore[misc]
        self._buckets = known  # so that an executor does not read the log

    # -- the table ----------------------------------------------------------------------------------------------

    def create(self, journal: str | None = None) -> None:
        """Create the table, if there is none. Harmless if there is one.

        `journal`: the id of the journal whose records it holds. Epochs, offsets and sequences of another one name other
        records, so a lake that holds those raises `LakeMismatch`.
        """
        with self._lock:
            known = {} if journal is None else {JOURNAL_KEY: journal}
            self._create_table("runnel records", {BUCKETS_KEY: str(self._new_buckets), **known})
            self._learn_journal(journal)

    def _opened_first(self, table: Any) -> None:
        self._buckets = _checked_buckets(table, self.storage.uri)

    def _columns(self) -> pa.Schema:
        return table_schema()

    def _action(self, file: LakeFile) -> Any:
        return add_action(file)

    def _learn_journal(self, journal: str | None) -> None:
        """A lake that does not know its journal learns it, and another one is refused."""
        if journal is None:
            return
        table = self._fresh()
        known = table.metadata().configuration.get(JOURNAL_KEY)
        if known is None:
            table.alter.set_table_properties({JOURNAL_KEY: journal}, raise_if_not_exists=False)
            self._sync_log(table.version(), self._fresh().version())
        elif known != journal:
            raise LakeMismatch(self.storage.uri, f"it holds records of the journal {known}, and these are of {journal}")

    def check_journal(self, journal: str) -> None:
        """Raise `LakeMismatch` if the lake holds records of another journal. Harmless where there is no lake yet."""
        if self.exists and self.journal not in (None, journal):
            raise LakeMismatch(self.storage.uri, f"it holds records of the journal {self.journal}, not of {journal}")

    @property
    def journal(self) -> str | None:
        """The id of the journal whose records it holds; None: no archive said it."""
        with self._lock:
            found: str | None = self._fresh().metadata().configuration.get(JOURNAL_KEY)
            return found

    @property
    def buckets(self) -> int:
        """Into how many folders a day is split."""
        if not self._buckets:
            self._opened()
        return self._buckets

    def snapshot(self, known: LakeSnapshot | None = None) -> LakeSnapshot:
        """The newest snapshot; `known` itself, if nothing was committed since."""
        with self._lock:
            table = self._fresh()
            if known is not None and known.version == table.version():
                return known
            actions = need("pyarrow").table(table.get_add_actions(flatten=True))
            return LakeSnapshot(table.version(), actions, self._next_offsets(table))

    def typed(self, name: str) -> TypedTable:
        """The table `tables/NAME` of this lake, with a column for each field of a type."""
        return TypedTable(self.storage, name)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(
        self, batches: Iterable[pa.RecordBatch], behind: Mapping[TopicEpoch, int] | None = None
    ) -> list[LakeFile]:
        """Write rows as Parquet files, which no reader sees before they are committed. On an executor, say.

        Rows have the columns of the Spark source, or of `runnel.arrow`: topic, epoch, offset, sequence, time, value,
        and key, headers, due, expires and priority where there are any. `behind`: next offsets; rows below them are
        left out. Memory is bounded, and the files are on disk when it returns.
        """
        writer = FileWriter(self.records, self.buckets, behind)
        files: list[LakeFile] = []
        for batch in batches:
            files += writer.add(batch)
        files += writer.finish()
        return files

    def _above(self, file: LakeFile, known: Mapping[TopicEpoch, int]) -> LakeFile | None:
        """A file without the rows that the lake has: itself, another one, or None if it has all of them."""
        below = [one for one in file.ranges if one.first < known.get(one.key, 0)]
        if not below:
            return file
        if all(one.last < known.get(one.key, 0) for one in file.ranges):
            return None
        kept: list[Any] = []
        for table in read_groups(self.records, file.path):
            left = (without_known(batch, known) for batch in table.to_batches())
            kept += [rows for rows in left if rows.num_rows]
        return write_file(self.records, file.day, file.bucket, kept) if kept else None

    # -- maintenance --------------------------------------------------------------------------------------------

    @property
    def commit_age(self) -> float:
        """Seconds after which a file that was written is not committed any more."""
        return exact_table.COMMIT_AGE

    def maintain(
        self,
        gone: Mapping[TopicEpoch, int] | None = None,
        *,
        min_files: int = maintenance.MIN_FILES,
        safe_age: float = maintenance.SAFE_AGE,
        progress: maintenance.Progress | None = None,
    ) -> maintenance.MaintenanceReport:
        """Compact small files, erase what is gone, and remove files that nothing needs. Safe beside writers.

        - `gone`: by topic and epoch, the offset below which no record may be kept: it was trimmed, or its topic
          deleted (then any offset behind its end). Next offsets stay, so it is not archived again.
        - `min_files`: small files of one day and bucket from which on they are made one.
        - `safe_age`: seconds for which files are kept that no snapshot names any more: readers of older snapshots
          need them. Files that failed writers left are removed after that time, too.
        - `progress`: is called with what is done now, how much of it is done, and how much there is.
        """
        return maintenance.maintain(self, gone, min_files=min_files, safe_age=safe_age, progress=progress)

    def replace(self, files: Sequence[TableFile], made: Sequence[LakeFile], *, data_change: bool) -> bool:
        """Have the table name `made` in place of `files`, in one commit; False: one of them is not there any more.

        Delta accepts two commits that remove the same file, so this one is made only if no other came in between.
        """
        errors = need("deltalake.exceptions")
        old, new = {file.path for file in files}, {file.path for file in made}
        actions = [maintenance.remove_action(file, data_change=data_change) for file in files]
        actions += [add_action(file, data_change=data_change) for file in made]
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
        raise LakeBusy(self.storage.uri, ATTEMPTS, str(failure))

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


def add_action(file: LakeFile, *, data_change: bool = True) -> Any:
    """A file, as the Delta log names it."""
    return need("deltalake.transaction").AddAction(
        file.path,
        file.size,
        partition_values(file.day, file.bucket),
        int(file.written * 1000),
        data_change,
        file.stats(),
    )


def _checked_buckets(table: Any, uri: str) -> int:
    """The number of buckets of a table; `LakeMismatch` unless it has the columns of a lake."""
    has = {field.name: field.type for field in need("pyarrow").schema(table.schema())}
    for field in table_schema():
        if field.name not in has:
            raise LakeMismatch(uri, f"it has no column {field.name!r}")
        if has[field.name] != field.type:
            raise LakeMismatch(uri, f"its column {field.name!r} is {has[field.name]}, not {field.type}")
    metadata = table.metadata()
    said = metadata.configuration.get(BUCKETS_KEY, "")
    if list(metadata.partition_columns) != PARTITIONS or not said.isdigit() or int(said) < 1:
        raise LakeMismatch(uri, f"it is not partitioned by {' and '.join(PARTITIONS)} with {BUCKETS_KEY}")
    return int(said)
