"""A process that is many clients: bare connections that say hello, subscribe, read, and measure how late records are.

Commands come on stdin, a line each, and each is answered by one line of JSON: "connect" (all at once), "count N" (when
everybody has N records), "report" (how late the records since the last report were). Values begin with the time, as
`stamp` writes it.
Above: serving, which starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import struct
import sys
import time
from typing import Any

from runnel.core.batch_format import unpack
from runnel.wire.binary_messages import credit_frame, read_deliver
from runnel.wire.errors import read_error
from runnel.wire.frames import FROM_SERVER, PREFACE, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import Hello, Subscribe, encode_message

TOPIC = "beat"
ID = 1  # of the one subscription that a connection has
CREDIT = 64 << 10
_STAMP = struct.Struct("<d")
_HELLO = PREFACE + frame(FrameKind.HELLO, 0, encode_message(Hello(version=1, client="one of many")))


def stamp(size: int = 0) -> bytes:
    """A value that knows when it was made."""
    return _STAMP.pack(time.monotonic()).ljust(size, b".")


def stamped(value: bytes) -> float:
    """When a value was made."""
    made: float = _STAMP.unpack_from(value)[0]
    return made


def percentiles(seconds: list[float]) -> dict[str, float]:
    """The middle, the slowest of a hundred, and the slowest, in milliseconds."""
    ranked = sorted(seconds) or [0.0]
    of = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 2) for name, share in of.items()}


class One(asyncio.Protocol):
    """One client."""

    transport: asyncio.Transport

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.received = 0
        self._next: dict[str, int] = {}  # the offset that comes next, by topic
        self._decoder = FrameDecoder(kinds=FROM_SERVER)
        self._owed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        hello = _HELLO
        if self.crowd.credit:
            hello += frame(FrameKind.SUBSCRIBE, ID, encode_message(self.crowd.asks))
        transport.write(hello)

    def connection_lost(self, error: Exception | None) -> None:
        self.crowd.lost += 1

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        for kind, _, extra, id, payload in self._decoder.frames():
            if kind == FrameKind.DELIVER:
                self._deliver(extra, payload)
            elif kind == FrameKind.PING:
                self.transport.write(frame(FrameKind.PONG, id, payload))
            elif kind == (FrameKind.SUBSCRIBED if self.crowd.credit else FrameKind.WELCOME):
                self.crowd.one_in()
            elif kind == FrameKind.ERROR:
                raise read_error(payload)

    def _deliver(self, extra: int, payload: bytes) -> None:
        now, crowd = time.monotonic(), self.crowd
        came = read_deliver(extra, payload)
        values = unpack(came.batch, verify=False).values
        if self._next.get(came.topic, came.offset) != came.offset:
            crowd.astray += 1
        self._next[came.topic] = came.offset + len(values)
        self.received += len(values)
        crowd.late.extend(now - stamped(value) for value in values)
        self._owed += len(payload)
        if self._owed * 4 > crowd.credit:
            self.transport.write(credit_frame(ID, self._owed))
            self._owed = 0


class Crowd:
    """All clients of this process."""

    def __init__(self, port: int, count: int, credit: int, pattern: str) -> None:
        self.port, self.count, self.credit = port, count, credit
        self.asks = Subscribe(pattern=pattern, start="latest", credit=credit)
        self.members: list[One] = []
        self.late: list[float] = []
        self.astray = self.lost = self._in = 0
        self._began = self._last = 0.0
        self._everybody = asyncio.Event()

    def one_in(self) -> None:
        """The server let one more in."""
        self._in += 1
        self._last = time.monotonic()
        if self._in == self.count:
            self._everybody.set()

    async def connect(self) -> dict[str, Any]:
        """Everybody, at once."""
        self._began = time.monotonic()
        self.members = list(await asyncio.gather(*(self._one() for _ in range(self.count))))
        await self._everybody.wait()
        return {"in": self._in, "began": self._began, "last": self._last}

    async def _one(self) -> One:
        loop = asyncio.get_running_loop()
        made = socket.socket()
        made.setblocking(False)
        await loop.sock_connect(made, ("127.0.0.1", self.port))
        _, member = await loop.create_connection(lambda: One(self), sock=made)
        return member

    async def counted(self, wanted: int) -> dict[str, Any]:
        """When everybody has so many records."""
        while any(member.received < wanted for member in self.members):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return self.report()

    def report(self) -> dict[str, Any]:
        """How late the records were since the last time, and what went wrong ever."""
        late, self.late = self.late, []
        fewest = min((member.received for member in self.members), default=0)
        most = max((member.received for member in self.members), default=0)
        return {**percentiles(late), "fewest": fewest, "most": most, "astray": self.astray, "lost": self.lost}


async def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description="be many clients")
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--credit", type=int, default=CREDIT, help="0: say hello and nothing else")
    parser.add_argument("--pattern", default=TOPIC, help="what they subscribe to")
    parser.add_argument("--nice", type=int, default=0, help="as if they were on other machines: others go first")
    given = parser.parse_args()
    os.nice(given.nice)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd = Crowd(given.port, given.count, given.credit, given.pattern)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).split():
        match line[0]:
            case b"connect":
                answer = await crowd.connect()
            case b"count":
                answer = await crowd.counted(int(line[1]))
            case _:
                answer = crowd.report()
        print(json.dumps(answer), flush=True)  # noqa: T201
    for member in crowd.members:
        member.transport.abort()


if __name__ == "__main__":
    asyncio.run(main())
