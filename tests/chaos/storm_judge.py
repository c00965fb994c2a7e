"""What is held against a storm, once all is told: what every process did and saw, and what the folder holds.

The history checker judges what it can. Here is what it has no word for: that every id is there once, batches and
transactions whole, what a publisher sent in its order, each name complete over all its lives, each group done with
everything and never again with what was durably acked, each payment made once.
Below: words, runnel.testing. Above: storm.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from runnel.testing import History
from runnel.testing import history_events as events
from runnel.testing.history_events import Event
from tests.chaos.words import BOOK, GROUPS, NAMES, PAID, PAY, PUBLISHED, TOPICS, derived, last_of
from tests.crash.kill_worker import Note

Place = tuple[str, int, int]  # topic, epoch, offset


@dataclass
class Found:
    """What the folder holds in the end."""

    held: dict[Place, str] = field(default_factory=dict)
    keys: dict[Place, bytes] = field(default_factory=dict)
    dead: list[Place] = field(default_factory=list)  # the places that the dead letters say they came from


def judge(told: list[Event | Note], found: Found) -> list[str]:
    """Every promise that was broken, as a sentence."""
    broken = [*notes(told), *_stored(told, found), *_whole(found), *_order(told, found), *_names(told, found)]
    leases = _Leases(told, found)
    broken += [*leases.twice(), *leases.again(), *leases.left_out(), *leases.out_of_order(), *_payments(found)]
    history = History()
    stale = set(map(id, leases.stale))
    history.events += [said for said in told if not isinstance(said, Note) and id(said) not in stale]
    verdict = history.check()
    if not verdict.clean:
        broken.append(str(verdict))
    return broken


def notes(told: list[Event | Note]) -> Iterator[str]:
    """What somebody said outright."""
    for said in told:
        if isinstance(said, Note) and said.what in ("failed", "corrupt", "gap"):
            yield f"{said.what}: {said.who} {said.topic} {said.epoch}:{said.offset} {said.text}"


def _stored(told: list[Event | Note], found: Found) -> Iterator[str]:
    """What was acknowledged stands where it was said to be, and nothing stands anywhere twice."""
    there = {topic: Counter[str]() for topic in TOPICS}
    for (topic, _, _), id in found.held.items():
        there[topic][id] += 1
    for topic, ids in there.items():
        for id, times in ids.items():
            if times > 1:
                yield f"{id} is {times} times in {topic}"
    for said in told:
        if isinstance(said, events.Acknowledged):
            if (held := found.held.get((said.topic, int(said.epoch), said.offset))) != said.id:
                yield f"{said.topic} {said.epoch}:{said.offset}: {said.id} was acknowledged, and {held} is there"
        elif isinstance(said, Note) and said.what == "stored" and said.text not in there[said.topic]:
            yield f"{said.text} of {said.who} was stored in {said.topic}, and is not there"


def _whole(found: Found) -> Iterator[str]:
    """`publish_many` is all or nothing and side by side; a transaction is in all of its topics, or in none."""
    batches: dict[tuple[str, int, str], list[tuple[int, int]]] = defaultdict(list)
    sizes: dict[tuple[str, int, str], int] = {}
    transactions = Counter[str]()
    for (topic, epoch, offset), id in found.held.items():
        if "/" in id:
            name, _, rest = id.rpartition("-")
            number, _, count = rest.partition("/")
            batches[topic, epoch, name].append((int(number), offset))
            sizes[topic, epoch, name] = int(count)
        elif ".tx" in id and topic in PUBLISHED:
            transactions[id] += 1
    for batch, places in batches.items():
        first = min(places)[1]
        if sorted(places) != [(number, first + number) for number in range(sizes[batch])]:
            yield f"batch {batch} of {sizes[batch]} is not whole: {sorted(places)}"
    for id, times in transactions.items():
        if times != int(id.rpartition(".tx")[2]):
            yield f"transaction {id} is in {times} topics"


def _order(told: list[Event | Note], found: Found) -> Iterator[str]:
    """What one publisher sent to one topic stands there in its order, whether somebody waited for it or not."""
    places = {(topic, id): (epoch, offset) for (topic, epoch, offset), id in found.held.items()}
    last: dict[tuple[str, str], tuple[tuple[int, int], str]] = {}
    for said in told:
        if isinstance(said, events.Intended) and (place := places.get((said.topic, str(said.id)))) is not None:
            before = last.get((said.publisher, said.topic))
            if before is not None and before[0] > place:
                yield f"{said.publisher} sent {said.id} to {said.topic} after {before[1]}, and it stands before it"
            last[said.publisher, said.topic] = (place, str(said.id))


def _names(told: list[Event | Note], found: Found) -> Iterator[str]:
    """Over all its lives a name saw everything there is."""
    seen: dict[str, set[Place]] = defaultdict(set)
    for said in told:
        if isinstance(said, events.Delivered) and said.subscriber in NAMES:
            seen[said.subscriber].add((said.topic, int(said.epoch), said.offset))
    for name, (_, topics) in NAMES.items():
        for place, id in found.held.items():
            if place[0] in topics and place not in seen[name]:
                yield f"{name} never got {id} at {place}"


def _payments(found: Found) -> Iterator[str]:
    """What was taken from `payments` is in both of the others, once."""
    there = {topic: Counter[str]() for topic in (PAY, PAID, BOOK)}
    for (topic, _, _), id in found.held.items():
        if topic in there:
            there[topic][id] += 1
    for topic in (PAID, BOOK):
        due = Counter(derived(id, topic) for id in there[PAY])
        due[last_of(topic)] = 1
        for id in due.keys() | there[topic].keys():
            if due[id] != there[topic][id]:
                yield f"{id} is {there[topic][id]} times in {topic}, and ought to be {due[id]} times"


class _Leases:
    """What was handed to members, and durably acked by them."""

    def __init__(self, told: list[Event | Note], found: Found) -> None:
        self._found = found
        self._leases: dict[tuple[str, Place], list[events.Leased]] = defaultdict(list)
        self._acks: dict[tuple[str, Place], list[events.Acked]] = defaultdict(list)
        for said in told:
            if isinstance(said, events.Leased):
                self._leases[said.group, (said.topic, int(said.epoch), said.offset)].append(said)
            elif isinstance(said, events.Acked):
                self._acks[said.group, (said.topic, int(said.epoch), said.offset)].append(said)
        self._late = [
            (lease, ack[0].at)
            for what, leases in self._leases.items()
            if (ack := self._acks.get(what))
            for lease in leases
            if lease.at > ack[0].at
        ]
        # Granted over a connection older than the ack: that it was lost meanwhile, and the lease with it, its member
        # had not noticed. Such a lease cannot be settled.
        self.stale = [lease for lease, acked in self._late if (lease.until or 0.0) < acked]

    def twice(self) -> Iterator[str]:
        """One durable ack is enough."""
        for (group, place), acks in self._acks.items():
            if len(acks) > 1:
                yield f"{group}: {place} was durably acked by {[ack.member for ack in acks]}"

    def again(self) -> Iterator[str]:
        """What was durably acked goes to nobody who connected later."""
        for lease, acked in self._late:
            if (lease.until or 0.0) >= acked:
                yield f"{lease.group} gave {lease.id} to {lease.member} {lease.at - acked:.3f} s after it was acked"

    def left_out(self) -> Iterator[str]:
        """In the end a group is done with everything: somebody had it."""
        for group, (_, topics) in GROUPS.items():
            for place, id in self._found.held.items():
                if place[0] in topics and (group, place) not in self._leases:
                    yield f"{group} gave {id} at {place} to nobody"
        for place, times in Counter(self._found.dead).items():
            if times > 1:
                yield f"{place} has {times} dead letters"

    def out_of_order(self) -> Iterator[str]:
        """Records of one key are handed out in order, the first time."""
        first: dict[tuple[str, str, bytes], list[tuple[int, float]]] = defaultdict(list)
        for (group, place), leases in self._leases.items():
            if (key := self._found.keys.get(place)) is not None:
                first[group, place[0], key].append((place[2], min(lease.at for lease in leases)))
        for (group, topic, key), turns in first.items():
            turns.sort()
            for (before, early), (after, late) in pairwise(turns):
                if late < early:
                    yield f"{group} gave {topic} {after} of key {key!r} before {before}"
