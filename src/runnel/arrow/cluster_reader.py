"""Reads the topics of a NATS cluster by ranges, on the thread of a connection of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from runnel.arrow.range_reader import DecodedBatch, with_offsets
from runnel.arrow.ranges import OffsetRange
from runnel.cluster.backend import BlockingCalls, ClusterBackend
from runnel.core.record import MissedRange
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.journal.read.segment_reader import LostRange

PATIENCE = 60.0  # seconds for which a cluster may be away: it elects a leader, say


def blocking_calls(url: str, options: Mapping[str, Any]) -> BlockingCalls:
    """A connection to a cluster for one thread, made when it is first used."""
    patience = {"timeout": PATIENCE, "wait": PATIENCE, "close_timeout": 1.0, "name": "spark"}
    return BlockingCalls(lambda: ClusterBackend.at(url, **{**patience, **options}))


class ClusterReader:
    """A cluster, for one task or one query."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._calls = blocking_calls(url, options)
        try:
            self._journal = self._calls.call(_id)
        except BaseException:
            self._calls.close()
            raise

    def __repr__(self) -> str:
        return f"<ClusterReader of {self._journal!r}>"

    def close(self) -> None:
        """Say goodbye. Harmless twice."""
        self._calls.close()

    @property
    def journal(self) -> str:
        """The id of the stream."""
        return self._journal

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""
        if time is None and sequence is None:
            return self._calls.call(lambda backend: backend.range_bounds(patterns))
        return self._calls.call(lambda backend: backend.bounds(patterns, time, sequence))

    def journal_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        """The same: a cluster has no other records."""
        return self.bounds(patterns)

    def end_sequence(self) -> int:
        """The sequence after the last record that can be read."""
        return self._calls.call(lambda backend: backend.end_sequence())

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        """By name, the floors of these topics in the stream: no archive is queried before records leave it."""
        return {
            one.topic: TopicFloors(one.topic, one.epoch, one.first, one.first, 0, one.end)
            for one in self.bounds(topics)
        }

    def visible(self, topics: Iterable[str]) -> set[str]:
        """All of them."""
        return set(topics)

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """Nothing is shared: each range is a direct get of its own."""

    def read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        """The records of a range in order, and what of it cannot be read any more."""
        topic, epoch, first, end, *_ = wanted

        async def begin(backend: ClusterBackend) -> Any:
            return backend.range_reader(topic, epoch, first, end)

        reading = self._calls.call(begin)
        while found := self._calls.call(lambda _: reading.take()):
            for one in found:
                if isinstance(one, MissedRange):
                    yield LostRange(one.first, one.end, one.reason)
                elif (part := with_offsets(one.batch, one.offset, one.offset, one.time).within(first, end)) is not None:
                    yield part


async def _id(backend: ClusterBackend) -> str:
    return backend.id
