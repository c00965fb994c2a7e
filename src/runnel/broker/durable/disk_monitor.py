"""Watches free disk space, and warns operators about low space, large holds, late archives and unarchived topics.

Nothing waits for it: publishes are refused by what the journal finds when it needs room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import NamedTuple

from runnel.broker.durable.holds import RetentionHold, RetentionHolds, named
from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.topic.log import Log
from runnel.core.clock import Clock
from runnel.core.errors import RunnelError
from runnel.core.position import Position
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.write.archive_holds import NAME, ArchiveHolder
from runnel.journal.write.journal import Journal

PAUSE = 5.0  # seconds between two looks
MUCH = 1024**3  # bytes that one may hold without being mentioned
AGAIN = 3600.0  # seconds until it is mentioned again
LATE = 24 * 3600.0  # seconds after which an archive that holds is missed
FILLED = 0.7  # of the disk, from which on topics that wait for the archive are mentioned
PART = 0.05  # share of the disk below which holders are not reported, unless they alone filled it

logger = logging.getLogger("runnel")


class Measured(NamedTuple):
    """The result of a look at the disk: bytes, and the archives that hold records."""

    free: int
    total: int
    held: dict[str, int]  # by name
    archives: list[ArchiveHolder] | RunnelError


class DiskMonitor:
    """Looks every few seconds, in a thread."""

    def __init__(
        self,
        reads: JournalReads,
        holds: RetentionHolds,
        logs: Mapping[str, Log],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        folder: str,
    ) -> None:
        self._reads, self._holds, self._logs, self._folder = reads, holds, logs, folder
        self._loop, self._clock = loop, clock
        self.free: int | None = None  # as of the last look
        self.held: dict[str, int] = {}
        self.archives: list[ArchiveHolder] = []  # that hold
        self.is_low = False
        self.looked: Callable[[], object] = lambda: None  # called after each look
        self.fell: Callable[[], None] = lambda: None  # called when the disk gets low, and while it is
        self._told: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"<DiskMonitor, {'not looked yet' if self.free is None else f'{self.free:,} bytes free'}>"

    def look(self) -> None:
        """Look now, and again later."""
        if self._stopped:
            return
        journal = self._reads.journal
        logs = self._logs
        found = [(hold, logs.get(hold.pattern)) for hold in self._holds.holds.values()]
        holds = [(hold, None if log is None or log.stored is None else log.stored.id) for hold, log in found]
        self._reads.look(lambda: _measure(journal, holds), self._measured)

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _measured(self, found: Measured | OSError) -> None:
        if self._stopped:
            return
        self._timer = self._loop.call_later(PAUSE, self.look)
        self.looked()
        if isinstance(found, OSError):
            return  # the next look may report
        self.free, total, self.held, archives = found
        self._tell_low(self.free, 2 * self._reads.journal.options.min_free)
        for hold in self._holds.holds.values():
            self._tell_held(hold, monotonic())
        self._tell_archives(archives, monotonic())
        self._tell_unconfirmed(total - self.free, total, monotonic())
        if self.is_low:
            self.fell()

    def _tell_low(self, free: int, bound: int) -> None:
        if free < bound and not self.is_low:
            self.is_low = True
            logger.warning(
                "%s: only %s bytes of disk are free; publishing stops when a new segment would leave less than "
                "min_free, %s. Make room, delete topics or shorten their retention",
                self._folder,
                f"{free:,}",
                f"{bound // 2:,}",
            )
        elif free >= bound + bound // 8 and self.is_low:
            self.is_low = False
            logger.warning("%s: there is room again, %s bytes of disk are free", self._folder, f"{free:,}")

    def _tell_held(self, hold: RetentionHold, now: float) -> None:
        size = self.held.get(hold.name, 0)
        if (size <= MUCH and not (self.is_low and size)) or now - self._told.get(hold.name, -AGAIN) < AGAIN:
            return
        if self._is_in_the_way(hold):
            self._told[hold.name] = now
            logger.warning(
                "%s: subscription %r holds %s bytes that retention would take; let it read on, or give it up with "
                "`broker.forget(%r)`",
                self._folder,
                hold.name,
                f"{size:,}",
                hold.name,
            )

    def _tell_archives(self, found: list[ArchiveHolder] | RunnelError, now: float) -> None:
        if not isinstance(found, list):
            if self._is_time(NAME, now):
                logger.warning("%s: nothing is cleaned or dropped, an archive may be waiting: %s", self._folder, found)
            return
        self.archives = found
        for one in found:
            away = self._clock.time() - one.seen / 1e6
            if away > LATE and self._is_time(one.id, now):
                logger.warning(
                    "%s: the archive %r holds everything since segment %s, and the last backup was %s hours ago; run "
                    "`runnel backup`, or release the archive with `runnel backup --release`",
                    self._folder,
                    one.place,
                    one.through + 1,
                    int(away / 3600),
                )

    def _tell_unconfirmed(self, used: int, total: int, now: float) -> None:
        """Warn if the disk fills up with what the archive has not confirmed."""
        if used < FILLED * total:
            return
        waiting = self._holds.unconfirmed()
        size = sum(waiting.values())
        if size and size >= min(used - FILLED * total, PART * total) and self._is_time("that confirms", now):
            topics = ", ".join(named(f"{name!r} ({bytes:,} bytes)" for name, bytes in waiting.items()))
            logger.warning(
                "%s: the disk is %s %% full, and about %s bytes are not archived yet and stay: %s "
                "(retention_until='archived'). Publishing stops when a new segment would leave less than min_free, %s: "
                "see that the archive runs, and confirms what it has copied",
                self._folder,
                int(100 * used / total),
                f"{size:,}",
                topics,
                f"{self._reads.journal.options.min_free:,}",
            )

    def _is_time(self, what: str, now: float) -> bool:
        if now - self._told.get(f"archive {what}", -AGAIN) < AGAIN:
            return False
        self._told[f"archive {what}"] = now
        return True

    def _is_in_the_way(self, hold: RetentionHold) -> bool:
        """Whether retention of some topic has reached held records."""
        return any(
            log.options.retains and log.held is not None and log.first == log.held == hold.floor(log) < log.end
            for log in self._logs.values()
            if hold.covers(log.name)
        )


def _measure(journal: Journal, holds: list[tuple[RetentionHold, int | None]]) -> Measured:
    """How much is free, and how much lies where each one stands and behind. In a thread."""
    held = {hold.name: _behind(journal.history, hold, topic) for hold, topic in holds}
    try:
        archives: list[ArchiveHolder] | RunnelError = journal.archives()
    except RunnelError as damaged:
        archives = damaged
    return Measured(journal.storage.free(), journal.storage.total(), held, archives)


def _behind(history: JournalReader, hold: RetentionHold, topic: int | None) -> int:
    place = hold.place
    if isinstance(place, Position):
        ranges = () if topic is None else history.ranges(topic)
        return sum(found.bytes for _, found in ranges if found.end > place.offset)
    return sum(one.written for one in tuple(history.sources) if not one.info.sealed or one.info.end_sequence > place)
