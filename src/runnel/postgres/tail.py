"""A dry run: what a relay would publish from now on, read from a temporary slot that ends with the connection."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import msgspec

from runnel.postgres.changes import ChangeAssembler
from runnel.postgres.config import RelayConfig
from runnel.postgres.connecting import connect
from runnel.postgres.progress import START
from runnel.postgres.relay import dsn_of
from runnel.postgres.replication import ReplicationConnection
from runnel.postgres.setup import SetupIncomplete, examine, problems
from runnel.postgres.types import TYPE_QUERY, TypeCatalog
from runnel.wire.pgoutput import Keepalive

Told = tuple[str, bytes | None, bytes | None, dict[str, str]]
"""Topic, key, value and headers."""


async def tail(config: RelayConfig) -> AsyncIterator[Told]:
    """The records of transactions that are committed from now on. Raises `SetupIncomplete` where a relay would.

    That the slot of the relay is missing does not matter.
    """
    dsn = dsn_of(config)
    own = msgspec.structs.replace(config, slot=f"runnel_tail_{secrets.token_hex(4)}", events=config.events_topic)
    stream = await ReplicationConnection.connect(dsn, "runnel relay tail")
    try:
        start = await stream.create_temporary_slot(own.slot)
        async with await connect(dsn, "runnel relay tail (control)") as control:
            if found := problems(own, await examine(control, own)):
                raise SetupIncomplete(found)
            catalog = TypeCatalog()
            changes = ChangeAssembler(
                msgspec.structs.replace(own, dead_letter=config.dead_letter_topic), catalog, START
            )
            await stream.start(own.slot, own.publication, start)
            while True:
                for message in await stream.receive():
                    if isinstance(message, Keepalive):
                        if message.reply_requested:
                            await stream.report(stream.server_end)
                    elif (relation := changes.feed(message.payload)) is not None:
                        if missing := catalog.missing([column.type_oid for column in relation.columns]):
                            catalog.add(await (await control.execute(TYPE_QUERY, (list(missing),))).fetchall())
                        changes.learn(relation)
                for run in changes.take().runs:
                    for value, key, headers in zip(run.values, run.keys, run.headers, strict=True):
                        yield run.topic, key, value, headers
    finally:
        await stream.close()
