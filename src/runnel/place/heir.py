"""Who takes a folder over when its owner is gone: whoever gets the lock first.

The heir opens the folder in its own process and lets the others in, itself included: everything that it holds goes
on as after any lost connection.
Below: folder_door, broker, journal. Above: joined.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from runnel.broker.broker import Broker
from runnel.broker.folder_place import FolderPlace
from runnel.client.address import Address
from runnel.core.clock import Clock
from runnel.core.journal_errors import FolderInUse
from runnel.journal.folder import FolderLock
from runnel.journal.options import JournalOptions
from runnel.place.folder_door import FolderDoor, socket_of

log = logging.getLogger("runnel")


class Heir:
    """One of those who share a folder, as its next owner perhaps."""

    def __init__(self, folder: Path, options: JournalOptions, clock: Clock, *, auto_create: bool) -> None:
        self.folder = folder
        self._options, self._clock, self._auto_create = options, clock, auto_create
        self._broker: Broker | None = None
        self._door: FolderDoor | None = None

    def __repr__(self) -> str:
        return f"<Heir of {str(self.folder)!r}{', its owner' if self.is_owner else ''}>"

    @property
    def is_owner(self) -> bool:
        """Whether it has taken over."""
        return self._broker is not None

    async def look(self, address: Address) -> Address:
        """Take the folder over if nobody has it; where its owner listens."""
        if self._broker is None:
            lock = FolderLock(self.folder, shares=True, tries=0)
            try:
                lock.take()
            except FolderInUse:
                pass
            else:
                await self._take_over(lock)
        return Address("", 0, str(socket_of(self.folder)))

    async def _take_over(self, lock: FolderLock) -> None:
        began = time.perf_counter()
        place = FolderPlace(self.folder, self._options, lock=lock)  # lets the lock go if it cannot be opened
        broker = await Broker(auto_create=self._auto_create, clock=self._clock, folder=place).__aenter__()
        door = FolderDoor(broker, self.folder)
        try:
            door.open()
        except BaseException:
            broker.close()
            raise
        self._broker, self._door = broker, door
        log.info("took %s over, in %.0f ms", self.folder, 1000 * (time.perf_counter() - began))

    async def leave(self) -> None:
        """Give the folder to whoever wants it next, if it is owned here."""
        if self._door is not None:
            try:
                await self._door.close()
            finally:
                self.drop()

    def drop(self) -> None:
        """Give the folder away now. Harmless twice."""
        door, self._door = self._door, None
        broker, self._broker = self._broker, None
        if door is not None:
            door.shut()
        if broker is not None:
            broker.close()
