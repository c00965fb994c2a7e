"""Offset ranges of a lake, alone or below a journal.

`LayeredReader` reads a journal and its lake as one topic: records that retention took from the journal come from the
lake, under the same offsets. It asks where the journal begins before each part, so that records which retention takes
meanwhile are neither missed nor repeated. It shows nothing that was trimmed or deleted, though the lake may have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from runnel.arrow.range_reader import FoundPart, LakeRows, RangeReader
from runnel.arrow.ranges import OffsetRange
from runnel.core.pattern import matches
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.journal.read.segment_reader import LostRange

if TYPE_CHECKING:
    from runnel.lake import LakeHistory

KEPT_LAKES = 4
"""Of which a process keeps what it read of the log, for the next task."""

NOT_THERE = "the journal has dropped them, and the lake does not have them"


@lru_cache(KEPT_LAKES)
def _kept(location: str, storage: tuple[tuple[str, str], ...]) -> LakeHistory:
    from runnel.lake import LakeHistory

    return LakeHistory(location, storage_options=dict(storage) or None)


class LakeReader:
    """A lake as a `RangeReader`."""

    def __init__(self, lake: LakeHistory) -> None:
        self.lake = lake

    @classmethod
    def of(cls, location: str, storage: Mapping[str, str]) -> LakeReader:
        """The reader of a location; the process keeps what it knows of it."""
        return cls(_kept(location, tuple(sorted(storage.items()))))

    def __repr__(self) -> str:
        return f"<LakeReader of {self.lake!r}>"

    def close(self) -> None:
        """Nothing to close: cached data is kept for the next task."""

    @property
    def journal(self) -> str:
        """The id of the journal whose records it holds; empty: no archive said it."""
        return self.lake.journal or ""

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end, by name: of each the newest epoch."""
        newest = {topic: (epoch, end) for (topic, epoch), end in sorted(self.lake.next_offsets().items())}
        chosen = {
            (topic, epoch): end
            for topic, (epoch, end) in newest.items()
            if any(matches(one, topic) for one in patterns)
        }
        firsts, places = self.lake.first_offsets(chosen), self.places(chosen, time, sequence)
        return [
            TopicBounds(*key, firsts.get(key, end), end, at=None if places is None else places.get(key, end))
            for key, end in chosen.items()
        ]

    def places(
        self, topics: Mapping[tuple[str, int], int], time: datetime | None, sequence: int | None
    ) -> dict[tuple[str, int], int] | None:
        """The place of a time or a sequence in some topics, by topic and epoch; None: neither was requested."""
        if time is not None:
            return self.lake.first_offsets(topics, since=time)
        return None if sequence is None else self.lake.first_offsets(topics, sequence=sequence)

    def journal_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        """None: there is no journal."""
        return []

    def end_sequence(self) -> int:
        """The sequence after the last record."""
        return self.lake.end_sequence()

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        """All its records may be shown: a lake alone does not know later trims."""
        known = sorted(self.lake.next_offsets().items())
        return {topic: TopicFloors(topic, epoch, 0, end, end, end) for (topic, epoch), end in known if topic in topics}

    def visible(self, topics: Iterable[str]) -> set[str]:
        """All of them."""
        return set(topics)

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """Nothing is done together."""

    def read(self, wanted: OffsetRange) -> Iterator[LakeRows | LostRange]:
        """The rows of a range in order; what the lake was never given is lost."""
        topic, epoch, first, end, *_ = wanted
        known = self.lake.next_offsets().get((topic, epoch), 0)
        for table in self.lake.rows(topic, epoch, first, min(end, known)):
            yield LakeRows(table)
        if known < end:
            yield LostRange(max(first, known), end, NOT_THERE)


class LayeredReader:
    """A journal and, below what it still holds, its lake."""

    def __init__(self, journal: RangeReader, lake: LakeReader) -> None:
        self._journal, self._lake = journal, lake
        self._is_checked = False

    def __repr__(self) -> str:
        return f"<LayeredReader of {self._journal!r} and {self._lake!r}>"

    def close(self) -> None:
        """Close the journal. Harmless twice."""
        self._journal.close()

    @property
    def journal(self) -> str:
        """The id of the journal."""
        return self._journal.journal

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin, in the lake or in the journal, and end, by name.

        The journal is queried first: records that retention removes later are in the lake by then.
        """
        if not self._is_checked:  # a lake of another journal has other records under the same offsets
            self._lake.lake.check_journal(self._journal.journal)
            self._is_checked = True
        found = self._journal.bounds(patterns, time, sequence)
        ends = {(one.topic, one.epoch): one.end for one in found if one.durable}
        firsts = self._lake.lake.first_offsets(ends)
        older = {key: end for key, end in ends.items() if key in firsts}
        places = self._lake.places(older, time, sequence) or {}
        floors = self._journal.floors([topic for topic, _ in older])
        joined = []
        for one in found:
            key, floor = (one.topic, one.epoch), floors.get(one.topic)
            if key in older and floor is not None and floor.epoch == one.epoch:
                one = _joined(one, firsts[key], places.get(key), floor.gone)
            joined.append(one)
        return joined

    def journal_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        """The same of the journal alone."""
        return self._journal.journal_bounds(patterns)

    def end_sequence(self) -> int:
        """The sequence after the last record that can be read."""
        return self._journal.end_sequence()

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        """By name, how far these topics have left the journal by now."""
        return self._journal.floors(topics)

    def _floors_of(self, wanted: OffsetRange) -> TopicFloors | None:
        """Of the topic of a range; None: this epoch of it was deleted."""
        found = self._journal.floors([wanted.topic]).get(wanted.topic)
        return found if found is not None and found.epoch == wanted.epoch else None

    def visible(self, topics: Iterable[str]) -> set[str]:
        """Those of these topics that the journal would name if they were there."""
        return self._journal.visible(topics)

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """These will be read next, in this order."""
        self._journal.expect(ranges)

    def read(self, wanted: OffsetRange) -> Iterator[FoundPart]:
        """The records of a range in order, from the lake and then from the journal."""
        place, end = wanted.first, wanted.end
        while place < end:
            floors = self._floors_of(wanted)
            if floors is not None and place < min(floors.gone, floors.moved):
                until = min(floors.gone, floors.moved, end)
                yield LostRange(place, until, "no longer kept (trimmed)")
                place = until
            elif floors is not None and place < floors.moved:
                until = min(floors.moved, end)
                yield from self._lake.read(wanted._replace(first=place, end=until))
                place = until
            else:
                yield from self._from_journal(wanted._replace(first=place))
                return

    def _from_journal(self, wanted: OffsetRange) -> Iterator[FoundPart]:
        """Records from the journal, and those that it lost meanwhile from the lake."""
        for found in self._journal.read(wanted):
            if not isinstance(found, LostRange):
                yield found
                continue
            floors = self._floors_of(wanted)
            first, end = max(found.first, wanted.first), min(found.end, wanted.end)
            begin = end if floors is None else max(first, floors.gone)
            until = end if floors is None else min(end, floors.end)
            if begin >= until:
                yield found
                continue
            if first < begin:
                yield LostRange(first, begin, found.reason)
            for part in self._lake.read(wanted._replace(first=begin, end=until)):
                yield LostRange(part.first, part.end, found.reason) if isinstance(part, LostRange) else part
            if until < end:
                yield LostRange(until, end, found.reason)


def _joined(one: TopicBounds, first: int, at: int | None, gone: int) -> TopicBounds:
    """The bounds of a topic of which the lake has rows from `first` on, and the requested ones from `at` on."""
    first = min(max(first, gone), one.first)
    if one.at is not None and at is not None:
        at = max(first, min(at, one.at))
    return msgspec.structs.replace(
        one, first=first, bytes=round(one.record_bytes * (one.end - first)), at=one.at if at is None else at
    )
