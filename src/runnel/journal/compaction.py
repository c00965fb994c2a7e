"""Compaction by key: of each key of a topic only the newest record is kept.

A record with a key and an empty value is a *tombstone*: it takes all older records of its key with it, and
goes itself when it is old enough and none of them can be there any more. Records without a key stay.

A *pass* over a topic reads sealed segments: first what is new, to learn the newest offset of each key, then what
was compacted before, to find what that supersedes. It reads; the cleaner takes away. The keys of a pass are
bounded: it goes as far as they reach, and the next one goes on from there. Records that were staged are looked
for where they lie. What was found can be noted, and is recalled after a restart.
Below: key_pass, key_note, living, cleaner. Above: broker.cleaning.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Set

from runnel.core.errors import RunnelError
from runnel.journal.cleaner import Job
from runnel.journal.cleaning import WAIT
from runnel.journal.entry import Part
from runnel.journal.history import History
from runnel.journal.index import TopicRange
from runnel.journal.key_note import KeyNote, Pending, TopicNote
from runnel.journal.key_pass import KeyPass, Known
from runnel.journal.living import Living
from runnel.journal.offset_set import OffsetSet
from runnel.journal.parts import compacted_part

MAX_KEYS = 512 * 1024  # in one pass: some 80 MiB
TOMBSTONE_AGE = 24 * 3600.0
_LOOKS = 24  # tombstones are looked for so often in the time that they are kept
_END = 1 << 64  # behind all offsets


class Compaction:
    """The compacted topics of a journal: which is due, and what was found in each."""

    def __init__(self, history: History, tombstone_age: float = TOMBSTONE_AGE, max_keys: int = MAX_KEYS) -> None:
        self._history, self._max_keys = history, max_keys
        self._age = int(tombstone_age * 1e6)
        self._topics: dict[int, Known] = {}
        self.error: Exception | None = None  # the last that kept a topic from being looked through
        self.under_way: KeyPass | None = None  # the pass of an earlier life that was recalled

    def __repr__(self) -> str:
        return f"<Compaction of {len(self._topics)} topics>"

    def due(self, living: Living, holds: Mapping[int, int], now: int, but: Container[int] = ()) -> KeyPass | None:
        """A pass over a topic that has as much that is new as was kept before, or tombstones whose time has come.

        Nothing at or behind the offset that `holds` names for a topic is taken. Topics in `but` had their turn.
        """
        for topic in self._topics.keys() - living.compacting.keys():
            del self._topics[topic]
        for topic, (compacted, end) in living.compacting.items():
            if topic in but:
                continue
            known = self._topics.get(topic)
            if known is None:
                known = self._topics[topic] = Known(compacted, now + self._age // _LOOKS)
            if now < known.rests_until:
                continue
            first, hold = living.firsts[topic], holds.get(topic, end)
            enough = max(known.surveyed, first) + (1 if known.cut_short else max(1, known.kept))
            is_old = now >= known.look_at and min(known.surveyed, hold) > first
            if not is_old and min(end, hold) < enough:
                continue  # without a look at any segment: there may be many topics
            try:
                bound = min(self._sealed_end(topic), hold)
            except (OSError, RunnelError) as error:
                self.error = error
                known.rests_until = now + WAIT
                continue
            if is_old or bound >= enough:
                known.superseded.discard(0, first)
                bound = min(max(bound, known.surveyed), hold)  # what lay last may have been taken
                return KeyPass(self._history, topic, known, (first, bound), now - self._age, self._max_keys)
        return None

    def failed(self, broken: KeyPass, now: int) -> None:
        """A pass could not be done: its topic is left alone for a while. What it found so far is true."""
        if (known := self._topics.get(broken.topic)) is not None:
            known.rests_until = now + WAIT

    def over(self, done: KeyPass, now: int) -> Part | None:
        """A pass is done: what is to be written about it, if anything is."""
        known = self._topics.get(done.topic)
        if known is None:
            return None
        soon = now + self._age // _LOOKS + 1
        known.look_at = now + self._age if done.tombstone is None else max(soon, done.tombstone + self._age)
        if known.clean <= known.told:
            return None
        known.told = clean = known.clean
        return compacted_part(done.topic, clean, clean, known.kept, 0, now, clean)

    def taken(self, holds: Mapping[int, int]) -> dict[int, OffsetSet]:
        """What the cleaner may take, by topic: nothing from where it is held on, however long ago it was found."""
        found = ((topic, known.superseded.below(holds.get(topic))) for topic, known in self._topics.items())
        return {topic: offsets for topic, offsets in found if len(offsets)}

    def is_held(self, job: Job, holds: Mapping[int, int]) -> bool:
        """Whether a job takes something that has come to be held since it was made."""
        return any(
            job.living.taken[topic].count(max(first, holds[topic]), end)
            for topic in job.taken.keys() & holds.keys()
            for first, end in _cleaned(job, topic)
        )

    def replaced(self, job: Job, now: int) -> list[Part]:
        """A job was put in place, and what it took is gone: what is to be written about it."""
        parts = []
        for topic, removed in job.taken.items():
            known = self._topics.get(topic)
            if known is None or not removed:
                continue
            ranges = _ranges(job, topic)
            for first, end in _cleaned(job, topic):
                known.superseded.remove(job.living.taken[topic], first, end)
            parts.append(compacted_part(topic, ranges[0].first, ranges[-1].end, known.kept, removed, now, known.clean))
        return parts

    # -- across restarts ----------------------------------------------------------------------------------------

    def note(self, journal: str, job: Job | None = None, under_way: KeyPass | None = None) -> KeyNote:
        """All that is known now, and before a job is put in place, what will be gone then."""
        topics = [
            TopicNote(topic, known.surveyed, known.kept, known.cut_short, known.look_at, known.superseded.encode())
            for topic, known in self._topics.items()
        ]
        segments = [source.info.id for source in tuple(self._history.sources) if source.info.sealed]
        pending = None
        if job is not None:
            made = [info.id for info in job.made]
            taken = [
                (topic, [page for span in _cleaned(job, topic) for page in job.living.taken[topic].encode(*span)])
                for topic in job.taken
                if topic in job.living.taken
            ]
            segments += made
            pending = Pending([source.info.id for source in job.sources], made, taken)
        return KeyNote(journal, segments, topics, pending, None if under_way is None else under_way.note())

    def recall(self, note: KeyNote, living: Living) -> Iterator[None]:
        """Know again what was noted, a segment at a time; then `under_way` is the pass that can go on, if there is one.

        A segment that the note does not know may hold anything: from the first offset in it on, all is looked at again.
        What was superseded in segments that are not there any more is gone.
        """
        sources = [source for source in tuple(self._history.sources) if source.info.sealed]
        noted = {one.topic: one for one in note.topics if one.topic in living.compacting}
        spans: dict[int, list[tuple[int, int]]] = {}
        surveyed = {one.topic: one.surveyed for one in noted.values()}
        segments = frozenset(note.segments)
        for source in sources:
            for topic, found in source.index.topics():
                if topic in noted:
                    if source.info.id in segments:
                        spans.setdefault(topic, []).append((found.first, found.end))
                    else:
                        surveyed[topic] = min(surveyed[topic], found.first)
            yield
        gone = _gone(note.pending, {source.info.id for source in sources})
        for topic, one in noted.items():
            compacted, _ = living.compacting[topic]
            known = self._topics[topic] = Known(compacted, one.look_at)
            known.surveyed = max(compacted, surveyed[topic])
            known.kept, known.cut_short = one.kept, one.cut_short
            superseded = OffsetSet()
            superseded.put(one.superseded)
            if topic in gone:
                superseded.remove(gone[topic], 0, _END)
            superseded.discard(0, max(compacted, living.firsts[topic]))
            known.superseded.put([page for span in spans.get(topic, ()) for page in superseded.encode(*span)])
        if (passed := note.under_way) is not None and passed.topic in noted:
            known = self._topics[passed.topic]
            if known.surveyed == passed.surveyed:
                self.under_way = KeyPass.resumed(self._history, known, passed, self._max_keys)

    def _sealed_end(self, topic: int) -> int:
        """Up to where a topic lies in sealed segments."""
        for source in reversed(tuple(self._history.sources)):
            if source.info.sealed and (found := source.index.range_of(topic)) is not None:
                return found.end
        return 0


def _gone(pending: Pending | None, there: Set[int]) -> dict[int, OffsetSet]:
    """By topic: what a job took, if it was put in place."""
    gone: dict[int, OffsetSet] = {}
    if pending is None or (there.isdisjoint(pending.made) and not there.isdisjoint(pending.replaced)):
        return gone
    for topic, pages in pending.taken:
        gone[topic] = OffsetSet()
        gone[topic].put(pages)
    return gone


def _ranges(job: Job, topic: int) -> list[TopicRange]:
    """What a job read of a topic."""
    return [found for source in job.sources if (found := source.index.range_of(topic)) is not None]


def _cleaned(job: Job, topic: int) -> list[tuple[int, int]]:
    """The offsets of a topic from which a job took what it should: not those of stages that stay where they lie."""
    cleaned: list[tuple[int, int]] = []
    left = sorted(job.left.get(topic, ()))
    for found in _ranges(job, topic):
        at = found.first
        for first, end in left:
            if found.first <= first < found.end:
                cleaned.append((at, first))
                at = end
        cleaned.append((at, found.end))
    return cleaned
