"""Server-sent events as bytes, and their ids. Sans-IO.

A slice of records is encoded once for all its readers, in each of the few formats in use: streams differ in the
suffix of an id, the keys they select, and whether the bytes are framed as HTTP chunks. JSON has no line breaks, so an
event is one `data:` line.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from runnel.core.batch import Slice
from runnel.core.errors import InvalidOption
from runnel.core.record import Record
from runnel.server.http.record_json import encode_json, record_as_json

CHUNK = 256 << 10  # bytes that are sent at a time, about
CACHED_SLICE_BYTES = 1 << 20  # the encoding of larger ones is not kept
CACHED_FORMAT_BYTES = 2 << 20  # bytes of all forms of a slice that are kept
HEARTBEAT = b": \n\n"


class EventFormat(NamedTuple):
    """How events are encoded for a stream: the suffix of ids, the selected keys, and HTTP chunk framing."""

    tag: bytes
    tail: bytes = b""
    keys: frozenset[bytes] = frozenset()
    framed: bool = False


class EncodedSlice:
    """The encoded events of a slice, cached in the slice for its other readers."""

    __slots__ = ("_forms", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] | None = None  # of all its records, for ids with different ends
        self._forms: dict[EventFormat, tuple[bytes, ...]] = {}
        self._size = 0

    def of(self, part: Slice, form: EventFormat) -> tuple[bytes, ...]:
        """The events of `part`, whose this is, in a form."""
        found = self._forms.get(form)
        if found is None:
            found = tuple(framed(one, form) for one in joined(self._cut(part, form), form.tail) if one)
            self._size += (size := sum(map(len, found)))
            if self._size <= CACHED_FORMAT_BYTES:
                self._forms[form] = found
            else:
                self._size -= size
        return found

    def _cut(self, part: Slice, form: EventFormat) -> list[bytes]:
        if form.keys:
            return parts(_wanted(part, form.keys), form.tag)
        found = self._parts or parts(part.records, form.tag)
        if form.tail:
            self._parts = found
        return found


def chunks(slices: Sequence[Slice], form: EventFormat) -> Iterable[bytes]:
    """The events of these slices, in chunks to be sent. Kept ones come as a tuple, large ones one by one."""
    if len(slices) == 1:
        return _chunks(slices[0], form)
    found = [_chunks(part, form) for part in slices]
    if all(isinstance(one, tuple) for one in found):
        return tuple(_gathered(chunk for one in found for chunk in one))
    return (chunk for one in found for chunk in one)


def _chunks(part: Slice, form: EventFormat) -> Iterable[bytes]:
    if part.written is None:
        if sum(map(len, part.values)) > CACHED_SLICE_BYTES:
            return _large(part, form)
        part.written = EncodedSlice()
    found: tuple[bytes, ...] = part.written.of(part, form)
    return found


def _large(part: Slice, form: EventFormat) -> Iterator[bytes]:
    """The events of a slice of large values, some at a time, so that not all are held as text at once."""
    gathered: list[Record[bytes]] = []
    size = 0
    for record in _wanted(part, form.keys):
        gathered.append(record)
        size += len(record.value)
        if size >= CHUNK:
            yield framed(form.tail.join(parts(gathered, form.tag)), form)
            gathered, size = [], 0
    if gathered:
        yield framed(form.tail.join(parts(gathered, form.tag)), form)


def _wanted(part: Slice, keys: frozenset[bytes]) -> Sequence[Record[bytes]]:
    return [record for record in part.records if record.key in keys] if keys else part.records


def framed(data: bytes, form: EventFormat) -> bytes:
    """`data` as a chunk of an answer, if that is its form."""
    return b"%x\r\n%b\r\n" % (len(data), data) if form.framed else data


def parts(records: Sequence[Record[bytes]], tag: bytes) -> list[bytes]:
    """Events of these records, cut where the end of each id goes: one part more than there are records."""
    found: list[bytes] = []
    before = b""
    for record in records:
        id = format_id(tag, record.sequence + 1, record.epoch, record.offset + 1)
        found.append(b"%bid: %b" % (before, id))
        before = b"\ndata: %b\n\n" % encode_json(record_as_json(record))
    found.append(before)
    return found


def joined(cut: Sequence[bytes], tail: bytes) -> Iterator[bytes]:
    """The events, whose ids end with `tail`, in chunks to be sent."""
    if len(cut) * 16 + sum(map(len, cut)) <= CHUNK:
        yield tail.join(cut)
        return
    last = len(cut) - 1
    yield from _gathered(one if at == last else one + tail for at, one in enumerate(cut))


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces put together until they make a chunk."""
    gathered: list[bytes] = []
    size = 0
    for one in pieces:
        gathered.append(one)
        size += len(one)
        if size >= CHUNK:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def event(name: str, data: Any, id: bytes | None = None) -> bytes:
    """A named event: for other things than records."""
    place = b"" if id is None else b"id: %b\n" % id
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), place, encode_json(data))


def id_only(id: bytes) -> bytes:
    """An id alone: the browser shows nothing, and resumes from there."""
    return b"id: %b\n\n" % id


def retry(milliseconds: int) -> bytes:
    """How long a browser is to wait before it reconnects."""
    return b"retry: %d\n\n" % milliseconds


# -- Event ids -------------------------------------------------------------------------------------------
# One short opaque value to resume from, whatever the subscription: a tag of the broker, so that an id never passes
# for another broker's; the sequence, a position in all topics; and epoch and offset in the record's own topic,
# which is exact and quick to find. For several topics a digest of their epochs follows: it shows when a topic was
# deleted since.


BROKER_TAG_BYTES = 5  # bytes that stand for a broker
_ALL = (1 << 64) - 1
MAX_ID = 96  # characters, in any case
_FORM = re.compile(r"[A-Za-z0-9_-]{10,64}(?:\.[A-Za-z0-9_-]{16})?")


class EventId(NamedTuple):
    """Where to resume. Epoch 0: the id stands between records, of no particular topic."""

    tag: bytes
    sequence: int
    epoch: int = 0
    offset: int = 0
    known: TopicSetDigest | None = None


class TopicSetDigest(NamedTuple):
    """The topics covered when an id was issued: the highest epoch, and a digest of all epochs."""

    highest: int
    check: int


def broker_tag(broker: str) -> bytes:
    """The tag of a broker in its ids."""
    return hashlib.blake2b(broker.encode(), digest_size=BROKER_TAG_BYTES).digest()


def format_id(tag: bytes, sequence: int, epoch: int = 0, offset: int = 0) -> bytes:
    """The id that resumes there."""
    parts = [one.to_bytes((one.bit_length() + 7) // 8, "big") for one in (sequence, epoch, offset)]
    lengths = bytes((len(parts[0]) << 4 | len(parts[1]), len(parts[2])))
    return urlsafe_b64encode(b"".join((tag, lengths, *parts))).rstrip(b"=")


def format_digest(known: TopicSetDigest) -> bytes:
    """The suffix of an id for several topics."""
    return b"." + urlsafe_b64encode(known.highest.to_bytes(8, "big") + known.check.to_bytes(4, "big"))


def digest_of(epochs: Iterable[int], up_to: int | None = None) -> TopicSetDigest:
    """The digest of these topics' epochs, up to `up_to`."""
    highest, check = 0, 0
    for epoch in epochs:
        if up_to is None or epoch <= up_to:
            highest = max(highest, epoch)
            check ^= _mix(epoch)
    return TopicSetDigest(highest if up_to is None else up_to, check)


class CoveredTopics:
    """The topics of one stream, and the suffix of its ids for them.

    A new topic counts at once; one that was deleted only when the stream has reported its losses. So an id never covers
    more than the browser knows.
    """

    def __init__(self) -> None:
        self._epochs: set[int] = set()
        self._highest = self._check = 0
        self.tail = format_digest(TopicSetDigest(0, 0))

    def join(self, epochs: Iterable[int]) -> None:
        """These are covered, now."""
        for epoch in set(epochs) - self._epochs:
            self._epochs.add(epoch)
            self._highest = max(self._highest, epoch)
            self._check ^= _mix(epoch)
        self.tail = format_digest(TopicSetDigest(self._highest, self._check))

    def leave(self, epochs: Iterable[int]) -> None:
        """Only these are left, and all losses are reported."""
        for epoch in self._epochs.difference(epochs):
            self._epochs.discard(epoch)
            self._check ^= _mix(epoch)
        self.tail = format_digest(TopicSetDigest(self._highest, self._check))


def _mix(epoch: int) -> int:
    """32 bits that look random, so that no few topics cancel each other out: epochs are neighbours."""
    mixed = epoch * 0x9E3779B97F4A7C15 & _ALL
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _ALL
    return mixed >> 32


def parse_id(text: str) -> EventId:
    """Read an id; `InvalidOption` if it is malformed."""
    try:
        if len(text) > MAX_ID or not _FORM.fullmatch(text):
            raise ValueError
        body, _, tail = text.partition(".")
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
        first, second, third = data[BROKER_TAG_BYTES] >> 4, data[BROKER_TAG_BYTES] & 15, data[BROKER_TAG_BYTES + 1]
        numbers = data[BROKER_TAG_BYTES + 2 :]
        if len(numbers) != first + second + third or max(first, second, third) > 8:
            raise ValueError
        sequence, epoch, offset = (
            int.from_bytes(one, "big")
            for one in (numbers[:first], numbers[first : first + second], numbers[first + second :])
        )
        known = None
        if tail:
            told = urlsafe_b64decode(tail)
            known = TopicSetDigest(int.from_bytes(told[:8], "big"), int.from_bytes(told[8:], "big"))
        return EventId(data[:BROKER_TAG_BYTES], sequence, epoch, offset, known)
    except (ValueError, IndexError):
        shown = text if len(text) <= MAX_ID else text[:MAX_ID] + "…"
        raise InvalidOption("Last-Event-ID", shown, "expected an id as an event had it, unchanged") from None
