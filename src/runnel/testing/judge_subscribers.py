"""Judges plain subscribers: order, duplicates, holes, told gaps.

A subscriber's stay at a topic is a session. It is owed every known record in its range, once, in
offset order, except those it was told a gap about and those the broker cleaned.
Below: places, verdict. Beside: judge_groups. Above: judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runnel.testing import history_events as events
from runnel.testing.history_events import Epoch, Event, GapTold, SequencesTold
from runnel.testing.places import Places, Ranges, within
from runnel.testing.verdict import DeliveredOutOfOrder, DeliveredTwice, GapWrong, Lost, Missed, Violation


@dataclass(slots=True)
class View:
    """What one session saw of one epoch."""

    seen: set[int] = field(default_factory=set)
    last: int = -1  # the highest offset seen
    gaps: list[GapTold] = field(default_factory=list)

    @property
    def first(self) -> int | None:
        """The lowest offset it saw or was told about."""
        return min([*self.seen, *(gap.first for gap in self.gaps)], default=None)

    @property
    def end(self) -> int:
        """One past the highest offset it saw or was told about."""
        return max([self.last + 1, *(gap.end for gap in self.gaps)])


@dataclass(slots=True)
class Session:
    """One stay of one subscriber at one topic."""

    subscriber: str
    topic: str
    at: float | None = None  # when it was surely open; None: nobody said
    start: int | None = None
    epoch: Epoch | None = None  # the one that `start` counts in; None: the first it saw
    ended: bool = False
    end: int | None = None
    views: dict[Epoch, View] = field(default_factory=dict)  # in the order of its reading

    def resumed(self) -> Session:
        """The same name's next stay: owed whatever this one had not seen yet."""
        if not self.views:
            return Session(self.subscriber, self.topic, self.at, self.start, self.epoch)
        epoch, view = next(reversed(self.views.items()))
        return Session(self.subscriber, self.topic, None, view.end, epoch)


class Subscribers:
    """All plain subscribers of a history."""

    def __init__(self, told: Sequence[Event], topics: Mapping[str, Places]) -> None:
        self.deliveries = 0
        self.gaps = 0
        self._topics = topics
        self._sessions: dict[tuple[str, str], list[Session]] = {}
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

    def _all(self) -> Iterator[Session]:
        for sessions in self._sessions.values():
            yield from sessions

    # -- gathering ----------------------------------------------------------------------------

    def _attend(self, event: Event) -> None:
        match event:
            case events.Subscribed(at, subscriber, topic, start, epoch):
                self._open(Session(subscriber, topic, at, start, epoch))
            case events.Resumed(_, subscriber, topic):
                self._open(self._session(subscriber, topic).resumed())
            case GapTold(_, subscriber, topic, epoch):
                self._session(subscriber, topic).views.setdefault(epoch, View()).gaps.append(event)
                self.gaps += 1
            case SequencesTold(_, subscriber):
                self._sequence_gaps[subscriber].append(event)
                self.gaps += 1
            case events.Ended(_, reader, topic, end):
                for (subscriber, where), sessions in self._sessions.items():
                    if subscriber == reader and topic in (None, where):
                        sessions[-1].ended, sessions[-1].end = True, end

    def _open(self, session: Session) -> None:
        self._sequences.pop(session.subscriber, None)
        self._sessions.setdefault((session.subscriber, session.topic), []).append(session)

    def _session(self, subscriber: str, topic: str) -> Session:
        sessions = self._sessions.get((subscriber, topic))
        if sessions is None:
            sessions = self._sessions[subscriber, topic] = [Session(subscriber, topic)]
        return sessions[-1]

    def _deliver(self, event: events.Delivered) -> None:
        # Runs once for each delivery: whatever needs the whole picture waits until all is told.
        self.deliveries += 1
        epoch, offset = event.epoch, event.offset
        views = self._session(event.subscriber, event.topic).views
        view = views.get(epoch)
        after = ""
        if view is None:
            view = views[epoch] = View()
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
        places = self._topics[event.topic]
        if places.held[epoch].get(offset) != event.id:
            places.learn(epoch, offset, event.id, event.subscriber)
        sequence = event.sequence
        if sequence is not None:
            places.sequences[epoch][offset] = sequence
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

    def _absences(self, session: Session) -> Iterator[Violation]:
        places = self._topics[session.topic]
        skipped = self._sequence_gaps.get(session.subscriber, [])
        sequences = Ranges((gap.first, gap.end) for gap in skipped)
        for epoch, start, end in _owed(session, places):
            view = session.views.get(epoch) or View()
            told = Ranges((gap.first, gap.end) for gap in view.gaps)
            cleaned = Ranges(places.cleaned[epoch])
            for offset in sorted(places.held[epoch].keys() - view.seen):
                if offset < start or (end is not None and offset >= end) or offset in told or offset in cleaned:
                    continue
                if skipped:
                    # A record that nobody else saw has no known sequence: it may lie in the gap.
                    sequence = places.sequences[epoch].get(offset)
                    if sequence is None or sequence in sequences:
                        continue
                absent = _absent(session, places, epoch, offset, passed=offset < view.last)
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
                yield GapWrong(
                    topic="all topics, in sequences",
                    epoch="any",
                    offset=gap.first,
                    subscriber=subscriber,
                    end=gap.end,
                    count=gap.count,
                    why=why,
                )


def _owed(session: Session, places: Places) -> Iterator[tuple[Epoch, int, int | None]]:
    """The ranges, by epoch, that the session should have seen; the end None: all there is."""
    epochs = list(session.views)
    if not epochs:
        # It saw nothing: hold it against the epoch it asked for, else the newest anybody knows.
        asked = session.epoch if session.epoch is not None else next(reversed(places.held), None)
        epochs = [asked] if asked is not None else []
    for n, epoch in enumerate(epochs):
        view = session.views.get(epoch) or View()
        end: int | None = None
        if n < len(epochs) - 1:
            end = view.end  # the topic was deleted, and with it what this session had not read yet
        elif session.ended:
            end = view.end if session.end is None else session.end
        start = 0 if n else _start(session, places, epoch, view)
        if start is not None:
            yield epoch, start, end


def _start(session: Session, places: Places, epoch: Epoch, view: View) -> int | None:
    """The first offset owed in the session's first epoch; None: nothing is known to be."""
    if session.start is not None and session.epoch in (None, epoch):
        return session.start
    if session.epoch not in (None, epoch):
        return 0  # a life of the topic that began after this session
    handed = None if session.at is None else places.first_handed_after(epoch, session.at)
    known = [offset for offset in (handed, view.first) if offset is not None]
    return min(known, default=None)


def _absent(session: Session, places: Places, epoch: Epoch, offset: int, passed: bool) -> Violation | None:
    """Which promise is broken when an owed and known record did not come."""
    id = places.held[epoch][offset]
    fate = places.fates.get(id)
    acknowledged = fate is not None and (epoch, offset) in fate.acknowledged
    witness = places.reader(epoch, offset)
    if fate is None or fate.surely_failed:
        return None  # an invention: whoever got it is judged, not who did not
    if witness and (passed or not acknowledged):
        return Missed(
            topic=session.topic, epoch=epoch, offset=offset, id=id, subscriber=session.subscriber, witness=witness
        )
    if not acknowledged:
        return None
    return Lost(
        topic=session.topic, epoch=epoch, offset=offset, id=id, publisher=fate.publisher, reader=session.subscriber
    )


def _wrong_gaps(session: Session, epoch: Epoch, view: View, places: Places) -> Iterator[GapWrong]:
    told_until = -1
    cleaned = Ranges(places.cleaned[epoch])
    for gap in sorted(view.gaps, key=lambda gap: (gap.first, gap.end)):
        got = within(view.seen, gap.first, gap.end)
        known = sum(1 for offset in within(places.held[epoch], gap.first, gap.end) if offset not in cleaned)
        if got:
            why = f"it got offset {got[0]} ({places.held[epoch][got[0]]!r})"
        elif gap.first < told_until:
            why = f"another told gap reaches to {told_until}"
        else:
            why = _impossible(gap, known)
        told_until = max(told_until, gap.end)
        if why:
            yield GapWrong(
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
