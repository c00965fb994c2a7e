"""What is left to do of the dead letters of a topic: listed, put back or discarded, one by one or all.

A letter is done with once it was put back or discarded. That is remembered as a place before which all are (the one
that `replay` keeps), and behind it as a bit for each: in marks, which a transaction moves together with what it puts
back. So each letter is put back once, whatever is cut off in between. The letter itself stays in its topic, for as long
as that keeps it.
Below: excerpt, marks, transaction. Above: broker, replay, server.http.letters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from runnel.broker.dead_letter import TOPIC, is_dead_letter, original
from runnel.broker.excerpt import excerpt
from runnel.core.errors import InvalidOption, NameInUse, TopicDeleted, UnknownTopic
from runnel.core.position import Position
from runnel.core.record import Record

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.bus import Bus
    from runnel.broker.log import Log

DEFAULT = "dead-letters."  # and a group: where its letters go, if nobody says otherwise
REPLAYED = "$runnel.replayed."  # and a topic: the name that keeps up to where all letters are done with
HIDDEN = "$runnel."  # how the names of marks begin that are the broker's own
MARK = f"{HIDDEN}letters."  # an epoch and a block: the letters in it that are done with
BLOCK = 2048  # letters that one mark speaks for, a bit each
AT_ONCE = 256  # letters in one transaction
AT_ONCE_BYTES = 1 << 20
LOOKED_AT = 4096  # letters passed over before a listing says: ask again from there

NOBODY = bytes(BLOCK // 8)


class Letters(NamedTuple):
    """Some dead letters that are not done with; `next` is where to look further, below `end` if there may be more."""

    letters: list[Record[bytes]]
    epoch: int
    first: int
    end: int
    next: int


class Letterbox:
    """Which letters of a topic are done with."""

    def __init__(self, bus: Bus, log: Log) -> None:
        self._bus, self.log = bus, log
        self._values = bus.marks.values

    def __repr__(self) -> str:
        return f"<Letterbox of {self.log.name!r}, {self.open()} open>"

    @property
    def floor(self) -> int:
        """All before it are done with, or gone."""
        place = self._bus.positions.get(f"{REPLAYED}{self.log.name}", ("", 0))[1]
        first = self._bus.timeline.first(self.log)
        return max(first, place.offset) if isinstance(place, Position) and place.epoch == self.log.epoch else first

    def is_open(self, offset: int) -> bool:
        """Whether the letter at `offset` is still to be dealt with."""
        return offset >= self.floor and not self._bits(offset // BLOCK)[offset % BLOCK // 8] >> offset % 8 & 1

    def open(self) -> int:
        """How many there are, about: a difference of offsets, less those that are done with."""
        floor, end = self.floor, self.log.end
        done = sum(_count(self._bits(block), block, floor, end) for block in self._blocks())
        return end - floor - done

    def settled(self, offsets: Iterable[int]) -> dict[str, tuple[bytes, bytes | None]]:
        """The marks that say so of these as well, by name: what they become, and what they are."""
        changed: dict[int, bytearray] = {}
        for offset in offsets:
            bits = changed.setdefault(offset // BLOCK, bytearray(self._bits(offset // BLOCK)))
            bits[offset % BLOCK // 8] |= 1 << offset % 8
        return {self._name(block): (bytes(bits), self._mark(block)) for block, bits in changed.items()}

    def raised(self) -> int | None:
        """How far the floor may go up; None: not at all."""
        floor = now = self.floor
        while floor < self.log.end:
            left = ~(int.from_bytes(self._bits(floor // BLOCK), "little") >> floor % BLOCK)
            done = (left & -left).bit_length() - 1  # in a row, from the floor on
            if not done:
                break
            floor += done
        return floor if floor > now else None

    def useless(self) -> list[str]:
        """The names of marks that say nothing any more: below the floor, or of a topic that is no more."""
        living = {str(log.epoch) for log in self._bus.catalog.logs.values()}
        mine, floor = str(self.log.epoch), self.floor
        found = []
        for name in self._values:
            if name.startswith(MARK):
                epoch, _, block = name.removeprefix(MARK).partition(".")
                if epoch not in living or (epoch == mine and (int(block) + 1) * BLOCK <= floor):
                    found.append(name)
        return found

    def _name(self, block: int) -> str:
        return f"{MARK}{self.log.epoch}.{block}"

    def _mark(self, block: int) -> bytes | None:
        value = self._values.get(self._name(block))
        return value if isinstance(value, bytes) else None

    def _bits(self, block: int) -> bytes:
        return self._mark(block) or NOBODY

    def _blocks(self) -> list[int]:
        start = f"{MARK}{self.log.epoch}."
        return [int(name.removeprefix(start)) for name in self._values if name.startswith(start)]


def topics(bus: Bus) -> dict[str, list[str]]:
    """The topics that dead letters go to, sorted, each with the groups that send theirs there."""
    found: dict[str, list[str]] = {}
    for reader in bus.groups:
        found.setdefault(reader.dead_letter, []).append(reader.name)
    for name, log in bus.catalog.logs.items():
        if name.startswith(DEFAULT):
            found.setdefault(name, [])
        if log.options.dead_letter is not None:
            found.setdefault(log.options.dead_letter, [])
    for one in bus.readers:
        options = getattr(getattr(one, "_reader", None), "options", None)
        if (named := getattr(options, "dead_letter", None)) is not None:
            found.setdefault(named, [])
    return {name: sorted(set(found[name])) for name in sorted(found) if name in bus.catalog.logs}


async def letters(broker: Broker, topic: str, start: int, limit: int, max_bytes: int) -> Letters:
    """At most `limit` letters of `topic` that are not done with, from an offset on."""
    box = _box(broker, topic)
    await broker._bus.flushed()  # a letter may still be on its way to the disk
    at, end = max(start, box.floor), box.log.end
    found: list[Record[bytes]] = []
    looked, size = 0, 0
    while at < end and len(found) < limit and looked < LOOKED_AT and size < max_bytes:
        part = await excerpt(broker, topic, at, min(AT_ONCE, limit), max_bytes - size)
        if part.next <= at:
            break
        looked, at = looked + len(part.records), part.next
        for record in part.records:
            if is_dead_letter(record) and box.is_open(record.offset):
                if len(found) == limit:
                    at = record.offset
                    break
                found.append(record)
                size += len(record.value)
    return Letters(found, box.log.epoch, broker._bus.timeline.first(box.log), box.log.end, at)


async def settle(broker: Broker, topic: str, offsets: Iterable[int] | None, *, put_back: bool) -> int:
    """Have letters put back or discarded, each once: those at `offsets`, or all that are there; how many."""
    bus, count = broker._bus, 0
    bus.home.check_usable("settling dead letters")
    box = _box(broker, topic)
    wanted = None if offsets is None else sorted({_offset(one) for one in offsets})
    with alone(bus, topic):
        await bus.flushed()
        if useless := box.useless():
            async with broker.transaction() as tx:
                for name in useless:
                    tx.mark(name, None)
        async for some in _open_ones(broker, box, wanted):
            async with broker.transaction() as tx:
                for letter in some if put_back else ():
                    tx.publish(letter.headers[TOPIC], letter.value, key=letter.key, headers=original(letter))
                for name, (value, before) in box.settled(letter.offset for letter in some).items():
                    tx.mark(name, value, before)
            count += len(some)
        if (floor := box.raised()) is not None:
            bus.keep_position(f"{REPLAYED}{topic}", topic, box.log.position(floor))
    return count


@contextmanager
def alone(bus: Bus, topic: str) -> Iterator[None]:
    """While nobody else deals with the letters of `topic`."""
    name = f"{REPLAYED}{topic}"
    if name in bus.replaying:
        raise NameInUse(name)
    bus.replaying.add(name)
    try:
        yield
    finally:
        bus.replaying.discard(name)


async def _open_ones(broker: Broker, box: Letterbox, wanted: list[int] | None) -> AsyncIterator[list[Record[bytes]]]:
    """The letters that are meant and not done with, as many at a time as go into a transaction."""
    end = box.log.end  # what comes meanwhile may be one that was put back just now
    places = iter([box.floor] if wanted is None else wanted)
    some: list[Record[bytes]] = []
    size, at = 0, -1
    chosen = None if wanted is None else set(wanted)
    for place in places:
        at = max(at, place)
        while at < end and (wanted is None or at == place):
            part = await excerpt(broker, box.log.name, at, AT_ONCE, AT_ONCE_BYTES)
            if part.epoch != box.log.epoch:
                raise TopicDeleted(box.log.name, box.log.epoch)
            if part.next <= at:
                break
            at = part.next
            for letter in part.records:
                if (chosen is not None and letter.offset not in chosen) or not box.is_open(letter.offset):
                    continue
                if not is_dead_letter(letter):
                    why = f"its record at {letter.offset} is not a dead letter"
                    raise InvalidOption("topic", letter.topic, why)
                some.append(letter)
                size += len(letter.value)
                if len(some) >= AT_ONCE or size >= AT_ONCE_BYTES:
                    yield some
                    some, size = [], 0
    if some:
        yield some


def _box(broker: Broker, topic: str) -> Letterbox:
    log = broker._bus.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    return Letterbox(broker._bus, log)


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidOption("offsets", value, "expected offsets, 0 or more")
    return value


def _count(bits: bytes, block: int, first: int, end: int) -> int:
    """How many bits are set for the offsets from `first` to before `end`."""
    number = int.from_bytes(bits, "little")
    low, high = max(0, first - block * BLOCK), min(BLOCK, end - block * BLOCK)
    return (number >> low & (1 << high - low) - 1).bit_count() if high > low else 0
