"""Judges consumer groups: each record to one member at a time, and never again once settled.

A group may deliver a record again: after a nack, a lapsed lease, a lost member or a broker's
restart. It may not while somebody holds it, nor after an accepted ack. Attempts tell which of two
deliveries the broker made first, even if their members noted them late.
Below: places, verdict. Beside: judge_subscribers. Above: judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from runnel.testing import history_events as events
from runnel.testing.history_events import Epoch, Event
from runnel.testing.places import Places, Ranges
from runnel.testing.verdict import DeliveredAfterAck, HeldTwice, Lost, Violation


class Hold(NamedTuple):
    """A lease that a member has."""

    attempt: int
    until: float | None
    stay: tuple[int, int]  # restarts of the broker and leavings of the member when it began


class Settled(NamedTuple):
    """The group is done with a record."""

    member: str
    attempt: int
    restarts: int


@dataclass(slots=True)
class Turn:
    """What a group did with one record."""

    holds: dict[str, Hold] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    settled: Settled | None = None
    story: str = ""


@dataclass(slots=True)
class Group:
    """One group at one topic."""

    start: int | None = None
    epoch: Epoch | None = None
    drained: bool = False
    ended: bool = False
    end: int | None = None
    turns: dict[tuple[Epoch, int], Turn] = field(default_factory=lambda: defaultdict(Turn))


class Groups:
    """All groups of a history."""

    def __init__(self, told: Sequence[Event], topics: Mapping[str, Places]) -> None:
        self.deliveries = 0
        self._topics = topics
        self._groups: dict[tuple[str, str], Group] = defaultdict(Group)
        self._restarts = 0
        self._left: dict[tuple[str, str], int] = defaultdict(int)
        self._found: list[Violation] = []
        for event in sorted(told, key=lambda event: event.at):
            self._attend(event)
        for (name, topic), group in self._groups.items():
            given: dict[Epoch, set[int]] = defaultdict(set)
            for (epoch, offset), turn in group.turns.items():
                if turn.attempts:
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
            yield from _lost(name, group, self._topics[topic])

    def _attend(self, event: Event) -> None:
        match event:
            case events.Leased():
                self._lease(event)
            case events.Extended(_, name, member, topic, epoch, offset, until):
                turn = self._turn(name, topic, epoch, offset)
                if member in turn.holds:
                    turn.holds[member] = turn.holds[member]._replace(until=until)
            case events.Acked(_, name, member, topic, epoch, offset):
                self._settle(self._turn(name, topic, epoch, offset), member)
            case events.Rejected(_, name, member, topic, epoch, offset):
                self._settle(self._turn(name, topic, epoch, offset), member)
            case events.Nacked(_, name, member, topic, epoch, offset):
                turn = self._turn(name, topic, epoch, offset)
                turn.holds.pop(member, None)
                turn.story = f"saw it go back from {member!r} and never come again"
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

    def _turn(self, group: str, topic: str, epoch: Epoch, offset: int) -> Turn:
        return self._groups[group, topic].turns[epoch, offset]

    def _settle(self, turn: Turn, member: str) -> None:
        turn.holds.pop(member, None)
        turn.settled = Settled(member, turn.attempts.get(member, 0), self._restarts)

    def _stay(self, group: str, member: str) -> tuple[int, int]:
        return self._restarts, self._left[group, member]

    def _lease(self, event: events.Leased) -> None:
        self.deliveries += 1
        group, member = event.group, event.member
        self._topics[event.topic].learn(event.epoch, event.offset, event.id, group)
        turn = self._turn(group, event.topic, event.epoch, event.offset)
        settled = turn.settled
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
        elif not settled and (holder := self._holder(turn, event)):
            self._found.append(
                HeldTwice(
                    topic=event.topic,
                    epoch=event.epoch,
                    offset=event.offset,
                    id=event.id,
                    group=group,
                    member=member,
                    holder=holder,
                )
            )
        turn.attempts[member] = event.attempt
        turn.holds[member] = Hold(event.attempt, event.until, self._stay(group, member))
        turn.story = f"gave it to {member!r} (attempt {event.attempt}), who never settled it"

    def _holder(self, turn: Turn, event: events.Leased) -> str:
        """Another member whose lease surely still ran when the broker made this one, or ""."""
        for member, hold in turn.holds.items():
            running = hold.until is None or hold.until > event.at
            earlier = hold.attempt <= event.attempt  # else this one is older and was only noted late
            if member != event.member and running and earlier and hold.stay == self._stay(event.group, member):
                return member
        return ""


def _lost(name: str, group: Group, places: Places) -> Iterator[Lost]:
    """What was acknowledged in the group's range and never given out, or not settled though it says drained."""
    given = [offset for (_, offset), turn in group.turns.items() if turn.attempts]
    start = group.start if group.start is not None else min(given, default=None)
    if start is None or (group.ended and group.end is None and not group.drained):
        return
    cleaned = {epoch: Ranges(ranges) for epoch, ranges in places.cleaned.items()}
    for id, fate in places.fates.items():
        for epoch, offset in fate.acknowledged:
            below = offset < start and group.epoch in (None, epoch)
            beyond = group.end is not None and offset >= group.end
            if below or beyond or (epoch in cleaned and offset in cleaned[epoch]):
                continue
            turn = group.turns.get((epoch, offset))
            if turn is None or not (turn.settled or (turn.attempts and not group.drained)):
                yield Lost(
                    topic=places.topic,
                    epoch=epoch,
                    offset=offset,
                    id=id,
                    publisher=fate.publisher,
                    reader=name,
                    story=f"as a group {turn.story if turn and turn.attempts else 'never gave it to any member'}",
                )
