"""Reading records: by topic and offset, or everything by sequence; a chunk at a time.

Decide, then act: `plan` says which bytes to read, `fetch` reads them (the only I/O, for any thread), `parse` finds the
batches in them. Everything read is checked; damage is returned as a `LostRange`, and reading continues behind it.
A chunk is some entries of an uncleaned segment; of a cleaned one, an entry (by topic) or a block (by sequence).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from runnel.core.batch_format import read_batch_header
from runnel.core.errors import BadBatch
from runnel.journal.format import entry, segment, staged_block
from runnel.journal.format.entry import HEADER, HOLDS_RECORDS, HOLDS_STAGED, STAGE_TOPIC, PartKind, body_crc
from runnel.journal.format.index import WINDOW, SegmentBlock, TopicRange
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.read import cleaned_segment
from runnel.journal.read.cleaned_segment import CleanedChunk, decode_stage_commit
from runnel.journal.read.segment_reader import (
    STAGED_MISSING,
    BlocksCommit,
    FoundBatch,
    FoundItem,
    LostRange,
    ParsedChunk,
    SegmentReader,
    StageCommit,
    blocks_commit,
    run_at_time,
)
from runnel.journal.read.staged_blocks import offsets_in_blocks, read_committed_blocks

# Compared for every part: plain integers are faster than members of an enum.
_BATCH, _COMMIT, _BLOCKS = int(PartKind.BATCH), int(PartKind.STAGE_COMMIT), int(PartKind.BLOCKS_COMMIT)

CHUNK = 256 * 1024  # read at a time where a topic lies densely: what the loop decodes before others get their turn


class ReadPlan(NamedTuple):
    """Bytes to read, and the place to find in them: an offset of `topic`, or a sequence."""

    source: SegmentReader
    position: int
    size: int
    place: int
    suspect: bool = False  # whether what does not come, up to the next batch, was lost and is no hole
    block: SegmentBlock | None = None  # of a cleaned segment, to be read by sequence


class JournalReader:
    """The segments of a journal, in order. Appended to by one thread, read by any."""

    def __init__(self, sources: list[SegmentReader]) -> None:
        self.sources = sources

    @property
    def suspect(self) -> bool:
        """Whether some segment may hold records that its index does not list."""
        return any(source.suspect for source in self.sources)

    def close(self) -> None:
        """Close every file, and drop the indexes."""
        for source in self.sources:
            source.close()

    # -- by topic -----------------------------------------------------------------------------------------------

    def plan(
        self, topic: int, offset: int, after: ReadPlan | None = None, position: int = 0, chunk: int | None = None
    ) -> ReadPlan | None:
        """Where to read `offset` of `topic`, or the next one; None: no segment holds it.

        `after` is the plan before, parsed up to `position`: reading continues there. `chunk`: bytes to read, where the
        topic lies densely.
        """
        sources = tuple(self.sources)  # the writer may drop some meanwhile
        if after is not None and after.source in sources:
            start = sources.index(after.source)
        else:
            start = _oldest_with(sources, topic, offset)
        suspect = False
        for source in sources[start:]:
            index = source.index
            found = index.range_of(topic)
            suspect = suspect or source.suspect
            if found is None or found.end <= offset:
                continue
            begin, following = index.window(topic, offset)
            read = position if after is not None and after.source is source else 0
            if source.is_cleaned:
                if begin < read:  # entries of other topics lie in between
                    begin = source.written if following is None else following
            else:
                begin = max(begin, read)
            dense = following is not None and following - begin <= 2 * WINDOW
            size = min((chunk or CHUNK) if dense else WINDOW, source.written - begin)
            if size > 0:
                return ReadPlan(source, begin, size, offset if suspect else max(offset, found.first), suspect)
        return None

    def plan_at_time(self, topic: int, time: int) -> ReadPlan | None:
        """Where to look for the first record of `topic` that is not older than `time` (microseconds)."""
        for source in tuple(self.sources):
            if source.info.last_time < time and source.info.sealed:
                continue
            index = source.index
            found = index.range_of(topic)
            if found is not None:
                begin = min(index.window_at_time(topic, time), source.written)  # the index may be ahead
                return ReadPlan(source, begin, min(CHUNK, source.written - begin), found.first)
        return None

    def ranges(self, topic: int) -> list[tuple[SegmentReader, TopicRange]]:
        """The part of `topic` in each segment, oldest first."""
        found = ((source, source.index.range_of(topic)) for source in self.sources)
        return [(source, one) for source, one in found if one is not None]

    # -- by sequence --------------------------------------------------------------------------------------------

    def plan_sequence(self, sequence: int, after: ReadPlan | None = None, position: int = 0) -> ReadPlan | None:
        """Where to read `sequence`, or the next one."""
        sources = tuple(self.sources)
        if after is not None and after.source in sources:
            source = after.source
            if source.is_cleaned:
                found = source.index.block(sequence, position) if sequence < source.info.end_sequence else None
                if found is not None:
                    return _block_plan(source, found, sequence)
            elif position < source.written:
                return ReadPlan(source, position, min(CHUNK, source.written - position), sequence)
            start = sources.index(source) + 1
        else:
            start = bisect_left(sources, sequence + 1, key=_end_sequence)
        for source in sources[start:]:
            if source.written > START and (source.holds_records() or source.suspect):
                if source.is_cleaned:
                    if (found := source.index.block(sequence)) is not None:
                        return _block_plan(source, found, sequence)
                    continue
                # All of a suspect segment is read: damage in it is met on the way, and reported.
                window = START if source.suspect else source.index.sequence_window(sequence)
                begin = min(window, source.written)
                return ReadPlan(
                    source, begin, min(CHUNK, source.written - begin), max(sequence, source.info.first_sequence)
                )
        return None

    def plan_sequence_at_time(self, time: int) -> ReadPlan | None:
        """Where to look for the first record of any topic that is not older than `time` (microseconds)."""
        for source in tuple(self.sources):
            if source.written > START and (source.info.last_time >= time or not source.info.sealed):
                if source.is_cleaned:
                    if (found := source.index.block_at_time(time)) is not None:
                        return _block_plan(source, found, source.info.first_sequence)
                    continue
                if not source.holds_records():
                    continue
                begin = min(source.index.time_window(time), source.written)
                return ReadPlan(source, begin, min(CHUNK, source.written - begin), source.info.first_sequence)
        return None

    def offsets_at(self, sequence: int, topics: Collection[int]) -> dict[int, int]:
        """The offset of the first record of each topic at `sequence` or behind it; those that have none are left out.

        A chunk is read, or a few where entries are large: up to two windows behind the one that `sequence` lies in. A
        topic with nothing there has its next batch further on, at the head of a window of its own. Of a cleaned
        segment, one entry of each topic is read, or a few.
        """
        plan = self.plan_sequence(sequence)
        if plan is None:
            return {}
        source, due = plan.source, dict[int, int]()
        position, enough = plan.position, min(plan.position + 2 * WINDOW, plan.source.written)
        while plan.block is None and position < enough:
            size = min(CHUNK, source.written - position)
            plan = plan._replace(position=position, size=size, place=sequence)
            parsed = self.parse(plan, self.fetch(plan), topics, by_sequence=True)
            for item in parsed.items:
                if isinstance(item, BlocksCommit):
                    wanted = item.shares.keys() - due.keys()
                    due |= offsets_in_blocks(self, item, sequence, wanted)
                elif not isinstance(item, LostRange) and item.topic not in due:
                    due[item.topic] = item.base + max(0, sequence - item.sequence)
            if parsed.position <= position:
                break
            position = parsed.position
        sources = tuple(self.sources)
        later = sources[sources.index(source) + 1 :] if source in sources else ()
        for topic in topics:
            if topic in due:
                continue
            base = None
            if plan.block is not None:
                base = cleaned_segment.first_offset_at(source, plan.block, topic, sequence, self._offset_in_blocks)
            elif (index := source.index).range_of(topic) is not None:
                base = index.base_behind(topic, position)
            if base is None:
                ranges = (one.index.range_of(topic) for one in later)
                base = next((found.first for found in ranges if found is not None), None)
            if base is not None:
                due[topic] = base
        return due

    def _offset_in_blocks(self, commit: BlocksCommit, sequence: int) -> int | None:
        """The offset of the first record of a commit of one topic at `sequence` or behind it; None: all lie before."""
        return offsets_in_blocks(self, commit, sequence, (commit.topic,)).get(commit.topic)

    # -- by time ------------------------------------------------------------------------------------------------

    def offset_at(self, topic: int, time: int) -> int | None:
        """The offset of the first record of `topic` that is not older than `time`; None: there is none."""
        plan = self.plan_at_time(topic, time)
        while plan is not None:
            parsed = self.parse(plan, self.fetch(plan), (topic,), by_sequence=False)
            for item in parsed.items:
                if isinstance(item, LostRange):
                    return item.first
                if (run := run_at_time(item, time)) is not None:
                    return run.offset
            plan = self.plan(topic, parsed.place, plan, parsed.position)
        return None

    def sequence_at(self, time: int, topics: Collection[int]) -> int | None:
        """The sequence of the first record of `topics` that is not older than `time`; None: there is none."""
        plan = self.plan_sequence_at_time(time)
        while plan is not None:
            parsed = self.parse(plan, self.fetch(plan), topics, by_sequence=True)
            for item in parsed.items:
                if isinstance(item, LostRange):
                    return item.first
                if (run := run_at_time(item, time)) is not None:
                    return run.sequence
            plan = self.plan_sequence(parsed.place, plan, parsed.position)
        return None

    # -- acting -------------------------------------------------------------------------------------------------

    @staticmethod
    def fetch(plan: ReadPlan) -> bytes | CleanedChunk:
        """The bytes of a plan: at least one whole entry, however long, unless it is damaged. Or what they hold."""
        if plan.source.is_cleaned:
            return cleaned_segment.read_cleaned(plan.source, plan.position, plan.size, alone=plan.block is None)
        data = plan.source.file.read(plan.position, plan.size)
        if len(data) >= HEADER.size:
            magic, _, length, *_ = HEADER.unpack_from(data)
            if magic == entry.MAGIC and plan.size < length <= plan.source.written - plan.position:
                data = plan.source.file.read(plan.position, length)  # again, and not the rest: joining costs more
        return data

    @staticmethod
    def parse(
        plan: ReadPlan,
        data: bytes | CleanedChunk,
        topics: Collection[int],
        *,
        by_sequence: bool,
        until: int | None = None,
    ) -> ParsedChunk:
        """The batches of `topics` in `data` from the plan's place on, in order. It may end at the place `until`."""
        if isinstance(data, CleanedChunk):
            return _parse_cleaned(plan, data, topics)
        info, place = plan.source.info, plan.place
        items: list[FoundItem] = []
        found: FoundItem | None
        at, position, followed = 0, plan.position, -1
        if not data and plan.size:  # the file ends before its time
            return _skip_damage(plan, items, position, place, topics, by_sequence=by_sequence)
        while at < len(data):
            head = entry.read_head(data, at, info.id, position)
            if head is None or at + head.end - position > len(data):
                if at == 0 or (head is None and _is_whole_header(data, at, plan.source.written - position)):
                    return _skip_damage(plan, items, position, place, topics, by_sequence=by_sequence)
                break  # the rest is for the next chunk
            body_at = at + head.bodies
            for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
                if kind != _BATCH:
                    if kind in HOLDS_STAGED:
                        topic |= STAGE_TOPIC  # and never met by sequence: it has none
                    elif kind not in HOLDS_RECORDS:
                        body_at += length
                        continue
                    elif kind == _BLOCKS and by_sequence:
                        body_at += length
                        if sequence == followed:
                            continue
                        followed = sequence  # once, with all its topics
                        found, end = _blocks_of(data, at, head, info, sequence, topics)
                        if end > place:
                            if plan.suspect and sequence > place:
                                items.append(LostRange(place, sequence, _index_damaged(info)))
                            if found is not None:
                                items.append(found)
                            place = end
                        continue
                if topic in topics or (by_sequence and topic < STAGE_TOPIC):
                    first, end = (sequence, sequence + last - base + 1) if by_sequence else (base, last + 1)
                    if end > place:
                        if plan.suspect and first > place:
                            items.append(LostRange(place, first, _index_damaged(info)))
                        if topic in topics:
                            body = data[body_at : body_at + length]
                            found = None
                            if body_crc(kind, body) == crc:
                                if kind == _COMMIT:
                                    found = decode_stage_commit(
                                        body, RecordRun(base, sequence, time, last - base + 1), topic
                                    )
                                elif kind == _BLOCKS:
                                    if (share := staged_block.share_of(body)) is not None:
                                        shares = {topic: (base, last)}
                                        found = blocks_commit(share.stage, sequence, share.records, time, shares)
                                else:
                                    found = FoundBatch(topic, base, last, sequence, time, body)
                            items.append(found or LostRange(max(first, place), end, _part_damaged(info, head, topic)))
                        place = end
                body_at += length
            at += head.end - position
            position = head.end
            if until is not None and place >= until:
                break
        return ParsedChunk(items, position, place)


def _block_plan(source: SegmentReader, found: SegmentBlock, place: int) -> ReadPlan:
    size = (source.written if found.end is None else found.end) - found.position
    return ReadPlan(source, found.position, size, max(place, found.first), block=found)


def _parse_cleaned(plan: ReadPlan, data: CleanedChunk, topics: Collection[int]) -> ParsedChunk:
    source, place = plan.source, plan.place
    if plan.block is None:
        items, end = cleaned_segment.items_of_topic(data, source, plan.position, place, topics, suspect=plan.suspect)
        return ParsedChunk(items, data.end, end)
    behind = source.info.end_sequence if plan.block.behind is None else plan.block.behind
    return ParsedChunk(
        cleaned_segment.items_by_sequence(data, source, plan.block, place, frozenset(topics)),
        data.end,
        max(place, behind),
    )


def _oldest_with(sources: Sequence[SegmentReader], topic: int, offset: int) -> int:
    """The oldest segment that may hold `offset` of `topic`, looked for from the newest on back."""
    best = len(sources)
    for at in range(len(sources) - 1, -1, -1):
        found = sources[at].index.range_of(topic)
        if found is not None:
            if found.end <= offset:
                if sources[at].suspect:
                    best = at  # it may have held more than is known
                break
            best = at
            if found.first <= offset:
                break
        elif sources[at].suspect:
            best = at  # it may have held some of it
    return best


def _blocks_of(
    data: bytes, at: int, head: entry.EntryHead, info: SegmentInfo, sequence: int, topics: Collection[int]
) -> tuple[BlocksCommit | LostRange | None, int]:
    """The commit of blocks whose records begin at `sequence`, with the requested ones of its topics; its end.

    One of its parts has to be whole, to name the stage: the head has the rest. None: no topic is requested.
    """
    stage: int | None = None
    records = total = when = 0
    shares: dict[int, tuple[int, int]] = {}
    at += head.bodies
    for kind, _, _, length, crc, topic, base, last, first, time in head.table:
        if kind == _BLOCKS and first == sequence:
            body = data[at : at + length]
            if stage is None and body_crc(kind, body) == crc and (share := staged_block.share_of(body)) is not None:
                stage, total = share.stage, share.records
            when = time
            records += last - base + 1
            if topic in topics:
                shares[topic] = (base, last)
        at += length
    records = max(records, total)  # a repair may have left parts out
    end = sequence + records
    if not shares:
        return None, end
    if stage is None:
        return LostRange(sequence, end, _part_damaged(info, head, next(iter(shares)))), end
    return blocks_commit(stage, sequence, records, when, shares), end


def _index_damaged(info: SegmentInfo) -> str:
    return f"damaged on disk, and so is the index ({info.name})"


def _is_whole_header(data: bytes, at: int, left: int) -> bool:
    """Whether there are enough bytes to say that this entry's head is wrong, and not just cut off here."""
    if at + HEADER.size > len(data):
        return False
    magic, _, length, parts, *_ = HEADER.unpack_from(data, at)
    sane = magic == entry.MAGIC and length <= left and HEADER.size + parts * entry.PART.size <= length
    return not sane or at + HEADER.size + parts * entry.PART.size <= len(data)


def _skip_damage(
    plan: ReadPlan,
    items: list[FoundItem],
    position: int,
    place: int,
    topics: Collection[int],
    *,
    by_sequence: bool,
) -> ParsedChunk:
    """Continue at the next whole entry of the segment, and report the records between."""
    source = plan.source
    info, written = source.info, source.written
    whole = source.file.read(0, written)
    following = segment.next_whole_entry(whole, position + 1, info)
    wanted: list[int] = []
    while following is not None:
        # The next batch of ours shows how much is missing before it.
        wanted = [part.sequence if by_sequence else part.base for part in following.parts if _topic_of(part) in topics]
        if wanted:
            break
        following = segment.next_whole_entry(whole, following.end, info)
    if wanted:
        end = wanted[0]
    elif by_sequence:
        end = source.end_sequence
    else:
        ranges = [found for topic in topics if (found := source.index.range_of(topic)) is not None]
        end = max((found.end for found in ranges), default=place)
    if end > place:
        items.append(LostRange(place, end, _damaged(info, position)))
    return ParsedChunk(items, following.position if following else written, max(place, end))


def _topic_of(part: entry.Part) -> int | None:
    """The topic that readers find a part by; None: it holds no records."""
    if part.kind in HOLDS_STAGED:
        return STAGE_TOPIC | part.topic
    return part.topic if part.kind in HOLDS_RECORDS else None


def _damaged(info: SegmentInfo, position: int) -> str:
    return f"damaged on disk ({info.name} at {position})"


def _part_damaged(info: SegmentInfo, head: entry.EntryHead, topic: int) -> str:
    """Entries do not say which of their parts are one transaction, only which topics they have records of."""
    others = {row[5] for row in head.table if row[0] in HOLDS_RECORDS} - {topic}
    reason = _damaged(info, head.position)
    if others:
        reason += f"; the same commit holds records of {len(others)} more topics, so a transaction may be seen in part"
    return reason


def _end_sequence(source: SegmentReader) -> int:
    return source.info.end_sequence if source.info.sealed else 1 << 63


# -- Records that were committed as a stage --------------------------------------------------------------
# A commit gives the batches of its stage, found by their ordinals, their offsets and sequences. Staged batches
# are read as if their stage were a topic (`stage_topic_of`) whose offsets are ordinals. They may lie in other
# segments than the commit.


def stage_topic_of(staged: StageCommit) -> int:
    """The id that represents the topic in searches for the batches of its stage."""
    return STAGE_TOPIC | staged.stage


class StagePlacement:
    """Gives the batches of a committed stage their offsets and sequences, in order, and misses none in silence."""

    __slots__ = ("_before", "_sequence", "_staged", "ordinal")

    def __init__(self, staged: StageCommit, place: int, *, by_sequence: bool) -> None:
        self._staged, self._sequence = staged, by_sequence
        self._before = [0, *accumulate(staged.counts)]  # records before each batch, and of all
        skipped = place - (staged.sequence if by_sequence else staged.base)
        self.ordinal = 0  # the next one that is wanted
        while self.ordinal < len(staged.counts) and self._before[self.ordinal + 1] <= skipped:
            self.ordinal += 1

    def __repr__(self) -> str:
        return f"<StagePlacement of stage {self._staged.stage}, {self.ordinal} of {len(self._staged.counts)} batches>"

    @property
    def done(self) -> bool:
        """Whether every batch has come, or was reported as lost."""
        return self.ordinal == len(self._staged.counts)

    def placed(self, items: Iterable[FoundItem]) -> Iterator[FoundBatch | LostRange]:
        """The records found in the stage, with their offsets in the topic."""
        for item in items:
            if isinstance(item, LostRange):
                yield from self._lost(item.first, STAGED_MISSING)
                yield from self._lost(item.end, item.reason)
                continue
            ordinal = item.base
            if not isinstance(item, FoundBatch) or not self.ordinal <= ordinal < len(self._staged.counts):
                continue
            yield from self._lost(ordinal, STAGED_MISSING)
            count = self._staged.counts[ordinal]
            try:
                held = read_batch_header(item.body).count
            except BadBatch as error:
                yield from self._lost(ordinal + 1, f"cannot be decoded: {error.why}")
                continue
            if held != count:
                yield from self._lost(ordinal + 1, f"a staged batch holds {held} records, and {count} were committed")
                continue
            staged, before = self._staged, self._before[ordinal]
            first = staged.base + before
            self.ordinal = ordinal + 1
            yield FoundBatch(staged.topic, first, first + count - 1, staged.sequence + before, staged.time, item.body)

    def rest(self) -> Iterator[LostRange]:
        """Nothing more is in the stage."""
        yield from self._lost(len(self._staged.counts), STAGED_MISSING)

    def _lost(self, ordinal: int, reason: str) -> Iterator[LostRange]:
        """The batches before `ordinal` that have not come will not."""
        ordinal = min(ordinal, len(self._staged.counts))
        if ordinal > self.ordinal:
            start = self._staged.sequence if self._sequence else self._staged.base
            yield LostRange(start + self._before[self.ordinal], start + self._before[ordinal], reason)
            self.ordinal = ordinal


def read_committed_stage(
    history: JournalReader, staged: StageCommit | BlocksCommit, place: int, *, by_sequence: bool
) -> Iterator[FoundBatch | LostRange | int]:
    """The records that a commit made visible, from `place` on, read from their stage; after each chunk, its bytes."""
    if isinstance(staged, BlocksCommit):
        yield from read_committed_blocks(history, staged, place, by_sequence=by_sequence)
        return
    placing, stage = StagePlacement(staged, place, by_sequence=by_sequence), stage_topic_of(staged)
    plan = history.plan(stage, placing.ordinal)
    while plan is not None and not placing.done:
        parsed = history.parse(plan, history.fetch(plan), (stage,), by_sequence=False)
        yield from placing.placed(parsed.items)
        if parsed.position <= plan.position:
            break
        yield parsed.position - plan.position
        plan = history.plan(stage, parsed.place, plan, parsed.position)
    yield from placing.rest()
