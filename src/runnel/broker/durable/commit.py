"""One commit: the batches, the state and the atomic writes that go into one entry of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import PendingBatch, PendingBytes
from runnel.broker.topic.timeline import Timeline
from runnel.core.publishing import Append
from runnel.journal.format.entry import Draft, Part
from runnel.journal.format.ledger import StageState, stage_commit_part


class AtomicWrite:
    """One all-or-nothing piece of a commit; at its end `landed` or `failed` is called, once.

    An entry is what a publish appends, or a stage, whose records become visible where they lie.
    """

    __slots__ = ("entries", "failed", "landed", "late", "parts", "pending_batches", "stages")

    def __init__(
        self,
        entries: Sequence[tuple[Log, Append | StageState]],
        parts: Sequence[Part],
        landed: Callable[[], None],
        failed: Callable[[Exception], None],
        late: Callable[[], Sequence[Part]] | None = None,
    ) -> None:
        self.entries, self.parts = entries, parts
        self.landed, self.failed = landed, failed
        self.late = late  # more parts, as they are when it is written and not when it is handed over
        self.stages = False  # whether it is there to stage records, or to commit them
        # its records, one batch a topic; filled in when it is handed over
        self.pending_batches: list[PendingBatch] = []

    def __repr__(self) -> str:
        return f"<AtomicWrite of {len(self.entries)} publishes and {len(self.parts)} parts of state>"

    def state(self) -> list[Part]:
        """What is written of it besides its records. Asked once, when its commit is made."""
        return [*self.parts, *(self.late() if self.late is not None else ())]

    @property
    def size(self) -> int:
        """Its bytes, as far as they are to be written: of a stage, nothing is."""
        records = sum(entry.size + entry.extra for _, entry in self.entries if isinstance(entry, Append))
        return records + sum(len(part.body) for part in self.parts)


class PendingCommit:
    """One entry on its way: what it holds, and its waiters."""

    __slots__ = (
        "atomic_writes",
        "draft",
        "flushes",
        "frees",
        "holds_records",
        "landed",
        "pending_batches",
        "round",
        "sequence",
        "undo",
    )

    def __init__(self, draft: Draft, pending_batches: list[PendingBatch], sequence: int, round_: int) -> None:
        self.draft, self.pending_batches, self.sequence, self.round = draft, pending_batches, sequence, round_
        self.holds_records = bool(pending_batches)
        self.frees = False  # whether it deletes or trims topics, so that segments may be unwanted after it
        self.landed: list[Callable[[], None]] = []  # called when it is durable
        self.flushes: list[asyncio.Future[None]] = []  # waiters for this and all before it
        self.undo: list[Callable[[], None]] = []  # called when it was not written, and may be said again
        self.atomic_writes: list[AtomicWrite] = []


# -- Stages in a commit ----------------------------------------------------------------------------------
# A few bytes in a commit give offsets to records that lie on disk already.


class StageCommitBatch(PendingBatch):
    """All records of one stage, side by side. Their values are not in memory, before it lands or after."""

    __slots__ = ("_count", "_state")

    def __init__(self, log: Log, first: int, pending: PendingBytes, state: StageState) -> None:
        super().__init__(log, first, pending)
        self._state, self._count = state, state.records
        self.size = state.bytes  # and its weight is 0: what is on disk does not wait to be written

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return self.first + self._count

    @property
    def count(self) -> int:
        """How many records it has."""
        return self._count

    def takes(self, entry: Append) -> bool:
        """Nothing joins a stage."""
        return False

    def pack(self) -> bytes:
        """It was packed when it was staged."""
        return b""

    def parts(self, topic: int, at: int) -> list[Part]:
        """What is written of it: which stage it was, and where it begins."""
        return [stage_commit_part(self._state, self.first, self.sequence, at)]

    def land(self, timeline: Timeline, when: datetime) -> None:
        """Make it visible: the log continues after it, and readers read it from disk."""
        timeline.land_elsewhere(self.log, self.sequence, when, self._count, self.size)


def batches_of(atomic_write: AtomicWrite, loop: asyncio.AbstractEventLoop) -> tuple[list[PendingBatch], list[int]]:
    """The batches that an atomic write becomes, packed, and the first offset of each entry. Changes nothing else.

    Entries of one topic that follow each other are one batch: sequences keep the order in which they were published.
    """
    batches: list[PendingBatch] = []
    firsts: list[int] = []
    last: dict[Log, PendingBatch] = {}
    nowhere = PendingBytes(0, loop)
    for log, entry in atomic_write.entries:
        assert log.stored is not None, "only durable logs are handed over"
        batch = last.get(log)
        start = log.stored.next if batch is None else batch.end
        firsts.append(start)
        if isinstance(entry, StageState):
            batch = last[log] = StageCommitBatch(log, start, nowhere, entry)
            batches.append(batch)
            continue
        if batch is None or batch is not batches[-1] or isinstance(batch, StageCommitBatch):
            batch = last[log] = PendingBatch(log, start, nowhere)
            batches.append(batch)
        batch.add(entry)
    for batch in batches:
        batch.in_atomic_write = True
        batch.packed = batch.pack()  # what is wrong with it is said now, before anything is handed over
    return batches, firsts
