"""Durable brokers on a disk in memory, whose calls a test can hold, fail or fill up."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runnel.api.broker import Broker
from runnel.broker.durable.commit_queue import CommitQueue
from runnel.broker.durable.folder import BrokerFolder
from runnel.broker.durable.journal_writer import WriteResult
from runnel.broker.topic.log import Log
from runnel.core.clock import Clock
from runnel.core.history import HistorySource
from runnel.journal.format import entry, segment
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Entry, PartKind, WriteFailed
from runnel.journal.options import JournalOptions
from runnel.journal.read.segment_reader import SegmentReader
from runnel.journal.write.journal import Journal
from runnel.testing.faulty_storage import CHANGING, READING, FaultyStorage
from runnel.testing.memory_storage import MemoryStorage
from tests.brokers import local_broker
from tests.patience import PATIENCE


class Disk(FaultyStorage):
    """A disk in memory. `hold("sync")` makes the next such call wait for `go_on()`; `reached` says that one does."""

    def __init__(self, capacity: int | None = None, inner: MemoryStorage | None = None) -> None:
        super().__init__(inner or MemoryStorage(capacity=capacity), kinds=(*CHANGING, *READING))
        self._held: tuple[str, str] | None = None
        self._reached = threading.Event()
        self._go = threading.Event()
        self.on_read: Callable[[str], None] = lambda name: None

    def hold(self, operation: str, name: str = ".seg") -> None:
        """The next `operation` on a file of that name, or part of one, waits; so does all behind it in its thread."""
        self._reached.clear()
        self._go.clear()
        self._held = operation, name

    async def reached(self) -> None:
        """Return when a held call has come."""
        assert await asyncio.to_thread(self._reached.wait, PATIENCE), "nobody made the call that is held"

    def go_on(self) -> None:
        """Let the held call be carried out."""
        self._held = None
        self._go.set()

    def fail_next(self, operation: str, name: str = ".seg", error: int = 5) -> None:
        """The next `operation` on a file of that name, or part of one, fails."""
        self._failing = (operation, name, error)

    _failing: tuple[str, str, int] | None = None

    def _step(self, operation: str, name: str, before_failing: Callable[[], None] | None = None) -> None:
        if self._held is not None and operation == self._held[0] and self._held[1] in name:
            self._reached.set()
            assert self._go.wait(PATIENCE), "the test never let this call go on"
        if operation == "read":
            self.on_read(name)
        if self._failing is not None and operation == self._failing[0] and self._failing[1] in name:
            self.fail_at, self.error, self._failing = self.calls + 1, self._failing[2], None
        super()._step(operation, name, before_failing)


class ByHand:
    """In place of the commit thread: the test says when, and how, commits are done with."""

    def __init__(self, broker: Broker) -> None:
        self.results: deque[WriteResult] = deque()
        self.put_in: list[Any] = []
        self.round = 0
        commits: Any = commits_of(broker)
        self._commits, self._real = commits, commits._writer
        commits._writer = self

    def put(self, commit: Any) -> None:
        self.put_in.append(commit)

    def done(self, commit: Any, failed: WriteFailed | None = None) -> None:
        """Say that `commit` was written, or failed."""
        self.results.append(WriteResult([commit], failed, self.round, (0, 0)))
        self._commits._landed()

    async def landed(self, *tasks: asyncio.Future[Any]) -> list[Any]:
        """The results of tasks, with every commit written until they are done."""
        while not all(task.done() for task in tasks):
            for commit in [one for one in self.put_in if one in self._commits._under_way]:
                self.done(commit)
            await asyncio.sleep(0)
        return [task.result() for task in tasks]

    def leave(self) -> None:
        """The thread goes on, behind as many failures."""
        self._commits._writer, self._real._round = self._real, self.round


def open_on(
    disk: Disk, folder: Path, clock: Clock | None = None, history: Sequence[HistorySource] = (), **options: Any
) -> Broker:
    """A broker whose journal lies on `disk`; `folder` only holds the lock."""
    given = {"min_free": 0, "segment_bytes": 1 << 16} | options
    return local_broker(clock=clock, folder=BrokerFolder(folder, JournalOptions(**given), disk), history=history)


def commits_of(broker: Broker) -> CommitQueue:
    assert broker.backend.store is not None
    found: CommitQueue = broker.backend.store.commits
    return found


def journal_of(broker: Broker) -> Journal:
    assert broker.backend.store is not None
    found: Journal = broker.backend.store.journal
    return found


def log_of(broker: Broker, topic: str) -> Log:
    found: Log = broker.backend.catalog.logs[topic]
    return found


def entries(journal: Journal) -> list[Entry]:
    """All that the journal holds, entry by entry, oldest first."""
    return [one for source in journal.history.sources for one in entries_of(source)]


def entries_of(source: SegmentReader) -> list[Entry]:
    """All that one segment holds."""
    found: list[Entry] = []
    data, position = read_whole(source.storage, source.info.name)[: source.written], segment.START
    while position < len(data):
        one = entry.read_entry(data, position, source.info.id, position)
        assert one is not None, "the journal is damaged"
        found.append(one)
        position = one.end
    return found


def damage(broker: Broker, disk: Disk, *, sequence: int) -> None:
    """Flip a byte in the head of the entry that holds the record of `sequence`."""
    for source in journal_of(broker).history.sources:
        for one in entries_of(source):
            for part in one.parts:
                if part.kind == PartKind.BATCH and part.sequence <= sequence < part.sequence + part.count:
                    assert isinstance(disk.inner, MemoryStorage)
                    disk.inner._names[source.info.name].content[one.position + 10] ^= 0xFF
                    return
    raise AssertionError(f"no entry holds sequence {sequence}")


def kinds(found: Sequence[Entry]) -> list[list[int]]:
    return [[part.kind for part in one.parts] for one in found]


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until `condition` holds."""
    while not condition():  # noqa: ASYNC110  # nobody could set an event
        await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    """Let everything happen that can happen without the disk."""
    for _ in range(count):
        await asyncio.sleep(0)
