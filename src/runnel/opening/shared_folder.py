"""A folder that several processes open: the first one owns it, the others go through its socket.

Whether a backend owns the folder or joins the owner is decided when it is opened. The owner has its topics in its own
process, at full speed; the others become a client of the owner (`standby`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.broker.backend import LocalBackend
from runnel.broker.durable.folder import BrokerFolder
from runnel.core.backend import Backend
from runnel.core.clock import Clock
from runnel.core.errors import FolderInUse, Unreachable
from runnel.core.history import HistorySource
from runnel.journal.folder_lock import TRIES, FolderClaim, FolderLock, recorded_owner
from runnel.journal.options import JournalOptions
from runnel.opening.folder_listener import FolderListener

if TYPE_CHECKING:
    from runnel.opening.standby import JoinedBackend
    from runnel.server.server import Server

PAUSE = (0.01, 0.05)  # seconds before the next attempt, random in between
ALONE = 0.5  # seconds to wait for an owner that does not share: commands own a folder for a moment
PATIENCE = 30.0  # seconds to wait for an owner that shares: it may be recovering a large folder
HAND_OVER = 10.0  # seconds to wait for an owner that yields


class SharedBackend(LocalBackend):
    """The backend of the owner of a shared folder. If another process owns it, `open` returns a client of the owner.

    `joins=False`: own it, or raise `FolderInUse`. It claims the folder from an owner that yields.
    """

    visits = False  # a command's: if it finds an owner it is a client, and never takes over
    stays = False  # a visitor that may last: if it owns the folder, it yields to a claim

    def __init__(
        self,
        path: Path,
        options: JournalOptions,
        *,
        auto_create: bool = True,
        clock: Clock | None = None,
        joins: bool = True,
        history: Sequence[HistorySource] = (),
        telemetry: float | None = None,
    ) -> None:
        lock = FolderLock(path, shares=True, tries=0 if joins else TRIES)
        folder = BrokerFolder(path, options, lock=lock)
        super().__init__(auto_create=auto_create, clock=clock, folder=folder, history=history, telemetry=telemetry)
        self._history, self._interval = history, telemetry
        self._path, self._options, self._auto_create, self._joins = path, options, auto_create, joins
        self._listener: FolderListener | None = None
        self.joined: JoinedBackend | None = None  # the backend in use, if another process owns the folder

    async def open(self) -> Backend:
        """Own the folder, or connect to its owner; return the backend to use."""
        loop_owner = self.loop_owner
        if loop_owner.entered or loop_owner.closed or loop_owner.forked:
            return await super().open()
        loop = asyncio.get_running_loop()
        if not self._joins:
            return await self._claim()
        began = loop.time()
        shut = began  # when the folder last had no owner that refuses to share
        while True:
            try:
                if self.stays:
                    return await self._stay()
                await super().open()
            except FolderInUse as error:
                is_shared = recorded_owner(self._path).shares
                if (
                    is_shared
                    and not self.stays
                    and (joined := await self._join(takes_over=not self.visits)) is not None
                ):
                    return joined
                now = loop.time()
                if is_shared:
                    shut = now
                if now - began > PATIENCE or now - shut > ALONE:
                    raise FolderInUse(error.folder, error.pid, command=error.command, answers=not is_shared) from None
            else:
                self._listen()
                return self
            await asyncio.sleep(random.uniform(*PAUSE))

    async def _stay(self) -> Backend:
        """A client of the owner, or of this process if there is none; only a standby's ownership can be yielded."""
        joined = await self._join(takes_over=True)
        if joined is None:
            owner = recorded_owner(self._path)
            raise FolderInUse(str(self._path), owner.pid, shares=owner.shares)
        joined.only_join()
        return joined

    async def _claim(self) -> Backend:
        """Own the folder; from an owner that yields, when it has released it."""
        claim, began = FolderClaim(self._path), asyncio.get_running_loop().time()
        try:
            while True:
                try:
                    await super().open()
                except FolderInUse:
                    limit = HAND_OVER if recorded_owner(self._path).yields else ALONE
                    if asyncio.get_running_loop().time() - began > limit:
                        raise
                    claim.hold()
                else:
                    self._listen()
                    return self
                await asyncio.sleep(random.uniform(*PAUSE))
        finally:
            claim.release()

    def _listen(self) -> None:
        self._listener = FolderListener(self, self._path.absolute())
        try:
            self._listener.open()
        except BaseException:
            self.close()
            raise

    async def _join(self, *, takes_over: bool) -> JoinedBackend | None:
        """A backend connected to the owner's socket; None: the owner does not answer yet."""
        from runnel.opening.standby import LATEST, PATIENT, JoinedBackend, StandbyOwner

        import_module("runnel.server.server")  # a standby needs it at once, and now there is time
        standby = StandbyOwner(
            self._path.absolute(),
            self._options,
            self.clock,
            auto_create=self._auto_create,
            history=self._history,
            telemetry=self._interval,
            takes_over=takes_over,
        )
        joined = JoinedBackend(standby, self.clock, latest=PATIENT if self.visits else LATEST)
        try:
            await joined.open()
        except Unreachable:
            return None
        self.joined = joined
        return joined

    def close(self) -> None:
        """End every reader after the published records, and refuse all other calls. Closing twice is harmless."""
        if self._listener is not None and not self.loop_owner.forked:
            self._listener.shut()
        super().close()

    async def aclose(self) -> None:
        """Answer the requests of the other processes, and close."""
        try:
            if self._listener is not None:
                await self._listener.close()
        finally:
            await super().aclose()

    def hand_listener_to(self, server: Server) -> None:
        """Let `server` accept the other processes, so that it counts their connections."""
        if self._listener is not None:
            self._listener.hand_to(server)
