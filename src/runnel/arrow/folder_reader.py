"""Reads a journal's folder directly, while its broker writes and cleans it.

It never reads past the durable watermark, and holds a reader's lease while it reads, so that no file it needs is
removed. The process keeps what it knows of a folder for the next task.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from runnel.arrow.range_reader import DecodedBatch, with_offsets
from runnel.arrow.ranges import OffsetRange
from runnel.core.batch_format import UnpackedBatch, unpack
from runnel.core.clock import micros
from runnel.core.errors import BadBatch
from runnel.core.pattern import is_pattern, matches
from runnel.core.schema import Schema
from runnel.core.topic_bounds import TopicBounds, TopicFloors, estimated_bytes
from runnel.journal.format.ledger import TopicState
from runnel.journal.format.removed_offsets import RemovalReason, count_skipped, removed_with_reasons, trimmed_below
from runnel.journal.read.inspection import FolderFollower
from runnel.journal.read.journal_reader import JournalReader, ReadPlan, read_committed_stage
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    FoundItem,
    LostRange,
    ParsedChunk,
    StageCommit,
    blocks_commit,
)

SHARED_BYTES = 16 << 20
"""Of the chunks that a task keeps for its other topics."""

_idle_followers: dict[str, FolderFollower] = {}  # by folder: what this process knows of it, for the next task


class FolderReader:
    """A folder, for one task or one query."""

    def __init__(self, path: str) -> None:
        self._path = str(Path(path).absolute())
        self._shared: _SharedChunks | None = None
        self._is_reading = False
        self._seen: FolderFollower | None = _idle_followers.pop(self._path, None)
        if self._seen is None:
            self._seen = FolderFollower.at(self._path)
        else:
            self._seen.look()

    def __repr__(self) -> str:
        return f"<FolderReader of {self._path!r}>"

    def close(self) -> None:
        """Release the lease. The index is kept, without it."""
        if self._seen is not None:
            self._seen.rest()
            kept = _idle_followers.setdefault(self._path, self._seen)
            if kept is not self._seen:
                self._seen.close()
            self._seen = None

    @property
    def _folder(self) -> FolderFollower:
        assert self._seen is not None, "it is closed"
        return self._seen

    @property
    def journal(self) -> str:
        """The id of the first journal of this history."""
        return self._folder.origin

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""
        seen = self._folder
        seen.look()
        try:
            wild, names = [one for one in patterns if is_pattern(one)], set(patterns)
            chosen = [
                topic for topic in seen.topics if topic.name in names or any(matches(one, topic.name) for one in wild)
            ]
            places: dict[int, int | None] = {}
            if time is not None:
                places = {topic.id: seen.history.offset_at(topic.id, micros(time)) for topic in chosen}
            elif sequence is not None:
                places = {topic.id: None for topic in chosen}
                places |= seen.history.offsets_at(sequence, places)
            return [_bounds_of(topic, places) for topic in chosen]
        finally:
            seen.rest()  # a query asks every second or so, and must not keep files from going meanwhile

    def journal_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        """The same: a folder has the journal alone."""
        return self.bounds(patterns)

    def end_sequence(self) -> int:
        """The sequence after the last record that can be read."""
        return self._folder.ledger.sequence

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        """By name, how far these topics have left the journal by now."""
        seen = self._folder
        if not self._is_reading:  # a look may close files that a read needs
            seen.look()
            seen.rest()
        found = (one for one in map(seen.topic, topics) if one is not None)
        return {
            one.name: TopicFloors(one.name, one.epoch, trimmed_below(one.gone), one.first, one.confirmed, one.end)
            for one in found
        }

    def visible(self, topics: Iterable[str]) -> set[str]:
        """All of them."""
        return set(topics)

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """These will be read next, in this order: what one chunk holds of them is looked for once."""
        found = (self._folder.topic(one.topic) for one in ranges)
        self._shared = _SharedChunks({one.id for one in found if one is not None}) if len(ranges) > 1 else None

    def read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        """The records of a range in order, and what of it cannot be read any more."""
        seen = self._folder
        if not seen.is_held:
            seen.look()
        self._is_reading = True
        try:
            yield from self._read(seen, wanted)
        finally:
            self._is_reading = False

    def _read(self, seen: FolderFollower, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        topic = seen.topic(wanted.topic)
        if topic is None or topic.epoch != wanted.epoch:
            why = "the topic was deleted" if topic is None else "the topic was deleted and made again"
            yield LostRange(wanted.first, wanted.end, why)
            return
        first, end = max(wanted.first, topic.first), min(wanted.end, topic.end)
        if first > wanted.first:
            yield LostRange(wanted.first, min(first, wanted.end), _why_gone(topic))
        if first < end:
            yield from _TopicScan(seen.history, topic, first, end, self._shared).read()
        if end < wanted.end:
            yield LostRange(
                max(end, wanted.first), wanted.end, f"the journal ends at offset {topic.end}: it has shrunk"
            )


def _bounds_of(topic: TopicState, places: Mapping[int, int | None]) -> TopicBounds:
    """The bounds of a topic. `places`: the requested places in it, by its id; None: behind its end."""
    at = None
    if topic.id in places:
        found = places[topic.id]
        at = topic.end if found is None else min(max(found, topic.first), topic.end)
    schema = None if topic.schema is None else Schema(topic.schema["encoding"], topic.schema["schema"])
    given = topic.end - count_skipped(topic.gone, 0, topic.end)
    size = estimated_bytes(topic.bytes, given, topic.end - topic.first)
    removed = removed_with_reasons(topic.gone)
    return TopicBounds(topic.name, topic.epoch, topic.first, topic.end, size, True, at, schema, removed)


def _why_gone(topic: TopicState) -> str:
    reasons = [RemovalReason(one.reason).words for one in topic.gone if one.end == topic.first]
    return f"the topic begins at offset {topic.first} now ({', '.join(reasons) or 'retention'})"


_Items = dict[int, list[FoundBatch | StageCommit | BlocksCommit]]


class _SharedChunks:
    """Chunks that several topics of a task begin at, parsed once for all: a commit may hold records of thousands."""

    def __init__(self, topics: Collection[int]) -> None:
        self._topics = topics
        self._asked: set[tuple[int, int, int]] = set()  # chunks that one topic was read from
        self._kept: OrderedDict[tuple[int, int, int], tuple[ParsedChunk, _Items]] = OrderedDict()
        self._bytes = 0

    def parse(self, history: JournalReader, plan: ReadPlan, topic: int, until: int) -> ParsedChunk:
        """The records of one topic in a chunk, at least up to the offset `until`."""
        key = (plan.source.info.id, plan.position, plan.size)
        if key in self._asked and key not in self._kept and not plan.source.is_cleaned and not plan.suspect:
            self._keep(key, history, plan)
        self._asked.add(key)
        if key not in self._kept:
            return history.parse(plan, history.fetch(plan), (topic,), by_sequence=False, until=until)
        parsed, items = self._kept[key]
        mine = [item for item in items.get(topic, ()) if item.last >= plan.place]
        return ParsedChunk(mine, parsed.position, mine[-1].last + 1 if mine else plan.place)

    def _keep(self, key: tuple[int, int, int], history: JournalReader, plan: ReadPlan) -> None:
        """Find what a chunk holds of all topics, unless something in it is damaged: that is reported topic by topic."""
        parsed = history.parse(plan._replace(place=0), history.fetch(plan), self._topics, by_sequence=True)
        items: _Items = {}
        for item in parsed.items:
            if isinstance(item, LostRange):
                return
            if isinstance(item, BlocksCommit):
                for topic, share in item.shares.items():
                    one = blocks_commit(item.stage, item.sequence, item.records, item.time, {topic: share})
                    items.setdefault(topic, []).append(one)
            else:
                items.setdefault(item.topic, []).append(item)
        self._kept[key] = parsed, items
        self._bytes += parsed.position - plan.position
        while self._bytes > SHARED_BYTES and len(self._kept) > 1:
            (_, position, _), (gone, _) = self._kept.popitem(last=False)
            self._bytes -= gone.position - position


class _TopicScan:
    """A forward read of a topic: its records [first, end), none of which retention has removed."""

    def __init__(
        self, history: JournalReader, topic: TopicState, first: int, end: int, shared: _SharedChunks | None = None
    ) -> None:
        self._history, self._topic, self._first, self._end = history, topic, first, end
        self._shared = shared or _SharedChunks((topic.id,))
        self._merged: tuple[bytes, UnpackedBatch] | None = None  # the merged batch that it is in the middle of

    def read(self) -> Iterator[DecodedBatch | LostRange]:
        history, topic, place = self._history, self._topic, self._first
        plan = history.plan(topic.id, place)
        while plan is not None:
            parsed = self._shared.parse(history, plan, topic.id, self._end)
            for item in parsed.items:
                if not isinstance(item, LostRange) and item.base >= self._end:
                    return
                yield from self._told(item)
            place = max(place, parsed.place)
            if place >= self._end or parsed.position <= plan.position:
                break
            plan = history.plan(topic.id, place, plan, parsed.position)
        yield from self._rest(place)

    def _told(self, item: FoundItem) -> Iterator[DecodedBatch | LostRange]:
        if isinstance(item, LostRange):
            first, end = max(item.first, self._first), min(item.end, self._end)
            if first < end:
                yield LostRange(first, end, item.reason)
        elif isinstance(item, StageCommit | BlocksCommit):
            for one in read_committed_stage(self._history, item, self._first, by_sequence=False):
                if isinstance(one, FoundBatch) and one.base >= self._end:
                    return
                if not isinstance(one, int):
                    yield from self._told(one)
        elif item.last >= self._first:
            try:
                found = self._decoded(item)
            except BadBatch as error:
                yield from self._told(LostRange(item.base, item.last + 1, f"cannot be decoded: {error.why}"))
                return
            kept = found.within(self._first, self._end) if self._is_cut(item) else found
            if kept is not None:
                yield kept

    def _is_cut(self, found: FoundBatch) -> bool:
        return found.base < self._first or found.last >= self._end

    def _decoded(self, found: FoundBatch) -> DecodedBatch:
        if found.runs is None:
            return with_offsets(unpack(found.body, verify=False), found.base, found.sequence, found.time)
        known, self._merged = self._merged, None
        batch = known[1] if known is not None and known[0] is found.body else unpack(found.body, verify=False)
        if found.at + sum(run.count for run in found.runs) < len(batch):
            self._merged = (found.body, batch)
        return DecodedBatch(batch, found.runs, found.at)

    def _rest(self, place: int) -> Iterator[LostRange]:
        """The place after the last found record: records from there on are lost, if a segment may have held them."""
        sources, topic = self._history.sources, self._topic
        last = max((at for at, one in enumerate(sources) if one.index.range_of(topic.id) is not None), default=0)
        never = (one.first for one in topic.gone if one.reason == RemovalReason.SKIPPED and one.end >= topic.end)
        end = min(self._end, min(never, default=topic.end))
        if place < end and (held := [one for one in sources[last:] if one.suspect]):
            yield LostRange(place, end, f"damaged on disk, and so is the index ({held[0].info.name})")
