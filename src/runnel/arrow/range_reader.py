"""Reading offset ranges, from a folder or from a server, through one interface.

A `RangeReader` gives decoded batches in order and says what of a range is lost; `DataLossPolicy` decides whether a
loss ends the query or is logged and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from runnel.arrow.location import BrokerLocation
from runnel.arrow.ranges import OffsetRange
from runnel.core.batch_format import UnpackedBatch
from runnel.core.errors import DataLost, NotSupported
from runnel.core.pattern import is_pattern
from runnel.core.topic_bounds import TopicBounds
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.read.segment_reader import LostRange


class RangeReader(Protocol):
    """Topics that can be read by ranges. It belongs to one thread."""

    @property
    def journal(self) -> str:
        """The id of what is read: sequences and epochs of another one mean other records."""

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""

    def end_sequence(self) -> int:
        """The sequence after the last record that can be read."""

    def gone(self, topic: str) -> int:
        """The offset below which a user trimmed the topic: nothing there may be shown, wherever it is kept."""

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """These will be read next, in this order: what costs little more for several of them is done together."""

    def read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        """The records of a range in order, and what of it cannot be read any more. It ends when all was read."""

    def close(self) -> None:
        """Let go of it. Harmless twice."""


def open_range_reader(location: BrokerLocation) -> RangeReader:
    """The reader of a location."""
    if location.path is not None:
        from runnel.arrow.folder_reader import FolderReader

        return FolderReader(location.path)
    from runnel.arrow.server_reader import ServerReader

    assert location.url is not None, "a location is one or the other"
    return ServerReader(location.url, location.client)


def durable_only(found: Sequence[TopicBounds], patterns: Sequence[str]) -> list[TopicBounds]:
    """Those that are on disk. One that was asked for by its name and is not is an error."""
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
        """What of it lies in [first, end); None: nothing does."""
        runs: list[RecordRun] = []
        at = begins = self.at
        for offset, sequence, time, count in self.runs:
            if offset < end and offset + count > first:
                skip = max(0, first - offset)
                begins = begins if runs else at + skip
                runs.append(RecordRun(offset + skip, sequence + skip, time, min(offset + count, end) - offset - skip))
            at += count
        return DecodedBatch(self.batch, runs, begins) if runs else None


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
    """What was lost so far. With `fail` the first loss is an error."""

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
            log.warning("what follows offset %d of topic %r cannot be known (%s); the query goes on", first, topic, why)
            return
        self.offsets += end - first
        log.warning(
            "offsets [%d, %d) of topic %r are lost (%s); the query goes on, and has lost %d offsets now",
            first, end, topic, why, self.offsets,
        )  # fmt: skip
