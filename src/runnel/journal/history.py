"""Reading what the journal holds: by topic and offset, or all of it by sequence. A chunk at a time.

*Decide, then act*: `plan` says which bytes to read, `fetch` reads them (the only I/O, for any
thread), `parse` finds the batches in them. Everything read is checked; what is damaged is told
as a range that is missing, and reading goes on behind it.
Below: entry, index, segment. Above: broker.catch_up, inspection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple

from runnel.core.journal_errors import FormatUnknown, JournalDamaged
from runnel.journal import entry, segment
from runnel.journal.entry import HEADER, Kind, body_crc
from runnel.journal.index import WINDOW, Index, IndexBuilder, IndexFile, TopicRange
from runnel.journal.segment import START, SegmentInfo
from runnel.journal.storage import File, Storage
from runnel.journal.swap import read_whole

CHUNK = 256 * 1024  # read at a time where a topic lies densely: what the loop decodes before others get their turn


class Source:
    """One segment to read from: sealed, or the one that is being written."""

    __slots__ = ("_file", "_index", "damage", "info", "pin", "storage", "suspect", "written")

    def __init__(self, storage: Storage, info: SegmentInfo, builder: IndexBuilder | None = None) -> None:
        self.storage, self.info = storage, info
        self._file: File | None = None
        self._index: Index | None = builder
        self.written = info.end  # up to where it may be read; grows while it is written
        self.damage: str | None = None  # what was wrong with its index
        self.suspect = False  # the index was made again, and not all that it should tell of could be read
        self.pin: int | None = None  # a topic whose records here are still wanted, as far as is known

    def __repr__(self) -> str:
        return f"<Source {self.info.name}, {self.written} bytes>"

    @property
    def file(self) -> File:
        """The segment, opened when first read."""
        if self._file is None:
            self._file = self.storage.open(self.info.name)
        return self._file

    @property
    def index(self) -> Index:
        """The index, mapped when first used; made again when it is missing or damaged."""
        index = self._index  # looked at once: the writer may seal the segment meanwhile
        if index is None:
            try:
                file = self.storage.open(self.info.index_name)
                try:
                    index = IndexFile(file.map(), self.info)
                finally:
                    file.close()
            except (JournalDamaged, FormatUnknown, OSError) as error:
                self.damage = str(error)
                index, whole = rebuilt(self.storage, self.info)
                self.suspect = not whole
            self._index = index
        return index

    def holds_records(self) -> bool:
        """Whether there is anything here but state."""
        return any(True for _ in self.index.topics())

    def seal(self, info: SegmentInfo) -> None:
        """Nothing more is written to it; the index goes to its file."""
        self.info, self.written, self._index = info, info.end, None

    def close(self) -> None:
        """Let go of the files."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Plan(NamedTuple):
    """Bytes to read, and what is looked for in them: `place` is an offset of `topic`, or a sequence."""

    source: Source
    position: int
    size: int
    place: int
    suspect: bool = False  # whether what does not come, up to the next batch, was lost and is no hole


class Found(NamedTuple):
    """A batch as it lies on disk, checked."""

    topic: int
    base: int
    last: int
    sequence: int
    time: int
    body: bytes


class Lost(NamedTuple):
    """Offsets of the topic (or sequences) [first, end) that cannot be read."""

    first: int
    end: int
    reason: str


class Parsed(NamedTuple):
    """What a chunk held, where its whole entries end, and the first place that is not in it."""

    items: list[Found | Lost]
    position: int
    place: int


class History:
    """The segments of a journal, in order. Appended to by one thread, read by any."""

    def __init__(self, sources: list[Source]) -> None:
        self.sources = sources

    @property
    def suspect(self) -> bool:
        """Whether some segment may hold records that its index does not tell of."""
        return any(source.suspect for source in self.sources)

    def close(self) -> None:
        """Let go of every file."""
        for source in self.sources:
            source.close()

    # -- by topic -----------------------------------------------------------------------------------------------

    def plan(self, topic: int, offset: int, after: Plan | None = None, position: int = 0) -> Plan | None:
        """Where to read `offset` of `topic`, or what follows it; None: no segment holds anything of it.

        `after` is the plan before, parsed up to `position`: reading goes on there.
        """
        sources = tuple(self.sources)  # the writer may drop some meanwhile
        if after is not None and after.source in sources:
            start = sources.index(after.source)
        else:
            start = _oldest_with(sources, topic, offset)
        suspect = False
        for source in sources[start:]:
            found = source.index.range_of(topic)
            suspect = suspect or source.suspect
            if found is None or found.end <= offset:
                continue
            begin, following = source.index.window(topic, offset)
            if after is not None and after.source is source:
                begin = max(begin, position)
            dense = following is not None and following - begin <= 2 * WINDOW
            size = min(CHUNK if dense else WINDOW, source.written - begin)
            if size > 0:
                return Plan(source, begin, size, offset if suspect else max(offset, found.first), suspect)
        return None

    def plan_at_time(self, topic: int, time: int) -> Plan | None:
        """Where to look for the first record of `topic` that is not older than `time` (microseconds)."""
        for source in self.sources:
            if source.info.last_time < time and source.info.sealed:
                continue
            found = source.index.range_of(topic)
            if found is not None:
                begin = min(source.index.window_at_time(topic, time), source.written)  # the index may be ahead
                return Plan(source, begin, min(CHUNK, source.written - begin), found.first)
        return None

    def ranges(self, topic: int) -> list[tuple[Source, TopicRange]]:
        """What each segment holds of `topic`, oldest first."""
        found = ((source, source.index.range_of(topic)) for source in self.sources)
        return [(source, one) for source, one in found if one is not None]

    # -- by sequence --------------------------------------------------------------------------------------------

    def plan_sequence(self, sequence: int, after: Plan | None = None, position: int = 0) -> Plan | None:
        """Where to read `sequence`, or what follows it."""
        sources = tuple(self.sources)
        if after is not None and after.source in sources:
            if position < after.source.written:
                size = min(CHUNK, after.source.written - position)
                return Plan(after.source, position, size, sequence)
            start = sources.index(after.source) + 1
        else:
            start = bisect_left(sources, sequence + 1, key=_end_sequence)
        for source in sources[start:]:
            if source.written > START and (source.holds_records() or source.suspect):
                # All of a suspect segment is read: what is damaged in it is met on the way, and told.
                window = START if source.suspect else source.index.sequence_window(sequence)
                begin = min(window, source.written)
                return Plan(
                    source, begin, min(CHUNK, source.written - begin), max(sequence, source.info.first_sequence)
                )
        return None

    def plan_sequence_at_time(self, time: int) -> Plan | None:
        """Where to look for the first record of any topic that is not older than `time` (microseconds)."""
        for source in self.sources:
            if source.written > START and (source.info.last_time >= time or not source.info.sealed):
                if not source.holds_records():
                    continue
                begin = min(source.index.time_window(time), source.written)
                return Plan(source, begin, min(CHUNK, source.written - begin), source.info.first_sequence)
        return None

    def offsets_at(self, sequence: int, topics: Collection[int]) -> dict[int, int]:
        """The offset of the first record of each topic at `sequence` or behind it; those that have none are left out.

        One chunk is read. A topic with nothing in it has its next batch further on, at the head of a window: windows
        are as long as a chunk is at least.
        """
        plan = self.plan_sequence(sequence)
        if plan is None:
            return {}
        due: dict[int, int] = {}
        plan = plan._replace(size=min(max(plan.size, CHUNK), plan.source.written - plan.position), place=sequence)
        parsed = self.parse(plan, self.fetch(plan), topics, by_sequence=True)
        for item in parsed.items:
            if isinstance(item, Found) and item.topic not in due:
                due[item.topic] = item.base + max(0, sequence - item.sequence)
        sources = tuple(self.sources)
        later = sources[sources.index(plan.source) + 1 :] if plan.source in sources else ()
        for topic in topics:
            if topic in due:
                continue
            here = plan.source.index.range_of(topic)
            base = None if here is None else plan.source.index.base_behind(topic, parsed.position)
            if base is None:
                ranges = (source.index.range_of(topic) for source in later)
                base = next((found.first for found in ranges if found is not None), None)
            if base is not None:
                due[topic] = base
        return due

    # -- by time ------------------------------------------------------------------------------------------------

    def offset_at(self, topic: int, time: int) -> int | None:
        """The offset of the first record of `topic` that is not older than `time`; None: there is none."""
        plan = self.plan_at_time(topic, time)
        while plan is not None:
            parsed = self.parse(plan, self.fetch(plan), (topic,), by_sequence=False)
            for item in parsed.items:
                if isinstance(item, Lost) or item.time >= time:
                    return item.first if isinstance(item, Lost) else item.base
            plan = self.plan(topic, parsed.place, plan, parsed.position)
        return None

    def sequence_at(self, time: int, topics: Collection[int]) -> int | None:
        """The sequence of the first record of `topics` that is not older than `time`; None: there is none."""
        plan = self.plan_sequence_at_time(time)
        while plan is not None:
            parsed = self.parse(plan, self.fetch(plan), topics, by_sequence=True)
            for item in parsed.items:
                if isinstance(item, Lost) or item.time >= time:
                    return item.first if isinstance(item, Lost) else item.sequence
            plan = self.plan_sequence(parsed.place, plan, parsed.position)
        return None

    # -- acting -------------------------------------------------------------------------------------------------

    @staticmethod
    def fetch(plan: Plan) -> bytes:
        """The bytes of a plan: at least one whole entry, however long, unless it is damaged."""
        data = plan.source.file.read(plan.position, plan.size)
        if len(data) >= HEADER.size:
            magic, _, length, *_ = HEADER.unpack_from(data)
            if magic == entry.MAGIC and plan.size < length <= plan.source.written - plan.position:
                data += plan.source.file.read(plan.position + len(data), length - len(data))
        return data

    @staticmethod
    def parse(plan: Plan, data: bytes, topics: Collection[int], *, by_sequence: bool) -> Parsed:
        """The batches of `topics` in `data` from the plan's place on, in order."""
        info, place = plan.source.info, plan.place
        items: list[Found | Lost] = []
        at, position = 0, plan.position
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
                if kind == Kind.BATCH and (by_sequence or topic in topics):
                    first, end = (sequence, sequence + last - base + 1) if by_sequence else (base, last + 1)
                    if end > place:
                        if plan.suspect and first > place:
                            items.append(Lost(place, first, f"damaged on disk, and so is the index ({info.name})"))
                        if topic in topics:
                            body = data[body_at : body_at + length]
                            if body_crc(kind, body) == crc:
                                items.append(Found(topic, base, last, sequence, time, body))
                            else:
                                items.append(Lost(max(first, place), end, _damaged(info, position)))
                        place = end
                body_at += length
            at += head.end - position
            position = head.end
        return Parsed(items, position, place)


def _oldest_with(sources: Sequence[Source], topic: int, offset: int) -> int:
    """The oldest segment that may hold `offset` of `topic`, looked for from the newest on back."""
    best = len(sources)
    for at in range(len(sources) - 1, -1, -1):
        found = sources[at].index.range_of(topic)
        if found is not None:
            if found.end <= offset:
                break
            best = at
            if found.first <= offset:
                break
    return best


def _is_whole_header(data: bytes, at: int, left: int) -> bool:
    """Whether there are enough bytes to say that this entry's head is wrong, and not just cut off here."""
    if at + HEADER.size > len(data):
        return False
    magic, _, length, parts, *_ = HEADER.unpack_from(data, at)
    sane = magic == entry.MAGIC and length <= left and HEADER.size + parts * entry.PART.size <= length
    return not sane or at + HEADER.size + parts * entry.PART.size <= len(data)


def _skip_damage(
    plan: Plan, items: list[Found | Lost], position: int, place: int, topics: Collection[int], *, by_sequence: bool
) -> Parsed:
    """Go on at the next whole entry of the segment, and tell what lies between."""
    source = plan.source
    info, written = source.info, source.written
    whole = source.file.read(0, written)
    following = segment.next_whole(whole, position + 1, info)
    wanted: list[int] = []
    while following is not None:
        # The next batch of ours tells how much is missing before it.
        wanted = [
            part.sequence if by_sequence else part.base
            for part in following.parts
            if part.kind == Kind.BATCH and part.topic in topics
        ]
        if wanted:
            break
        following = segment.next_whole(whole, following.end, info)
    if wanted:
        end = wanted[0]
    elif by_sequence:
        index = source.index
        end = index.end_sequence if isinstance(index, IndexBuilder) and not info.sealed else info.end_sequence
    else:
        ranges = [found for topic in topics if (found := source.index.range_of(topic)) is not None]
        end = max((found.end for found in ranges), default=place)
    if end > place:
        items.append(Lost(place, end, _damaged(info, position)))
    return Parsed(items, following.position if following else written, max(place, end))


def _damaged(info: SegmentInfo, position: int) -> str:
    return f"damaged on disk ({info.name} at {position})"


def rebuilt(storage: Storage, info: SegmentInfo) -> tuple[IndexBuilder, bool]:
    """The index of a segment, made again from its whole entries; and whether all of them are."""
    builder, whole = IndexBuilder(), True
    data = read_whole(storage, info.name)[: info.end]
    position = START
    while position < len(data):
        found = entry.read_entry(data, position, info.id, position)
        if found is None:
            whole = False
            if (found := segment.next_whole(data, position + 1, info)) is None:
                break
        add_to(builder, found)
        position = found.end
    return builder, whole and position == info.end


def add_to(builder: IndexBuilder, found: entry.Entry) -> None:
    """Note the batches of an entry."""
    for part in found.parts:
        if part.kind == Kind.BATCH:
            builder.add(found.position, part.topic, part.base, part.last, part.sequence, part.time, len(part.body))


def _end_sequence(source: Source) -> int:
    return source.info.end_sequence if source.info.sealed else 1 << 63
