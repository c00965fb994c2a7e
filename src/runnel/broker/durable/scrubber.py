"""The scrubber thread: reads cold segments slowly and reports damage. Nothing depends on it."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from threading import Event, Thread, get_native_id
from time import monotonic, thread_time

from runnel.journal.check.scrub import Scrub
from runnel.journal.write.journal import Journal

BYTES_PER_SECOND = 4 * 1024 * 1024
REST = 19.0  # times as long as the processor worked: at most a twentieth of it
LONGEST = 3600.0  # seconds between two checks for due work
LOWEST = 19  # the priority of the thread, where threads have one

logger = logging.getLogger("runnel")


class Scrubber:
    """One thread that reads all of a journal once per `scrub_interval`; with 0 there is none."""

    def __init__(self, journal: Journal, folder: str) -> None:
        self._folder = folder
        interval = journal.options.scrub_interval
        self.scrub = Scrub(journal.storage, journal.history, interval, monotonic())
        self._stopping = Event()
        self._thread: Thread | None = None
        if interval:
            self._thread = Thread(target=self._run, name="runnel-scrub", daemon=True)

    def __repr__(self) -> str:
        return f"<Scrubber, {self.scrub!r}>"

    def start(self) -> None:
        """Begin."""
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """End, and wait for that."""
        self._stopping.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()

    def damage(self) -> tuple[str, ...]:
        """The known damage, as reported."""
        return tuple(str(found) for found in list(self.scrub.damage.values()))

    def _run(self) -> None:
        with suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST)
        try:
            while not self._stopping.wait(self._step()):
                pass
        except Exception:  # a bug: nothing is scrubbed, and that is all
            logger.exception("the scrubber failed")
        finally:
            self.scrub.close()

    def _step(self) -> float:
        """Read a little; for how long to rest then."""
        began = thread_time()
        step = self.scrub.step(monotonic())
        if step.damage is not None:
            logger.error("%s: %s. The scrubber found it; readers may not have met it", self._folder, step.damage)
        if not step.bytes:
            return min(LONGEST, max(1.0, self.scrub.wait(monotonic())))
        return max(step.bytes / BYTES_PER_SECOND, REST * (thread_time() - began))
