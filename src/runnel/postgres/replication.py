"""The replication connection: commands to the server, then the stream of a logical slot.

It waits on the socket through the event loop and hands over all received bytes. The relay decides which position may be
confirmed; `report` sends it to PostgreSQL.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus

from runnel.postgres.connecting import connect
from runnel.postgres.types import SESSION_SETTINGS
from runnel.wire.pgoutput import Keepalive, WalData, decode_stream, encode_status, format_lsn, parse_lsn

TAKE_MESSAGES = 4096  # messages that are handed over at once
VALUE_SETTINGS = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())


class SystemIdentity(NamedTuple):
    """Which PostgreSQL cluster this is, and where its log is."""

    system: str
    timeline: int
    end: int  # LSN
    forks: tuple[tuple[int, int], ...]  # (timeline, LSN at which it was left), of the timelines before this one


class ReplicationConnection:
    """One connection in replication mode: commands first, then `start`, then `receive` from one task."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection, self._pgconn = connection, connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self.confirmed = 0  # LSN that was confirmed to PostgreSQL
        self.server_end = 0  # LSN: the end of PostgreSQL's log, by its last message

    @classmethod
    async def connect(cls, dsn: str, name: str) -> ReplicationConnection:
        """Connect in replication mode, with the settings that the text format of values depends on."""
        return cls(await connect(dsn, name, replication="database", options=VALUE_SETTINGS))

    async def identify(self) -> SystemIdentity:
        """Which cluster this is, and its timelines."""
        system, timeline, end, _ = await self._row("IDENTIFY_SYSTEM")
        forks: list[tuple[int, int]] = []
        if int(timeline) > 1:
            _, content = await self._row(f"TIMELINE_HISTORY {int(timeline)}")
            text = bytes(content).decode() if isinstance(content, bytes | memoryview) else str(content)
            for line in text.splitlines():
                fields = line.split("\t")
                if len(fields) >= 2 and fields[0].strip().isdigit():
                    forks.append((int(fields[0]), parse_lsn(fields[1])))
        return SystemIdentity(str(system), int(timeline), parse_lsn(end), tuple(forks))

    async def create_temporary_slot(self, slot: str) -> int:
        """Create a slot that is dropped with this connection; return the LSN that it begins at."""
        command = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput").format(sql.Identifier(slot))
        _, start, _, _ = await self._row(command)
        return parse_lsn(start)

    async def _row(self, command: str | sql.Composed) -> Any:
        cursor = await self._connection.execute(command)
        return await cursor.fetchone()

    async def start(self, slot: str, publication: str, start: int) -> None:
        """Begin to stream from the LSN `start`, or from where the slot is if that is later."""
        name = '"' + publication.replace('"', '""') + '"'
        options = {"proto_version": "1", "publication_names": name, "messages": "true"}
        said = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in options.items()
        )
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
            sql.Identifier(slot), sql.SQL(format_lsn(start)), said
        )
        await self._connection.execute(command)
        self.confirmed = start

    async def receive(self) -> list[WalData | Keepalive]:
        """Wait for messages, and return all that have arrived, up to a bound. Raises if the stream ends."""
        while not (taken := self._take()):
            await self._ready(self._loop.add_reader, self._loop.remove_reader)
            self._pgconn.consume_input()
        return taken

    def _take(self) -> list[WalData | Keepalive]:
        taken: list[WalData | Keepalive] = []
        read = self._pgconn.get_copy_data
        for _ in range(TAKE_MESSAGES):
            size, data = read(1)
            if size <= 0:
                if size < 0 and not taken:
                    self._ended()
                break
            message = decode_stream(data)
            if message.end > self.server_end:
                self.server_end = message.end
            taken.append(message)
        return taken

    def _ended(self) -> None:
        result = self._pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, encoding="utf-8")
        raise psycopg.OperationalError("PostgreSQL ended the replication stream")

    async def report(self, confirmed: int) -> None:
        """Tell PostgreSQL that everything before the LSN `confirmed` is stored."""
        self.confirmed = max(self.confirmed, confirmed)
        async with self._writing:
            self._pgconn.put_copy_data(encode_status(self.confirmed, time.time()))
            while self._pgconn.flush():
                await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def _ready(self, add: Any, remove: Any) -> None:
        """Wait until the socket is ready to read, or to write."""
        ready = self._loop.create_future()
        socket = self._pgconn.socket
        add(socket, _done, ready)
        try:
            await ready
        finally:
            remove(socket)

    async def close(self) -> None:
        """Close the connection. The slot stays, and keeps the unconfirmed log."""
        await self._connection.close()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
