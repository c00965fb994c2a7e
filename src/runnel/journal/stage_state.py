"""Stages: batches that are on disk and that nobody sees, until one small entry gives them their offsets."""

from __future__ import annotations

import msgspec

from runnel.core.stage import StageKey


class StageState(msgspec.Struct, array_like=True):
    """An open stage: durable, invisible, without offsets."""

    id: int
    writer: str
    batch: int
    part: int
    attempt: int
    topic: int
    time: int  # when it was opened, or written to last, in microseconds
    counts: list[int] = []  # records of each staged batch
    bytes: int = 0

    @property
    def key(self) -> StageKey:
        """What its writer calls it."""
        return StageKey(self.writer, self.batch, self.part, self.attempt)

    @property
    def records(self) -> int:
        """How many records are in it."""
        return sum(self.counts)


class Committed(msgspec.Struct, array_like=True, gc=False):
    """A stage whose records [base, end) of `topic` are read from where they were staged."""

    id: int
    topic: int
    base: int
    end: int
    bytes: int
