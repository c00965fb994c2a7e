"""A primary and a standby in one process: the same parts as in `runnel serve` and `runnel standby`, on real files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from runnel.api.broker import Broker
from runnel.client.backend import RemoteBackend
from runnel.journal.backup.replica import Replica
from runnel.journal.check.verify import verify
from runnel.journal.folder_lock import FolderLock
from runnel.journal.options import JournalOptions
from runnel.opening.opening import open as open_broker
from runnel.server import Server, ServerOptions
from runnel.standby.backend import StandbyBackend, StandbyReplication
from runnel.standby.follower import JournalFollower
from tests.patience import PATIENCE

SMALL: dict[str, Any] = {"segment_bytes": 64 * 1024, "min_free": 0}
LEASE = 0.6


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # conditions are of many parts, and some of other threads
            await asyncio.sleep(0.005)


class Primary:
    """A server with a folder."""

    def __init__(self, folder: Path, *, port: int = 0, **options: Any) -> None:
        self.folder = folder
        self.broker = open_broker(folder, share=False, **(SMALL | {"standby_lease": LEASE} | options))
        self.options = ServerOptions(port=port, json_port=None)
        self.port = port
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Primary:
        await self._stack.enter_async_context(self.broker)
        self.server = await self._stack.enter_async_context(Server(self.broker, self.options))
        self.port = self.server.listeners[0].port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def die(self) -> None:
        """End as a killed process does, for those who watch: connections are cut, nothing more is answered."""
        self.server.abort()
        await self.server.close(0.0)

    @property
    def url(self) -> str:
        return f"runnel://127.0.0.1:{self.port}"

    @property
    def replication(self) -> Any:
        return self.broker.backend.replication

    @property
    def figures(self) -> Any:
        return self.replication.statistics()


class Standby:
    """What follows a primary, and answers operators; after `promote` a server."""

    def __init__(self, folder: Path, primary: str, *, rejoin: bool = False, port: int = 0, **options: Any) -> None:
        self.folder, self.url_of_primary, self.rejoin, self.port = folder, primary, rejoin, port
        self.journal = JournalOptions(**(SMALL | options))

    async def __aenter__(self) -> Standby:
        self.lock = FolderLock(self.folder)
        self.lock.take()
        try:
            self.replica = Replica.open(self.lock, self.journal, self.url_of_primary, rejoin=self.rejoin)
            backend = RemoteBackend.at(
                self.url_of_primary,
                operator=True,
                name="standby",
                wait=1e9,
                ping=1.0,
                backoff_min=0.01,
                backoff_max=0.05,
            )
            self.follower = JournalFollower(self.replica, backend, "second")
            self.replication = StandbyReplication(self.follower)
            self.broker = Broker(StandbyBackend(self.replication))
            await self.broker.__aenter__()
            self.server = Server(self.broker, ServerOptions(port=self.port, json_port=None))
            await self.server.__aenter__()
            self.port = self.server.listeners[0].port
            self.replication.start()
        except BaseException:
            self.lock.release()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Follow no more."""
        await self.replication.stop()
        await self.server.close(0.0)
        await self.broker.__aexit__(None, None, None)
        self.replica.close()
        self.lock.release()

    @property
    def url(self) -> str:
        return f"runnel://127.0.0.1:{self.port}"

    @property
    def figures(self) -> Any:
        return self.follower.statistics()

    def has_all_of(self, primary: Primary) -> bool:
        """Whether all that is durable at the primary is here."""
        place = self.replica.place
        return place is not None and place == primary.replication._end()

    async def caught_up(self, primary: Primary) -> None:
        await until(lambda: self.has_all_of(primary))

    async def promote(self, *, primary_is_down: bool = False) -> Primary:
        """The server that takes the place of the primary, on the same port."""
        await self.replication.promote(primary_is_down=primary_is_down)
        await self.leave()
        return Primary(self.folder, port=self.port)


def check_same_files(primary: Path, standby: Path) -> None:
    """All segments that both have are the same, byte for byte, and the standby's folder is whole."""
    names = {one.name for one in primary.glob("*.seg")}
    mine = {one.name for one in standby.glob("*.seg")}
    assert mine == names
    for name in names:
        ours, theirs = (primary / name).read_bytes(), (standby / name).read_bytes()
        assert ours.rstrip(b"\0") == theirs.rstrip(b"\0"), name
    assert verify(standby).whole


opened = partial(open_broker, backoff_min=0.01, backoff_max=0.05)
