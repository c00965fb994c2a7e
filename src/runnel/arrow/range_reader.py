"""Reading offset ranges, from a folder, a server, a cluster or a lake, through one interface.

A `RangeReader` gives decoded batches or rows of a lake in order and says what of a range is lost; `DataLossPolicy`
decides whether a loss ends the query or is logged and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from runnel.arrow.ranges import OffsetRange
from runnel.core.batch_format import UnpackedBatch
from runnel.core.errors import DataLost, NotSupported
from runnel.core.pattern import is_pattern
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.read.segment_reader import LostRange

if TYPE_CHECKING:
    import pyarrow as pa


class RangeReader(Protocol):
    """Topics that can be read by ranges. It belongs to one thread."""

    @property
    def journal(self) -> str:
        """The origin of the records: sequences and epochs of another one mean other records."""

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""

    def journal_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        """The same of the journal alone, with `removed`: which ranges left it, and why."""

    def end_sequence(self) -> int:
        """The sequence after the last record that can be read."""

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        """By name, how far these topics have left the journal by now; those that are deleted are left out.

        Below `gone` nothing may be shown, wherever it is kept. While a range is read, the answer is as that read sees
        the topics.
        """

    def visible(self, topics: Iterable[str]) -> set[str]:
        """Those of these topics that it would name if they were there: a login may not see all of a server's topics.

        Of the others nothing can be said, in particular not that they were deleted.
        """

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """These will be read next, in this order: what costs little more for several of them is done together."""

    def read(self, wanted: OffsetRange) -> Iterator[FoundPart]:
        """The records of a range in order, and what of it cannot be read any more. It ends when all was read."""

    def close(self) -> None:
        """Close it. Harmless twice."""


def durable_only(found: Sequence[TopicBounds], patterns: Sequence[str]) -> list[TopicBounds]:
    """The topics that are on disk. One that was requested by its name and is not is an error."""
    for one in found:
        if not one.durable and one.topic in patterns and not is_pattern(one.topic):
            raise NotSupported(
                f"reading topic {one.topic!r} by offset ranges",
                "it is kept in memory only, and its records go at any moment",
            )
    return [one for one in found if one.durable]


# -- Decoded batches -------------------------------------------------------------------------------------


class DecodedBatch(NamedTuple):
    """Records of one topic: those of `batch` from number `at` on, in order; `runs` say where they belong."""

    batch: UnpackedBatch
    runs: Sequence[RecordRun]
    at: int = 0

    def within(self, first: int, end: int) -> DecodedBatch | None:
        """The part of it in [first, end); None: there is none."""
        runs: list[RecordRun] = []
        at = begins = self.at
        for offset, sequence, time, count in self.runs:
            if offset < end and offset + count > first:
                skip = max(0, first - offset)
                begins = begins if runs else at + skip
                runs.append(RecordRun(offset + skip, sequence + skip, time, min(offset + count, end) - offset - skip))
            at += count
        return DecodedBatch(self.batch, runs, begins) if runs else None


class LakeRows(NamedTuple):
    """Records of one topic from a lake, in order, with the columns of a lake's files."""

    table: pa.Table


FoundPart = DecodedBatch | LakeRows | LostRange


def with_offsets(batch: UnpackedBatch, offset: int, sequence: int, time: int) -> DecodedBatch:
    """A whole batch whose first record lies there. One with offset deltas has holes."""
    if batch.deltas is None:
        return DecodedBatch(batch, (RecordRun(offset, sequence, time, len(batch)),))
    runs: list[RecordRun] = []
    begun, before = 0, -1
    for at, delta in enumerate(batch.deltas):
        if delta != before + 1:
            runs.append(RecordRun(offset + batch.deltas[begun], sequence + batch.deltas[begun], time, at - begun))
            begun = at
        before = delta
    runs.append(
        RecordRun(offset + batch.deltas[begun], sequence + batch.deltas[begun], time, len(batch.deltas) - begun)
    )
    return DecodedBatch(batch, runs)


# -- Lost records ----------------------------------------------------------------------------------------


log = logging.getLogger("runnel.arrow")


class DataLossPolicy:
    """The losses so far. With `fail` the first loss is an error."""

    def __init__(self, *, fail: bool) -> None:
        self.fail = fail
        self.offsets = 0  # that were lost

    def __repr__(self) -> str:
        return f"<DataLossPolicy, {'fails' if self.fail else f'{self.offsets} offsets so far'}>"

    def tell(self, topic: str, first: int, end: int, why: str) -> None:
        """The offsets [first, end) of `topic` were to be read, and cannot be."""
        if self.fail:
            raise DataLost(topic, first, end, why)
        if end <= first:
            log.warning(
                "the records after offset %d of topic %r cannot be determined (%s); the query continues",
                first,
                topic,
                why,
            )
            return
        self.offsets += end - first
        log.warning(
            "offsets [%d, %d) of topic %r are lost (%s); the query continues, and has lost %d offsets so far",
            first, end, topic, why, self.offsets,
        )  # fmt: skip
