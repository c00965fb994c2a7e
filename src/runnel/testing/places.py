"""Which id stands where in a topic, by the word of everybody who got an ack or a record.

Below: history_events, verdict. Above: judge, judge_groups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from runnel.testing.history_events import Epoch, Id
from runnel.testing.verdict import Invented, PlaceTakenTwice, Violation, WrittenOutOfOrder, WrittenTwice


class Ranges:
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
class Fate:
    """What became of one id: how often it was handed over and failed, and where acks say it stands."""

    publisher: str = "?"
    at: float = 0.0
    handed: int = 0
    failed: int = 0
    acknowledged: list[tuple[Epoch, int]] = field(default_factory=list)

    @property
    def surely_failed(self) -> bool:
        """Every attempt was refused. One attempt of unknown outcome is enough to write it."""
        return not self.acknowledged and 0 < self.failed >= self.handed


class Places:
    """One topic, as the clients' words add up."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.fates: dict[Id, Fate] = {}  # in the order of handing over
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
        fate = self.fate(id)
        if not fate.handed:
            fate.publisher, fate.at = publisher, at
        fate.handed += 1

    def fate(self, id: Id) -> Fate:
        """What became of `id`, from now on known by name."""
        fate = self.fates.get(id)
        if fate is None:
            fate = self.fates[id] = Fate()
        return fate

    def learn(self, epoch: Epoch, offset: int, id: Id, reader: str = "") -> None:
        """Somebody says that `id` stands at this place; `reader` got it, "" only has its ack."""
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
        """Somebody who got the record at this place, or ""."""
        return next((name for name, seen in self.readers[epoch] if offset in seen), "")

    def first_handed_after(self, epoch: Epoch, at: float) -> int | None:
        """The lowest acknowledged offset among what was handed over after `at`."""
        if epoch not in self._handed_after:
            pairs = sorted((f.at, o) for f in self.fates.values() if f.handed for e, o in f.acknowledged if e == epoch)
            lowest = [offset for _, offset in pairs]
            for n in range(len(lowest) - 2, -1, -1):
                lowest[n] = min(lowest[n], lowest[n + 1])
            self._handed_after[epoch] = [when for when, _ in pairs], lowest
        times, lowest = self._handed_after[epoch]
        n = bisect_right(times, at)
        return lowest[n] if n < len(lowest) else None

    # -- what is wrong whoever reads ----------------------------------------------------------

    def violations(self) -> Iterator[Violation]:
        """Ids at two places, places with two ids, publishers out of order, inventions."""
        yield from self._moved
        yield from self._written_out_of_order()
        for (epoch, offset, id), reader in self._clashes.items():
            other = self.held[epoch][offset]
            if self._imaginary(id):
                yield self._invented(epoch, offset, id, reader)
            elif not self._imaginary(other):
                yield PlaceTakenTwice(topic=self.topic, epoch=epoch, offset=offset, id=other, other=id)
        for epoch, readers in self.readers.items():
            held = self.held[epoch]
            for offset in sorted(set().union(*(seen for _, seen in readers))):
                if self._imaginary(held[offset]):
                    yield self._invented(epoch, offset, held[offset], self.reader(epoch, offset))

    def _written_out_of_order(self) -> Iterator[WrittenOutOfOrder]:
        highest: dict[tuple[str, Epoch], tuple[int, Id]] = {}
        for id, fate in self.fates.items():
            # A retried one may rightly stand where its first attempt or its last one put it.
            if fate.handed != 1 or len(fate.acknowledged) != 1:
                continue
            epoch, offset = fate.acknowledged[0]
            before, earlier = highest.get((fate.publisher, epoch), (-1, id))
            if offset >= before:
                highest[fate.publisher, epoch] = offset, id
                continue
            yield WrittenOutOfOrder(
                topic=self.topic,
                epoch=epoch,
                offset=offset,
                id=id,
                publisher=fate.publisher,
                earlier=earlier,
                earlier_offset=before,
            )

    def _imaginary(self, id: Id) -> bool:
        fate = self.fates.get(id)
        return fate is None or fate.surely_failed

    def _invented(self, epoch: Epoch, offset: int, id: Id, reader: str) -> Invented:
        return Invented(topic=self.topic, epoch=epoch, offset=offset, id=id, reader=reader, failed=id in self.fates)
