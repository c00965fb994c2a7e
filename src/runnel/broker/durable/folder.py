"""The folder of a durable broker: take its lock, recover its journal, and start the store.

Opened when the broker's block is entered, in a thread, since recovery may take a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.broker.durable.store import Store
from runnel.core.errors import FolderUnusable
from runnel.journal.folder_lock import FolderLock
from runnel.journal.options import JournalOptions
from runnel.journal.storage import OsStorage, Storage
from runnel.journal.write.journal import Journal

if TYPE_CHECKING:
    from runnel.broker.bus import Bus

SLOW_SYNC = 0.02

log = logging.getLogger("runnel")


class BrokerFolder:
    """Where a durable broker keeps its journal, and how. `lock`: one that others may have to do with, too."""

    def __init__(
        self, path: Path, options: JournalOptions, storage: Storage | None = None, lock: FolderLock | None = None
    ) -> None:
        self.path, self.options = path, options
        self._lock = lock
        self._storage = storage or OsStorage(path)

    async def open(self, bus: Bus) -> None:
        """Own the folder, recover its journal, and give `bus` a store."""
        lock = self._lock or FolderLock(self.path)
        opening = asyncio.ensure_future(asyncio.to_thread(self._recover, lock, int(bus.clock.time() * 1e6)))
        try:
            journal = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be stopped: whatever it opens is closed, and the folder let go, when it is done;
            # if nobody is in a hurry, before this returns.
            opening.add_done_callback(partial(_let_go, lock))
            await asyncio.wait([opening])
            raise
        except BaseException:
            lock.release()
            raise
        bus.loop_owner.entered = True
        try:
            bus.loop_owner.check_usable("opening the folder")  # it may have been closed before, or meanwhile
            self._say(journal)
            bus.store = Store(bus, journal, lock)
            bus.store.begin()
        except BaseException:
            try:
                self._undo(bus)
            finally:
                bus.store, bus.loop_owner.entered = None, False
                try:
                    journal.close()
                finally:
                    lock.release()
            raise

    @staticmethod
    def _undo(bus: Bus) -> None:
        """A store that could not begin has left half of what it knows in `bus`, which nobody may use any more."""
        if bus.store is not None:
            store, bus.store = bus.store, None  # closing without it writes nothing
            store.give_up()
            bus.close()

    def _recover(self, lock: FolderLock, now: int) -> Journal:
        lock.take()
        began = time.perf_counter()
        try:
            journal = Journal.open(self._storage, self.options, now, lambda: not lock.has_readers())
        except OSError as error:
            raise FolderUnusable(str(self.path), str(error)) from error
        if (seconds := time.perf_counter() - began) > 1:
            log.info("opening %s took %.1f s", self.path, seconds)
        return journal

    def _say(self, journal: Journal) -> None:
        """What whoever operates this should know."""
        report = journal.report
        if not report.clean:
            log.warning(
                "%s was not closed: read %d entries again, wrote %d of them anew, cut a torn tail of %d bytes",
                self.path,
                report.entries,
                report.copied,
                report.cut_bytes,
            )
        for note in report.notes:
            log.warning("%s: %s", self.path, note)
        if journal.sync_seconds > SLOW_SYNC:
            log.warning(
                "%s: a sync took %.0f ms, so every commit will; a local SSD takes less than one",
                self.path,
                1000 * journal.sync_seconds,
            )


def _let_go(lock: FolderLock, opening: asyncio.Future[Journal]) -> None:
    """Nobody wants what was opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
    lock.release()
