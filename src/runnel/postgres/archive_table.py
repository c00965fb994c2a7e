"""The tables of an archive in PostgreSQL: the rows, its position, the contents of partitions, and the gaps.

`runnel_archive` has a row for each archive: its position moves in the transaction that writes the rows.
`runnel_archive_part` says which sequences a partition holds, `runnel_archive_range` which offsets of a topic: a reader
finds the partition it needs without a look at the others. `runnel_archive_gap` names records that never arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from runnel.core.errors import RunnelError
from runnel.core.record import MissedRange
from runnel.postgres.archive_config import ArchiveConfig
from runnel.postgres.archive_rows import BASE, COPY_HEAD, COPY_TAIL, FieldColumn, PartitionSpan, RowRun, partition_at

log = logging.getLogger("runnel.postgres")

Connection = psycopg.AsyncConnection[Any]

LOCK_SECONDS = 5  # that a change of the table waits for queries; meanwhile others wait behind it
COPY_CHUNK = 1 << 18  # bytes handed to libpq at once


class ArchiveTableMismatch(RunnelError):
    """The table belongs to another archive, or the journal is not the one that it was filled from."""

    code = "archive_table_mismatch"
    table: str
    why: str
    _says = "the archive {table} cannot go on: {why}"


class ArchiveFenced(Exception):
    """Another archive wrote to the table: the transaction was rolled back, and the position has to be read again."""

    def __init__(self, table: str) -> None:
        super().__init__(f"another archive has moved the position of {table}")


class ArchivePlace(NamedTuple):
    """Where an archive continues: an offset in an epoch of its topic or, of a pattern, a sequence (then epoch is 0)."""

    epoch: int
    place: int


class ArchiveState(NamedTuple):
    """The row of `runnel_archive`."""

    pattern: str
    journal: str | None  # the id of the broker; None: nothing was archived yet
    partition: str
    place: ArchivePlace | None
    rows: int
    updated: datetime | None


# -- SQL -------------------------------------------------------------------------------------------------


def setup_sql(config: ArchiveConfig) -> list[str]:
    """The statements that create the tables. Run again they change nothing."""
    schema, table = _quoted(config.schema), _quoted(config.relation)
    columns = ", ".join(f'"{column}" {kind}' for column, kind in BASE.items())
    text = _literal(config.name)
    return [
        f"CREATE TABLE IF NOT EXISTS {schema}.runnel_archive (table_name text PRIMARY KEY, pattern text NOT NULL, "
        "journal text, partition text NOT NULL, epoch bigint, place bigint, rows bigint NOT NULL DEFAULT 0, "
        "updated timestamptz);",
        f"CREATE TABLE IF NOT EXISTS {schema}.runnel_archive_part (table_name text, part text, "
        "start timestamptz NOT NULL, stop timestamptz NOT NULL, first_sequence bigint, end_sequence bigint, "
        "rows bigint NOT NULL DEFAULT 0, PRIMARY KEY (table_name, part));",
        f"CREATE TABLE IF NOT EXISTS {schema}.runnel_archive_range (table_name text, "
        'topic text COLLATE "C", epoch bigint, part text, first bigint NOT NULL, "end" bigint NOT NULL, '
        "first_sequence bigint NOT NULL, end_sequence bigint NOT NULL, PRIMARY KEY (table_name, topic, epoch, part));",
        f"CREATE INDEX IF NOT EXISTS runnel_archive_range_part ON {schema}.runnel_archive_range (table_name, part);",
        f"CREATE TABLE IF NOT EXISTS {schema}.runnel_archive_gap (table_name text, noted timestamptz DEFAULT now(), "
        'pattern text NOT NULL, first bigint, "end" bigint, count bigint, reason text NOT NULL);',
        f'CREATE TABLE IF NOT EXISTS {schema}.{table} ({columns}, PRIMARY KEY (topic, epoch, "offset", "time")) '
        'PARTITION BY RANGE ("time");',
        f"CREATE INDEX IF NOT EXISTS {_quoted(config.relation + '_sequence')} ON {schema}.{table} (sequence);",
        f"INSERT INTO {schema}.runnel_archive (table_name, pattern, partition) VALUES ({text}, "
        f"{_literal(config.pattern)}, {_literal(config.partition)}) ON CONFLICT DO NOTHING;",
    ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def fetch(connection: Connection, query: Any, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return await (await connection.execute(query, values)).fetchall()


class ArchiveTable:
    """One archive's tables, over a connection. The caller holds the lock of the archive."""

    def __init__(self, connection: Connection, config: ArchiveConfig) -> None:
        self._connection, self._config = connection, config
        self.columns: dict[str, str] = {}  # of fields, in the order of the table: their types
        self._parts: set[str] = set()  # partitions that exist

    def _sql(self, query: str, **names: sql.Composable) -> sql.Composed:
        """A query with the archive's own tables: {archive}, {part}, {range}, {gap} and {table}."""
        schema = self._config.schema
        known = {
            "archive": sql.Identifier(schema, "runnel_archive"),
            "part": sql.Identifier(schema, "runnel_archive_part"),
            "range": sql.Identifier(schema, "runnel_archive_range"),
            "gap": sql.Identifier(schema, "runnel_archive_gap"),
            "table": sql.Identifier(schema, self._config.relation),
        }
        return sql.SQL(query).format(**known, **names)

    # -- before it starts ---------------------------------------------------------------------------------------

    async def set_up(self) -> None:
        """Create missing tables. A table that was dropped starts anew; one of another program is refused."""
        config = self._config
        found = await fetch(
            self._connection,
            "SELECT to_regclass(%s)::text, to_regclass(%s)::text, (SELECT relkind = 'p' FROM pg_class "
            "WHERE oid = to_regclass(%s))",
            *(f'"{config.schema}"."{one}"' for one in ("runnel_archive", config.relation, config.relation)),
        )
        (state, table, is_partitioned) = found[0]
        has_row = state is not None and await self.state() is not None
        if has_row and table is None:
            log.warning("archive %s: the table is gone; it is created again and filled from the start", config.name)
            for kind in ("archive", "part", "range"):
                query = f"DELETE FROM {{{kind}}} WHERE table_name = %s"
                await self._connection.execute(self._sql(query), (config.name,))
            has_row = False
        if not has_row:
            if table is not None and not is_partitioned:
                raise ArchiveTableMismatch(
                    config.name, "there is a table of that name that is no archive; name another one"
                )
            for statement in setup_sql(config):
                await self._connection.execute(statement)
        await self._look()

    async def _look(self) -> None:
        """Learn the columns and the partitions; forget partitions that were dropped by others."""
        config = self._config
        rows = await fetch(
            self._connection,
            "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = to_regclass(%s) "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            f'"{config.schema}"."{config.relation}"',
        )
        known = dict(rows)
        if missing := [column for column in BASE if column not in known]:
            raise ArchiveTableMismatch(config.name, f"the table has no column {missing[0]!r}, so it is no archive")
        self.columns = {column: kind for column, kind in rows if column not in BASE}
        await self.look_at_parts()

    async def look_at_parts(self) -> None:
        """Learn the partitions; forget partitions that were dropped by others."""
        config = self._config
        rows = await fetch(
            self._connection,
            "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = to_regclass(%s)",
            f'"{config.schema}"."{config.relation}"',
        )
        self._parts = {row[0] for row in rows}
        gone = [
            row[0]
            for row in await fetch(
                self._connection, self._sql("SELECT part FROM {part} WHERE table_name = %s"), config.name
            )
            if row[0] not in self._parts
        ]
        for part in gone:
            async with self._connection.transaction():
                await self._forget(part)

    async def state(self) -> ArchiveState | None:
        """Its position; None: it was never set up."""
        rows = await fetch(
            self._connection,
            self._sql(
                "SELECT pattern, journal, partition, epoch, place, rows, updated FROM {archive} WHERE table_name = %s"
            ),
            self._config.name,
        )
        if not rows:
            return None
        pattern, journal, partition, epoch, place, count, updated = rows[0]
        return ArchiveState(
            pattern, journal, partition, None if place is None else ArchivePlace(epoch, place), count, updated
        )

    async def epochs(self, topics: Iterable[tuple[str, int]]) -> bool:
        """Whether any of these topics was archived in this epoch."""
        names, epochs = zip(*topics, strict=True) if topics else ((), ())
        query = (
            "SELECT EXISTS (SELECT FROM {range} WHERE table_name = %s AND (topic, epoch) IN "
            "(SELECT * FROM unnest(%s::text[], %s::bigint[])))"
        )
        rows = await fetch(self._connection, self._sql(query), self._config.name, list(names), list(epochs))
        return bool(rows[0][0])

    async def adopt(self, journal: str, missed: Sequence[MissedRange] = ()) -> None:
        """Continue with this journal."""
        async with self._connection.transaction():
            await self._connection.execute(
                self._sql("UPDATE {archive} SET journal = %s WHERE table_name = %s"), (journal, self._config.name)
            )
            await self._note(missed)

    async def add_columns(self, wanted: Iterable[FieldColumn]) -> list[FieldColumn]:
        """Add columns that are missing; return those of `wanted` that the table has with their type."""
        wanted = list(wanted)
        if missing := {one.column: one for one in wanted if one.column not in self.columns}:
            added = [
                sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(
                    sql.Identifier(one.column),
                    sql.SQL(one.type),
                )
                for one in missing.values()
            ]
            async with self._connection.transaction():
                await self._connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
                await self._connection.execute(
                    self._sql("ALTER TABLE {table} {added}", added=sql.SQL(", ").join(added))
                )
            for one in missing.values():
                log.info("archive %s: added the column %s %s", self._config.name, one.column, one.type)
                self.columns[one.column] = one.type
        good = [one for one in wanted if self.columns[one.column] == one.type]
        return good

    # -- partitions ---------------------------------------------------------------------------------------------

    async def make_partition(self, span: PartitionSpan) -> str:
        """The name of the partition, which exists afterwards.

        It is created on its own and attached, which waits for no query: `CREATE TABLE ... PARTITION OF` would lock
        the whole table.
        """
        name = self._config.relation + span.suffix
        if name not in self._parts:
            part = sql.Identifier(self._config.schema, name)
            async with self._connection.transaction():
                await self._connection.execute(
                    self._sql(
                        "CREATE TABLE {leaf} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)",
                        leaf=part,
                    )
                )
                await self._connection.execute(
                    self._sql(
                        "ALTER TABLE {table} ATTACH PARTITION {leaf} FOR VALUES FROM ({start}) TO ({stop})",
                        leaf=part,
                        start=sql.Literal(span.start.isoformat()),
                        stop=sql.Literal(span.stop.isoformat()),
                    )
                )
                await self._connection.execute(
                    self._sql("INSERT INTO {part} (table_name, part, start, stop) VALUES (%s, %s, %s, %s)"),
                    (self._config.name, name, span.start, span.stop),
                )
            self._parts.add(name)
        return name

    async def drop_before(self, time: datetime) -> list[str]:
        """Drop the partitions that hold nothing newer than `time`; return their names.

        A query that reads one holds it: then it is dropped later.
        """
        rows = await fetch(
            self._connection,
            self._sql("SELECT part FROM {part} WHERE table_name = %s AND stop <= %s ORDER BY start"),
            self._config.name,
            time,
        )
        dropped = []
        for (name,) in rows:
            try:
                async with self._connection.transaction():
                    await self._connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
                    await self._forget(name)
                    leaf = sql.Identifier(self._config.schema, name)
                    await self._connection.execute(self._sql("DROP TABLE IF EXISTS {leaf}", leaf=leaf))
            except psycopg.errors.LockNotAvailable:
                log.warning("archive %s: queries read %s; it is dropped later", self._config.name, name)
                break
            self._parts.discard(name)
            dropped.append(name)
        return dropped

    async def _forget(self, part: str) -> None:
        for kind in ("part", "range"):
            query = f"DELETE FROM {{{kind}}} WHERE table_name = %s AND part = %s"
            await self._connection.execute(self._sql(query), (self._config.name, part))

    # -- writing ------------------------------------------------------------------------------------------------

    async def write(
        self,
        runs: Mapping[PartitionSpan, Sequence[RowRun]],
        columns: Sequence[str],
        missed: Sequence[MissedRange],
        before: ArchivePlace | None,
        after: ArchivePlace,
    ) -> None:
        """Write rows, and move the position from `before` to `after`: both or neither.

        `columns` are those of fields that the rows have.
        `ArchiveFenced` if the position is another one: then nothing is written.
        """
        connection, config = self._connection, self._config
        leaves = [(await self.make_partition(span), span, some) for span, some in runs.items()]
        count = sum(run.end - run.first for some in runs.values() for run in some)
        async with connection.transaction():
            moved = await connection.execute(
                self._sql(
                    "UPDATE {archive} SET epoch = %s, place = %s, rows = rows + %s, updated = now() "
                    "WHERE table_name = %s AND epoch IS NOT DISTINCT FROM %s AND place IS NOT DISTINCT FROM %s"
                ),
                (*after, count, config.name, *(before or (None, None))),
            )
            if moved.rowcount != 1:
                raise ArchiveFenced(config.name)
            for name, span, some in leaves:
                await self._copy(name, columns, some)
                await self._count(name, span, some)
            await self._note(missed)

    async def _copy(self, name: str, columns: Sequence[str], runs: Sequence[RowRun]) -> None:
        query = self._sql(
            "COPY {leaf} ({columns}) FROM STDIN (FORMAT binary)",
            leaf=sql.Identifier(self._config.schema, name),
            columns=sql.SQL(", ").join(map(sql.Identifier, (*BASE, *columns))),
        )
        async with self._connection.cursor() as cursor, cursor.copy(query) as copy:
            pieces, size = [COPY_HEAD], 0
            for run in runs:
                pieces.append(run.data)
                size += len(run.data)
                if size > COPY_CHUNK:
                    await copy.write(b"".join(pieces))
                    pieces, size = [], 0
            await copy.write(b"".join((*pieces, COPY_TAIL)))

    async def _count(self, name: str, span: PartitionSpan, runs: Sequence[RowRun]) -> None:
        """Store which offsets and sequences the partition holds now."""
        ranges: dict[tuple[str, int], list[int]] = {}
        rows = 0
        for run in runs:
            count = run.end - run.first
            rows += count
            ends = run.sequence + count
            if (found := ranges.get((run.topic, run.epoch))) is None:
                ranges[run.topic, run.epoch] = [run.first, run.end, run.sequence, ends]
            else:
                found[1], found[3] = run.end, ends
        first, end = min(one[2] for one in ranges.values()), max(one[3] for one in ranges.values())
        await self._connection.execute(
            self._sql(
                "INSERT INTO {part} VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (table_name, part) DO UPDATE SET "
                "first_sequence = coalesce({part}.first_sequence, excluded.first_sequence), "
                "end_sequence = excluded.end_sequence, rows = {part}.rows + excluded.rows"
            ),
            (self._config.name, name, span.start, span.stop, first, end, rows),
        )
        columns = [
            [topic for topic, _ in ranges],
            [epoch for _, epoch in ranges],
            *([one[at] for one in ranges.values()] for at in range(4)),
        ]
        await self._connection.execute(
            self._sql(
                'INSERT INTO {range} (table_name, part, topic, epoch, first, "end", first_sequence, end_sequence) '
                "SELECT %s, %s, * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], "
                "%s::bigint[]) ON CONFLICT (table_name, topic, epoch, part) "
                'DO UPDATE SET "end" = excluded."end", end_sequence = excluded.end_sequence'
            ),
            (self._config.name, name, *columns),
        )

    async def _note(self, missed: Sequence[MissedRange]) -> None:
        """Store gaps."""
        for one in missed:
            await self._connection.execute(
                self._sql(
                    'INSERT INTO {gap} (table_name, pattern, first, "end", count, reason) '
                    "VALUES (%s, %s, %s, %s, %s, %s)"
                ),
                (self._config.name, self._config.pattern, one.first, one.end, one.count, one.reason),
            )

    # -- facts for other modules --------------------------------------------------------------------------------

    async def parts(self) -> list[tuple[str, int]]:
        """The partitions with rows, oldest first, and their rows."""
        query = "SELECT part, rows FROM {part} WHERE table_name = %s AND rows > 0 ORDER BY start"
        return [(part, rows) for part, rows in await fetch(self._connection, self._sql(query), self._config.name)]

    async def gaps(self) -> list[str]:
        """The newest gaps, as sentences."""
        query = (
            'SELECT noted, pattern, first, "end", count, reason FROM {gap} WHERE table_name = %s '
            "ORDER BY noted DESC LIMIT 20"
        )
        rows = await fetch(self._connection, self._sql(query), self._config.name)
        return [
            f"{noted:%Y-%m-%d %H:%M:%S%z}: {count} records of {pattern} in [{first}, {end}): {reason}"
            for noted, pattern, first, end, count, reason in rows
        ]


def lock_name(config: ArchiveConfig) -> str:
    """The name of the advisory lock that a running archive holds."""
    return f"runnel archive {config.name}"


def split_by_partition(kind: str, runs: Iterable[RowRun]) -> dict[PartitionSpan, list[RowRun]]:
    """Runs by the partition that they belong to, in their order."""
    found: dict[PartitionSpan, list[RowRun]] = {}
    span: PartitionSpan | None = None
    for run in runs:
        if span is None or not span.start <= run.time < span.stop:
            span = partition_at(kind, run.time)
            found.setdefault(span, [])
        found[span].append(run)
    return found
