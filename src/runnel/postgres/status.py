"""The state of a relay in PostgreSQL and in the broker, whether it runs or not."""

from __future__ import annotations

import msgspec

from runnel.api.broker import Broker
from runnel.postgres.config import RelayConfig
from runnel.postgres.connecting import connect
from runnel.postgres.control import is_paused
from runnel.postgres.progress import MarkerNames, read_stored
from runnel.postgres.relay import dsn_of
from runnel.postgres.replication import ReplicationConnection
from runnel.postgres.setup import examine, problems
from runnel.postgres.snapshot import SnapshotProgress
from runnel.wire.pgoutput import format_lsn


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The slot, and the progress of the relay."""

    slot: str
    slot_state: str  # missing, active, inactive, or lost
    wal_status: str | None  # reserved, extended, unreserved or lost
    is_paused: bool
    published: str | None  # the place of the last row
    confirmed: str | None  # LSN of the slot
    lag_bytes: int | None
    retained_bytes: int | None
    safe_wal_bytes: int | None
    generation: int | None
    snapshots: dict[str, str]
    problems: list[str]


async def read_status(broker: Broker, config: RelayConfig) -> RelayStatus:
    """Ask PostgreSQL about the slot, and the broker about the markers."""
    dsn, name = dsn_of(config), "runnel relay status"
    async with await connect(dsn, name) as connection:
        facts = await examine(connection, config)
    stream = await ReplicationConnection.connect(dsn, name)
    try:
        identity = await stream.identify()
    finally:
        await stream.close()
    names = MarkerNames(identity.system, config.relay_name)
    marks = await broker.marks(names.generation)
    stored, slot = read_stored(names, marks), facts.slot
    snapshots = {}
    for table in config.table:
        said = None if stored is None else marks.get(names.snapshot(stored.generation, table.name))
        if isinstance(said, str):
            progress = SnapshotProgress.unpack(said)
            snapshots[table.name] = "complete" if progress.is_done else f"{progress.chunk} chunks"
    state = "missing" if slot is None else "lost" if slot.wal_status == "lost" else "inactive"
    return RelayStatus(
        slot=config.slot,
        slot_state="active" if slot is not None and slot.active_pid is not None else state,
        wal_status=None if slot is None else slot.wal_status,
        is_paused=await is_paused(broker, config),
        published=None if stored is None else str(stored.place),
        confirmed=None if slot is None else format_lsn(slot.confirmed),
        lag_bytes=None if slot is None else max(0, identity.end - slot.confirmed),
        retained_bytes=None if slot is None else slot.retained,
        safe_wal_bytes=None if slot is None else slot.safe_wal_size,
        generation=None if stored is None else stored.generation,
        snapshots=snapshots,
        problems=[str(problem) for problem in problems(config, facts)],
    )
