"""`current`: the changes of a relayed PostgreSQL table become a Delta table that is equal to it.

Changes are applied in the order of the broker's sequence, which is the order of PostgreSQL's commits. A micro-batch is
folded to one change for each key by tasks, and merged in one commit that carries the query and the batch's number: a
repeated batch changes nothing. Rows that differ from the source are found by an audit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from runnel.core.errors import InvalidOption, NotSupported
from runnel.lake.storage import need
from runnel.spark.pipelines.pipeline import Check, Context, Finding, Option, Pipeline, Stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

TRIGGER_RECORDS = 100_000
"""Changes of one micro-batch at most: they go through the driver."""

DSN_VARIABLE = "RUNNEL_RELAY_DSN"

DESCRIPTION = """\
examples:
  runnel pipeline run current --table public.orders --topic 'orders.>' --key id --dsn postgresql://app@db/app
  RUNNEL_RELAY_DSN=postgresql://app@db/app runnel pipeline run current --table public.orders --topic orders --key id
  runnel pipeline run current … --audit-every 1h         and compare it with the table every hour

The topics are those of `runnel relay`, with value = "row", publish = ["insert", "update", "delete"], snapshot = true if
the table had rows before, and --key the same column as the relay's key. lake/NAME becomes equal to the table, a moment
later: inserts, updates and deletes are merged by the key. Columns are those of the table; what Delta has no type for is
text. With --events relay.SLOT a TRUNCATE is applied, too.
"""


# -- Changes: plain functions of DataFrames ---------------------------------------------------------------------


def changes_of(records: DataFrame, table: str) -> DataFrame:
    """The changes of one table: sequence, key, op, row (JSON) and the columns that PostgreSQL did not send."""
    from pyspark.sql import functions as F  # noqa: N812

    header, text = F.col("headers"), F.col("value").cast("string")
    is_event = (header["pg-op"] == "event") & (F.get_json_object(text, "$.event") == "truncate")
    ops = records.select(
        "sequence",
        F.when(is_event, F.lit(b"")).otherwise(F.col("key")).alias("key"),
        F.when(is_event, "truncate").otherwise(header["pg-op"]).alias("op"),
        text.alias("row"),
        header["pg-unchanged"].alias("unchanged"),
        F.when(is_event, F.get_json_object(text, "$.table")).otherwise(header["pg-table"]).alias("table"),
    )
    return ops.where(F.col("table") == table).where("op in ('insert', 'update', 'delete', 'read', 'truncate')")


FOLDED = "sequence bigint, key binary, op string, row string, unchanged string"


def folded(changes: DataFrame) -> DataFrame:
    """One change for each key: the last one, with what earlier ones say of the columns that it does not have."""
    ordered = changes.repartition("key").sortWithinPartitions("sequence").drop("table")
    return ordered.mapInArrow(_fold, FOLDED)


def _fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pa = need("pyarrow")
    last: dict[bytes, dict[str, Any]] = {}
    for batch in batches:
        for change in batch.to_pylist():
            known = last.get(change["key"])
            if change["unchanged"] and known is not None and known["op"] in ("insert", "update", "read"):
                row = {**_parsed(known["row"]), **_parsed(change["row"])}
                missing = {*change["unchanged"].split(",")} & {*(known["unchanged"] or "").split(",")} - {""}
                text = msgspec.json.encode(row).decode()
                change = {**change, "row": text, "unchanged": ",".join(sorted(missing)) or None}
            last[change["key"]] = change
    if last:
        schema = pa.schema(
            [
                ("sequence", pa.int64()),
                ("key", pa.binary()),
                ("op", pa.string()),
                ("row", pa.string()),
                ("unchanged", pa.string()),
            ]
        )
        rows = [{name: one[name] for name in schema.names} for one in last.values()]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _parsed(row: str) -> dict[str, msgspec.Raw]:
    """The columns of a row, each as the JSON that it is: numbers and nested JSON stay as PostgreSQL wrote them."""
    return msgspec.json.decode(row, type=dict[str, msgspec.Raw])


# -- Columns: types of PostgreSQL and of Delta ------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the source: its name, its type in Arrow, and how the JSON of a value that is not null becomes one."""

    name: str
    kind: Any
    convert: Callable[[bytes], Any]


def _text(said: bytes) -> str:
    """A string, or JSON unchanged."""
    return msgspec.json.decode(said, type=str) if said.startswith(b'"') else said.decode()


def _time(said: bytes) -> datetime | None:
    """None of 'infinity' and of years that Python does not have: Delta has no such time either."""
    try:
        return datetime.fromisoformat(_text(said))
    except ValueError:
        return None


def _utc(said: bytes) -> datetime | None:
    at = _time(said)
    return None if at is None else at.astimezone(UTC)


def _date(said: bytes) -> date | None:
    try:
        return date.fromisoformat(_text(said))
    except ValueError:
        return None


def column_of(name: str, kind: str, precision: int | None, scale: int | None) -> Column:
    """A column of a PostgreSQL type, by the name that `information_schema` gives it."""
    pa = need("pyarrow")
    known: dict[str, tuple[Any, Callable[[bytes], Any]]] = {
        "bool": (pa.bool_(), lambda said: said == b"true"),
        "int2": (pa.int16(), int),
        "int4": (pa.int32(), int),
        "int8": (pa.int64(), int),
        "float4": (pa.float32(), lambda said: float(_text(said))),
        "float8": (pa.float64(), lambda said: float(_text(said))),
        "date": (pa.date32(), _date),
        "timestamptz": (pa.timestamp("us", "UTC"), _utc),
        "timestamp": (pa.timestamp("us"), _time),
        "bytea": (pa.binary(), lambda said: bytes.fromhex(_text(said).removeprefix("\\x"))),
    }
    if kind == "numeric" and precision is not None and precision <= 38 and 0 <= (scale or 0) <= precision:
        step = Decimal(1).scaleb(-(scale or 0))
        return Column(name, pa.decimal128(precision, scale or 0), lambda said: _decimal(said, step))
    return Column(name, *known.get(kind, (pa.string(), _text)))


def _decimal(said: bytes, step: Decimal) -> Decimal | None:
    found = Decimal(_text(said))
    return found.quantize(step) if found.is_finite() else None


class SourceTable:
    """The table in PostgreSQL: its columns, and its rows for the audit."""

    def __init__(self, dsn: str, table: str, key: str) -> None:
        self._dsn, self.key = dsn, key
        schema, _, name = table.rpartition(".")
        self.schema, self.table = schema or "public", name
        self.name = f"{self.schema}.{self.table}"

    def __repr__(self) -> str:
        return f"<SourceTable {self.name}>"

    def _connect(self) -> Any:
        try:
            import psycopg
        except ImportError:
            why = "it needs psycopg 3: pip install 'runnel-mq[postgres]'"
            raise NotSupported("the pipeline current", why) from None
        return psycopg.connect(self._dsn, autocommit=True)

    def columns(self) -> list[Column]:
        """The current columns."""
        with self._connect() as connection:
            rows = connection.execute(
                "SELECT column_name, udt_name, numeric_precision, numeric_scale FROM information_schema.columns"
                " WHERE table_schema = %s AND table_name = %s AND is_generated = 'NEVER' ORDER BY ordinal_position",
                (self.schema, self.table),
            ).fetchall()
        if not rows:
            raise InvalidOption("table", self.name, "there is no such table, or its columns may not be read")
        found = [column_of(*row) for row in rows]
        if self.key not in [one.name for one in found]:
            raise InvalidOption("key", self.key, f"{self.name} has no such column")
        return found

    def rows(self, columns: Sequence[Column], keys: Sequence[Any] | None = None) -> Iterator[tuple[Any, ...]]:
        """All rows of one moment, or those with some keys, as values."""
        from psycopg import sql

        table = sql.Identifier(self.schema, self.table)
        query = sql.SQL("SELECT row_to_json(t)::text FROM {} t").format(table)
        if keys is not None:
            query += sql.SQL(" WHERE {}::text = ANY(%s)").format(sql.Identifier(self.key))
        with self._connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute("SET LOCAL TimeZone = 'UTC'")
            with connection.cursor(name="runnel_audit") as cursor:
                cursor.itersize = 10_000
                cursor.execute(query, None if keys is None else ([str(one) for one in keys],))
                for (text,) in cursor:
                    yield comparable(values_of(text, columns))


def values_of(row: str, columns: Sequence[Column]) -> tuple[Any, ...]:
    """A row in JSON as the values of a Delta table; null, where it has no such column."""
    found = _parsed(row)
    said = [bytes(found.get(one.name, b"null")) for one in columns]
    return tuple(None if one == b"null" else column.convert(one) for one, column in zip(said, columns, strict=True))


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row that is equal to the same one: NaN is not equal to itself."""
    return tuple("NaN" if one != one else one for one in row)


# -- The table --------------------------------------------------------------------------------------------------


class CurrentTable:
    """The Delta table, as `foreachBatch` of the query calls it."""

    def __init__(self, location: str, storage_options: Mapping[str, str], source: SourceTable) -> None:
        self._location, self._storage, self._source = location, dict(storage_options) or None, source
        self.columns = source.columns()
        self._create()
        self._widened(self.open())

    def __repr__(self) -> str:
        return f"<CurrentTable {self._location!r}>"

    def _schema(self) -> Any:
        return need("pyarrow").schema([(one.name, one.kind) for one in self.columns])

    def _create(self) -> None:
        deltalake = need("deltalake")
        deltalake.DeltaTable.create(
            self._location, self._schema(), mode="ignore", storage_options=self._storage, name=self._source.name
        )

    def open(self) -> Any:
        """The current table."""
        return need("deltalake").DeltaTable(self._location, storage_options=self._storage)

    def apply(self, rows: DataFrame, batch: int) -> None:
        """Apply a micro-batch of changes, unless it is applied."""
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None, "it is called by a query"
        table = self.open()
        known = table.transaction_version(query)
        if known is not None and known >= batch:
            return
        changes = folded(rows).collect()
        cut = max((one["sequence"] for one in changes if one["op"] == "truncate"), default=-1)
        newer = [one for one in changes if one["sequence"] > cut and one["op"] != "truncate"]
        if changes:
            self._commit(table, newer, query, batch, is_truncated=cut >= 0)

    def _commit(self, table: Any, changes: Sequence[Any], query: str, batch: int, *, is_truncated: bool) -> None:
        deltalake = need("deltalake")
        table = self._with_new_columns(table, changes)
        once = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(query, batch)])
        source = self._rows(table, changes)
        if is_truncated:
            kept = source.filter(need("pyarrow.compute").invert(source.column("_deleted"))).drop_columns(["_deleted"])
            deltalake.write_deltalake(table, kept, mode="overwrite", commit_properties=once)
            return
        key = self._source.key.replace('"', '""')
        merge = table.merge(
            source,
            f'target."{key}" = source."{key}"',
            source_alias="source",
            target_alias="target",
            commit_properties=once,
        )
        merge = merge.when_matched_delete("source._deleted").when_matched_update_all(except_cols=["_deleted"])
        merge.when_not_matched_insert_all("not source._deleted", except_cols=["_deleted"]).execute()

    def _with_new_columns(self, table: Any, changes: Sequence[Any]) -> Any:
        """Add the columns that the source has got since: a row that has one comes behind the change of the table."""
        known = {one.name for one in self.columns}
        if any(_parsed(one["row"]).keys() - known for one in changes if one["op"] != "delete"):
            self.columns = self._source.columns()
            return self._widened(table)
        return table

    def _widened(self, table: Any) -> Any:
        """The table with all columns of the source. One that the source has lost stays, and gets nulls."""
        pa, deltalake = need("pyarrow"), need("deltalake")
        there = {field.name for field in table.schema().fields}
        if missing := [(one.name, one.kind) for one in self.columns if one.name not in there]:
            table.alter.add_columns(deltalake.Schema.from_arrow(pa.schema(missing)).fields)
            return self.open()
        return table

    def _rows(self, table: Any, changes: Sequence[Any]) -> Any:
        """The changes as rows of the table, with a column that says which are deleted."""
        pa = need("pyarrow")
        schema = pa.schema([*self._schema(), ("_deleted", pa.bool_())])
        found, partial = [], {}
        for one in changes:
            row = {column.name: None for column in self.columns} | {"_deleted": one["op"] == "delete"}
            if not row["_deleted"]:
                values = values_of(one["row"], self.columns)
                row |= dict(zip((column.name for column in self.columns), values, strict=True))
            row[self._source.key] = self._key(one["key"])
            if one["unchanged"] and not row["_deleted"]:
                partial[row[self._source.key]] = (row, one["unchanged"].split(","))
            found.append(row)
        if partial:
            self._fill(table, partial)
        return pa.Table.from_pylist(found, schema=schema)

    def _key(self, key: bytes) -> Any:
        """A key of a record as the value of the key's column."""
        (column,) = [one for one in self.columns if one.name == self._source.key]
        is_number = need("pyarrow").types.is_integer(column.kind) or need("pyarrow").types.is_decimal(column.kind)
        return column.convert(bytes(key) if is_number else msgspec.json.encode(bytes(key).decode()))

    def _fill(self, table: Any, partial: Mapping[Any, tuple[dict[str, Any], Sequence[str]]]) -> None:
        """Take values that PostgreSQL did not send, since they did not change, from the current rows."""
        field = need("pyarrow.compute").field(self._source.key)
        there = table.to_pyarrow_dataset().to_table(filter=field.isin(list(partial)))
        for row in there.to_pylist():
            new, unchanged = partial[row[self._source.key]]
            new.update({name: row[name] for name in unchanged if name in row})

    def rows(self, keys: Sequence[Any] | None = None) -> Iterator[tuple[Any, ...]]:
        """All rows, or those with some keys, as values."""
        names = [one.name for one in self.columns]
        dataset = self.open().to_pyarrow_dataset()
        chosen = None if keys is None else need("pyarrow.compute").field(self._source.key).isin(list(keys))
        for batch in dataset.to_batches(columns=names, filter=chosen):
            yield from map(comparable, zip(*(batch.column(name).to_pylist() for name in names), strict=True))


# -- The audit --------------------------------------------------------------------------------------------------


BUCKETS = 4096
ROUNDS, ROUND_SECONDS = 10, 1.0


def differing_buckets(ours: Iterable[tuple[Any, ...]], theirs: Iterable[tuple[Any, ...]], key: int) -> set[int]:
    """Buckets of keys in which two sides do not have the same rows, in any order."""
    sums = [[0] * BUCKETS, [0] * BUCKETS]
    for side, rows in enumerate((ours, theirs)):
        for row in rows:
            sums[side][hash(row[key]) % BUCKETS] += hash(row)
    return {bucket for bucket in range(BUCKETS) if sums[0][bucket] != sums[1][bucket]}


def compare(table: CurrentTable, source: SourceTable, *, rounds: int = ROUNDS) -> Finding:
    """Whether the table is equal to its source. Rows that change while it looks are looked at again."""
    columns = table.columns
    at = [one.name for one in columns].index(source.key)
    began = monotonic()
    buckets = differing_buckets(table.rows(), source.rows(columns), at)
    found: dict[Any, tuple[Any, Any]] = {}
    if buckets:
        ours = {row[at]: row for row in table.rows() if hash(row[at]) % BUCKETS in buckets}
        theirs = {row[at]: row for row in source.rows(columns) if hash(row[at]) % BUCKETS in buckets}
        found = {key: (ours.get(key), theirs.get(key)) for key in ours.keys() | theirs.keys()}
        found = {key: both for key, both in found.items() if both[0] != both[1]}
    for _ in range(rounds):
        if not found:
            break
        sleep(ROUND_SECONDS)
        found = _still_different(table, source, columns, at, found)
    count = sum(1 for _ in table.rows())
    if not found:
        return Finding(True, f"{source.name}: {count:,} rows, equal to the source, in {monotonic() - began:.1f} s")
    shown = [f"  ! {key!r}: {_difference(*both)}" for key, both in list(found.items())[:20]]
    summary = f"{source.name}: {len(found):,} of {count:,} rows are NOT those of the source"
    return Finding(False, summary, "\n".join([summary, *shown]), {"keys": [str(key) for key in list(found)[:1000]]})


def _still_different(
    table: CurrentTable,
    source: SourceTable,
    columns: Sequence[Column],
    at: int,
    found: Mapping[Any, tuple[Any, Any]],
) -> dict[Any, tuple[Any, Any]]:
    """Rows that differ, and did before, and did not change meanwhile on either side: the others are under way."""
    ours = {row[at]: row for row in table.rows(list(found))}
    theirs = {row[at]: row for row in source.rows(columns, list(found))}
    now = {key: (ours.get(key), theirs.get(key)) for key in found}
    return {key: both for key, both in now.items() if both[0] != both[1] and both == found[key]}


def _difference(ours: Any, theirs: Any) -> str:
    if ours is None:
        return "the lake does not have it"
    return "the source does not have it" if theirs is None else f"{ours} here, {theirs} there"


def build(context: Context) -> Sequence[Stream | Check]:
    """The query that follows the changes, and the audit."""
    options = context.options
    for name in ("table", "topic", "key"):
        if not options[name]:
            raise InvalidOption(name, options[name], "needed: see `runnel pipeline run current --help`")
    dsn = options["dsn"] or os.environ.get(DSN_VARIABLE)
    if not dsn:
        raise InvalidOption("dsn", None, f"how PostgreSQL is reached is not known; give it, or set {DSN_VARIABLE}")
    source = SourceTable(dsn, options["table"], options["key"])
    table = CurrentTable(context.table(options["name"] or source.table), context.storage_options, source)
    topics = [*options["topic"], *([options["events"]] if options["events"] else [])]
    records = context.source(",".join(topics), maxRecordsPerTrigger=options["batch_records"])
    writer = changes_of(records, source.name).writeStream.foreachBatch(table.apply)
    check = Check("audit", lambda: compare(table, source, rounds=0 if context.once else ROUNDS), options["audit_every"])
    return [Stream("current", writer), check]


PIPELINE = Pipeline(
    "current",
    "a Delta table equal to a relayed table of PostgreSQL",
    build,
    (
        Option("table", "the table in PostgreSQL: schema.table", metavar="TABLE"),
        Option("topic", "where the relay publishes it to; may be repeated", (), metavar="TOPIC", repeats=True),
        Option("key", "the column that is the key, as in the relay's configuration", metavar="COLUMN"),
        Option("dsn", f"how to reach PostgreSQL (default: ${DSN_VARIABLE})", metavar="DSN"),
        Option("events", "the topic of the relay's events (relay.SLOT), for TRUNCATE", metavar="TOPIC"),
        Option("name", "of the table in the lake (default: that of TABLE)", metavar="NAME"),
        Option(
            "batch_records",
            f"changes of one micro-batch at most (default: {TRIGGER_RECORDS:,})",
            TRIGGER_RECORDS,
            kind="whole",
            metavar="N",
        ),
        Option("audit_every", "between two comparisons with the source (1h)", 3600.0, kind="seconds", metavar="TIME"),
    ),
    DESCRIPTION,
)
