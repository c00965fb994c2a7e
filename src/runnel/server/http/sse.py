"""Server-sent events as bytes. Sans-IO.

A slice of records is written once for all who read it. What differs is the end of an id (see `event_id`), the keys that
somebody wants, and whether the bytes are a chunk of an HTTP answer already: of each such form there is one, and every
connection sends the same bytes. JSON has no line breaks, so an event is one `data:` line.
Below: event_id, shape. Above: events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from runnel.core.batch import Slice
from runnel.core.record import Record
from runnel.server.http.event_id import write
from runnel.server.http.shape import encode, shape

CHUNK = 256 << 10  # bytes that are sent at a time, about
KEPT = 1 << 20  # bytes of values in a slice; of larger ones what was written is not kept
FORMS = 2 << 20  # bytes of all forms of a slice that are kept
HEARTBEAT = b": \n\n"


class Form(NamedTuple):
    """How events are written for a stream: the end of their ids, the keys that it wants, and whether as HTTP chunks."""

    mark: bytes
    tail: bytes = b""
    keys: frozenset[bytes] = frozenset()
    framed: bool = False


class Written:
    """What was written of a slice, kept in it: others read the same one."""

    __slots__ = ("_forms", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] | None = None  # of all its records, for ids with different ends
        self._forms: dict[Form, tuple[bytes, ...]] = {}
        self._size = 0

    def of(self, part: Slice, form: Form) -> tuple[bytes, ...]:
        """The events of `part`, whose this is, in a form."""
        found = self._forms.get(form)
        if found is None:
            found = tuple(framed(one, form) for one in joined(self._cut(part, form), form.tail) if one)
            self._size += (size := sum(map(len, found)))
            if self._size <= FORMS:
                self._forms[form] = found
            else:
                self._size -= size
        return found

    def _cut(self, part: Slice, form: Form) -> list[bytes]:
        if form.keys:
            return parts(_wanted(part, form.keys), form.mark)
        found = self._parts or parts(part.records, form.mark)
        if form.tail:
            self._parts = found
        return found


def chunks(slices: Sequence[Slice], form: Form) -> Iterable[bytes]:
    """The events of these slices, in chunks to be sent. Kept ones come as a tuple, large ones as they are written."""
    if len(slices) == 1:
        return _chunks(slices[0], form)
    found = [_chunks(part, form) for part in slices]
    if all(isinstance(one, tuple) for one in found):
        return tuple(_gathered(chunk for one in found for chunk in one))
    return (chunk for one in found for chunk in one)


def _chunks(part: Slice, form: Form) -> Iterable[bytes]:
    if part.written is None:
        if sum(map(len, part.values)) > KEPT:
            return _large(part, form)
        part.written = Written()
    found: tuple[bytes, ...] = part.written.of(part, form)
    return found


def _large(part: Slice, form: Form) -> Iterator[bytes]:
    """The events of a slice of large values, some at a time: nobody has to hold all of them as text."""
    gathered: list[Record[bytes]] = []
    size = 0
    for record in _wanted(part, form.keys):
        gathered.append(record)
        size += len(record.value)
        if size >= CHUNK:
            yield framed(form.tail.join(parts(gathered, form.mark)), form)
            gathered, size = [], 0
    if gathered:
        yield framed(form.tail.join(parts(gathered, form.mark)), form)


def _wanted(part: Slice, keys: frozenset[bytes]) -> Sequence[Record[bytes]]:
    return [record for record in part.records if record.key in keys] if keys else part.records


def framed(data: bytes, form: Form) -> bytes:
    """`data` as a chunk of an answer, if that is its form."""
    return b"%x\r\n%b\r\n" % (len(data), data) if form.framed else data


def parts(records: Sequence[Record[bytes]], mark: bytes) -> list[bytes]:
    """Events of these records, cut where the end of each id goes: one part more than there are records."""
    found: list[bytes] = []
    before = b""
    for record in records:
        id = write(mark, record.sequence + 1, record.epoch, record.offset + 1)
        found.append(b"%bid: %b" % (before, id))
        before = b"\ndata: %b\n\n" % encode(shape(record))
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
    """A named event: what is not a record."""
    place = b"" if id is None else b"id: %b\n" % id
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), place, encode(data))


def here(id: bytes) -> bytes:
    """An id alone: nothing is shown to anybody, and a browser that comes back goes on from there."""
    return b"id: %b\n\n" % id


def retry(milliseconds: int) -> bytes:
    """How long a browser is to wait before it comes back."""
    return b"retry: %d\n\n" % milliseconds
