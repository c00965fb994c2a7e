"""The process of `runnel standby`: follow the primary, answer operators, and serve after a promotion."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from runnel.api.broker import Broker
from runnel.cli.errors import FINE
from runnel.cli.output import StatusLine, human_size, print_line
from runnel.cli.server_process import SIGNALS, ServerProcess, ready_facts
from runnel.client.backend import RemoteBackend
from runnel.config.settings import Settings
from runnel.core.errors import Superseded
from runnel.journal.backup.replica import Replica
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format import lineage
from runnel.journal.storage import OsStorage
from runnel.server import Server
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ListenerAddress
from runnel.standby.announcing import newer_generation
from runnel.standby.backend import StandbyBackend, StandbyReplication
from runnel.standby.follower import JournalFollower

WAIT_FOR_EVER = 1e9  # seconds: a primary is waited for, whenever it comes
PING = 2.0  # seconds of silence after which the primary is pinged
TELL_EVERY = 10.0  # seconds between two log lines about a long copy
GOODBYE = 0.2  # seconds that operators' connections may take to end when the listeners change hands

log = logging.getLogger("runnel.standby")


class StandbyProcess(ServerProcess):
    """A server that follows first, and serves when it is promoted."""

    def __init__(self, settings: Settings, primary: str, name: str, *, rejoin: bool, **options: Any) -> None:
        super().__init__(settings, **options)
        self._primary, self._name, self._rejoin = primary, name, rejoin
        self._told = 0.0

    async def _live(self) -> int:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            signal.signal(number, partial(self._on_signal, loop))
        if not await self._was_promoted() and not await self._stand_by():
            return FINE
        return await super()._live()

    async def _was_promoted(self) -> bool:
        """Whether an earlier run of this command ended as the primary. Then this one continues as the primary.

        Unless the other server was promoted after that; with --rejoin it follows, whatever it was.
        """
        found = await asyncio.to_thread(lineage.load, OsStorage(self.settings.general.data))
        if found is None or found.is_standby or found.superseded or not found.number or self._rejoin:
            return False
        if (newer := await newer_generation(found, self._primary)) is not None:
            raise Superseded(found.number, newer.number)
        log.warning(
            "%s was promoted to generation %d: it is served, and follows no more",
            self.settings.general.data,
            found.number,
        )
        return True

    async def _stand_by(self) -> bool:
        """Follow the primary; whether this process was promoted."""
        lock = FolderLock(Path(self.settings.general.data))
        await asyncio.to_thread(lock.take)
        try:
            opening = partial(
                Replica.open, lock, self.settings.journal, without_token(self._primary), rejoin=self._rejoin
            )
            replica = await asyncio.to_thread(opening)
            primary = RemoteBackend.at(
                self._primary,
                operator=True,
                name=f"standby {self._name}",
                wait=WAIT_FOR_EVER,
                ping=PING,
                backoff_max=1.0,
            )
            with StatusLine() as ticker:
                follower = JournalFollower(replica, primary, self._name, partial(self._show, ticker))
                replication = StandbyReplication(follower)
                return await self._serve_operators(replication)
        finally:
            lock.release()

    async def _serve_operators(self, replication: StandbyReplication) -> bool:
        folder = Path(self.settings.general.data)
        async with (
            Broker(StandbyBackend(replication)) as broker,
            Server(broker, self._options, on_reload=self._reload, folder=folder) as server,
        ):
            self._reload_on_hangup(server)
            replication.start()
            self._announce_standby(server)
            stopped = asyncio.ensure_future(self._stop.wait())
            try:
                ended: list[asyncio.Future[Any]] = [stopped, replication.promoted, replication.failed]
                await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
            if replication.promoted.done():
                # The listeners stay where they are, also where any free port was taken.
                self._options = at_listeners(self._options, server.listeners)
                await server.close(GOODBYE)
                return True
            await replication.stop()
            if replication.failed.done():
                raise replication.failed.result()
            self._begin_to_end()
            await server.close(self._time_for_clients())
        return False

    def _announce_standby(self, server: Server) -> None:
        if self._as_json:
            facts = ready_facts(server.listeners, self.settings)
            print_line(facts | {"event": "following", "primary": self._primary.partition("?")[0], "pid": os.getpid()})
        else:
            listeners = ", ".join(one.url for one in server.listeners)
            print(
                f"Follows {self._primary.partition('?')[0]} into {self.settings.general.data!r}; answers operators at:"
            )
            print(f"  {listeners}\n\nIf the primary is gone: runnel promote. Ctrl-C stops it.")
        sys.stdout.flush()

    def _show(self, ticker: StatusLine, done: int, total: int) -> None:
        """The progress of the first copy."""
        if total <= 0:
            return
        if ticker("" if done >= total else f"copying {human_size(done)} of {human_size(total)} ({done / total:.0%})"):
            return
        now = asyncio.get_running_loop().time()
        if now - self._told >= TELL_EVERY:
            self._told = now
            log.info("copied %s of %s", human_size(done), human_size(total))


def without_token(url: str) -> str:
    """The address to be stored: with the options that a connection needs, but for those that are secret."""
    where, _, query = url.partition("?")
    kept = [one for one in query.split("&") if one and one.partition("=")[0] not in ("token", "token_file")]
    return "?".join([where, "&".join(kept)] if kept else [where])


_FIELDS = {"native": "port", "json": "json_port", "http": "http_port"}


def at_listeners(options: ServerOptions, listeners: list[ListenerAddress]) -> ServerOptions:
    """The options with the ports that the listeners have."""
    ports = {_FIELDS[one.name]: one.port or urlsplit(one.url).port for one in listeners if one.name in _FIELDS}
    return msgspec.structs.replace(options, **ports)
