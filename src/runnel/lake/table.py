"""The lake: the Delta table `records`, with everything that a record of a topic has.

Executors write Parquet files, one driver commits them. A deleted checkpoint, a repeated batch, or a second archive
repeats nothing (`ExactTable`). Maintenance runs beside writers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from runnel.core.errors import InvalidOption, LakeMismatch
from runnel.lake.exact_table import TopicEpoch
from runnel.lake.files import FileWriter, LakeFile, LakeRange, read_groups, read_index, write_file
from runnel.lake.layout import (
    BUCKETS,
    BUCKETS_KEY,
    JOURNAL_KEY,
    PARTITIONS,
    partition_values,
    table_schema,
    without_known,
)
from runnel.lake.maintenance import MIN_FILES, SAFE_AGE, MaintainedTable, MaintenanceReport, Progress
from runnel.lake.snapshot import TableFile
from runnel.lake.storage import LakeStorage, need
from runnel.lake.typed_table import TABLES, Quarantine, TypedTable

if TYPE_CHECKING:
    import pyarrow as pa


class Lake(MaintainedTable):
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

    def _partition(self, day: date, bucket: int) -> dict[str, str | None]:
        return partition_values(day, bucket)

    def ranges_of(self, path: str) -> list[LakeRange]:
        """The records of a file, from its footer."""
        return [one for group in read_index(self.records, path) for one in group]

    def rewritten(
        self, files: Iterable[TableFile], gone: Mapping[TopicEpoch, int] | None = None
    ) -> tuple[list[LakeFile], int]:
        """The rows of files of one partition in new files, less those below `gone`; and how many rows there were."""
        writer, rows = FileWriter(self.records, self.buckets, gone), 0
        made: list[LakeFile] = []
        for file in files:
            for table in read_groups(self.records, file.path):
                rows += len(table)
                for batch in table.to_batches():
                    made += writer.add(batch)
        made += writer.finish()
        return made, rows

    def tables(self) -> list[TypedTable]:
        """The typed tables of this lake, by name."""
        found = (self.typed(name) for name in self.storage.folders(TABLES))
        return [table for table in found if table.exists]

    def maintain(
        self,
        gone: Mapping[TopicEpoch, int] | None = None,
        *,
        min_files: int = MIN_FILES,
        safe_age: float = SAFE_AGE,
        progress: Progress | None = None,
    ) -> MaintenanceReport:
        """The same of all tables: `records`, the typed tables, and the quarantine."""
        done = super().maintain(gone, min_files=min_files, safe_age=safe_age, progress=progress)
        others: list[MaintainedTable] = [*self.tables()]
        if (quarantine := Quarantine(self.storage)).exists:
            others.append(quarantine)
        for one in others:
            done += one.maintain(gone, min_files=min_files, safe_age=safe_age, progress=progress)
        return done


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
