"""The state of an archive in PostgreSQL and in the broker, whether it runs or not."""

from __future__ import annotations

import msgspec

from runnel.api.broker import Broker
from runnel.core.pattern import is_pattern
from runnel.postgres.archive_config import ArchiveConfig, archive_dsn
from runnel.postgres.archive_table import ArchiveTable, fetch, lock_name
from runnel.postgres.connecting import connect

_HELD = (
    "SELECT EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
    "AND l.classid::bigint << 32 | l.objid::bigint = hashtextextended(%s, 0) "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and the progress of the archive."""

    table: str
    pattern: str
    state: str  # missing, stopped, or running
    rows: int = 0  # ever written
    place: int | None = None  # an offset, or of a pattern a sequence
    lag: int | None = None  # records behind it, at most
    updated: str | None = None
    partitions: list[str] = []
    gaps: list[str] = []


async def read_archive_status(broker: Broker, config: ArchiveConfig) -> ArchiveStatus:
    """Ask PostgreSQL about the table, and the broker about its end."""
    async with await connect(archive_dsn(config), "runnel archive status") as connection:
        table = ArchiveTable(connection, config)
        known = await fetch(connection, "SELECT to_regclass(%s) IS NOT NULL", f'"{config.schema}".runnel_archive')
        state = await table.state() if known[0][0] else None
        if state is None:
            return ArchiveStatus(table=config.name, pattern=config.pattern, state="missing")
        is_held = (await fetch(connection, _HELD, lock_name(config)))[0][0]
        parts, gaps = await table.parts(), await table.gaps()
    place = 0 if state.place is None else state.place.place
    if is_pattern(state.pattern):
        end = await broker.backend.end_sequence()
    else:
        bounds = await broker.bounds(state.pattern)
        end = bounds[0].end if bounds else 0
    return ArchiveStatus(
        table=config.name,
        pattern=state.pattern,
        state="running" if is_held else "stopped",
        rows=state.rows,
        place=None if state.place is None else place,
        lag=max(0, end - place),
        updated=None if state.updated is None else state.updated.isoformat(timespec="seconds"),
        partitions=[name for name, _ in parts],
        gaps=gaps,
    )
