"""Records out of a journal, as a person or another program wants them: decoded, in order, and told what is missing.

One topic is read by offset, several by sequence. What cannot be read comes out as a `Gap` where it
would have been: nothing is left out in silence.
Below: history, ledger. Above: inspection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from runnel.core.errors import BadBatch
from runnel.core.moment import from_micros
from runnel.core.packing import Unpacked, unpack
from runnel.core.record import Gap, Meta, Record
from runnel.journal.history import Found, History, Lost, Plan
from runnel.journal.ledger import TopicState

_PLAIN = Meta()


class Extract:
    """What a journal holds of one topic (places are offsets), or of several (places are sequences).

    `name` is what gaps are told under.
    """

    def __init__(self, history: History, topics: Collection[TopicState], name: str, *, by_sequence: bool) -> None:
        self._history, self._name, self._by_sequence = history, name, by_sequence
        self._topics = {topic.id: topic for topic in topics}

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
                if isinstance(item, Lost):
                    if item.end > (first := max(item.first, place)):
                        yield self._gap(first, item.end, item.reason)
                else:
                    yield from self._records(item, place, time)
            if parsed.position <= plan.position:
                return  # nothing more can be said about this segment, and nothing lies behind it
            place = max(place, parsed.place)
            plan = self._next(place, plan, parsed.position)

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

    def _gap(self, first: int, end: int, reason: str) -> Gap:
        return Gap(self._name, first, end, None if self._by_sequence else end - first, reason)

    def _records(self, found: Found, place: int, time: int | None) -> Iterator[Record[bytes] | Gap]:
        topic = self._topics[found.topic]
        first, end = max(found.base, topic.first), min(found.last + 1, topic.end)
        if first >= end:
            return  # retention let go of it
        try:
            batch = unpack(found.body)
        except BadBatch as error:
            yield Gap(topic.name, first, end, end - first, str(error))
            return
        since = None if time is None else from_micros(time)
        for record in decoded(found, batch, topic):
            here = record.sequence if self._by_sequence else record.offset
            if first <= record.offset < end and here >= place and (since is None or record.time >= since):
                yield record


def decoded(found: Found, batch: Unpacked, topic: TopicState) -> Iterator[Record[bytes]]:
    """The records of a batch."""
    appended = from_micros(found.time)
    metas = batch.metas
    for index, value in enumerate(batch.values):
        delta = index if batch.deltas is None else batch.deltas[index]
        meta = metas.get(index, _PLAIN)
        own = None if batch.times is None else batch.times[index]
        yield Record(
            topic.name,
            found.base + delta,
            found.sequence + delta,
            topic.epoch,
            meta.key,
            value,
            meta.headers,
            appended if own is None else from_micros(own),
        )
