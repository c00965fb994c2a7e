"""A process that shares a folder without owning it: a client of the owner's socket that takes over when the owner dies.

Every such process tries the folder's lock before it reconnects. The one that gets it opens the folder, listens for the
others, and connects to itself: its subscriptions continue as after any lost connection. When `runnel serve` claims the
folder, that process releases it and is a client again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runnel.broker.backend import LocalBackend
from runnel.broker.durable.folder import BrokerFolder
from runnel.client.address import ServerAddress
from runnel.client.backend import RemoteBackend
from runnel.client.calls import BlockingCalls
from runnel.client.options import ClientOptions
from runnel.client.server_link import ServerLink
from runnel.core.clock import Clock
from runnel.core.errors import FolderInUse
from runnel.core.history import HistorySource
from runnel.journal.folder_lock import FolderLock, is_claimed
from runnel.journal.options import JournalOptions
from runnel.opening.folder_listener import FolderListener, listener_at, socket_of

CHECK = 0.1  # seconds between two looks at whether the folder is claimed

log = logging.getLogger("runnel")


class StandbyOwner:
    """A process that shares a folder, and may be its next owner while `takes_over` is true."""

    def __init__(
        self,
        folder: Path,
        options: JournalOptions,
        clock: Clock,
        *,
        auto_create: bool,
        history: Sequence[HistorySource] = (),
        telemetry: float | None = None,
        takes_over: bool = True,
    ) -> None:
        self.takes_over = takes_over
        self.folder, self._history, self._telemetry = folder, history, telemetry
        self._options, self._clock, self._auto_create = options, clock, auto_create
        self._backend: LocalBackend | None = None
        self._listener: FolderListener | None = None
        self._yielding: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<StandbyOwner of {str(self.folder)!r}{', its owner' if self.is_owner else ''}>"

    @property
    def is_owner(self) -> bool:
        """Whether it has taken over."""
        return self._backend is not None

    async def look(self, address: ServerAddress) -> ServerAddress:
        """Take the folder over if it has no owner and no claim; return the address where its owner listens."""
        if self._backend is None and self.takes_over and not is_claimed(self.folder):
            lock = FolderLock(self.folder, shares=True, yields=True, tries=0)
            try:
                lock.take()
            except FolderInUse:
                pass
            else:
                await self._take_over(lock)
        return ServerAddress("", 0, str(socket_of(self.folder)))

    async def _take_over(self, lock: FolderLock) -> None:
        began = time.perf_counter()
        place = BrokerFolder(self.folder, self._options, lock=lock)  # lets the lock go if it cannot be opened
        backend = LocalBackend(
            auto_create=self._auto_create,
            clock=self._clock,
            folder=place,
            history=self._history,
            telemetry=self._telemetry,
        )
        await backend.open()
        listener = FolderListener(backend, self.folder)
        try:
            listener.open()
        except BaseException:
            backend.close()
            raise
        self._backend, self._listener = backend, listener
        self._yielding = asyncio.create_task(self._yield_to_claim())
        log.info("took %s over, in %.0f ms", self.folder, 1000 * (time.perf_counter() - began))

    async def _yield_to_claim(self) -> None:
        while not is_claimed(self.folder):  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(CHECK)
        log.info("releasing %s: another process claims it", self.folder)
        await self.leave()

    async def leave(self) -> None:
        """Release the folder for the next owner, if it is owned here."""
        yielding = self._yielding
        if yielding is not None and yielding is not asyncio.current_task():
            yielding.cancel()
            await asyncio.wait([yielding])
        if self._listener is not None:
            try:
                await self._listener.close()
            finally:
                self.drop()

    def drop(self) -> None:
        """Release the folder now. Harmless twice."""
        listener, self._listener = self._listener, None
        backend, self._backend = self._backend, None
        yielding, self._yielding = self._yielding, None
        if yielding is not None and not yielding.get_loop().is_closed():
            yielding.cancel()
        if listener is not None:
            listener.shut()
        if backend is not None:
            backend.close()


# -- The backend of a process that joined ----------------------------------------------------------------


SOONEST, LATEST = 0.01, 0.05  # seconds between two checks whether the folder has an owner; random in between
PATIENT = 0.5  # seconds at most, for one that only waits for an owner


class JoinedBackend(RemoteBackend):
    """A folder that another backend owns, here or in another process."""

    def __init__(self, standby: StandbyOwner, clock: Clock, *, latest: float = LATEST) -> None:
        address = ServerAddress("", 0, str(socket_of(standby.folder)))
        super().__init__(ServerLink([address], ClientOptions(backoff_min=SOONEST, backoff_max=latest), clock))
        self._standby = standby
        self._leaving: asyncio.Task[None] | None = None
        self.link.prepare = standby.look
        self.link.blocking_calls = SameThreadCalls(self.link)

    def only_join(self) -> None:
        """Never take the folder over from now on. What is owned stays, until another process claims it."""
        self._standby.takes_over = False

    @property
    def summary(self) -> str:
        """Location and state in a few words."""
        role = "owner by succession" if self._standby.is_owner else "joined"
        return f"in {str(self._standby.folder)!r}, {self.loop_owner.state}, {role}, {self.link.state}"

    def close(self) -> None:
        """End every reader after the published records, and refuse all other calls. Closing twice is harmless."""
        is_first = not self.loop_owner.closed
        super().close()
        if not is_first or self.loop_owner.forked:
            return
        loop = self.loop_owner.loop
        if loop is not None and loop.is_running():
            self._leaving = loop.create_task(self._leave())
        else:
            self._standby.drop()

    async def aclose(self) -> None:
        """Close it; if the folder is owned here, return when it is released."""
        await super().aclose()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])

    async def _leave(self) -> None:
        """Finish pending calls on the connection to itself, then release the folder."""
        await self.link.ended()
        await self._standby.leave()


class SameThreadCalls(BlockingCalls):
    """Calls the owner directly if it is on the same thread, which cannot wait for its own socket."""

    def call(self, method: str, args: dict[str, Any]) -> Any:
        """The result of a CALL, while this thread waits."""
        listener = listener_at(self._link.addresses[0].path)
        if listener is None or not listener.is_here() or self._link.loop_owner.forked:
            return super().call(method, args)
        return listener.answer(method, args)
