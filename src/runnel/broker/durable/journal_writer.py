"""The thread that writes commits to the journal. It notifies the loop once per commit, and does nothing per record.

The loop and the thread wake each other through pipes, not locks. A thread that waits for a lock is woken while the one
that released it still holds the interpreter, and both fight for it. With a pipe the kernel knows that the writer is
about to sleep, and runs the reader where it stands instead of waking another core.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from threading import Lock, Thread
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from runnel.broker.durable.commit import PendingCommit
from runnel.core.errors import DiskFull, JournalFailed
from runnel.journal.format.entry import WriteFailed
from runnel.journal.write.journal import Journal


class WakeupPipe:
    """Rung by any thread, heard by one that waits, or by a loop that watches `fd`. Rings not heard yet are one."""

    __slots__ = ("_poll", "_write", "fd")

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._poll: select.poll | None = None

    def signal(self) -> None:
        """Wake the waiting side, now or when it waits next."""
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # it was rung so often that it cannot be missed

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it rings, or for so long; whether it rang."""
        if seconds is not None:
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self.fd, select.POLLIN)
            if not self._poll.poll(max(0.0, seconds) * 1000):
                return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget that it rang. Waits for it, if it did not."""
        os.read(self.fd, 4096)

    def close(self) -> None:
        """Close the descriptors. Neither side may use it any more."""
        os.close(self.fd)
        os.close(self._write)


# -- The thread ------------------------------------------------------------------------------------------
# While one commit is being synced the next ones fill up, so many publishes share one sync.


T = TypeVar("T")

log = logging.getLogger("runnel")


class WriteResult(NamedTuple):
    """Commits that the thread is done with, how they failed, and the round that the next ones belong to.

    `end` is where the journal ended then: what a standby has to confirm.
    """

    commits: list[PendingCommit]
    failed: WriteFailed | None
    round: int
    end: tuple[int, int]


class JournalWriter:
    """One thread, one journal. `landed` is called on the loop when there is something in `results`."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, landed: Callable[[], None]) -> None:
        self._journal, self._loop, self._landed = journal, loop, landed
        self.results: deque[WriteResult] = deque()
        self._queue: deque[PendingCommit] = deque()
        self._calls: deque[tuple[Callable[[], None], Future[Any]]] = deque()
        self._calls_lock = Lock()  # between callers and the end
        self._ended = False
        self._wakeup, self._answer = WakeupPipe(), WakeupPipe()
        self._stopping = False
        self._thread = Thread(target=self._run, name="runnel-commit", daemon=True)
        self._round = 0  # commits with records that were handed over before the last failure are refused
        self._full: DiskFull | None = None
        self._interval = journal.options.fsync_interval if journal.options.fsync == "interval" else None

    def start(self) -> None:
        """Begin."""
        self._loop.add_reader(self._answer.fd, self._answered)
        self._thread.start()

    def _answered(self) -> None:
        self._answer.clear()
        self._landed()

    def put(self, commit: PendingCommit) -> None:
        """Have `commit` written. From the loop's thread."""
        self._queue.append(commit)
        self._wakeup.signal()

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done on the commit thread, between two commits; cancelled if that has ended. From any thread."""
        done: Future[T] = Future()

        def make() -> None:
            if not done.set_running_or_notify_cancel():
                return  # the caller gave up before its turn came
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        with self._calls_lock:
            if self._ended:
                done.cancel()
            else:
                self._calls.append((make, done))
                self._wakeup.signal()
        return done

    def stop(self) -> None:
        """Write the pending commits, and end. Blocks until then; `results` may hold results that were not taken yet."""
        self._stopping = True
        self._wakeup.signal()
        if self._thread.ident is not None:
            self._thread.join()
        with self._calls_lock:
            self._ended = True
            for _, done in self._calls:
                done.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._answer.fd)
        self._wakeup.close()
        self._answer.close()

    def _run(self) -> None:
        self._retain()  # what an earlier life deleted, and had no time to give back
        while True:
            try:
                self._work()
                return
            except Exception as error:  # a bug: the waiters get it; without this thread they never would
                log.exception("the commit thread failed")
                self._journal.failed = self._journal.failed or JournalFailed(str(error))

    def _work(self) -> None:
        to_sync = inf  # time of the next sync
        while not self._stopping or self._queue or self._calls:
            if not (self._queue or self._calls) and self._wakeup.wait(
                None if to_sync == inf else to_sync - monotonic()
            ):
                continue
            if to_sync <= monotonic():
                to_sync = inf
                self._sync()
            if commits := [self._queue.popleft() for _ in range(len(self._queue))]:
                self._write(commits)
                if self._interval is not None:
                    to_sync = min(to_sync, monotonic() + self._interval)
            if self._calls:
                make, _ = self._calls.popleft()
                make()

    def _write(self, commits: list[PendingCommit]) -> None:
        """Write, and report the results. Commits made before a failure return unwritten: they build on it."""
        good = [commit for commit in commits if commit.round == self._round]
        refused = [commit for commit in commits if commit.round != self._round]
        failed: WriteFailed | None = None
        try:
            if good:
                self._journal.write([commit.draft for commit in good])
        except WriteFailed as error:
            failed = error
        except Exception as error:  # a bug: it is unknown how much was written, and no further write is allowed
            log.exception("the journal failed")
            self._journal.failed = JournalFailed(str(error))
            failed = WriteFailed(0, len(good), error)
        if failed is not None:
            self._round += 1
            self._full = failed.cause if isinstance(failed.cause, DiskFull) else None
        if failed is None and any(commit.frees for commit in good):
            self._retain()  # a caller that deleted something has the space when that returns
        if good:
            self.results.append(WriteResult(good, failed, self._round, self._journal.end))
        if refused:
            why = WriteFailed(0, 0, self._journal.failed or self._full or DiskFull(0, 0))
            self.results.append(WriteResult(refused, why, self._round, self._journal.end))
        self._answer.signal()

    def _retain(self) -> None:
        """Give back the segments in which nothing is wanted any more."""
        try:
            self._journal.retain(self._journal.ledger.time)
        except Exception as error:  # they stay a little longer
            log.error("segments that are not needed could not be removed: %s", error)

    def _sync(self) -> None:
        try:
            self._journal.sync()
        except OSError:
            log.error("syncing the journal failed; it refuses writes until it is reopened")
