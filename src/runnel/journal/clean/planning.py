"""Which segments are worth rewriting. Decides; reads indexes and nothing else.

A segment is rewritten when its dead share, together with neighbours of its kind, passes a bound. This also bounds
write amplification. Small segments, as restarts leave them, are merged eight at a time. Records that were committed as
a stage are counted where their commit lies, because cleaning moves them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from runnel.core.errors import RunnelError
from runnel.journal.clean.live_records import LiveSnapshot
from runnel.journal.format.entry import PART, STAGE_TOPIC
from runnel.journal.format.ledger import CommittedStage
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.read.segment_reader import SegmentReader

DEAD_BOUND = (
    0.4  # of a segment must be dead: so that, in the long run, at most 1 / 0.4 bytes are written for each published
)
MAX_INPUTS = 8  # segments in one job
SMALL = 8  # a segment is small when so many of them make up a full one
LEAST = 64  # a job is to give back at least this part of a full segment
FEW = 64  # topics that are looked for one by one, before all are
RETRY_AFTER = 3600 * 1_000_000  # microseconds until something is tried again that could not be read
_COST = 64 * 1024  # what a job costs besides the bytes: syncs, and a manifest


class StageLiveShare(NamedTuple):
    """How much is wanted of a stage that was committed: of `total` bytes, `live`, about."""

    stage: int
    total: int
    live: int


class LiveShare(NamedTuple):
    """How much of a segment is wanted: of `total` bytes, `live`, about.

    `stages` were committed in it, lie where they were staged, and are not all alive.
    """

    source: SegmentReader
    total: int
    live: int
    stages: tuple[StageLiveShare, ...] = ()

    @property
    def dead(self) -> int:
        """The bytes that cleaning frees."""
        return self.total - self.live

    def due(self, bound: float) -> LiveShare:
        """With those stages that are dead enough themselves: they go into the segment when it is written again."""
        if not self.stages:
            return self
        due = tuple(one for one in self.stages if _is_dead(one.total - one.live, one.total, bound))
        total, live = sum(one.total for one in due), sum(one.live for one in due)
        return LiveShare(self.source, self.total + total, self.live + live, due)


def live_share_of(source: SegmentReader, living: LiveSnapshot) -> LiveShare:
    """The live share of a sealed segment, from its index."""
    total = max(0, source.info.end - START)
    held = 0
    live = records = 0.0
    stages: list[StageLiveShare] = []
    blocks: set[int] = set()
    for topic, found in source.index.topics():
        share = living.share(topic, found)
        committed = living.stages_in(topic, found) if topic in living.committed else ()
        blocks.update(stage.id for stage in committed if stage.id in living.blocks)
        plain = (stage for stage in committed if stage.id not in living.blocks)
        stages += [one for stage in plain if (one := _stage_live_share(stage, living)) is not None]
        held += found.bytes
        live += found.bytes * share
        records += max(0, found.records - sum(stage.end - stage.base - 1 for stage in committed)) * share
    stages += [one for stage in sorted(blocks) if (one := _blocks_live_share(stage, living)) is not None]
    # Besides batches there are their headers, which live and die with them, and state, which checkpoints hold. Of that
    # a cleaned segment has only the names of its topics, and they would be written again.
    beside = max(0, total - held) * live / max(1, held)
    live += beside if source.is_cleaned else min(beside, records * PART.size)
    return LiveShare(source, total, min(total, int(live)), tuple(stages))


def _stage_live_share(stage: CommittedStage, living: LiveSnapshot) -> StageLiveShare | None:
    """The live part of a committed stage; None: all of it."""
    live = _live_bytes(stage, living)
    return StageLiveShare(stage.id, stage.bytes, live) if live < stage.bytes else None


def _blocks_live_share(stage: int, living: LiveSnapshot) -> StageLiveShare | None:
    """The same of a stage of many topics, whose commit lies in one segment as a whole."""
    total, shares = living.blocks[stage]
    live = sum(_live_bytes(share, living) for share in shares)
    return StageLiveShare(stage, total, live) if live < total else None


def _live_bytes(stage: CommittedStage, living: LiveSnapshot) -> int:
    first, records = living.firsts.get(stage.topic, stage.end), stage.end - stage.base
    live = stage.bytes * (stage.end - max(first, stage.base)) // records
    if (taken := living.taken.get(stage.topic)) is not None:
        begin = max(first, stage.base)
        dead = taken.size(begin, stage.end) or taken.count(begin, stage.end) * stage.bytes // records
        live -= min(live, dead)
    return live


class LiveShares:
    """The shares of all sealed segments, kept while nothing dies in them. `look` brings them up to date."""

    def __init__(self) -> None:
        self.now: list[LiveShare | None] = []  # in the order of the segments; None: not to be touched
        self._known: dict[int, LiveShare] = {}  # by the id of the segment
        self._living: LiveSnapshot | None = None
        self._refused: dict[int, int | None] = {}  # by the id of a segment: until when; None: for good
        self._fixed: set[int] = set()  # stages that are not all readable: they stay where they are
        self._made: dict[int, LiveSnapshot] = {}  # by the id of a segment that was just cleaned: by what
        self._whole: dict[int, int] = {}  # what seemed to live in it then, if that was not all
        self.error: Exception | None = None  # why one could not be looked into, in the last look

    @property
    def total(self) -> int:
        """The bytes of all segments that can be cleaned."""
        return sum(share.total for share in self.now if share is not None)

    @property
    def live(self) -> int:
        """Those of them that are wanted, about."""
        dead = sum(one.total - one.live for share in self.now if share is not None for one in share.stages)
        return max(0, sum(share.live for share in self.now if share is not None) - dead)

    def refuse(self, sources: Iterable[SegmentReader], until: int | None = None) -> None:
        """Leave these alone until then, or for good: something in them cannot be read."""
        self._refused |= {source.info.id: until for source in sources}

    def refuse_stage(self, stage: int) -> None:
        """Leave a committed stage where it lies: something in it cannot be read."""
        self._fixed.add(stage)

    def made(self, infos: Iterable[SegmentInfo], living: LiveSnapshot) -> None:
        """These hold the records that `living` kept of others. Those that still seem dead are no reason for a retry."""
        living = msgspec.structs.replace(living, taken={})  # that is missing
        self._made |= {info.id: living for info in infos}

    def look(self, sources: Sequence[SegmentReader], living: LiveSnapshot, now: int = 0) -> Iterator[None]:
        """Determine the live share, a segment at a time."""
        self.error = None
        died = self._died(living)
        known, self._known, self._living = self._known, {}, living
        ids = {source.info.id for source in sources}
        self._refused = {
            number: until for number, until in self._refused.items() if number in ids and (until is None or now < until)
        }
        self._whole = {number: live for number, live in self._whole.items() if number in ids}
        found: list[LiveShare | None] = []
        for source in sources:
            number = source.info.id
            if number not in living.segments or number in self._refused:
                found.append(None)  # its live records are not known, or cannot be read
                continue
            try:
                index = source.index
            except (OSError, RunnelError) as error:
                self.error = error
                self.refuse([source], now + RETRY_AFTER)
                found.append(None)
                continue
            if source.suspect:
                found.append(None)  # it may contain records that its index does not list
                continue
            share = known.get(number)
            if share is None or died is None or any(index.range_of(topic) is not None for topic in died):
                share = self._share_of(source, living)
                yield
            if any(one.stage in self._fixed for one in share.stages):
                share = share._replace(stages=tuple(one for one in share.stages if one.stage not in self._fixed))
            self._known[number] = share
            found.append(share)
        self.now, self._made = found, {}  # at once: others ask for the sums

    def _share_of(self, source: SegmentReader, living: LiveSnapshot) -> LiveShare:
        """Measured by its apparent live share right after cleaning: that was all of it.

        It seems less where the share of a topic is an estimate: the commit of a stage that is half below
        the first offset stays whole, however much of the topic it contains.
        """
        number = source.info.id
        if (then := self._made.get(number)) is not None and (whole := live_share_of(source, then)).dead:
            self._whole[number] = max(1, whole.live)
        share = live_share_of(source, living)
        whole_live = self._whole.get(number, share.total)
        return share._replace(live=min(share.total, share.total * share.live // max(1, whole_live)))

    def _died(self, living: LiveSnapshot) -> list[int] | None:
        """The topics and stages of which something died since the last look; None: too many to ask for each."""
        last = self._living
        if last is None:
            return None
        died = [topic for topic, first in last.firsts.items() if living.firsts.get(topic) != first]
        died += [STAGE_TOPIC | stage for stage in last.stages - living.stages]
        died += last.taken.keys() | living.taken.keys()  # some of the records to remove may be held now
        return died if len(died) <= FEW else None


def choose_segments(
    shares: Sequence[LiveShare | None], segment_bytes: int, bound: float = DEAD_BOUND, room: int | None = None
) -> list[SegmentReader]:
    """The neighbouring segments to rewrite next; none: no rewrite is worth it.

    `shares` are those of all sealed segments in their order, None for one that is not to be touched. With `room`,
    their live records must fit into so many bytes.
    """
    shares = [None if one is None else one.due(bound) for one in shares]
    best: list[SegmentReader] = []
    best_score = (0.0, 0)
    for start in range(len(shares)):
        run: list[LiveShare] = []
        for one in shares[start : start + MAX_INPUTS]:
            if one is None or not (_is_dead(one.dead, one.total, bound) or one.live * SMALL <= segment_bytes):
                break
            run.append(one)
            live = sum(share.live for share in run)
            if (live > segment_bytes and len(run) > 1) or (room is not None and live > room):
                break
            score = _score(run, segment_bytes, bound)
            if score > best_score:
                best, best_score = [share.source for share in run], score
    return best


def stages_to_place(
    shares: Iterable[LiveShare | None], chosen: Sequence[SegmentReader], bound: float = DEAD_BOUND
) -> frozenset[int]:
    """The stages that go into their topics when the `chosen` segments are written again."""
    due = (one.due(bound) for one in shares if one is not None and one.source in chosen)
    return frozenset(one.stage for share in due for one in share.stages)


def _score(run: Sequence[LiveShare], segment_bytes: int, bound: float) -> tuple[float, int]:
    """The bytes freed for each byte written; (0, 0): not worth it."""
    total, live = sum(one.total for one in run), sum(one.live for one in run)
    dead = total - live
    if _is_dead(dead, total, bound) and dead * LEAST >= segment_bytes:
        return dead / (live + _COST), len(run)
    # Small ones: each at most half of what they become, so that no byte is written often on its way to a full one.
    if len(run) == MAX_INPUTS and all(one.live * SMALL <= segment_bytes and one.live * 2 <= live for one in run):
        return max(1.0, dead) / (live + _COST), len(run)
    return 0.0, 0


def _is_dead(dead: int, total: int, bound: float) -> bool:
    return dead > 0 and dead >= bound * total
