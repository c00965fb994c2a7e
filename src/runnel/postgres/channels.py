"""LISTEN/NOTIFY: payloads of channels become records. One connection listens to all channels.

PostgreSQL keeps no notification for a listener that is away, and a payload has at most 7,999 bytes: publish data that
must not be lost by a row of a table, or a message of `runnel.postgres.emit`.
"""

from __future__ import annotations

import asyncio

import psycopg
from psycopg import sql

from runnel.api.broker import Broker
from runnel.postgres.config import RelayConfig
from runnel.postgres.connecting import connect, together

MAX_WAITING = 10_000  # notifications that may wait for the broker; beyond them the listener reads no more


async def listen(dsn: str, config: RelayConfig, broker: Broker) -> None:
    """Publish notifications until the connection is lost."""
    topics = {source.channel: source.topic for source in config.channel}
    name = f"runnel relay {config.slot} (listen)"
    async with await connect(dsn, name) as connection:
        for channel in topics:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        waiting: asyncio.Queue[psycopg.Notify] = asyncio.Queue(MAX_WAITING)

        async def publish() -> None:
            while True:
                notes = [await waiting.get()]
                while not waiting.empty():
                    notes.append(waiting.get_nowait())
                async with broker.transaction() as tx:
                    for note in notes:
                        headers = {"pg-op": "notify", "pg-channel": note.channel}
                        tx.publish(topics[note.channel], note.payload, headers=headers)

        async def receive() -> None:
            async for note in connection.notifies():
                await waiting.put(note)
            raise psycopg.OperationalError("PostgreSQL ended the connection that listens")

        await together(publish(), receive())
