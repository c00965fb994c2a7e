"""Plans what a query reads: offset ranges for a batch, start and end of each trigger for a stream.

Planning happens on the driver and reads no record. Every answer follows from the options, the pushed filters, the
checkpoint and the current bounds of the topics, so a restarted query plans the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.arrow.range_reader import DataLossPolicy, RangeReader, durable_only
from runnel.arrow.ranges import OffsetRange
from runnel.core.errors import InvalidOption, UnknownTopic
from runnel.core.pattern import is_pattern
from runnel.core.position import Position
from runnel.core.topic_bounds import TopicBounds
from runnel.spark.offsets import EARLIEST, LATEST, StreamOffset, TopicProgress, parse_offsets
from runnel.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class BatchPlan(NamedTuple):
    """The journal that the query reads, and the ranges to read of it."""

    journal: str
    ranges: list[OffsetRange]


def plan_batch(reader: RangeReader, options: SourceOptions, filters: PushedFilters) -> BatchPlan:
    """The ranges that a batch read reads now."""
    starting = parse_offsets("startingOffsets", options.starting, EARLIEST, options.topics)
    ending = parse_offsets("endingOffsets", options.ending, LATEST, options.topics)
    data_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    topics = _bounds(reader, options)
    for name in (*options.topics, *starting.topics, *ending.topics):
        if not is_pattern(name) and name not in topics:
            raise UnknownTopic(name)
    begins = starting.resolve(topics.values(), reader.bounds)
    ends = ending.resolve(topics.values(), reader.bounds)
    ranges = []
    for one in topics.values():
        begin, behind = begins[one.topic], ends[one.topic]
        if (begin.epoch, behind.epoch) != (one.epoch, one.epoch):
            data_loss.tell(one.topic, begin.offset, behind.offset, "the topic was deleted and made again")
            continue
        first, end = begin.offset, behind.offset
        if first > end:
            why = f"topic {one.topic!r} would begin at offset {first}, behind its end at {end}"
            raise InvalidOption("endingOffsets", options.ending, f"{why}; change it, or startingOffsets")
        if first < one.first < end or first < end <= one.first:
            data_loss.tell(one.topic, first, min(one.first, end), f"the topic begins at offset {one.first} now")
        wanted = OffsetRange(one.topic, one.epoch, max(first, one.first), min(end, one.end))
        ranges.append(wanted._replace(record_bytes=one.record_bytes, density=one.density))
    return BatchPlan(reader.journal, _narrowed(reader, options, filters, ranges))


def _bounds(reader: RangeReader, options: SourceOptions, time: datetime | None = None) -> dict[str, TopicBounds]:
    found = durable_only(reader.bounds(options.topics, time), options.topics)
    return {one.topic: one for one in found}


def _narrowed(
    reader: RangeReader, options: SourceOptions, filters: PushedFilters, ranges: list[OffsetRange]
) -> list[OffsetRange]:
    """Without what the filters leave out."""
    ranges = [one for one in ranges if filters.takes(one.topic)]
    since = _at(reader, options, filters.since)
    until = _at(reader, options, filters.until)
    kept = []
    for one in ranges:
        first = max(one.first, filters.first, since.get(one.topic, 0))
        end = min(one.end, filters.end, until.get(one.topic, one.end))
        if first < end:
            kept.append(one._replace(first=first, end=end))
    return kept


def _at(reader: RangeReader, options: SourceOptions, time: datetime | None) -> dict[str, int]:
    if time is None:
        return {}
    found = _bounds(reader, options, time.astimezone(UTC))
    return {one.topic: one.at for one in found.values() if one.at is not None}


# -- Pushed filters --------------------------------------------------------------------------------------
# Filters on topic and offset become exact ranges. A filter on time only narrows the read to the records around
# it, so Spark still applies it.


FOREVER = 1 << 63
_MICROSECOND = timedelta(microseconds=1)


class PushedFilters(NamedTuple):
    """The limits of a read: topics, offsets [first, end), and times from `since` to before `until`.

    `names` None: any topic; `prefix`: how its name begins.
    """

    names: frozenset[str] | None = None
    prefix: str = ""
    first: int = 0
    end: int = FOREVER
    since: datetime | None = None
    until: datetime | None = None

    def takes(self, topic: str) -> bool:
        """Whether anything of a topic is wanted."""
        return (self.names is None or topic in self.names) and topic.startswith(self.prefix)


def push_filters(filters: Iterable[Filter], own: Mapping[str, str] | None = None) -> tuple[PushedFilters, list[Filter]]:
    """The limits from `filters`, and those filters that Spark has to apply itself.

    `own`: by the name of a column, its field of the record (None: the same name). Others are not ours.
    """
    found, rest = PushedFilters(), []
    for one in filters:
        narrower, is_exact = _with(found, one, _meant(one, own))
        found = narrower
        if not is_exact:
            rest.append(one)
    return found, rest


def _meant(one: Filter, own: Mapping[str, str] | None) -> str | None:
    """The field of the record that a filter refers to."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1:
        return None
    return path[0] if own is None else own.get(path[0])


def _with(known: PushedFilters, one: Filter, column: str | None) -> tuple[PushedFilters, bool]:
    """Narrowed by one filter more, and whether that is all that it says."""
    kind, value = type(one).__name__, getattr(one, "value", None)
    if kind == "IsNotNull":
        return known, column in ("topic", "epoch", "offset", "sequence", "time", "value")
    if column == "topic":
        return _by_topic(known, kind, value)
    if column == "offset" and isinstance(value, int) and not isinstance(value, bool):
        return _by_offset(known, kind, value)
    if column == "time" and isinstance(value, datetime) and value.tzinfo is not None:
        return _by_time(known, kind, value), False
    return known, False


def _by_topic(known: PushedFilters, kind: str, value: object) -> tuple[PushedFilters, bool]:
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        said = value if isinstance(value, tuple | list) else (value,)
        names = frozenset(one for one in said if isinstance(one, str))
        return known._replace(names=names if known.names is None else known.names & names), True
    if kind == "StringStartsWith" and isinstance(value, str):
        if value.startswith(known.prefix):
            return known._replace(prefix=value), True
        return known._replace(names=known.names if known.prefix.startswith(value) else frozenset()), True
    return known, False


def _by_offset(known: PushedFilters, kind: str, value: int) -> tuple[PushedFilters, bool]:
    first, end = known.first, known.end
    if kind in ("EqualTo", "EqualNullSafe"):
        return known._replace(first=max(first, value), end=min(end, value + 1)), True
    if kind == "GreaterThanOrEqual":
        return known._replace(first=max(first, value)), True
    if kind == "GreaterThan":
        return known._replace(first=max(first, value + 1)), True
    if kind == "LessThan":
        return known._replace(end=min(end, value)), True
    if kind == "LessThanOrEqual":
        return known._replace(end=min(end, value + 1)), True
    return known, False


def _by_time(known: PushedFilters, kind: str, value: datetime) -> PushedFilters:
    since, until = known.since, known.until
    if kind in ("GreaterThanOrEqual", "GreaterThan", "EqualTo", "EqualNullSafe"):
        since = value if since is None else max(since, value)
    if kind in ("LessThanOrEqual", "LessThan", "EqualTo", "EqualNullSafe"):
        behind = value if kind == "LessThan" else value + _MICROSECOND
        until = behind if until is None else min(until, behind)
    return known._replace(since=since, until=until)


# -- Streams: the end of each trigger --------------------------------------------------------------------


class StreamPlanner:
    """One query's way through its topics."""

    def __init__(self, reader: RangeReader, options: SourceOptions) -> None:
        self._reader, self._options = reader, options
        self.data_loss = DataLossPolicy(fail=options.fail_on_data_loss)
        self._seen: dict[str, TopicBounds] | None = None  # the topics, when they were looked at last
        self._reached: StreamOffset | None = None  # where the trigger ends that was planned last
        self._sequence: int | None = None  # at which the trigger before was cut
        self._target: dict[str, Position] | None = None  # of a query that reads the existing records, and ends

    def __repr__(self) -> str:
        return f"<StreamPlanner of {', '.join(self._options.topics)}>"

    def _bounds(self) -> dict[str, TopicBounds]:
        self._seen = _bounds(self._reader, self._options)
        return self._seen

    def initial(self) -> StreamOffset:
        """Where a new query begins. Topics that do not exist yet are read from their first record on.

        Asked again only when a query is started anew before its first trigger was written down: `latest` is then
        later, and records published in between were never promised.
        """
        starting = parse_offsets("startingOffsets", self._options.starting, LATEST, self._options.topics)
        places = starting.resolve(self._bounds().values(), self._reader.bounds)
        places |= {name: place for name, place in starting.topics.items() if isinstance(place, Position)}
        topics = {name: TopicProgress(place.epoch, place.offset) for name, place in places.items()}
        return StreamOffset(self._reader.journal, topics)

    def prepare(self) -> None:
        """From now on later records are ignored: the query ends when it has read the existing ones."""
        self._target = {one.topic: Position(one.epoch, one.end) for one in self._bounds().values()}

    def report(self) -> dict[str, Any] | None:
        """The ends of the topics, at the last look, and how far the last trigger stays behind them.

        Spark shows it unchanged in the progress of a query: to its metrics a source in Python cannot add.
        """
        if self._seen is None or self._reached is None:
            return None
        ends = {name: TopicProgress(one.epoch, one.end) for name, one in self._seen.items()}
        done = self._reached.topics if self._reached.journal == self._reader.journal else {}
        behind = {name: round((one.end - one.first) * one.density) for name, one in sorted(self._seen.items())}
        for name, place in done.items():
            if name in ends and place.epoch == ends[name].epoch:
                behind[name] = round(max(0, ends[name].offset - place.offset) * self._seen[name].density)
        shown = StreamOffset(self._reader.journal, ends).to_json()
        return {**shown, "behind": {"records": sum(behind.values()), "topics": behind}}

    # -- the end of a trigger -----------------------------------------------------------------------------------

    def latest(self, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """The end of the next trigger; `start`, if there is nothing to read."""
        found = self._bounds()
        begins = self._begins(start, found)
        ends = {name: max(place.offset, self._end_of(found[name])) for name, place in begins.items()}
        if limited:
            ends = self._cut(begins, ends, found)
        reached = {name: place._replace(offset=ends[name]) for name, place in begins.items()}
        self._reached = StreamOffset(self._reader.journal, reached)
        return self._reached

    def _cut(
        self, begins: Mapping[str, TopicProgress], ends: dict[str, int], found: Mapping[str, TopicBounds]
    ) -> dict[str, int]:
        """The end of a trigger with a limit, at most `ends`."""
        limit = TriggerLimit(self._options.max_records, self._options.max_bytes)

        def used(offsets: Mapping[str, int]) -> float:
            return limit.used({name: offset - begins[name].offset for name, offset in offsets.items()}, found)

        whole = used(ends)
        if whole <= 1:
            return ends
        behind = [name for name, end in ends.items() if end > begins[name].offset]
        if len(behind) == 1:
            (name,) = behind
            return {**ends, name: min(ends[name], begins[name].offset + limit.most(found[name]))}

        def offsets_at(sequence: int) -> dict[str, int]:
            there = self._reader.bounds(behind, sequence=sequence)
            places = {one.topic: one.at for one in there if one.at is not None and one.epoch == found[one.topic].epoch}
            return {
                name: max(begins[name].offset, min(end, places.get(name, end))) for name, end in ends.items()
            }  # one that is deleted meanwhile is not waited for: its task finds out

        self._sequence, cut = cut_at_sequence(used, offsets_at, self._reader.end_sequence(), whole, self._sequence)
        return dict(cut)

    def _end_of(self, one: TopicBounds) -> int:
        if self._target is None:
            return one.end
        target = self._target.get(one.topic)
        return min(one.end, target.offset) if target is not None and target.epoch == one.epoch else 0

    def _begins(self, start: StreamOffset, found: dict[str, TopicBounds]) -> dict[str, TopicProgress]:
        """Where the next trigger begins in each existing topic. Records missing since `start` are reported."""
        begins: dict[str, TopicProgress] = {}
        known = start.topics
        if start.journal != self._reader.journal:
            for name, place in known.items():
                end = found[name].end if name in found else place.offset
                self.data_loss.tell(name, place.offset, end, "the journal is another one now")
            known = {}
        for name, place in known.items():
            if name not in found:
                self.data_loss.tell(name, place.offset, place.offset, "the topic was deleted")
        for name, one in found.items():
            # Of an old topic that is new to the query, only the existing records were promised.
            begins[name] = (
                self._still(one, known[name]) if name in known else TopicProgress(one.epoch, one.first, one.first)
            )
        return begins

    def _still(self, one: TopicBounds, place: TopicProgress) -> TopicProgress:
        """Where reading continues in a topic that was read up to `place`."""
        name = one.topic
        if place.epoch != one.epoch:
            self.data_loss.tell(name, place.offset, place.offset, "the topic was deleted and made again")
            return TopicProgress(one.epoch, one.first, one.first)
        if place.offset < one.first:
            self.data_loss.tell(name, place.offset, one.first, f"the topic begins at offset {one.first} now")
            return place._replace(offset=one.first)
        if place.offset > one.end:
            self.data_loss.tell(name, one.end, place.offset, f"the topic ends at offset {one.end} now: it has shrunk")
            return place._replace(offset=one.end)
        return place

    # -- what to read -------------------------------------------------------------------------------------------

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """The ranges between two offsets of the query. The tasks find out whether all records still exist."""
        bounds = self._bounds()
        self._reached = end
        found = []
        for name, behind in end.topics.items():
            before = start.topics.get(name)
            same = before is not None and before.epoch == behind.epoch and start.journal == end.journal
            first = before.offset if same and before is not None else behind.began
            if first < behind.offset:
                wanted = OffsetRange(name, behind.epoch, first, behind.offset)
                if (one := bounds.get(name)) is not None:
                    wanted = wanted._replace(record_bytes=one.record_bytes, density=one.density)
                found.append(wanted)
        return found


# -- Admission control: the size of a trigger ------------------------------------------------------------
# A trigger that does not take all ends at one sequence of the broker in every topic. Event times follow the order
# of publishing, about. With a share for each topic instead, the busy ones fall behind the quiet ones, and a watermark
# that the quiet ones have moved drops their records as late.


ENOUGH = 15 / 16  # of a limit: nearer to it a trigger need not come, and looking for it costs the broker


class TriggerLimit(NamedTuple):
    """The most that one trigger takes, of all topics together; None: there is no such limit."""

    records: int | None = None
    bytes: int | None = None

    def used(self, counts: Mapping[str, int], bounds: Mapping[str, TopicBounds]) -> float:
        """How much of it so many offsets of each topic use up: 1 is all of it."""
        records = 0.0
        if self.records is not None:
            records = sum(count * bounds[topic].density for topic, count in counts.items()) / self.records
        if self.bytes is None:
            return records
        return max(records, sum(count * bounds[topic].record_bytes for topic, count in counts.items()) / self.bytes)

    def most(self, bounds: TopicBounds) -> int:
        """How many offsets of one topic it allows: one at least, or nothing would ever be read."""
        limits = [FOREVER if self.records is None else int(self.records / bounds.density)]
        if self.bytes is not None:
            limits.append(int(self.bytes / bounds.record_bytes))
        return max(1, min(limits))


def cut_at_sequence(
    used: Callable[[Mapping[str, int]], float],
    offsets_at: Callable[[int], Mapping[str, int]],
    end: int,
    whole: float,
    guess: int | None = None,
) -> tuple[int, Mapping[str, int]]:
    """The last sequence at which a trigger does not exceed its limit, or one near it, and the offsets there.

    `offsets_at` says where a sequence lies in each topic, `used` how much of the limit it takes to go there: nothing at
    0, and `whole`, which is more than all of it, at `end`. A first record that exceeds the limit is taken.
    """
    low, low_used, found = 0, 0.0, None
    high, high_used = end, whole
    is_turn_of_guess = True
    while high - low > 1 and low_used < ENOUGH:
        if guess is None:
            share = (1 - (1 - ENOUGH) / 2 - low_used) / (high_used - low_used) if is_turn_of_guess else 0.5
            guess = low + round((high - low) * share)
            is_turn_of_guess = not is_turn_of_guess  # half of the time halve it: rates may be as uneven as they like
        at = min(max(guess, low + 1), high - 1)
        guess = None
        offsets = offsets_at(at)
        if (use := used(offsets)) <= 1:
            low, low_used, found = at, use, offsets
        else:
            high, high_used = at, use
    if found is None or not low_used:
        return high, offsets_at(high)
    return low, found
