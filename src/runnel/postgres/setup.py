"""The requirements of a relay in PostgreSQL: checked before it starts, with the SQL that meets them.

`examine` reads the facts; `problems` and `setup_sql` decide on them and do no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from runnel.core.errors import UsageError
from runnel.postgres.config import OPERATIONS, RelayConfig, TableConfig
from runnel.wire.pgoutput import parse_lsn


class Problem(NamedTuple):
    """One thing that is not as the relay needs it, and the SQL that changes it."""

    what: str
    sql: tuple[str, ...] = ()
    needs_restart: bool = False

    def __str__(self) -> str:
        return "\n    ".join((self.what, *self.sql))


class SetupIncomplete(UsageError):
    """PostgreSQL is not set up for this relay; `problems` says how, with the SQL to run."""

    code = "setup_incomplete"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        found = "\n  ".join(map(str, problems))
        super().__init__(
            f"PostgreSQL is not set up for this relay (`runnel relay init --apply` runs the SQL):\n  {found}"
        )


# -- Facts -----------------------------------------------------------------------------------------------


class SlotState(NamedTuple):
    """A replication slot."""

    plugin: str | None
    database: str | None
    confirmed: int  # LSN
    wal_status: str | None  # reserved, extended, unreserved, lost
    safe_wal_size: int | None
    retained: int  # bytes of log that it holds back
    active_pid: int | None


class Identity(NamedTuple):
    """The replica identity: the columns of the old row in UPDATE and DELETE of a table or partition."""

    table: str  # quoted where SQL needs it
    kind: str  # the replica identity: d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[str, ...]


class TableFacts(NamedTuple):
    """A table, as the catalog has it."""

    kind: str  # r(elation), p(artitioned), …
    persistence: str  # p(ermanent), u(nlogged), t(emporary)
    columns: tuple[str, ...]
    primary_key: tuple[str, ...]
    unlogged: tuple[str, ...]  # partitions
    identities: tuple[Identity, ...]  # of it and its partitions


class PublishedTable(NamedTuple):
    """A table in the publication."""

    columns: tuple[str, ...]
    filter: str | None


class PublicationFacts(NamedTuple):
    """A publication."""

    operations: frozenset[str]
    via_root: bool
    tables: dict[str, PublishedTable]


class SetupFacts(NamedTuple):
    """Everything that the checks look at."""

    version: int
    wal_level: str
    may_replicate: bool
    user: str
    database: str
    max_slot_wal_keep_size: str
    synchronous_commit: str
    standby_slots: str | None  # synchronized_standby_slots, from 17 on
    physical_slots: tuple[str, ...]  # of standbys
    tables: dict[str, TableFacts]
    publication: PublicationFacts | None
    slot: SlotState | None


async def _rows(connection: psycopg.AsyncConnection[Any], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return await (await connection.execute(query, parameters)).fetchall()


async def read_slot(connection: psycopg.AsyncConnection[Any], name: str) -> SlotState | None:
    """The state of the slot; None: there is none."""
    rows = await _rows(
        connection,
        "SELECT plugin, database, confirmed_flush_lsn::text, wal_status, safe_wal_size, "
        "coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
        "ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint, active_pid "
        "FROM pg_replication_slots WHERE slot_name = %s",
        name,
    )
    if not rows:
        return None
    plugin, database, confirmed, status, safe, retained, pid = rows[0]
    return SlotState(plugin, database, parse_lsn(confirmed) if confirmed else 0, status, safe, int(retained), pid)


async def examine(connection: psycopg.AsyncConnection[Any], config: RelayConfig) -> SetupFacts:
    """Read what the checks need."""
    version, wal_level, replicates, user, database, keep, commit, standby_slots, physical_slots = (
        await _rows(
            connection,
            "SELECT current_setting('server_version_num')::int, current_setting('wal_level'), "
            "(SELECT rolreplication OR rolsuper OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication' "
            "AND pg_has_role(r.oid, 'member')) FROM pg_roles WHERE rolname = current_user), current_user::text, "
            "current_database()::text, current_setting('max_slot_wal_keep_size'), "
            "current_setting('synchronous_commit'), "
            "current_setting('synchronized_standby_slots', true), "
            "array(SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical' ORDER BY 1)",
        )
    )[0]
    tables = {}
    for table in config.table:
        if (facts := await _table(connection, table)) is not None:
            tables[table.name] = facts
    publication = await _publication(connection, config.publication)
    slot = await read_slot(connection, config.slot)
    return SetupFacts(
        version,
        wal_level,
        replicates,
        user,
        database,
        keep,
        commit,
        standby_slots,
        tuple(physical_slots),
        tables,
        publication,
        slot,
    )


# Of an index i: its key, without the columns that INCLUDE adds to it, which no replica identity has.
_IN_KEY = "a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])"


async def _table(connection: psycopg.AsyncConnection[Any], table: TableConfig) -> TableFacts | None:
    schema, _, name = table.name.partition(".")
    rows = await _rows(
        connection,
        "SELECT c.oid, c.relkind::text, c.relpersistence::text, array(SELECT attname::text FROM pg_attribute "
        "WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum), "
        "array(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid "
        f"AND {_IN_KEY} WHERE i.indrelid = c.oid AND i.indisprimary), "
        "array(SELECT p.oid::regclass::text FROM pg_class p WHERE p.relpersistence <> 'p' "
        "AND p.oid IN (SELECT relid FROM pg_partition_tree(c.oid)) AND p.oid <> c.oid) "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        schema,
        name,
    )
    if not rows:
        return None
    oid, kind, persistence, columns, primary_key, unlogged = rows[0]
    identities = await _rows(
        connection,
        "SELECT c.oid::regclass::text, c.relreplident::text, "
        "coalesce((SELECT array_agg(a.attname::text) FROM pg_index i "
        f"JOIN pg_attribute a ON a.attrelid = i.indrelid AND {_IN_KEY} WHERE i.indrelid = c.oid "
        "AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate "
        "WHEN 'i' THEN i.indisreplident ELSE false END), '{}') "
        "FROM pg_class c WHERE c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s))",
        oid,
        oid,
    )
    return TableFacts(
        kind,
        persistence,
        tuple(columns),
        tuple(primary_key),
        tuple(unlogged),
        tuple(Identity(name, how, tuple(known)) for name, how, known in identities),
    )


async def _publication(connection: psycopg.AsyncConnection[Any], name: str) -> PublicationFacts | None:
    rows = await _rows(
        connection,
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = %s",
        name,
    )
    if not rows:
        return None
    *flags, via_root = rows[0]
    operations = frozenset(operation for operation, on in zip(OPERATIONS, flags, strict=True) if on)
    tables = {
        f"{schema}.{table}": PublishedTable(tuple(columns or ()), rowfilter)
        for schema, table, columns, rowfilter in await _rows(
            connection,
            "SELECT schemaname::text, tablename::text, attnames::text[], rowfilter FROM pg_publication_tables "
            "WHERE pubname = %s",
            name,
        )
    }
    return PublicationFacts(operations, via_root, tables)


async def missing_tables(connection: psycopg.AsyncConnection[Any], config: RelayConfig) -> set[str]:
    """The tables that are not published, having been dropped or taken out; and partitions that are not logged."""
    rows = await _rows(
        connection,
        "SELECT schemaname::text || '.' || tablename::text FROM pg_publication_tables WHERE pubname = %s",
        config.publication,
    )
    unlogged = await _rows(
        connection,
        "SELECT p.oid::regclass::text FROM unnest(%s::text[]) AS root, pg_partition_tree(to_regclass(root)) AS leaf "
        "JOIN pg_class p ON p.oid = leaf.relid WHERE p.relpersistence <> 'p'",
        [_table_name(table) for table in config.table],
    )
    return {table.name for table in config.table} - {row[0] for row in rows} | {row[0] for row in unlogged}


async def recreate_lost_slot(connection: psycopg.AsyncConnection[Any], config: RelayConfig, facts: SetupFacts) -> None:
    """Drop the slot and create it where PostgreSQL's log is now."""
    for statement in (_drop_slot_sql(config), create_slot_sql(config, facts)):
        await connection.execute(statement)


# -- Decisions -------------------------------------------------------------------------------------------


def problems(config: RelayConfig, facts: SetupFacts) -> list[Problem]:
    """The problems that keep the relay from starting."""
    found: list[Problem] = []
    if facts.wal_level != "logical":
        what = f"wal_level is {facts.wal_level!r}; logical replication needs 'logical', and a restart of PostgreSQL"
        found.append(Problem(what, ("ALTER SYSTEM SET wal_level = 'logical';",), needs_restart=True))
    if not facts.may_replicate:
        what = f"the role {facts.user!r} may not replicate"
        found.append(Problem(what, (f"ALTER ROLE {_quoted(facts.user)} REPLICATION;",)))
    operations = _operations(config)
    for table in config.table:
        found += _table_problems(table, facts.tables.get(table.name), operations)
    found += _publication_problems(config, facts)
    found += _slot_problems(config, facts)
    return found


def _table_problems(table: TableConfig, facts: TableFacts | None, operations: Sequence[str]) -> list[Problem]:
    if facts is None:
        return [Problem(f"there is no table {table.name}; create it, or correct its name under [[relay.table]]")]
    if facts.kind not in ("r", "p"):
        return [Problem(f"{table.name} is not an ordinary or partitioned table, and only those are replicated")]
    if facts.persistence != "p":
        kind = "unlogged" if facts.persistence == "u" else "temporary"
        logged = (f"ALTER TABLE {_table_name(table)} SET LOGGED;",) if facts.persistence == "u" else ()
        return [Problem(f"{table.name} is {kind}: its rows are not in PostgreSQL's log, so no relay sees them", logged)]
    if facts.unlogged:
        return [
            Problem(
                f"{partition} is a partition of {table.name} that is not logged, so no relay sees its rows",
                (f"ALTER TABLE {partition} SET LOGGED;",),
            )
            for partition in facts.unlogged
        ]
    named = [*table.used_columns, *([table.keep_column] if table.keep_column is not None else [])]
    if absent := [column for column in named if column not in facts.columns]:
        have = ", ".join(facts.columns)
        return [Problem(f"{table.name} has no column {column!r}; it has {have}") for column in absent]
    found = []
    if table.snapshot and not facts.primary_key:
        found.append(
            Problem(f"{table.name} has no primary key, by which a snapshot is read; add one, or snapshot = false")
        )
    if table.keep is not None and table.keep_column is None and facts.kind != "p":
        found.append(
            Problem(f"{table.name} has no partitions to drop; name the column with the time of a row (keep_column)")
        )
    return found + _identity_problems(table, facts, operations)


def _identity_problems(table: TableConfig, facts: TableFacts, operations: Sequence[str]) -> list[Problem]:
    """Whether UPDATE and DELETE say enough of the old row. A publication has the same operations for all its tables."""
    if not {"update", "delete"} & set(operations):
        return []
    needed: tuple[str, ...] = table.routing_columns if {"update", "delete"} & set(table.publish) else ()
    needs_all = "update" in table.publish and (table.compact or table.value_column is not None)
    found = []
    for identity in facts.identities:
        if identity.kind == "f":
            if table.columns and set(table.columns) != set(facts.columns):
                what = f"PostgreSQL would refuse UPDATE and DELETE of {identity.table}: REPLICA IDENTITY FULL needs all"
                found.append(Problem(f"{what} columns; leave out `columns` of [[relay.table]]"))
            continue
        missing = [column for column in needed if column not in identity.columns]
        if needs_all:
            why = "a compacted topic" if table.compact else f"the value {table.value!r}"
            what = f"UPDATE of {identity.table} does not say the whole old row, which {why} needs"
        elif missing:
            old = ", ".join(missing)
            what = f"UPDATE and DELETE of {identity.table} do not say the old {old}, which its topic or key needs"
        elif table.columns and (hidden := [one for one in identity.columns if one not in table.columns]):
            what = (
                f"PostgreSQL would refuse UPDATE and DELETE of {identity.table}: its replica identity has "
                f"{', '.join(hidden)}, and the column list of [[relay.table]] does not"
            )
            found.append(Problem(what))
            continue
        elif not identity.columns:
            what = f"PostgreSQL would refuse UPDATE and DELETE of {identity.table}, which has no replica identity"
        else:
            continue
        found.append(Problem(what, (f"ALTER TABLE {identity.table} REPLICA IDENTITY FULL;",)))
    return found


def _operations(config: RelayConfig) -> list[str]:
    wanted = {operation for table in config.table for operation in table.publish} or {"insert"}
    return [operation for operation in OPERATIONS if operation in wanted]


def _publication_problems(config: RelayConfig, facts: SetupFacts) -> list[Problem]:
    found, publication = [], facts.publication
    if publication is None:
        return [Problem(f"there is no publication {config.publication!r}", (_create_publication(config, facts),))]
    name = _quoted(config.publication)
    if missing := [one for one in _operations(config) if one not in publication.operations]:
        every = ", ".join(one for one in OPERATIONS if one in publication.operations or one in missing)
        what = f"the publication {config.publication!r} does not publish {', '.join(missing)}"
        found.append(Problem(what, (f"ALTER PUBLICATION {name} SET (publish = '{every}');",)))
    partitioned = [table.name for table in config.table if _is_partitioned(table, facts)]
    if partitioned and not publication.via_root:
        what = f"the publication {config.publication!r} names partitions instead of {partitioned[0]}"
        found.append(Problem(what, (f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);",)))
    for table in config.table:
        if table.name in facts.tables and not (partitioned and not publication.via_root):
            found += _published_problems(config, table, publication.tables.get(table.name))
    return found


def _published_problems(config: RelayConfig, table: TableConfig, published: PublishedTable | None) -> list[Problem]:
    name = _quoted(config.publication)
    add = f"ALTER PUBLICATION {name} ADD TABLE {_published(table)};"
    if published is None:
        return [Problem(f"{table.name} is not in the publication {config.publication!r}", (add,))]
    drop = f"ALTER PUBLICATION {name} DROP TABLE {_table_name(table)};"
    if table.columns and set(table.columns) != set(published.columns):
        what = f"the publication {config.publication!r} has other columns of {table.name} than the configuration"
        return [Problem(what, (drop, add))]
    if (table.where is None) != (published.filter is None):
        has = "no row filter" if published.filter is None else f"the row filter {published.filter}"
        what = f"the publication {config.publication!r} has {has} for {table.name}, the configuration {table.where!r}"
        return [Problem(what, (drop, add))]
    return [
        Problem(f"the publication {config.publication!r} leaves out the column {column!r} of {table.name}", (drop, add))
        for column in table.used_columns
        if column not in published.columns
    ]


def _slot_problems(config: RelayConfig, facts: SetupFacts) -> list[Problem]:
    slot = facts.slot
    if slot is None:
        return [Problem(f"there is no replication slot {config.slot!r}", (create_slot_sql(config, facts),))]
    if slot.plugin != "pgoutput":
        return [Problem(f"the slot {config.slot!r} uses {slot.plugin!r}, not pgoutput; choose another name")]
    if slot.database != facts.database:
        return [Problem(f"the slot {config.slot!r} is of the database {slot.database!r}, not {facts.database!r}")]
    if slot.wal_status == "lost":
        what = (
            f"the slot {config.slot!r} is lost: PostgreSQL removed log that was not relayed (max_slot_wal_keep_size). "
            "Create it anew; the relay then publishes a gap event. `runnel relay snapshot` reads a table again"
        )
        return [Problem(what, (_drop_slot_sql(config), create_slot_sql(config, facts)))]
    return []


def warnings(facts: SetupFacts) -> list[Problem]:
    """Settings that work, and will cause problems later."""
    found = []
    if facts.synchronous_commit == "off":
        what = "synchronous_commit is off: commits reach the relay only when PostgreSQL flushes them, some 0.2 s later"
        found.append(Problem(what))
    if facts.max_slot_wal_keep_size == "-1":
        what = "max_slot_wal_keep_size has no bound: a relay that is away for long fills PostgreSQL's disk"
        found.append(Problem(what, ("ALTER SYSTEM SET max_slot_wal_keep_size = '16GB';", "SELECT pg_reload_conf();")))
    if facts.version >= 170000 and facts.physical_slots and not facts.standby_slots:
        what = (
            "synchronized_standby_slots is empty: at a failover the relay may be ahead of the standby. "
            "It needs the physical slots of the standbys that may be promoted"
        )
        slots = ", ".join(facts.physical_slots)
        found.append(
            Problem(what, (f"ALTER SYSTEM SET synchronized_standby_slots = '{slots}';", "SELECT pg_reload_conf();"))
        )
    return found


def setup_sql(config: RelayConfig, facts: SetupFacts) -> list[str]:
    """The SQL that `init` prints or applies, in order. Empty: everything is as it should be."""
    return [line for problem in problems(config, facts) for line in problem.sql]


def create_slot_sql(config: RelayConfig, facts: SetupFacts) -> str:
    """The SQL that creates the slot; from 17 on it survives a failover to a standby."""
    options = ", false, false, true" if facts.version >= 170000 else ""
    return f"SELECT pg_create_logical_replication_slot('{config.slot}', 'pgoutput'{options});"


def _drop_slot_sql(config: RelayConfig) -> str:
    return f"SELECT pg_drop_replication_slot('{config.slot}');"


def _is_partitioned(table: TableConfig, facts: SetupFacts) -> bool:
    return (found := facts.tables.get(table.name)) is not None and found.kind == "p"


def _create_publication(config: RelayConfig, facts: SetupFacts) -> str:
    tables = ", ".join(_published(table) for table in config.table)
    options = f"publish = '{', '.join(_operations(config))}'"
    if any(_is_partitioned(table, facts) for table in config.table):
        options += ", publish_via_partition_root = true"
    which = f" FOR TABLE {tables}" if tables else ""
    return f"CREATE PUBLICATION {_quoted(config.publication)}{which} WITH ({options});"


def _published(table: TableConfig) -> str:
    columns = f" ({', '.join(map(_quoted, table.columns))})" if table.columns else ""
    where = f" WHERE ({table.where})" if table.where else ""
    return f"{_table_name(table)}{columns}{where}"


def _table_name(table: TableConfig) -> str:
    schema, _, name = table.name.partition(".")
    return f"{_quoted(schema)}.{_quoted(name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
