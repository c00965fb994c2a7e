"""List, put back and discard the dead letters of a topic, one by one or all.

A dead letter is done with once it was put back or discarded. A stored position says up to where all are done with;
markers hold one bit for each letter behind it. The transaction that puts letters back also sets their bits, so each is
put back once, also after a crash. The letters themselves stay in their topic as long as that keeps them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from runnel.broker.history import read_history
from runnel.broker.read.reader import LocalReader
from runnel.broker.tx.commit import CommitAttempt
from runnel.broker.writer import LocalWriter
from runnel.core.backend import DeadLetterPage, DeadLetterTopic
from runnel.core.dead_letter import TOPIC, is_dead_letter, original_headers
from runnel.core.errors import InvalidOption, NameInUse, TooLarge, TopicDeleted, UnknownTopic, ValidationFailed
from runnel.core.markers import Marker
from runnel.core.options import NO_TOPIC_OPTIONS, positive
from runnel.core.pattern import check_name
from runnel.core.position import Position
from runnel.core.publishing import append_of
from runnel.core.record import Record
from runnel.core.transaction import TransactionRequest

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts
    from runnel.broker.topic.log import Log


DEFAULT_PREFIX = "dead-letters."  # and a group: where its letters go, by default
REPLAYED_PREFIX = "$runnel.replayed."  # and a topic: the name that keeps up to where all letters are done with
HIDDEN_PREFIX = "$runnel."  # how the names of marks begin that are the broker's own
MARKER_PREFIX = f"{HIDDEN_PREFIX}letters."  # an epoch and a block: the letters in it that are done with
BLOCK = 2048  # letters that one mark speaks for, a bit each
AT_ONCE = 256  # letters in one transaction
AT_ONCE_BYTES = 1 << 20
LOOKED_AT = 4096  # letters passed over before a listing says: ask again from there

NONE_DONE = bytes(BLOCK // 8)


class DeadLetterState:
    """Which letters of a topic are done with."""

    def __init__(self, backend: BrokerParts, log: Log) -> None:
        self._backend, self.log = backend, log
        self._values = backend.markers.values

    def __repr__(self) -> str:
        return f"<DeadLetterState of {self.log.name!r}, {self.open()} open>"

    @property
    def floor(self) -> int:
        """All before it are done with, or gone."""
        place = self._backend.positions.stored.get(f"{REPLAYED_PREFIX}{self.log.name}", ("", 0))[1]
        first = self._backend.timeline.first(self.log)
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
        """The offset to which the floor may rise; None: it may not rise."""
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
        living = {str(log.epoch) for log in self._backend.catalog.logs.values()}
        mine, floor = str(self.log.epoch), self.floor
        found = []
        for name in self._values:
            if name.startswith(MARKER_PREFIX):
                epoch, _, block = name.removeprefix(MARKER_PREFIX).partition(".")
                if epoch not in living or (epoch == mine and (int(block) + 1) * BLOCK <= floor):
                    found.append(name)
        return found

    def _name(self, block: int) -> str:
        return f"{MARKER_PREFIX}{self.log.epoch}.{block}"

    def _mark(self, block: int) -> bytes | None:
        value = self._values.get(self._name(block))
        return value if isinstance(value, bytes) else None

    def _bits(self, block: int) -> bytes:
        return self._mark(block) or NONE_DONE

    def _blocks(self) -> list[int]:
        start = f"{MARKER_PREFIX}{self.log.epoch}."
        return [int(name.removeprefix(start)) for name in self._values if name.startswith(start)]


def dead_letter_topics(backend: BrokerParts) -> list[DeadLetterTopic]:
    """The topics that dead letters go to, by name, each with the groups that send theirs there."""
    found: dict[str, list[str]] = {}
    for reader in backend.groups:
        found.setdefault(reader.dead_letter, []).append(reader.name)
    for name, log in backend.catalog.logs.items():
        if name.startswith(DEFAULT_PREFIX):
            found.setdefault(name, [])
        if log.options.dead_letter is not None:
            found.setdefault(log.options.dead_letter, [])
    for one in backend.readers:
        if isinstance(one, LocalReader) and one.options.dead_letter is not None:
            found.setdefault(one.options.dead_letter, [])
    topics = []
    for name in sorted(found):
        if name in backend.catalog.logs:
            box = DeadLetterState(backend, backend.catalog.logs[name])
            end, epoch = box.log.end, box.log.epoch
            topics.append(DeadLetterTopic(name, sorted(set(found[name])), box.open(), box.floor, end, epoch))
    return topics


async def list_dead_letters(backend: BrokerParts, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
    """At most `limit` letters of `topic` that are not done with, from an offset on."""
    box = _state_of(backend, topic)
    await backend.flushed()  # a letter may still be on its way to the disk
    at, end = max(start, box.floor), box.log.end
    found: list[Record[bytes]] = []
    looked, size = 0, 0
    while at < end and len(found) < limit and looked < LOOKED_AT and size < max_bytes:
        part = await read_history(backend, topic, at, min(AT_ONCE, limit), max_bytes - size)
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
    return DeadLetterPage(found, box.log.epoch, backend.timeline.first(box.log), box.log.end, at, box.open())


async def replay(
    backend: BrokerParts, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None
) -> int:
    """Put dead letters of `topic` back where they came from, each once, in order; how many.

    `where` chooses, and those it refuses are done with as well. A topic that does not exist yet has none.
    """
    if limit is not None:
        positive("limit", limit)
    log = backend.catalog.find(topic)
    try:
        return await settle_dead_letters(backend, topic, None, put_back=True, limit=limit, where=where)
    finally:
        backend.catalog.forget_unused(log)


async def settle_dead_letters(
    backend: BrokerParts,
    topic: str,
    offsets: Iterable[int] | None,
    *,
    put_back: bool,
    limit: int | None = None,
    where: Callable[[Record[bytes]], bool] | None = None,
) -> int:
    """Have letters put back or discarded, each once: those at `offsets`, or all that are there; how many.

    Letters that `where` refuses are done with and not counted. After `limit` letters the others are left alone.
    """
    count = 0
    backend.loop_owner.check_usable("settling dead letters")
    box = _state_of(backend, topic)
    wanted = None if offsets is None else sorted({_offset(one) for one in offsets})
    with exclusively(backend, topic):
        await backend.flushed()
        if useless := box.useless():
            request = TransactionRequest()
            for name in useless:
                request.mark(Marker(name, None))
            await CommitAttempt(backend, request).commit()
        async with aclosing(_open_ones(backend, box, wanted)) as open_ones:
            async for some in open_ones:
                done: list[Record[bytes]] = []
                chosen: list[Record[bytes]] = []
                for letter in some:
                    if limit is not None and count + len(chosen) >= limit:
                        break
                    done.append(letter)
                    if where is None or where(letter):
                        chosen.append(letter)
                await _settle(backend, box, done, {letter.offset for letter in chosen} if put_back else set())
                count += len(chosen)
                if limit is not None and count >= limit:
                    break
        if (floor := box.raised()) is not None:
            backend.positions.keep(f"{REPLAYED_PREFIX}{topic}", topic, box.log.position(floor))
    return count


async def _settle(backend: BrokerParts, box: DeadLetterState, letters: list[Record[bytes]], put_back: set[int]) -> None:
    """Be done with `letters` in one transaction, which publishes those at the offsets `put_back` again.

    Where a `block` reader has room for only a part of them, or one is refused, they go in several: one that can never
    be put back does not keep those before it from it.
    """
    request = TransactionRequest()
    for letter in letters:
        if letter.offset in put_back:
            writer = LocalWriter(backend, check_name(letter.headers[TOPIC]), None, NO_TOPIC_OPTIONS)
            request.publish(writer, append_of(writer, letter.value, letter.key, original_headers(letter)))
    for name, (value, before) in box.settled(letter.offset for letter in letters).items():
        request.mark(Marker(name, value, before))
    try:
        await CommitAttempt(backend, request).commit()
    except (TooLarge, UnknownTopic, ValidationFailed):  # nothing was written
        if len(letters) < 2:
            raise
        half = len(letters) // 2
        await _settle(backend, box, letters[:half], put_back)
        await _settle(backend, box, letters[half:], put_back)


@contextmanager
def exclusively(backend: BrokerParts, topic: str) -> Iterator[None]:
    """Exclude other calls that work on the dead letters of `topic`."""
    name = f"{REPLAYED_PREFIX}{topic}"
    if name in backend.replaying:
        raise NameInUse(name)
    backend.replaying.add(name)
    try:
        yield
    finally:
        backend.replaying.discard(name)


async def _open_ones(
    backend: BrokerParts, box: DeadLetterState, wanted: list[int] | None
) -> AsyncGenerator[list[Record[bytes]], None]:
    """The letters that are meant and not done with, as many at a time as go into a transaction."""
    end = box.log.end  # a record that arrives meanwhile may be one that was just put back
    places = iter([box.floor] if wanted is None else wanted)
    some: list[Record[bytes]] = []
    size, at = 0, -1
    chosen = None if wanted is None else set(wanted)
    for place in places:
        at = max(at, place)
        while at < end and (wanted is None or at == place):
            part = await read_history(backend, box.log.name, at, AT_ONCE, AT_ONCE_BYTES)
            if part.epoch != box.log.epoch:
                raise TopicDeleted(box.log.name, box.log.epoch)
            if part.next <= at:
                break
            at = part.next
            for letter in part.records:
                if (chosen is not None and letter.offset not in chosen) or not box.is_open(letter.offset):
                    continue
                if not is_dead_letter(letter):
                    if some:
                        yield some
                    why = f"its record at {letter.offset} is not a dead letter"
                    raise InvalidOption("topic", letter.topic, why)
                some.append(letter)
                size += len(letter.value)
                if len(some) >= AT_ONCE or size >= AT_ONCE_BYTES:
                    yield some
                    some, size = [], 0
    if some:
        yield some


def _state_of(backend: BrokerParts, topic: str) -> DeadLetterState:
    log = backend.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    return DeadLetterState(backend, log)


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidOption("offsets", value, "expected offsets, 0 or more")
    return value


def _count(bits: bytes, block: int, first: int, end: int) -> int:
    """How many bits are set for the offsets from `first` to before `end`."""
    number = int.from_bytes(bits, "little")
    low, high = max(0, first - block * BLOCK), min(BLOCK, end - block * BLOCK)
    return (number >> low & (1 << high - low) - 1).bit_count() if high > low else 0
