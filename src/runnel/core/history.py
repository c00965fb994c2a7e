"""The `HistorySource` port: records that left the journal, kept elsewhere under the same offsets and sequences.

A broker reads the records below the first offset of the journal from it, and continues in the journal: a
subscriber sees one topic with one id space. A source adds records at its end only, and drops them at its beginning.
The records that `bounds` named stay readable: the broker may drop them from the journal (`confirm_archived`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from runnel.core.batch import Slice


class HistoryBounds(NamedTuple):
    """The offsets [first, end) that a source holds of one topic in one epoch. There may be holes in between."""

    first: int
    end: int


class HistorySource(Protocol):
    """Old records of topics, by offset and by sequence. Calls may come at once, from one event loop.

    A call that fails raises an `OSError` or a `RunnelError`; the reader that waits for it tries again later.
    """

    def covers(self, topic: str) -> bool:
        """Whether it may hold records of `topic`: then no other source is queried."""

    async def bounds(self, topic: str, epoch: int) -> HistoryBounds | None:
        """The range that it holds of `topic`; None: no records."""

    async def read(self, topic: str, epoch: int, start: int, end: int) -> Sequence[Slice]:
        """The first records with offsets in [start, end), in order: as many as are good to hold at once.

        Nothing means that it has no record in the whole range. A slice has no holes; offsets between slices, and
        before the first, are records that it does not have.
        """

    async def offset_at(self, topic: str, epoch: int, time: datetime) -> int | None:
        """The offset of the first record that was published at `time` or later; None: it has no such record."""

    async def offset_at_sequence(self, topic: str, epoch: int, sequence: int) -> int | None:
        """The offset of the first record that has this sequence or a later one; None: it has no such record."""

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        """The first records of all topics that match, with sequences in [start, end), in order of their sequences.

        As `read` otherwise. The sequences of a slice rise by one, too.
        """

    async def sequence_at(self, patterns: Sequence[str], time: datetime) -> int | None:
        """The sequence of the first record of these topics at `time` or later; None: it has no such record."""

    async def close(self) -> None:
        """Give back what it holds open. Calls under way fail."""
