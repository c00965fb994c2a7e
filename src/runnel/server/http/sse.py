"""Server-sent events as bytes. Sans-IO.

A slice of records is written once for all who read it: each connection only joins the parts. Between them goes what
differs, the end of the id (see `event_id`). JSON has no line breaks, so an event is one `data:` line.
Below: event_id, shape. Above: events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runnel.core.batch import Slice
from runnel.core.record import Record
from runnel.server.http.event_id import write
from runnel.server.http.shape import encode, shape

CHUNK = 256 << 10  # bytes that are sent at a time, about
HEARTBEAT = b": \n\n"


def parts_of(part: Slice, mark: bytes) -> Sequence[bytes]:
    """The events of a slice, cut where the end of each id goes. Remembered in it: others read the same one."""
    if part.written is None:
        part.written = parts(part.records, mark)
    return part.written


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
    gathered: list[bytes] = []
    size, last = 0, len(cut) - 1
    for at, one in enumerate(cut):
        gathered.append(one if at == last else one + tail)
        size += len(one) + len(tail)
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
