"""How a streaming query goes through its topics: where it begins, how far each trigger goes, what that means to read.

All of it happens on the driver, and reads no record. What a query says of its place is in its checkpoint alone: every
answer here follows from that, the options and what is there now.
Below: offsets, admission, ranges, losses, reading. Above: stream_reader.
"""

from __future__ import annotations

from datetime import datetime

from runnel.core.bounds import TopicBounds
from runnel.core.position import Position
from runnel.spark.admission import admitted, admitted_bytes
from runnel.spark.losses import Losses
from runnel.spark.offsets import LATEST, Reach, StreamOffset, read_where
from runnel.spark.options import SourceOptions
from runnel.spark.ranges import OffsetRange
from runnel.spark.reading import Reading, durable


class Course:
    """One query's way through its topics."""

    def __init__(self, reading: Reading, options: SourceOptions) -> None:
        self._reading, self._options = reading, options
        self.losses = Losses(fail=options.fail_on_data_loss)
        self._seen: StreamOffset | None = None  # the ends, when they were looked at last
        self._target: dict[str, Position] | None = None  # of a query that reads what is there now, and ends

    def __repr__(self) -> str:
        return f"<Course through {', '.join(self._options.topics)}>"

    def _bounds(self, time: datetime | None = None) -> dict[str, TopicBounds]:
        found = durable(self._reading.bounds(self._options.topics, time), self._options.topics)
        self._seen = StreamOffset(self._reading.journal, {one.topic: Reach(one.epoch, one.end) for one in found})
        return {one.topic: one for one in found}

    def initial(self) -> StreamOffset:
        """Where a new query begins. Topics that do not exist yet are read from their first record on.

        Asked again only when a query is started anew before its first trigger was written down: `latest` is then
        later, and what came in between was never promised.
        """
        starting = read_where("startingOffsets", self._options.starting, LATEST, self._options.topics)
        found = self._bounds(starting.time)
        places = starting.resolve(found.values())
        places |= {name: place for name, place in starting.topics.items() if isinstance(place, Position)}
        topics = {name: Reach(place.epoch, place.offset) for name, place in places.items()}
        return StreamOffset(self._reading.journal, topics)

    def prepare(self) -> None:
        """From now on nothing counts that comes later: the query ends when it has read what is there."""
        self._target = {one.topic: Position(one.epoch, one.end) for one in self._bounds().values()}

    def report(self) -> StreamOffset | None:
        """The ends of the topics, when they were looked at last: Spark shows how far a query is behind them."""
        return self._seen

    # -- how far to go ------------------------------------------------------------------------------------------

    def latest(self, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """How far the next trigger goes; `start`, if there is nothing to read."""
        found = self._bounds()
        begins = self._begins(start, found)
        lags = {name: max(0, self._end_of(found[name]) - place.offset) for name, place in begins.items()}
        if limited:
            lags = admitted(lags, self._options.max_records)
            sizes = {name: found[name].record_bytes for name in lags}
            lags = admitted_bytes(lags, sizes, self._options.max_bytes)
        ends = {name: place._replace(offset=place.offset + lags[name]) for name, place in begins.items()}
        return StreamOffset(self._reading.journal, ends)

    def _end_of(self, one: TopicBounds) -> int:
        if self._target is None:
            return one.end
        target = self._target.get(one.topic)
        return min(one.end, target.offset) if target is not None and target.epoch == one.epoch else 0

    def _begins(self, start: StreamOffset, found: dict[str, TopicBounds]) -> dict[str, Reach]:
        """Where the next trigger begins in each topic that there is. What is gone since `start` is told."""
        begins: dict[str, Reach] = {}
        known = start.topics
        if start.journal != self._reading.journal:
            for name, place in known.items():
                end = found[name].end if name in found else place.offset
                self.losses.tell(name, place.offset, end, "the journal is another one now")
            known = {}
        for name, place in known.items():
            if name not in found:
                self.losses.tell(name, place.offset, place.offset, "the topic was deleted")
        for name, one in found.items():
            # Of a topic that is new to the query, but not to itself, only what is there now was ever promised.
            begins[name] = self._still(one, known[name]) if name in known else Reach(one.epoch, one.first, one.first)
        return begins

    def _still(self, one: TopicBounds, place: Reach) -> Reach:
        """Where reading goes on in a topic that was read up to `place`."""
        name = one.topic
        if place.epoch != one.epoch:
            self.losses.tell(name, place.offset, place.offset, "the topic was deleted and made again")
            return Reach(one.epoch, one.first, one.first)
        if place.offset < one.first:
            self.losses.tell(name, place.offset, one.first, f"the topic begins at offset {one.first} now")
            return place._replace(offset=one.first)
        if place.offset > one.end:
            self.losses.tell(name, one.end, place.offset, f"the topic ends at offset {one.end} now: it has shrunk")
            return place._replace(offset=one.end)
        return place

    # -- what to read -------------------------------------------------------------------------------------------

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """What lies between two offsets of the query. The tasks find out whether all of it is still there."""
        sizes = {one.topic: one.record_bytes for one in self._bounds().values()}
        found = []
        for name, behind in end.topics.items():
            before = start.topics.get(name)
            same = before is not None and before.epoch == behind.epoch and start.journal == end.journal
            first = before.offset if same and before is not None else behind.began
            if first < behind.offset:
                found.append(OffsetRange(name, behind.epoch, first, behind.offset, sizes.get(name, 1.0)))
        return found
