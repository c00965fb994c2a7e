"""What is held against the lives of a broker that was killed again and again, once all is told.

The history checker judges what it can: lost, doubled, reordered, missed, invented, given out after a durable ack. Here
is what it has no word for: batches that are whole or not there, names that skip nothing over all their lives, groups
whose acks may be lost with the process and whose dead letters may not, topics that were deleted for good.
Below: kill_worker (the words), runnel.testing. Above: killing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from runnel.testing import History
from runnel.testing import history_events as events
from runnel.testing.history_events import Event
from tests.crash import transforming
from tests.crash.kill_worker import CHURN, DURABLE, FOR_EVER, GROUPS, MIRRORED, NAMES, Note
from tests.crash.transforming import PAID, PAYERS

FAR = 1 << 62

Place = tuple[str, int, int]  # topic, epoch, offset


@dataclass
class Found:
    """What the folder holds in the end."""

    held: dict[Place, str] = field(default_factory=dict)  # the records of the durable topics, by where they stand
    keys: dict[Place, bytes] = field(default_factory=dict)
    dead: list[Place] = field(default_factory=list)  # the places that the dead letters say they came from
    marks: dict[str, object] = field(default_factory=dict)


@dataclass
class Turn:
    """What one group did with one record."""

    life: int = -1
    attempt: int = 0
    settled: str = ""
    settled_at: float = 0.0
    durable: bool = False
    member: str = ""


class Told:
    """Everything that was told, in order, life by life."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, Event | Note]] = []
        self.acknowledged: dict[Place, str] = {}

    def add(self, life: int, said: Event | Note) -> None:
        self.lines.append((life, said))
        if isinstance(said, events.Acknowledged):
            self.acknowledged[said.topic, int(said.epoch), said.offset] = str(said.id)

    def offsets(self, topic: str) -> list[int]:
        """The offsets of `topic` that were acknowledged."""
        return sorted(offset for name, _, offset in self.acknowledged if name == topic)


def judge(told: Told, found: Found) -> list[str]:
    """Every promise that was broken, as a sentence."""
    broken = [*_notes(told), *_stored(told, found), *_names(told, found), *_sequences(told)]
    groups = Groups(told, found)
    broken += groups.broken
    broken += transforming.judge(told, found)
    history = History()
    for _, said in told.lines:
        if not isinstance(said, Note):
            history.events.append(said)
    history.events += groups.settled
    for epoch in _gone(told, found):
        history.cleaned(CHURN, epoch, 0, FAR)
    verdict = history.check()
    if not verdict.clean:
        broken.append(str(verdict))
    return broken


def _notes(told: Told) -> Iterator[str]:
    for life, said in told.lines:
        if isinstance(said, Note) and said.what in ("failed", "corrupt"):
            yield f"life {life}: {said.what}: {said.who} {said.topic} {said.epoch}:{said.offset} {said.text}"
        if isinstance(said, Note) and said.what == "gap" and "deleted" not in said.text:
            cached = "cached" in said.who or said.who == "mirror"
            if not cached or "too slow" not in said.text:
                yield f"life {life}: {said.who} was told of a gap where nothing may be missed: {said.text}"


def _gone(told: Told, found: Found) -> set[int]:
    """The epochs of the topic that is deleted now and then, without the one that is there in the end."""
    alive = {epoch for topic, epoch, _ in found.held if topic == CHURN}
    return {epoch for topic, epoch, _ in told.acknowledged if topic == CHURN} - alive


def _stored(told: Told, found: Found) -> Iterator[str]:
    """What was acknowledged is there, batches are whole, deleted topics are gone and no others."""
    deleting = {said.epoch for _, said in told.lines if isinstance(said, Note) and said.what == "deleting"}
    for (topic, epoch, offset), id in told.acknowledged.items():
        if topic not in DURABLE or (topic == CHURN and epoch in deleting):
            continue
        if (there := found.held.get((topic, epoch, offset))) != id:
            yield f"{topic} {epoch}:{offset}: {id} was acknowledged, but {there} is there"
    deleted: dict[int, int] = {}
    for life, said in told.lines:
        if isinstance(said, Note):
            if said.what == "deleted":
                deleted[said.epoch] = life
        elif isinstance(said, events.Delivered | events.Leased | events.Acknowledged) and said.topic == CHURN:
            gone = deleted.get(int(said.epoch))
            if gone is not None and gone < life:
                yield f"life {life}: {said.topic} {said.epoch}:{said.offset} came back; it was deleted in life {gone}"
    batches: dict[tuple[str, int, str], list[tuple[int, int]]] = defaultdict(list)
    counts: dict[tuple[str, int, str], int] = {}
    for (topic, epoch, offset), id in found.held.items():
        if "/" in id:
            name, _, rest = id.rpartition("-")
            number, _, count = rest.partition("/")
            batches[topic, epoch, name].append((int(number), offset))
            counts[topic, epoch, name] = int(count)
    for batch, places in batches.items():
        first = min(places)[1]
        if sorted(places) != [(number, first + number) for number in range(counts[batch])]:
            yield f"batch {batch} of {counts[batch]} is not whole: {sorted(places)}"


def _names(told: Told, found: Found) -> Iterator[str]:
    """Over all its lives a name saw everything there is."""
    seen: dict[str, set[Place]] = defaultdict(set)
    for _, said in told.lines:
        if isinstance(said, events.Delivered) and said.subscriber in NAMES:
            seen[said.subscriber].add((said.topic, int(said.epoch), said.offset))
    for name, pattern in NAMES.items():
        topics = [topic for topic in MIRRORED if topic in DURABLE] if name == "mirror" else [pattern]
        for place, id in found.held.items():
            if place[0] in topics and place not in seen[name]:
                yield f"{name} never got {id} at {place}"


def _sequences(told: Told) -> Iterator[str]:
    """A sequence names one record, also over lives, and also of topics that live in memory only."""
    places: dict[int, tuple[str, object, int]] = {}
    for life, said in told.lines:
        if isinstance(said, events.Delivered) and said.sequence is not None:
            place = (said.topic, said.epoch, said.offset)
            if places.setdefault(said.sequence, place) != place:
                yield f"life {life}: sequence {said.sequence} names {places[said.sequence]} and {place}"


class Groups:
    """What each group did with each record, over all lives."""

    def __init__(self, told: Told, found: Found) -> None:
        self.broken: list[str] = []
        self.turns: dict[tuple[str, Place], Turn] = defaultdict(Turn)
        self._found, self._paid = found, transforming.committed(found)
        self._life = -1
        self._out: dict[tuple[str, bytes], Place] = {}  # by group and key, in this life
        self._last: dict[tuple[str, str, bytes], int] = {}  # by group, topic and key: the offset given out last
        for life, said in told.lines:
            if life != self._life:
                self._life, self._out, self._last = life, {}, {}
            self._attend(said)
        self._settle_committed()
        self.settled: list[Event] = list(self._last_words())
        self.broken += self._unsettled()
        self.broken += self._dead()

    def _attend(self, said: Event | Note) -> None:
        if isinstance(said, Note):
            if said.what in ("accepted", "rejected"):
                self._settle(said)
        elif isinstance(said, events.Leased):
            self._lease(said)
        elif isinstance(said, events.Acked):
            self.turns[said.group, (said.topic, int(said.epoch), said.offset)].durable = True
        elif isinstance(said, events.Nacked):
            self._free(said.group, (said.topic, int(said.epoch), said.offset))

    def _lease(self, said: events.Leased) -> None:
        place = (said.topic, int(said.epoch), said.offset)
        turn, what = self.turns[said.group, place], f"life {self._life}: {said.group} gave {said.id} at {place}"
        if turn.life == self._life:
            if turn.settled:
                self.broken.append(f"{what} again, after it was {turn.settled}")
            if said.attempt != turn.attempt + 1:
                self.broken.append(f"{what} as attempt {said.attempt} after attempt {turn.attempt}")
        elif said.attempt < turn.attempt:
            self.broken.append(f"{what} as attempt {said.attempt}, though attempt {turn.attempt} was made before")
        turn.life, turn.attempt, turn.settled, turn.member = self._life, said.attempt, "", said.member
        if (key := self._found.keys.get(place)) is not None and said.topic in FOR_EVER:
            out, self._out[said.group, key] = self._out.get((said.group, key), place), place
            if out != place and not self._is_paid(said.group, out):
                self.broken.append(f"{what} while {out} of the same key {key!r} was out")
            if (last := self._last.get((said.group, said.topic, key), -1)) > said.offset:
                self.broken.append(f"{what} after offset {last} of the same key {key!r}")
            self._last[said.group, said.topic, key] = said.offset

    def _free(self, group: str, place: Place) -> None:
        key = self._found.keys.get(place)
        if key is not None and self._out.get((group, key)) == place:
            del self._out[group, key]

    def _settle(self, said: Note) -> None:
        place = (said.topic, said.epoch, said.offset)
        turn = self.turns[said.who, place]
        turn.settled, turn.settled_at = said.what, said.at
        self._free(said.who, place)

    def _is_paid(self, group: str, place: Place) -> bool:
        """Whether a record was acked in a transaction that was committed, told or not."""
        return group == PAYERS and transforming.derived(self._found.held.get(place, ""), PAID) in self._paid

    def _settle_committed(self) -> None:
        """An ack in a transaction is durable with what the transaction published."""
        for (group, place), turn in self.turns.items():
            if not turn.settled and self._is_paid(group, place):
                turn.settled, turn.settled_at = "accepted", FAR

    def _last_words(self) -> Iterator[Event]:
        """Acks that held: nobody got the record again. Those that were lost with their process do not count."""
        for (group, (topic, epoch, offset)), turn in self.turns.items():
            if turn.settled and not turn.durable:
                yield events.Acked(turn.settled_at, group, turn.member, topic, epoch, offset)

    def _unsettled(self) -> Iterator[str]:
        for group, (_, topics) in GROUPS.items():
            for place, id in self._found.held.items():
                if place[0] in topics and not self.turns[group, place].settled:
                    yield f"{group} is not done with {id} at {place}: {self.turns[group, place]}"

    def _dead(self) -> Iterator[str]:
        """A rejected record and its dead letter are one entry: both are there, or neither."""
        expected = {place for (_, place), turn in self.turns.items() if turn.settled == "rejected"}
        letters = Counter(self._found.dead)
        for place in sorted(expected | letters.keys()):
            if letters[place] != (place in expected):
                yield f"{place} has {letters[place]} dead letters; rejected in the end: {place in expected}"
