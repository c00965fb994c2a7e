"""One commit: the batches, the state and the atomic writes that go into one entry of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import PendingBatch, PendingBytes
from runnel.broker.topic.timeline import Timeline
from runnel.core.publishing import Append
from runnel.journal.format.entry import Draft, Part
from runnel.journal.format.ledger import BlockStageState, StageState, stage_commit_part
from runnel.journal.format.staged_block import BlocksShare, blocks_commit_part


class AtomicWrite:
    """One all-or-nothing piece of a commit; at its end `landed` or `failed` is called, once.

    An entry is what a publish appends, or a stage, whose records become visible where they lie. Of a stage of many
    topics there is an entry for each topic, one behind the other.
    """

    __slots__ = ("entries", "failed", "landed", "late", "parts", "pending_batches", "stages")

    def __init__(
        self,
        entries: Sequence[tuple[Log, Append | StageState | StageShare]],
        parts: Sequence[Part],
        landed: Callable[[], None],
        failed: Callable[[Exception], None],
        late: Callable[[], Sequence[Part]] | None = None,
    ) -> None:
        self.entries, self.parts = entries, parts
        self.landed, self.failed = landed, failed
        self.late = late  # further parts, in their state when they are written, not when they are handed over
        self.stages = False  # whether it is there to stage records, or to commit them
        # its records, one batch a topic; filled in when it is handed over
        self.pending_batches: list[PendingBatch] = []

    def __repr__(self) -> str:
        return f"<AtomicWrite of {len(self.entries)} publishes and {len(self.parts)} parts of state>"

    def state(self) -> list[Part]:
        """The entry parts that it writes besides its records. Called once, when its commit is made."""
        return [*self.parts, *(self.late() if self.late is not None else ())]

    @property
    def size(self) -> int:
        """The bytes that it writes: for a stage, none."""
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
        self.size = state.bytes  # its weight is 0: records on disk do not wait to be written

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
        """The entry parts that it writes: the stage, and its first offset."""
        return [stage_commit_part(self._state, self.first, self.sequence, at)]

    def land(self, timeline: Timeline, when: datetime) -> None:
        """Make it visible: the log continues after it, and readers read it from disk."""
        timeline.land_elsewhere(self.log, self.sequence, when, self._count, self.size)


class StageShare(NamedTuple):
    """The records that one topic gets of a stage; `ahead`: records of the topics before it in the same commit."""

    state: BlockStageState
    topic: int
    ahead: int
    size: int  # bytes of all topics

    @classmethod
    def all_of(cls, state: BlockStageState) -> list[StageShare]:
        """The shares of all topics, in the order in which a commit has to have them."""
        shares, ahead = [], 0
        size = sum(held for _, held in state.topics.values())
        for topic, (records, _) in state.topics.items():
            shares.append(cls(state, topic, ahead, size))
            ahead += records
        return shares


class StageShareBatch(PendingBatch):
    """All records of one topic in a stage of many topics. Their sequences lie between those of the other topics."""

    __slots__ = ("_count", "_share")

    def __init__(self, log: Log, first: int, pending: PendingBytes, share: StageShare) -> None:
        super().__init__(log, first, pending)
        self._share = share
        self._count, self.size = share.state.topics[share.topic]  # its weight is 0, see `StageCommitBatch`

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return self.first + self._count

    @property
    def count(self) -> int:
        """How many records it has."""
        return self._count

    @property
    def _start(self) -> int:
        """The sequence of the first record of the stage: shares lie one behind the other, and so do their numbers."""
        return self.sequence - self._share.ahead

    def takes(self, entry: Append) -> bool:
        """Nothing joins a stage."""
        return False

    def pack(self) -> bytes:
        """It was packed when it was staged."""
        return b""

    def parts(self, topic: int, at: int) -> list[Part]:
        """The entry parts that it writes: the stage, and the next offset of its topic."""
        state = self._share.state
        share = BlocksShare(state.id, state.total, self._share.size, self.size)
        return [blocks_commit_part(share, topic, self.first, self.end - 1, self._start, at)]

    def land(self, timeline: Timeline, when: datetime) -> None:
        """Make it visible: the log continues after it, and readers read it from disk."""
        behind = self._start + self._share.state.total
        timeline.land_elsewhere(self.log, self._start, when, self._count, self.size, behind)


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
        if isinstance(entry, StageShare):
            batch = last[log] = StageShareBatch(log, start, nowhere, entry)
            batches.append(batch)
            continue
        if batch is None or batch is not batches[-1] or isinstance(batch, StageCommitBatch | StageShareBatch):
            batch = last[log] = PendingBatch(log, start, nowhere)
            batches.append(batch)
        batch.add(entry)
    for batch in batches:
        batch.in_atomic_write = True
        batch.packed = batch.pack()  # errors are raised now, before anything is handed over
    return batches, firsts
