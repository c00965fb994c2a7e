"""Tables of their own for typed topics, and the table for rows that fit in none.

`tables/NAME` has a column for each field of a type, beside the place of the record: `_topic`, `_epoch`, `_offset`,
`_sequence`, `_time`, `_key`. Fields that a type gains are added to the table; rows written before have null there. A
row that does not fit the type, or has a field of another type than the table's, goes to `quarantine` as it came. Both
tables add each record once.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from runnel.core.errors import InvalidOption
from runnel.lake.exact_table import LakeCommit, TopicEpoch
from runnel.lake.files import FILE_BYTES, PLACES, LakeFile, LakeRange, by_topic, join_ranges
from runnel.lake.layout import as_records, parts, record_schema, without_known
from runnel.lake.maintenance import MaintainedTable
from runnel.lake.snapshot import TableFile
from runnel.lake.storage import LakeStorage, need

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")
_OWN = (*PLACES, "key")

TABLES, QUARANTINE = "tables", "quarantine"
"""Where they are, below a lake."""


class TypedRows(NamedTuple):
    """Rows on their way into a typed table.

    - `records`: as `Lake.write` takes them.
    - `columns`: of the same rows, one column for each field of the type.
    - `bad`: which rows do not fit the type, as an array of booleans; None: all do.
    """

    records: pa.RecordBatch
    columns: pa.RecordBatch
    bad: pa.Array | None = None


class TypedFiles(msgspec.Struct, frozen=True):
    """Files that were written, and that no commit names yet: of the table, and of the quarantine."""

    rows: tuple[LakeFile, ...]
    quarantined: tuple[LakeFile, ...]


class DayTable(MaintainedTable):
    """A table with one folder for each day."""

    def _partition(self, day: date, bucket: int) -> dict[str, str | None]:
        return {self.partitions[0]: day.isoformat()}

    def ranges_of(self, path: str) -> list[LakeRange]:
        """The records of a file, from its rows."""
        with self.records.open(path) as stream:
            return self._ranges(need("pyarrow.parquet").read_table(stream, columns=self._places()))

    def _places(self) -> list[str]:
        return [f"{self.prefix}{name}" for name in PLACES]

    def _ranges(self, rows: pa.Table) -> list[LakeRange]:
        return join_ranges(by_topic(rows.select(self._places()).rename_columns(list(PLACES)))[1])

    def _stored_columns(self) -> pa.Schema:
        """The columns of a file that is written now: those of the table, less its partition."""
        pa = need("pyarrow")
        with self._lock:
            found = pa.schema(self._fresh().schema())
        return pa.schema([field for field in found if field.name not in self.partitions])

    def rewritten(
        self, files: Iterable[TableFile], gone: Mapping[TopicEpoch, int] | None = None
    ) -> tuple[list[LakeFile], int]:
        """The rows of files of one day in new files, less those below `gone`; and how many rows there were."""
        concat, columns = need("pyarrow").concat_tables, self._stored_columns()
        made: list[LakeFile | None] = []
        held: list[pa.Table] = []
        rows = 0
        for file in (chosen := list(files)):
            table = self._read_file(file.path, columns)
            rows += len(table)
            kept = [without_known(batch, gone or {}, self.prefix) for batch in table.to_batches()]
            held.append(need("pyarrow").Table.from_batches(kept, columns))
            if sum(one.nbytes for one in held) >= FILE_BYTES:
                made.append(self._write_day(file.day, concat(held)))
                held = []
        if held:
            made.append(self._write_day(chosen[-1].day, concat(held)))
        return [one for one in made if one is not None], rows

    def _read_file(self, path: str, columns: pa.Schema) -> pa.Table:
        """A file with these columns: one from before a field was added has nulls there."""
        pa, pq = need("pyarrow"), need("pyarrow.parquet")
        with self.records.open(path) as stream:
            found = pq.read_table(stream)
        arrays = [
            found[one.name].cast(one.type) if one.name in found.column_names else pa.nulls(len(found), one.type)
            for one in columns
        ]
        return pa.Table.from_arrays(arrays, schema=columns).combine_chunks()

    def _above(self, file: LakeFile, known: Mapping[TopicEpoch, int]) -> LakeFile | None:
        if not any(one.first < known.get(one.key, 0) for one in file.ranges):
            return file
        if all(one.last < known.get(one.key, 0) for one in file.ranges):
            return None
        with self.records.open(file.path) as stream:
            rows = need("pyarrow.parquet").read_table(stream)
        kept = [without_known(batch, known, self.prefix) for batch in rows.to_batches()]
        return self._write_day(file.day, need("pyarrow").Table.from_batches(kept, rows.schema))

    def _write_days(self, days: Mapping[date, Sequence[pa.Table]]) -> list[LakeFile]:
        tables = ((day, need("pyarrow").concat_tables(some)) for day, some in days.items())
        return [made for day, table in tables if (made := self._write_day(day, table)) is not None]

    def _write_day(self, day: date, table: pa.Table) -> LakeFile | None:
        """Write rows of one day as a file, and have it on disk; None: there are none."""
        if not len(table):
            return None
        pq = need("pyarrow.parquet")
        path = f"{self.partitions[0]}={day.isoformat()}/part-{uuid.uuid4().hex}.parquet"
        with self.records.write(path) as stream:
            pq.write_table(table, stream, compression="zstd", compression_level=1, store_schema=False)
        size = self.records.size(path)
        assert size is not None, "it was just written"
        return LakeFile(path, size, day, 0, len(table), tuple(self._ranges(table)), time.time())


class Quarantine(DayTable):
    """The table `quarantine` of a lake: rows that did not fit in `table`, as they came, and why."""

    partitions = ["day"]  # noqa: RUF012

    def __init__(self, lake: LakeStorage, table: str = "") -> None:
        super().__init__(lake.below(QUARANTINE), lake.uri)
        self.scope = table  # what did not fit in one table may be quarantined for another one, too

    def create(self) -> None:
        """Create the table, if there is none."""
        with self._lock:
            self._create_table("runnel quarantine", {})

    def _columns(self) -> pa.Schema:
        return quarantine_schema()


@cache
def quarantine_schema() -> pa.Schema:
    """A record's columns, for which table it was meant, and why it is not there."""
    pa = need("pyarrow")
    more = [pa.field("table", pa.string(), False), pa.field("reason", pa.string(), False)]
    return pa.schema([*record_schema(), *more, pa.field("day", pa.date32(), False)])


class TypedTable(DayTable):
    """The table `tables/NAME` of a lake. It can be pickled: executors write files, the driver commits them.

    >>> table = lake.typed("orders")
    >>> table.merge(fields)  # creates the table, or adds the fields that it lacks
    >>> table.commit_files(table.write(rows), application="typed", version=1)
    """

    partitions = ["_day"]  # noqa: RUF012
    prefix = "_"

    def __init__(self, lake: LakeStorage, name: str) -> None:
        if _NAME.fullmatch(name) is None:
            why = "a table has letters, digits, '.', '_' and '-' in its name, and begins with a letter or a digit"
            raise InvalidOption("table", name, why)
        self.name, self._lake = name, lake
        super().__init__(lake.below(f"{TABLES}/{name}"), lake.uri)
        self.quarantine = Quarantine(lake, name)
        self._fields: dict[str, pa.DataType] = {}

    def __repr__(self) -> str:
        return f"<TypedTable {self.records.uri}>"

    def __getstate__(self) -> tuple[LakeStorage, str, dict[str, Any]]:
        return self._lake, self.name, self._fields

    def __setstate__(self, state: tuple[LakeStorage, str, dict[str, Any]]) -> None:
        self.__init__(*state[:2])  # type: ignore[misc]
        self._fields = state[2]

    # -- columns ------------------------------------------------------------------------------------------------

    def merge(self, fields: Iterable[pa.Field]) -> list[str]:
        """Create the table with these fields, or add those that it lacks. On the driver, before rows are written.

        The names of fields that it has with another type: their rows go to the quarantine.
        """
        wanted = {field.name: field.type for field in fields}
        if taken := [name for name in wanted if name in self._own_names()]:
            why = f"a table has {', '.join(sorted(self._own_names()))} of its own; rename the field"
            raise InvalidOption("field", taken[0], why)
        pa = need("pyarrow")
        with self._lock:
            if not self.exists:
                self._fields = dict(wanted)
                self._create_table(f"runnel {self.name}", {})
            table = self._fresh()
            self._read_fields(table)
            if new := [pa.field(name, kind) for name, kind in wanted.items() if name not in self._fields]:
                table.alter.add_columns(list(need("deltalake").Schema.from_arrow(pa.schema(new)).fields))
                self._sync_log(table.version(), self._fresh().version())
                self._read_fields(self._table)
        self.quarantine.create()
        return [name for name, kind in wanted.items() if self._fields[name] != kind]

    def _own_names(self) -> set[str]:
        return {f"{self.prefix}{name}" for name in _OWN} | set(self.partitions)

    def _read_fields(self, table: Any) -> None:
        own = self._own_names()
        found = need("pyarrow").schema(table.schema())
        self._fields = {field.name: field.type for field in found if field.name not in own}

    def _file_columns(self) -> pa.Schema:
        pa = need("pyarrow")
        own = [record_schema().field(name).with_name(f"{self.prefix}{name}") for name in _OWN]
        return pa.schema([*own, *(pa.field(name, kind) for name, kind in self._fields.items())])

    def _columns(self) -> pa.Schema:
        pa = need("pyarrow")
        return pa.schema([*self._file_columns(), pa.field(self.partitions[0], pa.date32(), False)])

    def _write_entry(
        self, table: Any, actions: list[Any], applications: Mapping[str, int], retries: int | None = None
    ) -> None:
        self._read_fields(table)  # another process may have added some
        super()._write_entry(table, actions, applications, retries)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, rows: Iterable[TypedRows], behind: Mapping[TopicEpoch, int] | None = None) -> TypedFiles:
        """Write rows as Parquet files, those that do not fit for the quarantine. On an executor, say.

        `behind`: next offsets; rows below them are left out.
        """
        if not self._fields:
            with self._lock:
                self._read_fields(self._fresh())
        good: dict[date, list[pa.Table]] = defaultdict(list)
        bad: dict[date, list[pa.Table]] = defaultdict(list)
        files: list[LakeFile] = []
        quarantined: list[LakeFile] = []
        size = 0
        for one in rows:
            for fits, day, table in self._sorted_out(one, behind or {}):
                (good if fits else bad)[day].append(table)
                size += table.nbytes
            if size >= FILE_BYTES:
                files += self._write_days(good)
                quarantined += self.quarantine._write_days(bad)
                good.clear()
                bad.clear()
                size = 0
        files += self._write_days(good)
        quarantined += self.quarantine._write_days(bad)
        return TypedFiles(tuple(files), tuple(quarantined))

    def _sorted_out(self, rows: TypedRows, behind: Mapping[TopicEpoch, int]) -> Iterator[tuple[bool, date, pa.Table]]:
        """Rows by whether they fit, and by day."""
        np, pa, pc = need("numpy"), need("pyarrow"), need("pyarrow.compute")
        records = as_records(rows.records)
        numbered = records.append_column(pa.field("row", pa.int64()), pa.array(np.arange(records.num_rows)))
        for (day, _), part in parts(without_known(numbered, behind), 1):
            at = part.column("row")
            records_here, columns = part.drop_columns(["row"]), rows.columns.take(at)
            wrong = self._wrong_types(columns.schema)
            if wrong is not None:
                yield False, day, self._quarantined(records_here, wrong)
                continue
            bad = pa.array([False] * len(at)) if rows.bad is None else rows.bad.take(at)
            if pc.any(bad).as_py():
                yield False, day, self._quarantined(records_here.filter(bad), "the value does not fit the topic's type")
                fit = pc.invert(bad)
                records_here, columns = records_here.filter(fit), columns.filter(fit)
            yield True, day, self._with_columns(records_here, columns)

    def _wrong_types(self, columns: pa.Schema) -> str | None:
        for field in columns:
            has = self._fields.get(field.name)
            if has is None:
                raise InvalidOption("field", field.name, f"table {self.name!r} has no such column; merge() it first")
            if has != field.type:
                return f"field {field.name!r} is {field.type}, and the table has {has}"
        return None

    def _with_columns(self, records: pa.RecordBatch, columns: pa.RecordBatch) -> pa.Table:
        pa = need("pyarrow")
        arrays = [records.column(name) for name in _OWN]
        for name, kind in self._fields.items():
            there = name in columns.schema.names
            arrays.append(columns.column(name) if there else pa.nulls(records.num_rows, kind))
        return pa.Table.from_arrays(arrays, schema=self._file_columns())

    def _quarantined(self, records: pa.RecordBatch, reason: str) -> pa.Table:
        pa = need("pyarrow")
        more = [pa.repeat(pa.scalar(text), records.num_rows) for text in (self.name, reason)]
        return pa.Table.from_arrays([*records.columns, *more], schema=pa.schema(list(quarantine_schema())[:-1]))

    # -- committing ---------------------------------------------------------------------------------------------

    def commit_files(
        self, files: TypedFiles, *, application: str, version: int, ends: Mapping[TopicEpoch, int] | None = None
    ) -> LakeCommit:
        """Add what `write` returned: first to the quarantine, then to the table. Each record is added once to each.

        After an error, or a kill in between, the caller commits the same rows again.
        """
        if files.quarantined:
            self.quarantine.commit(files.quarantined, application=f"{application}/{self.name}", version=version)
        return self.commit(files.rows, application=application, version=version, ends=_ends(files, ends or {}))


def _ends(files: TypedFiles, ends: Mapping[TopicEpoch, int]) -> dict[TopicEpoch, int]:
    """The next offsets of the table: rows in the quarantine were dealt with, too."""
    found = dict(ends)
    for file in files.quarantined:
        for one in file.ranges:
            found[one.key] = max(found.get(one.key, 0), one.last + 1)
    return found
