"""A browser for a storm: it reads an event stream, loses it anywhere, comes back with the last id, and checks events.

Of each topic every offset must come once and in order, from 0 on; over all topics of a stream sequences must rise. What
is missing and was not told is a silent gap, what came before comes as a repeat. An event counts when its empty line is
there, as the standard has it: what was cut off in the middle of it was not received.
Above: browsers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec


class Event(msgspec.Struct):
    """What is looked at of a record."""

    topic: str
    offset: int
    sequence: int


_decode = msgspec.json.Decoder(Event).decode
HEAD = b"\r\n\r\n"
MOST = 1 << 16  # bytes of a read


class Unchunked:
    """The body of an answer that comes in chunks of HTTP, however the network cuts them."""

    def __init__(self) -> None:
        self._buffer, self._left = b"", 0

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in `data`, and in what came before it."""
        found: list[bytes] = []
        self._buffer += data
        while True:
            if self._left > 2:  # of a chunk, and the line break behind it
                part = self._buffer[: self._left - 2]
                found.append(part)
                self._buffer = self._buffer[len(part) :]
                self._left -= len(part)
            if self._left:
                if self._left > 2 or len(self._buffer) < self._left:
                    break
                self._buffer, self._left = self._buffer[self._left :], 0
            size, line, rest = self._buffer.partition(b"\r\n")
            if not line:
                break
            self._buffer, self._left = rest, int(size, 16) + 2
        return b"".join(found)


@dataclass
class Browser:
    """One of many."""

    query: str
    last_id: str = ""
    expects: dict[str, int] = field(default_factory=dict)  # the offset that comes next, by topic
    sequence: int = -1  # of the last record
    events: int = 0
    visits: int = 0  # streams that began
    resumed: int = 0  # of those, where the server said that it goes on
    gaps: list[str] = field(default_factory=list)  # told
    faults: list[str] = field(default_factory=list)  # not told

    async def visit(self, port: int, most: int, patience: float) -> None:
        """Read until `most` bytes have come, or for so long, or until the server ends it; then go without a word."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            ask = f"GET /events?{self.query}&start=earliest HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            ask += f"Last-Event-ID: {self.last_id}\r\n" if self.last_id else ""
            writer.write(ask.encode() + b"\r\n")
            head = await reader.readuntil(HEAD)
            if b" 503 " in head[:16]:
                raise ConnectionRefusedError("the server stops, or is full")
            if b" 200 " not in head[:16]:
                self.faults.append(f"answered with {head[:100]!r}")
                return
            self.visits += 1
            try:
                async with asyncio.timeout(patience):
                    await self._read(reader, most)
            except TimeoutError:
                pass
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, most: int) -> None:
        body, text, seen = Unchunked(), b"", 0
        while seen < most and (data := await reader.read(min(MOST, most - seen))):
            seen += len(data)
            *blocks, text = (text + body.feed(data)).split(b"\n\n")
            for block in blocks:
                self._event(block)

    def _event(self, block: bytes) -> None:
        name = data = b""
        for line in block.split(b"\n"):
            field, _, value = line.partition(b": ")
            if field == b"data":
                data = value
            elif field == b"id":
                self.last_id = value.decode()
            elif field == b"event":
                name = value
        if data and not name:
            self._record(_decode(data))
        elif name == b"gap":
            self.gaps.append(data.decode())
        elif name == b"ready":
            self.resumed += b'"resumed":true' in data

    def _record(self, record: Event) -> None:
        self.events += 1
        wanted = self.expects.get(record.topic, 0)
        if record.offset != wanted:
            kind = "repeat" if record.offset < wanted else "silent gap"
            self.faults.append(f"{kind}: {record.topic} {record.offset}, not {wanted} ({self.query})")
        if record.sequence <= self.sequence:
            self.faults.append(f"out of order: sequence {record.sequence} after {self.sequence} ({self.query})")
        self.expects[record.topic] = record.offset + 1
        self.sequence = record.sequence
