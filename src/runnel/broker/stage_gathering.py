"""A stage on its way to being visible: a few bytes in a commit give offsets to records that lie on disk already.

Below: gathering, timeline, unit. Above: commits, which writes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime

from runnel.broker.gate import Entry
from runnel.broker.gathering import Gathering, Pending
from runnel.broker.log import Log
from runnel.broker.timeline import Timeline
from runnel.broker.unit import Unit
from runnel.journal.entry import Part
from runnel.journal.parts import stage_commit_part
from runnel.journal.stage_state import StageState


class StageGathering(Gathering):
    """All records of one stage, side by side. Their values are not in memory, before it lands or after."""

    __slots__ = ("_count", "_state")

    def __init__(self, log: Log, first: int, pending: Pending, state: StageState) -> None:
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

    def takes(self, entry: Entry) -> bool:
        """Nothing joins a stage."""
        return False

    def pack(self) -> bytes:
        """It was packed when it was staged."""
        return b""

    def parts(self, topic: int, at: int) -> Iterator[Part]:
        """What is written of it: which stage it was, and where it begins."""
        yield stage_commit_part(self._state, self.first, self.sequence, at)

    def land(self, timeline: Timeline, when: datetime) -> None:
        """It is visible: its log goes on behind it, and whoever wants it reads from disk."""
        timeline.land_elsewhere(self.log, self.sequence, when, self._count, self.size)


def batches_of(unit: Unit, loop: asyncio.AbstractEventLoop) -> tuple[list[Gathering], list[int]]:
    """The batches that the entries of `unit` become, packed, and the first offset of each entry. Changes nothing else.

    Entries of one topic are one batch, in order, unless a stage lies between them.
    """
    batches: list[Gathering] = []
    firsts: list[int] = []
    last: dict[Log, Gathering] = {}
    nowhere = Pending(0, loop)
    for log, entry in unit.entries:
        assert log.stored is not None, "only durable logs are handed over"
        batch = last.get(log)
        start = log.stored.next if batch is None else batch.end
        firsts.append(start)
        if isinstance(entry, StageState):
            batch = last[log] = StageGathering(log, start, nowhere, entry)
            batches.append(batch)
            continue
        if batch is None or isinstance(batch, StageGathering):
            batch = last[log] = Gathering(log, start, nowhere)
            batches.append(batch)
        batch.add(entry)
    for batch in batches:
        batch.of_unit = True
        batch.packed = batch.pack()  # what is wrong with it is said now, before anything is handed over
    return batches, firsts
