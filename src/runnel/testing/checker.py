"""Checks a history: what each reader was owed, against what each saw.

First every statement about positions is collected: an ack or a delivery says which id is at an (epoch, offset). Then
each reader is checked against the records in its range. A record is *known* once it was acknowledged or any reader
got it; only known records can be missed. Doubt favours the broker: what could have happened in a correct run is no
violation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from runnel.testing import history_events as events
from runnel.testing.history_events import Epoch, Event, GapTold, Id, SequencesTold
from runnel.testing.verdict import (
    DeliveredAfterAck,
    DeliveredOutOfOrder,
    DeliveredTwice,
    InventedRecord,
    LeasedTwice,
    LostRecord,
    MissedRecord,
    OffsetTakenTwice,
    Verdict,
    Violation,
    WrittenOutOfOrder,
    WrittenTwice,
    WrongGap,
)


class OffsetRanges:
    """Half-open ranges of offsets, merged; `offset in ranges`."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]


def within(offsets: Collection[int], first: int, end: int) -> list[int]:
    """Which of the offsets lie in [first, end), rising. Costs the smaller of the two."""
    if end - first < len(offsets):
        return [offset for offset in range(first, end) if offset in offsets]
    return sorted(offset for offset in offsets if first <= offset < end)


@dataclass(slots=True)
class PublishOutcome:
    """The outcome of one id: how often it was handed over and failed, and its offsets by acks."""

    publisher: str = "?"
    at: float = 0.0
    handed: int = 0
    failed: int = 0
    acknowledged: list[tuple[Epoch, int]] = field(default_factory=list)

    @property
    def surely_failed(self) -> bool:
        """Every attempt was refused. One attempt of unknown outcome is enough to write it."""
        return not self.acknowledged and 0 < self.failed >= self.handed


class TopicLog:
    """One topic, as the clients' words add up."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.outcomes: dict[Id, PublishOutcome] = {}  # in the order of handing over
        self.held: dict[Epoch, dict[int, Id]] = defaultdict(dict)
        self.cleaned: dict[Epoch, list[tuple[int, int]]] = defaultdict(list)
        self.sequences: dict[Epoch, dict[int, int]] = defaultdict(dict)
        self.readers: dict[Epoch, list[tuple[str, set[int]]]] = defaultdict(list)
        self._where: dict[Id, tuple[Epoch, int]] = {}
        self._clashes: dict[tuple[Epoch, int, Id], str] = {}
        self._moved: list[WrittenTwice] = []
        self._handed_after: dict[Epoch, tuple[list[float], list[int]]] = {}

    def intend(self, id: Id, publisher: str, at: float) -> None:
        """Note that `id` is being handed over."""
        outcome = self.outcome(id)
        if not outcome.handed:
            outcome.publisher, outcome.at = publisher, at
        outcome.handed += 1

    def outcome(self, id: Id) -> PublishOutcome:
        """The outcome of `id`, from now on known by name."""
        outcome = self.outcomes.get(id)
        if outcome is None:
            outcome = self.outcomes[id] = PublishOutcome()
        return outcome

    def learn(self, epoch: Epoch, offset: int, id: Id, reader: str = "") -> None:
        """The history says that `id` stands at this place; `reader` got it, "" only has its ack."""
        held = self.held[epoch]
        other = held.setdefault(offset, id)
        if other != id:
            self._clashes.setdefault((epoch, offset, id), reader)
            return
        where = self._where.setdefault(id, (epoch, offset))
        if where != (epoch, offset):
            self._moved.append(
                WrittenTwice(
                    topic=self.topic,
                    epoch=epoch,
                    offset=offset,
                    id=id,
                    other_epoch=where[0],
                    other_offset=where[1],
                )
            )

    def reader(self, epoch: Epoch, offset: int) -> str:
        """A reader that got the record at this place, or ""."""
        return next((name for name, seen in self.readers[epoch] if offset in seen), "")

    def first_handed_after(self, epoch: Epoch, at: float) -> int | None:
        """The lowest acknowledged offset among records handed over after `at`."""
        if epoch not in self._handed_after:
            pairs = sorted(
                (f.at, o) for f in self.outcomes.values() if f.handed for e, o in f.acknowledged if e == epoch
            )
            lowest = [offset for _, offset in pairs]
            for n in range(len(lowest) - 2, -1, -1):
                lowest[n] = min(lowest[n], lowest[n + 1])
            self._handed_after[epoch] = [when for when, _ in pairs], lowest
        times, lowest = self._handed_after[epoch]
        n = bisect_right(times, at)
        return lowest[n] if n < len(lowest) else None

    # -- errors for every reader ----------------------------------------------------------------

    def violations(self) -> Iterator[Violation]:
        """Ids at two places, places with two ids, publishers out of order, inventions."""
        yield from self._moved
        yield from self._written_out_of_order()
        for (epoch, offset, id), reader in self._clashes.items():
            other = self.held[epoch][offset]
            if self._imaginary(id):
                yield self._invented(epoch, offset, id, reader)
            elif not self._imaginary(other):
                yield OffsetTakenTwice(topic=self.topic, epoch=epoch, offset=offset, id=other, other=id)
        for epoch, readers in self.readers.items():
            held = self.held[epoch]
            for offset in sorted(set().union(*(seen for _, seen in readers))):
                if self._imaginary(held[offset]):
                    yield self._invented(epoch, offset, held[offset], self.reader(epoch, offset))

    def _written_out_of_order(self) -> Iterator[WrittenOutOfOrder]:
        highest: dict[tuple[str, Epoch], tuple[int, Id]] = {}
        for id, outcome in self.outcomes.items():
            # A retried one may rightly stand where its first attempt or its last one put it.
            if outcome.handed != 1 or len(outcome.acknowledged) != 1:
                continue
            epoch, offset = outcome.acknowledged[0]
            before, earlier = highest.get((outcome.publisher, epoch), (-1, id))
            if offset >= before:
                highest[outcome.publisher, epoch] = offset, id
                continue
            yield WrittenOutOfOrder(
                topic=self.topic,
                epoch=epoch,
                offset=offset,
                id=id,
                publisher=outcome.publisher,
                earlier=earlier,
                earlier_offset=before,
            )

    def _imaginary(self, id: Id) -> bool:
        outcome = self.outcomes.get(id)
        return outcome is None or outcome.surely_failed

    def _invented(self, epoch: Epoch, offset: int, id: Id, reader: str) -> InventedRecord:
        return InventedRecord(
            topic=self.topic, epoch=epoch, offset=offset, id=id, reader=reader, failed=id in self.outcomes
        )


# -- Plain subscribers: order, duplicates, holes, reported gaps ------------------------------------------
# A subscriber is owed every known record in its range, once, in offset order, except those in a reported gap
# and those the broker cleaned.


@dataclass(slots=True)
class EpochView:
    """The records that one session saw of one epoch."""

    seen: set[int] = field(default_factory=set)
    last: int = -1  # the highest offset seen
    gaps: list[GapTold] = field(default_factory=list)

    @property
    def first(self) -> int | None:
        """The lowest offset it saw or that was reported to it."""
        return min([*self.seen, *(gap.first for gap in self.gaps)], default=None)

    @property
    def end(self) -> int:
        """One past the highest offset it saw or that was reported to it."""
        return max([self.last + 1, *(gap.end for gap in self.gaps)])


@dataclass(slots=True)
class SubscriberSession:
    """One stay of one subscriber at one topic."""

    subscriber: str
    topic: str
    at: float | None = None  # when it was surely open; None: not known
    start: int | None = None
    epoch: Epoch | None = None  # the one that `start` counts in; None: the first it saw
    ended: bool = False
    end: int | None = None
    views: dict[Epoch, EpochView] = field(default_factory=dict)  # in the order of its reading

    def resumed(self) -> SubscriberSession:
        """The same name's next stay: owed whatever this one had not seen yet."""
        if not self.views:
            return SubscriberSession(self.subscriber, self.topic, self.at, self.start, self.epoch)
        epoch, view = next(reversed(self.views.items()))
        return SubscriberSession(self.subscriber, self.topic, None, view.end, epoch)


class SubscriberChecker:
    """All plain subscribers of a history."""

    def __init__(self, told: Sequence[Event], topics: Mapping[str, TopicLog]) -> None:
        self.deliveries = 0
        self.gaps = 0
        self._topics = topics
        self._sessions: dict[tuple[str, str], list[SubscriberSession]] = {}
        self._sequences: dict[str, int] = {}  # the last one each subscriber saw
        self._sequence_gaps: dict[str, list[SequencesTold]] = defaultdict(list)
        self._found: list[Violation] = []
        for event in told:
            if type(event) is events.Delivered:
                self._deliver(event)
            else:
                self._attend(event)
        for session in self._all():
            for epoch, view in session.views.items():
                topics[session.topic].readers[epoch].append((session.subscriber, view.seen))

    @property
    def count(self) -> int:
        """How many subscribers there were."""
        return len({subscriber for subscriber, _ in self._sessions})

    def violations(self) -> Iterator[Violation]:
        """Everything that is wrong with what they saw, once the readers of all places are known."""
        yield from self._found
        for session in self._all():
            yield from self._absences(session)
            for epoch, view in session.views.items():
                yield from _wrong_gaps(session, epoch, view, self._topics[session.topic])
        for subscriber, gaps in self._sequence_gaps.items():
            yield from self._wrong_sequence_gaps(subscriber, gaps)

    def _all(self) -> Iterator[SubscriberSession]:
        for sessions in self._sessions.values():
            yield from sessions

    # -- gathering ----------------------------------------------------------------------------

    def _attend(self, event: Event) -> None:
        match event:
            case events.Subscribed(at, subscriber, topic, start, epoch):
                self._open(SubscriberSession(subscriber, topic, at, start, epoch))
            case events.Resumed(_, subscriber, topic):
                self._open(self._session(subscriber, topic).resumed())
            case GapTold(_, subscriber, topic, epoch):
                self._session(subscriber, topic).views.setdefault(epoch, EpochView()).gaps.append(event)
                self.gaps += 1
            case SequencesTold(_, subscriber):
                self._sequence_gaps[subscriber].append(event)
                self.gaps += 1
            case events.Ended(_, reader, topic, end):
                for (subscriber, where), sessions in self._sessions.items():
                    if subscriber == reader and topic in (None, where):
                        sessions[-1].ended, sessions[-1].end = True, end

    def _open(self, session: SubscriberSession) -> None:
        self._sequences.pop(session.subscriber, None)
        self._sessions.setdefault((session.subscriber, session.topic), []).append(session)

    def _session(self, subscriber: str, topic: str) -> SubscriberSession:
        sessions = self._sessions.get((subscriber, topic))
        if sessions is None:
            sessions = self._sessions[subscriber, topic] = [SubscriberSession(subscriber, topic)]
        return sessions[-1]

    def _deliver(self, event: events.Delivered) -> None:
        # Runs once for each delivery: whatever needs the whole picture waits for all events.
        self.deliveries += 1
        epoch, offset = event.epoch, event.offset
        views = self._session(event.subscriber, event.topic).views
        view = views.get(epoch)
        after = ""
        if view is None:
            view = views[epoch] = EpochView()
        elif len(views) > 1 and (now := next(reversed(views))) != epoch:
            after = f"records of the later epoch {now}"
        if offset > view.last:
            view.last = offset
        elif offset in view.seen:
            self._found.append(
                DeliveredTwice(topic=event.topic, epoch=epoch, offset=offset, id=event.id, subscriber=event.subscriber)
            )
            return
        else:
            after = f"offset {view.last}"
        view.seen.add(offset)
        log = self._topics[event.topic]
        if log.held[epoch].get(offset) != event.id:
            log.learn(epoch, offset, event.id, event.subscriber)
        sequence = event.sequence
        if sequence is not None:
            log.sequences[epoch][offset] = sequence
            before = self._sequences.get(event.subscriber, -1)
            if sequence > before:
                self._sequences[event.subscriber] = sequence
            else:
                after = after or f"sequence {before}, its own being {sequence}"
        if after:
            self._found.append(
                DeliveredOutOfOrder(
                    topic=event.topic,
                    epoch=epoch,
                    offset=offset,
                    id=event.id,
                    subscriber=event.subscriber,
                    after=after,
                )
            )

    # -- judging ------------------------------------------------------------------------------

    def _absences(self, session: SubscriberSession) -> Iterator[Violation]:
        log = self._topics[session.topic]
        skipped = self._sequence_gaps.get(session.subscriber, [])
        sequences = OffsetRanges((gap.first, gap.end) for gap in skipped)
        for epoch, start, end in _owed(session, log):
            view = session.views.get(epoch) or EpochView()
            told = OffsetRanges((gap.first, gap.end) for gap in view.gaps)
            cleaned = OffsetRanges(log.cleaned[epoch])
            for offset in sorted(log.held[epoch].keys() - view.seen):
                if offset < start or (end is not None and offset >= end) or offset in told or offset in cleaned:
                    continue
                if skipped:
                    # A record that no other reader saw has no known sequence: it may lie in the gap.
                    sequence = log.sequences[epoch].get(offset)
                    if sequence is None or sequence in sequences:
                        continue
                absent = _absent(session, log, epoch, offset, passed=offset < view.last)
                if absent is not None:
                    yield absent

    def _wrong_sequence_gaps(self, subscriber: str, gaps: list[SequencesTold]) -> Iterator[Violation]:
        for gap in gaps:
            got = [
                (session.topic, epoch, offset, sequence)
                for session in self._all()
                if session.subscriber == subscriber
                for epoch, view in session.views.items()
                for offset, sequence in self._topics[session.topic].sequences[epoch].items()
                if gap.first <= sequence < gap.end and offset in view.seen
            ]
            why = _impossible(gap, 0)
            if got:
                topic, epoch, offset, sequence = got[0]
                why = f"it got sequence {sequence} ({topic!r} epoch {epoch} offset {offset})"
            if why:
                yield WrongGap(
                    topic="all topics, in sequences",
                    epoch="any",
                    offset=gap.first,
                    subscriber=subscriber,
                    end=gap.end,
                    count=gap.count,
                    why=why,
                )


def _owed(session: SubscriberSession, log: TopicLog) -> Iterator[tuple[Epoch, int, int | None]]:
    """The ranges, by epoch, that the session should have seen; the end None: all there is."""
    epochs = list(session.views)
    if not epochs:
        # It saw nothing: hold it against the epoch it asked for, else the newest known.
        asked = session.epoch if session.epoch is not None else next(reversed(log.held), None)
        epochs = [asked] if asked is not None else []
    for n, epoch in enumerate(epochs):
        view = session.views.get(epoch) or EpochView()
        end: int | None = None
        if n < len(epochs) - 1:
            end = view.end  # the topic was deleted, and with it what this session had not read yet
        elif session.ended:
            end = view.end if session.end is None else session.end
        start = 0 if n else _start(session, log, epoch, view)
        if start is not None:
            yield epoch, start, end


def _start(session: SubscriberSession, log: TopicLog, epoch: Epoch, view: EpochView) -> int | None:
    """The first offset owed in the session's first epoch; None: nothing is known to be."""
    if session.start is not None and session.epoch in (None, epoch):
        return session.start
    if session.epoch not in (None, epoch):
        return 0  # a life of the topic that began after this session
    handed = None if session.at is None else log.first_handed_after(epoch, session.at)
    known = [offset for offset in (handed, view.first) if offset is not None]
    return min(known, default=None)


def _absent(session: SubscriberSession, log: TopicLog, epoch: Epoch, offset: int, passed: bool) -> Violation | None:
    """Which promise is broken when an owed and known record did not come."""
    id = log.held[epoch][offset]
    outcome = log.outcomes.get(id)
    acknowledged = outcome is not None and (epoch, offset) in outcome.acknowledged
    witness = log.reader(epoch, offset)
    if outcome is None or outcome.surely_failed:
        return None  # an invention: the reader that got it is judged, not the others
    if witness and (passed or not acknowledged):
        return MissedRecord(
            topic=session.topic, epoch=epoch, offset=offset, id=id, subscriber=session.subscriber, witness=witness
        )
    if not acknowledged:
        return None
    return LostRecord(
        topic=session.topic, epoch=epoch, offset=offset, id=id, publisher=outcome.publisher, reader=session.subscriber
    )


def _wrong_gaps(session: SubscriberSession, epoch: Epoch, view: EpochView, log: TopicLog) -> Iterator[WrongGap]:
    told_until = -1
    cleaned = OffsetRanges(log.cleaned[epoch])
    for gap in sorted(view.gaps, key=lambda gap: (gap.first, gap.end)):
        got = within(view.seen, gap.first, gap.end)
        known = sum(1 for offset in within(log.held[epoch], gap.first, gap.end) if offset not in cleaned)
        if got:
            why = f"it got offset {got[0]} ({log.held[epoch][got[0]]!r})"
        elif gap.first < told_until:
            why = f"another reported gap reaches to {told_until}"
        else:
            why = _impossible(gap, known)
        told_until = max(told_until, gap.end)
        if why:
            yield WrongGap(
                topic=session.topic,
                epoch=epoch,
                offset=gap.first,
                subscriber=session.subscriber,
                end=gap.end,
                count=gap.count,
                why=why,
            )


def _impossible(gap: GapTold | SequencesTold, known: int) -> str:
    """Why the gap's numbers cannot be right, or "". An empty gap may say that a topic was made anew."""
    size = gap.end - gap.first
    if size < 0:
        return "that range ends before it begins"
    if gap.count is None or known <= gap.count <= size:
        return ""
    return f"at least {known:,} records stood there" if gap.count < known else f"only {size:,} fit there"


# -- Consumer groups: one member at a time, and never again once settled ---------------------------------
# A group may deliver a record again after a nack, an expired lease, a lost member or a broker's restart; not while
# a member holds it, nor after an accepted ack. Attempts tell which of two deliveries the broker made first, even
# if their members noted them late.


class LeaseHold(NamedTuple):
    """A lease that a member has."""

    attempt: int
    until: float | None
    stay: tuple[int, int]  # restarts of the broker and leavings of the member when it began


class SettledBy(NamedTuple):
    """The group is done with a record."""

    member: str
    attempt: int
    restarts: int


@dataclass(slots=True)
class RecordLeases:
    """The events of one record in a group."""

    holds: dict[str, LeaseHold] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    settled: SettledBy | None = None
    story: str = ""


@dataclass(slots=True)
class GroupAtTopic:
    """One group at one topic."""

    start: int | None = None
    epoch: Epoch | None = None
    drained: bool = False
    ended: bool = False
    end: int | None = None
    records: dict[tuple[Epoch, int], RecordLeases] = field(default_factory=lambda: defaultdict(RecordLeases))


class GroupChecker:
    """All groups of a history."""

    def __init__(self, told: Sequence[Event], topics: Mapping[str, TopicLog]) -> None:
        self.deliveries = 0
        self._topics = topics
        self._groups: dict[tuple[str, str], GroupAtTopic] = defaultdict(GroupAtTopic)
        self._restarts = 0
        self._left: dict[tuple[str, str], int] = defaultdict(int)
        self._found: list[Violation] = []
        for event in sorted(told, key=lambda event: event.at):
            self._attend(event)
        for (name, topic), group in self._groups.items():
            given: dict[Epoch, set[int]] = defaultdict(set)
            for (epoch, offset), record in group.records.items():
                if record.attempts:
                    given[epoch].add(offset)
            for epoch, offsets in given.items():
                topics[topic].readers[epoch].append((name, offsets))

    @property
    def count(self) -> int:
        """How many groups there were."""
        return len({group for group, _ in self._groups})

    def violations(self) -> Iterator[Violation]:
        """Everything that is wrong with what they did."""
        yield from self._found
        for (name, topic), group in self._groups.items():
            yield from _lost_to_group(name, group, self._topics[topic])

    def _attend(self, event: Event) -> None:
        match event:
            case events.Leased():
                self._lease(event)
            case events.Extended(_, name, member, topic, epoch, offset, until):
                record = self._record(name, topic, epoch, offset)
                if member in record.holds:
                    record.holds[member] = record.holds[member]._replace(until=until)
            case events.Acked(_, name, member, topic, epoch, offset):
                self._settle(self._record(name, topic, epoch, offset), member)
            case events.Rejected(_, name, member, topic, epoch, offset):
                self._settle(self._record(name, topic, epoch, offset), member)
            case events.Nacked(_, name, member, topic, epoch, offset):
                record = self._record(name, topic, epoch, offset)
                record.holds.pop(member, None)
                record.story = f"saw it go back from {member!r} and never come again"
            case events.Left(_, name, member):
                self._left[name, member] += 1
            case events.Restarted():
                self._restarts += 1
            case events.Grouped(_, name, topic, start, epoch):
                group = self._groups[name, topic]
                group.start, group.epoch = start, epoch
            case events.Drained(_, name, topic):
                self._groups[name, topic].drained = True
            case events.Ended(_, reader, topic, end):
                for (name, where), group in self._groups.items():
                    if name == reader and topic in (None, where):
                        group.ended, group.end = True, end

    def _record(self, group: str, topic: str, epoch: Epoch, offset: int) -> RecordLeases:
        return self._groups[group, topic].records[epoch, offset]

    def _settle(self, record: RecordLeases, member: str) -> None:
        record.holds.pop(member, None)
        record.settled = SettledBy(member, record.attempts.get(member, 0), self._restarts)

    def _stay(self, group: str, member: str) -> tuple[int, int]:
        return self._restarts, self._left[group, member]

    def _lease(self, event: events.Leased) -> None:
        self.deliveries += 1
        group, member = event.group, event.member
        self._topics[event.topic].learn(event.epoch, event.offset, event.id, group)
        record = self._record(group, event.topic, event.epoch, event.offset)
        settled = record.settled
        if settled and (event.attempt >= settled.attempt or self._restarts > settled.restarts):
            self._found.append(
                DeliveredAfterAck(
                    topic=event.topic,
                    epoch=event.epoch,
                    offset=event.offset,
                    id=event.id,
                    group=group,
                    member=member,
                    settler=settled.member,
                )
            )
        elif not settled and (holder := self._holder(record, event)):
            self._found.append(
                LeasedTwice(
                    topic=event.topic,
                    epoch=event.epoch,
                    offset=event.offset,
                    id=event.id,
                    group=group,
                    member=member,
                    holder=holder,
                )
            )
        record.attempts[member] = event.attempt
        record.holds[member] = LeaseHold(event.attempt, event.until, self._stay(group, member))
        record.story = f"gave it to {member!r} (attempt {event.attempt}), who never settled it"

    def _holder(self, record: RecordLeases, event: events.Leased) -> str:
        """Another member whose lease surely still ran when the broker made this one, or ""."""
        for member, hold in record.holds.items():
            running = hold.until is None or hold.until > event.at
            earlier = hold.attempt <= event.attempt  # else this one is older and was only noted late
            if member != event.member and running and earlier and hold.stay == self._stay(event.group, member):
                return member
        return ""


def _lost_to_group(name: str, group: GroupAtTopic, log: TopicLog) -> Iterator[LostRecord]:
    """Acknowledged records in the group's range that were never delivered, or not settled though it reports drained."""
    given = [offset for (_, offset), record in group.records.items() if record.attempts]
    start = group.start if group.start is not None else min(given, default=None)
    if start is None or (group.ended and group.end is None and not group.drained):
        return
    cleaned = {epoch: OffsetRanges(ranges) for epoch, ranges in log.cleaned.items()}
    for id, outcome in log.outcomes.items():
        for epoch, offset in outcome.acknowledged:
            below = offset < start and group.epoch in (None, epoch)
            beyond = group.end is not None and offset >= group.end
            if below or beyond or (epoch in cleaned and offset in cleaned[epoch]):
                continue
            record = group.records.get((epoch, offset))
            if record is None or not (record.settled or (record.attempts and not group.drained)):
                yield LostRecord(
                    topic=log.topic,
                    epoch=epoch,
                    offset=offset,
                    id=id,
                    publisher=outcome.publisher,
                    reader=name,
                    story=f"as a group {record.story if record and record.attempts else 'never gave it to any member'}",
                )


# -- The whole history -----------------------------------------------------------------------------------


def check_history(told: Sequence[Event], torn: int = 0) -> Verdict:
    """Everything that is wrong with these events: the log itself first, then each reader."""
    topics = TopicLogs()
    reading: list[Event] = []
    grouping: list[Event] = []
    for event in told:
        kind = type(event)
        if kind in _READING:
            reading.append(event)
        elif kind in _PUBLISHING:
            _note_publish(event, topics)
        else:
            grouping.append(event)
    grouping += [event for event in reading if type(event) is events.Ended]
    subscribers = SubscriberChecker(reading, topics)
    groups = GroupChecker(grouping, topics)
    violations: list[Violation] = []
    for log in topics.values():
        violations += log.violations()
    violations += subscribers.violations()
    violations += groups.violations()
    outcomes = [outcome for log in topics.values() for outcome in log.outcomes.values() if outcome.handed]
    acknowledged = sum(1 for outcome in outcomes if outcome.acknowledged)
    failed = sum(1 for outcome in outcomes if outcome.surely_failed)
    return Verdict(
        violations=tuple(violations),
        intended=len(outcomes),
        acknowledged=acknowledged,
        failed=failed,
        unknown=len(outcomes) - acknowledged - failed,
        deliveries=subscribers.deliveries + groups.deliveries,
        subscribers=subscribers.count,
        groups=groups.count,
        gaps=subscribers.gaps,
        torn=torn,
    )


class TopicLogs(dict[str, TopicLog]):
    """The places of each topic, made when first spoken of."""

    def __missing__(self, topic: str) -> TopicLog:
        log = self[topic] = TopicLog(topic)
        return log


def _note_publish(event: Event, topics: TopicLogs) -> None:
    match event:
        case events.Intended(at, topic, id, publisher):
            topics[topic].intend(id, publisher, at)
        case events.Acknowledged(_, topic, id, epoch, offset):
            topics[topic].outcome(id).acknowledged.append((epoch, offset))
            topics[topic].learn(epoch, offset, id)
        case events.Failed(_, topic, id):
            topics[topic].outcome(id).failed += 1
        case events.Cleaned(_, topic, epoch, first, end):
            topics[topic].cleaned[epoch].append((first, end))
        case _:  # Unknown says no more than silence does
            pass


_PUBLISHING = {events.Intended, events.Acknowledged, events.Failed, events.Unknown, events.Cleaned}
_READING = {
    events.Delivered,
    events.Subscribed,
    events.Resumed,
    events.GapTold,
    events.SequencesTold,
    events.Ended,
}
