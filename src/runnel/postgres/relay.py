"""The relay: PostgreSQL's changes become records, each once and in the order of their commits.

Rows and the marker of the last one are committed to the broker together. The relay confirms a transaction to
PostgreSQL only after that commit is on disk. After any crash the slot is streamed again, and rows up to the marker are
skipped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import psycopg

from runnel.api.broker import Broker
from runnel.core.errors import InvalidOption, JournalFailed, MarkConflict, NotNow
from runnel.core.statistics import RelayStatistics
from runnel.postgres.config import RelayConfig, relay_config
from runnel.postgres.connecting import connect, together
from runnel.postgres.control import RelayStuck, is_paused
from runnel.postgres.reporting import reported
from runnel.postgres.session import WATCH_SECONDS, RelaySession, RelayState
from runnel.postgres.setup import SetupIncomplete, examine, read_slot, setup_sql
from runnel.postgres.snapshot_reader import request_snapshot

log = logging.getLogger("runnel.postgres")

DSN_VARIABLE = "RUNNEL_RELAY_DSN"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds between attempts to connect
RATE_SECONDS = 5.0  # over which rows per second are counted
LOOK_SECONDS = 1.0  # between looks whether the relay is paused


class RelayPaused(Exception):
    """An operator paused the relay."""


class Relay:
    """Publishes the changes of PostgreSQL tables to topics of `broker`, exactly once.

    `config` is the `[relay]` table of the configuration, as a mapping or as a `RelayConfig`; `dsn` says how to reach
    PostgreSQL, unless the configuration or RUNNEL_RELAY_DSN does. The broker is a folder, or a server with one.

    >>> table = {"table": "chat_messages", "topic": "chat.{channel_id}", "key": "id"}
    >>> relay = Relay(broker, "postgresql://localhost/app", {"publication": "realtime_events", "table": [table]})
    >>> await relay.setup()  # creates the publication and the slot, once
    >>> await relay.run()  # until it is cancelled
    """

    def __init__(
        self, broker: Broker, dsn: str | None = None, config: RelayConfig | Mapping[str, Any] | None = None
    ) -> None:
        self.config = relay_config(config or {})
        self.dsn = dsn_of(self.config, dsn)
        self.broker = broker
        self.last_error: str | None = None
        self.errors = 0  # how often it had to connect again
        self._state = RelayState()
        self._session: RelaySession | None = None
        self._before = (0, 0, 0)  # rows, transactions and dead letters of earlier connections
        self._samples: deque[tuple[float, int]] = deque()

    def __repr__(self) -> str:
        return f"<Relay {self.config.slot}, {self.state}>"

    @property
    def state(self) -> str:
        """The activity: "starting", "standby", "streaming", "paused", or "waiting" to connect again."""
        return self._state.name

    async def run(self) -> None:
        """Relay until cancelled. Lost connections, to PostgreSQL and to the broker, are made again.

        `SetupIncomplete` is raised at the first start if PostgreSQL is not set up; later it is logged, and tried
        again until it is. So is `RelayStuck`, which names a transaction that cannot be published.
        """
        async with reported(self, self.statistics):
            await self._relay()

    async def _relay(self) -> None:
        pause, has_streamed = FIRST_PAUSE, False
        while True:
            self._state.name = "starting"
            self._before = self._totals()
            began = time.monotonic()
            session = self._session = RelaySession(self.broker, self.dsn, self.config, self._state)
            try:
                await self._wait_while_paused()
                await together(session.run(), self._watch_for_pause())
            except RelayPaused:
                log.info("relay %s: paused; PostgreSQL keeps its log until `runnel relay resume`", self.config.slot)
                pause = FIRST_PAUSE
                continue
            except MarkConflict:
                self.last_error = "another relay with these markers has published; going on behind its rows"
            except (psycopg.OperationalError, psycopg.InterfaceError, NotNow, OSError, RelayStuck) as error:
                self.last_error = " ".join(str(error).split()) or type(error).__name__
            except (SetupIncomplete, JournalFailed, psycopg.Error) as error:
                if not (has_streamed or session.has_streamed):
                    raise
                if isinstance(error, JournalFailed) and not self.broker.backend.is_remote:
                    raise
                self.last_error = str(error)
            self.errors += 1
            has_streamed = has_streamed or session.has_streamed
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            self._state.name = "waiting"
            log.warning("relay %s: %s; connecting again in %.1f s", self.config.slot, self.last_error, pause)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    # -- beside the sessions ------------------------------------------------------------------------------------

    async def _wait_while_paused(self) -> None:
        """Return when the relay is not paused, which it is across restarts. It holds no connection meanwhile."""
        looked = 0.0
        while await is_paused(self.broker, self.config):
            self._state.name = "paused"
            if time.monotonic() - looked > WATCH_SECONDS:
                looked = time.monotonic()
                await self._look_at_slot()
            await asyncio.sleep(LOOK_SECONDS)
        self._state.name = "starting"

    async def _watch_for_pause(self) -> None:
        while True:
            with suppress(NotNow):  # the broker is away: that is for the task that publishes to notice
                if await is_paused(self.broker, self.config):
                    raise RelayPaused
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_at_slot(self) -> None:
        """Learn what the slot holds back while nothing is streamed."""
        with suppress(psycopg.Error, OSError):
            async with await connect(self.dsn, f"runnel relay {self.config.slot} (paused)") as connection:
                self._state.slot = await read_slot(connection, self.config.slot) or self._state.slot

    async def setup(self) -> list[str]:
        """Create the publication and the slot, and what else SQL can set up; return the statements that were run."""
        async with await connect(self.dsn, f"runnel relay {self.config.slot} (setup)") as connection:
            statements = setup_sql(self.config, await examine(connection, self.config))
            for statement in statements:
                await connection.execute(statement)
        return statements

    async def snapshot(self, table: str) -> None:
        """Have a table read again, in chunks and beside its changes, by the relay that holds the slot.

        Its rows are published with `pg-op: read`. The newest version of a row comes last; a row that is inserted
        meanwhile may come twice, as `insert` and as `read`.
        """
        async with await connect(self.dsn, f"runnel relay {self.config.slot} (request)") as connection:
            await request_snapshot(connection, self.config, table)

    def statistics(self) -> RelayStatistics:
        """The progress of the relay."""
        rows, transactions, dead = self._totals()
        session, slot = self._session, self._state.slot
        known = RelayStatistics(
            slot=self.config.slot,
            state=self.state,
            rows=rows,
            rows_per_second=self._rate(rows),
            transactions=transactions,
            dead_letters=dead,
            wal_status=None if slot is None else slot.wal_status,
            retained_bytes=None if slot is None else slot.retained,
            safe_wal_bytes=None if slot is None else slot.safe_wal_size,
            errors=self.errors,
            last_error=self.last_error,
        )
        if session is None or session.changes is None or session.publisher is None or session.stream is None:
            return known
        stream, oldest = session.stream, session.oldest_pending
        return msgspec.structs.replace(
            known,
            published=session.publisher.place,
            confirmed=stream.confirmed,
            lag_bytes=max(0, stream.server_end - stream.confirmed),
            lag_seconds=0.0 if oldest is None else max(0.0, time.time() - oldest),
            snapshots=tuple(session.snapshots.statistics.values()) if session.snapshots is not None else (),
        )

    def _totals(self) -> tuple[int, int, int]:
        session = self._session
        if session is None or session.changes is None or session.publisher is None:
            return self._before
        rows, transactions, dead = self._before
        changes = session.changes
        return (
            rows + changes.rows,
            transactions + changes.transactions,
            dead + changes.dead + session.publisher.dead,
        )

    def _rate(self, rows: int) -> float:
        """Rows per second since the oldest call in the last seconds."""
        now = time.monotonic()
        self._samples.append((now, rows))
        while len(self._samples) > 2 and self._samples[1][0] < now - RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        return (rows - before) / (now - since) if now > since else 0.0


def dsn_of(config: RelayConfig, given: str | None = None) -> str:
    """How to reach PostgreSQL: as given, as the environment says, or as the configuration does."""
    found = given or os.environ.get(DSN_VARIABLE) or config.dsn
    if not found:
        raise InvalidOption(
            "dsn", None, f"name the database, such as postgresql://user@host/database, or set {DSN_VARIABLE}"
        )
    return found
