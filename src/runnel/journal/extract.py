"""Records out of a journal, as a person or another program wants them: decoded, in order, and told what is missing.

One topic is read by offset, several by sequence. What cannot be read comes out as a `Gap` where it
would have been: nothing is left out in silence. Records that were staged come where their commit lies.
Below: history, ledger, staged. Above: inspection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from runnel.core.errors import BadBatch
from runnel.core.moment import from_micros
from runnel.core.packing import Unpacked, unpack
from runnel.core.record import Gap, Meta, Record
from runnel.journal.found import Found, Lost, Staged, runs_of
from runnel.journal.gone import Reason
from runnel.journal.history import History, Plan
from runnel.journal.ledger import TopicState
from runnel.journal.staged import followed

_PLAIN = Meta()


class Extract:
    """What a journal holds of one topic (places are offsets), or of several (places are sequences).

    `name` is what gaps are told under.
    """

    def __init__(self, history: History, topics: Collection[TopicState], name: str, *, by_sequence: bool) -> None:
        self._history, self._name, self._by_sequence = history, name, by_sequence
        self._topics = {topic.id: topic for topic in topics}
        self._merged: dict[int, tuple[bytes, Unpacked]] = {}  # by topic, the batch that a block is in the middle of

    def __repr__(self) -> str:
        return f"<Extract of {self._name!r}, {len(self._topics)} topics>"

    def read(self, place: int = 0, time: int | None = None) -> Iterator[Record[bytes] | Gap]:
        """Everything from `place` on, or from the first record on that is not older than `time` (microseconds)."""
        if not self._by_sequence:
            for topic in self._topics.values():
                place = max(place, topic.first)
        plan = self._first(place, time)
        while plan is not None:
            parsed = self._history.parse(
                plan, self._history.fetch(plan), self._topics.keys(), by_sequence=self._by_sequence
            )
            for item in parsed.items:
                if isinstance(item, Staged):
                    for one in self._followed(item, place):
                        yield from self._told(one, place, time)
                else:
                    yield from self._told(item, place, time)
            place = max(place, parsed.place)
            if parsed.position <= plan.position:
                break  # nothing more can be said about this segment, and nothing lies behind it
            plan = self._next(place, plan, parsed.position)
        if not self._by_sequence:
            for topic in self._topics.values():
                yield from self._rest(topic, place)

    def _first(self, place: int, time: int | None) -> Plan | None:
        history = self._history
        if time is None:
            return self._next(place, None, 0)
        if self._by_sequence:
            return history.plan_sequence_at_time(time)
        return next((history.plan_at_time(topic, time) for topic in self._topics), None)

    def _next(self, place: int, after: Plan | None, position: int) -> Plan | None:
        if self._by_sequence:
            return self._history.plan_sequence(place, after, position)
        return next((self._history.plan(topic, place, after, position) for topic in self._topics), None)

    def _rest(self, topic: TopicState, place: int) -> Iterator[Gap]:
        """What should follow on the last record that was found: lost, if a segment may have held it."""
        sources = self._history.sources
        last = max((at for at, one in enumerate(sources) if one.index.range_of(topic.id) is not None), default=0)
        skipped = (one.first for one in topic.gone if one.reason == Reason.SKIPPED and one.end >= topic.end)
        end = min(skipped, default=topic.end)  # nobody was given those
        if place < end and (held := [one for one in sources[last:] if one.suspect]):
            yield self._gap(place, end, f"damaged on disk, and so is the index ({held[0].info.name})")

    def _followed(self, staged: Staged, place: int) -> Iterator[Found | Lost]:
        """What was committed there, from where it was staged."""
        topic = self._topics[staged.topic]
        if staged.last < topic.first:
            return  # retention let go of it
        start = staged.sequence if self._by_sequence else staged.base
        place = max(place, start + topic.first - staged.base)  # batches before that may be gone
        for found in followed(self._history, staged, place, by_sequence=self._by_sequence):
            if not isinstance(found, int):
                yield found

    def _told(self, item: Found | Lost, place: int, time: int | None) -> Iterator[Record[bytes] | Gap]:
        if isinstance(item, Found):
            yield from self._records(item, place, time)
        elif item.end > (first := max(item.first, place)):
            yield self._gap(first, item.end, item.reason)

    def _gap(self, first: int, end: int, reason: str) -> Gap:
        return Gap(self._name, first, end, None if self._by_sequence else end - first, reason)

    def _records(self, found: Found, place: int, time: int | None) -> Iterator[Record[bytes] | Gap]:
        topic = self._topics[found.topic]
        first, end = max(found.base, topic.first), min(found.last + 1, topic.end)
        if first >= end:
            return  # retention let go of it
        try:
            batch = self._unpacked(found)
        except BadBatch as error:
            yield Gap(topic.name, first, end, end - first, str(error))
            return
        since = None if time is None else from_micros(time)
        for record in decoded(found, batch, topic):
            here = record.sequence if self._by_sequence else record.offset
            if first <= record.offset < end and here >= place and (since is None or record.time >= since):
                yield record

    def _unpacked(self, found: Found) -> Unpacked:
        """A batch, decoded once, in how many pieces it may come."""
        if found.runs is None:
            return unpack(found.body)
        known = self._merged.pop(found.topic, None)
        batch = known[1] if known is not None and known[0] is found.body else unpack(found.body)
        if found.at + sum(run.count for run in found.runs) < len(batch):
            self._merged[found.topic] = (found.body, batch)
        return batch


def decoded(found: Found, batch: Unpacked, topic: TopicState) -> Iterator[Record[bytes]]:
    """The records of a batch."""
    metas, index = batch.metas, found.at
    for run in runs_of(found):
        appended = from_micros(run.time)
        behind = index + run.count if found.runs is not None else len(batch)
        for number in range(index, behind):
            delta = number - index if batch.deltas is None else batch.deltas[number]
            meta = metas.get(number, _PLAIN)
            own = None if batch.times is None else batch.times[number]
            yield Record(
                topic.name,
                run.offset + delta,
                run.sequence + delta,
                topic.epoch,
                meta.key,
                batch.values[number],
                meta.headers,
                appended if own is None else from_micros(own),
            )
        index = behind
