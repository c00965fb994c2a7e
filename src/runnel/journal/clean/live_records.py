"""Live records: a snapshot of which records retention and compaction still keep. It drops all others.

A snapshot may be old: records that died since are kept a little longer. Nothing that is dead in a snapshot ever lives
again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from runnel.journal.format.entry import STAGE_TOPIC
from runnel.journal.format.index import TopicRange
from runnel.journal.format.ledger import CommittedStage, Ledger
from runnel.journal.format.offset_sets import OffsetBitmap
from runnel.journal.format.segment import SegmentInfo


class TopicName(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The name of a topic."""

    topic: int
    name: str
    epoch: int


class BlocksSnapshot(NamedTuple):
    """A committed stage of many topics: its bytes, and what topics still have of it."""

    bytes: int
    shares: Sequence[CommittedStage]


class LiveSnapshot(msgspec.Struct):
    """The topics and their first offsets, the stages that are open or read, and the offsets to be taken.

    It covers the segments that were sealed then, and no others: in a later one there may be topics
    that it does not know, and they would seem to be dead.
    """

    firsts: dict[int, int]
    names: dict[int, TopicName]
    stages: frozenset[int]
    segments: frozenset[int] = frozenset()  # the ids of those that were sealed
    compacting: dict[int, tuple[int, int]] = {}  # topics that keep the newest of each key: compacted below, and end
    taken: Mapping[int, OffsetBitmap] = {}  # by topic: what compaction by key takes
    committed: Mapping[
        int, Sequence[CommittedStage]
    ] = {}  # by topic, in order: its stages that are read where they lie
    blocks: Mapping[int, BlocksSnapshot] = {}  # those of them that hold records of many topics

    @classmethod
    def of(cls, ledger: Ledger, segments: Iterable[SegmentInfo] = ()) -> LiveSnapshot:
        """As a ledger says. On the thread that changes it: between two changes, or a stage might be missed."""
        topics = ledger.topics.values()
        committed: dict[int, list[CommittedStage]] = {}
        for stage in sorted(ledger.committed_shares(), key=attrgetter("base")):
            committed.setdefault(stage.topic, []).append(stage)
        return cls(
            {topic.id: topic.first for topic in topics},
            {topic.id: TopicName(topic.id, topic.name, topic.epoch) for topic in topics},
            frozenset(ledger.stages_in_use()),
            frozenset(info.id for info in segments if info.sealed),
            {topic.id: (topic.compacted, topic.end) for topic in topics if topic.options.get("compact")},
            committed=committed,
            blocks={one.id: BlocksSnapshot(one.bytes, tuple(one.shares.values())) for one in ledger.blocks.values()},
        )

    def wants(self, topic: int, last: int) -> bool:
        """Whether a topic, or a stage in the place of one, still wants something up to offset `last`."""
        if topic & STAGE_TOPIC:
            return topic ^ STAGE_TOPIC in self.stages
        first = self.firsts.get(topic)
        return first is not None and last >= first

    def share(self, topic: int, found: TopicRange) -> float:
        """How much of what a segment holds of a topic is wanted, about: from 0 to 1."""
        if not self.wants(topic, found.end - 1):
            return 0.0
        if topic in self.committed:
            return self._share_beside_stages(topic, found)
        share = 1.0
        first = self.firsts.get(topic, 0)
        if first > found.first:
            share = (found.end - first) / (found.end - found.first)
        if (taken := self.taken.get(topic)) is not None:
            begin = max(first, found.first)
            if dead := taken.size(begin, found.end):  # of a large value and a small one, one each is not half
                share -= dead / max(1, found.bytes)
            else:
                share -= taken.count(begin, found.end) / max(1, found.records)
        return max(0.0, share)

    def _share_beside_stages(self, topic: int, found: TopicRange) -> float:
        """The same for staged items: also of a stage that only its name is left of, which stays while it is read."""
        first, spans = self.firsts[topic], self._beside_stages(topic, found)
        if not spans:
            return 1.0
        share = sum(max(0, end - max(first, begin)) for begin, end in spans) / sum(end - begin for begin, end in spans)
        if (taken := self.taken.get(topic)) is not None:
            dead = sum(taken.size(max(first, begin), end) for begin, end in spans)
            count = sum(taken.count(max(first, begin), end) for begin, end in spans)
            share -= dead / max(1, found.bytes) if dead else count / max(1, found.records)
        return max(0.0, share)

    def stages_in(self, topic: int, found: TopicRange) -> Sequence[CommittedStage]:
        """The stages of a topic whose commits lie in a segment that holds `found` of it."""
        stages = self.committed.get(topic, ())
        low = bisect_left(stages, found.first, key=attrgetter("base"))
        return stages[low : bisect_left(stages, found.end, low, key=attrgetter("base"))]

    def _beside_stages(self, topic: int, found: TopicRange) -> list[tuple[int, int]]:
        """The offsets of a topic in a segment without those of stages: of these, no more than a name lies there."""
        spans: list[tuple[int, int]] = []
        at = found.first
        for stage in self.stages_in(topic, found):
            if stage.base > at:
                spans.append((at, stage.base))
            at = stage.end
        if found.end > at:
            spans.append((at, found.end))
        return spans
