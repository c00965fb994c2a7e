"""The folder of a durable broker: take its lock and recover its journal.

Opened when the broker's block is entered, in a thread, since recovery may take a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path

from runnel.core.errors import FolderIsStandby, FolderUnusable, Superseded
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format import lineage
from runnel.journal.options import JournalOptions
from runnel.journal.storage import OsStorage, Storage
from runnel.journal.write.journal import Journal

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

    async def open(self, now: float) -> tuple[Journal, FolderLock]:
        """Own the folder and recover its journal; the caller closes both."""
        lock = self._lock or FolderLock(self.path)
        opening = asyncio.ensure_future(asyncio.to_thread(self._recover, lock, int(now * 1e6)))
        try:
            return await asyncio.shield(opening), lock
        except asyncio.CancelledError:
            # The thread cannot be stopped: whatever it opens is closed, and the folder released, when it is done;
            # if there is time, before this returns.
            opening.add_done_callback(partial(_let_go, lock))
            await asyncio.wait([opening])
            raise
        except BaseException:
            lock.release()
            raise

    def _recover(self, lock: FolderLock, now: int) -> Journal:
        lock.take()
        if (found := lineage.load(self._storage)) is not None and found.is_standby:
            raise FolderIsStandby(str(self.path), found.shown_primary)
        if found is not None and found.superseded:
            raise Superseded(found.number, found.superseded)
        began = time.perf_counter()
        try:
            journal = Journal.open(self._storage, self.options, now, lambda: not lock.has_readers(), lock.check)
        except OSError as error:
            raise FolderUnusable(str(self.path), str(error)) from error
        if (seconds := time.perf_counter() - began) > 1:
            log.info("opening %s took %.1f s", self.path, seconds)
        return journal

    def report(self, journal: Journal) -> None:
        """Log what an operator should know about the recovery."""
        report = journal.report
        if not report.clean:
            cut = f", and cut {report.cut_bytes:,} bytes that were written in part" if report.cut_bytes else ""
            safe = "" if report.notes else "; nothing that was synced is missing"
            level = logging.WARNING if report.cut_bytes else logging.INFO
            log.log(level, "%s was not closed properly: recovered %d entries%s%s", self.path, report.entries, cut, safe)
        for note in report.notes:
            log.warning("%s: %s", self.path, note)
        if journal.sync_seconds > SLOW_SYNC:
            log.warning(
                "%s: a sync took %.0f ms, so every commit will; a local SSD takes less than 1 ms",
                self.path,
                1000 * journal.sync_seconds,
            )


def _let_go(lock: FolderLock, opening: asyncio.Future[Journal]) -> None:
    """Close the opened journal: its caller was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
    lock.release()
