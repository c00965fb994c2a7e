"""A server that does what a test says, frame by frame, on a real socket."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from runnel.core.batch_format import unpack
from runnel.core.errors import RunnelError
from runnel.wire.binary_messages import PublishPayload, published_frame, read_publish
from runnel.wire.errors import error_frame
from runnel.wire.frames import FROM_CLIENT, PREFACE, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import Hello, Welcome, decode_message, encode_message, read_call
from tests.patience import PATIENCE

Joined = Callable[..., Any]  # of the fixture: opens a broker and the other end of its connection


class Frame(NamedTuple):
    """A frame that a client sent."""

    kind: int
    flags: int
    extra: int
    id: int
    payload: bytes

    @property
    def publish(self) -> PublishPayload:
        assert self.kind == FrameKind.PUBLISH
        return read_publish(self.flags, self.extra, self.payload)

    @property
    def values(self) -> tuple[bytes, ...]:
        return unpack(self.publish.batch).values

    @property
    def call(self) -> tuple[str, dict[str, Any]]:
        assert self.kind == FrameKind.CALL
        return read_call(self.payload)


class Caller:
    """One client, connected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder(kinds=FROM_CLIENT, preface=PREFACE)
        self._frames: list[Frame] = []
        self.hello: Hello | None = None

    async def next(self) -> Frame:
        """The next frame. `EOFError`: the client has closed the connection."""
        while not self._frames:
            data = await asyncio.wait_for(self._reader.read(1 << 20), PATIENCE)
            if not data:
                raise EOFError
            self._decoder.feed(data)
            self._frames += [Frame(*one) for one in self._decoder.frames()]
        return self._frames.pop(0)

    async def greet(self, **welcome: Any) -> None:
        hello = await self.next()
        assert hello.kind == FrameKind.HELLO
        self.hello = decode_message(Hello, hello.payload)
        self.send(
            frame(FrameKind.WELCOME, 0, encode_message(Welcome(**{"server": "a peer", "durable": True, **welcome})))
        )

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def publish(self, asked: Frame, first: int, epoch: int = 1) -> None:
        """Answer a PUBLISH: it is stored from offset `first` on."""
        self.send(published_frame(asked.id, epoch, first, first + len(asked.values) - 1))

    def refuse(self, asked: Frame, error: RunnelError) -> None:
        self.send(error_frame(asked.id, error))

    def reply(self, asked: Frame, result: Any) -> None:
        self.send(frame(FrameKind.REPLY, asked.id, encode_message(result)))

    async def next_call(self, method: str) -> Frame:
        asked = await self.next()
        assert asked.call[0] == method
        return asked

    def cut(self) -> None:
        """End the connection, as a network does that fails."""
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


class Peer:
    """Waits for clients."""

    def __init__(self) -> None:
        self.url = ""
        self._came: asyncio.Queue[Caller] = asyncio.Queue()
        self._callers: list[Caller] = []

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(reader, writer)
        self._callers.append(caller)
        await self._came.put(caller)

    async def accept(self, **welcome: Any) -> Caller:
        """The next client, greeted."""
        caller = await self.meet()
        await caller.greet(**welcome)
        return caller

    async def meet(self) -> Caller:
        """The next client, which waits to be greeted."""
        return await asyncio.wait_for(self._came.get(), PATIENCE)


@asynccontextmanager
async def a_peer(*, path: Path | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """A server on a port of its own, or on a Unix socket."""
    peer = Peer()
    if path is None:
        server = await asyncio.start_server(peer._meet, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        peer.url = f"runnel{'s' if tls else ''}://127.0.0.1:{port}"
    else:
        server = await asyncio.start_unix_server(peer._meet, path)
        peer.url = f"runnel+unix://{path}"
    try:
        yield peer
    finally:
        server.close()
        for caller in peer._callers:
            caller.cut()
        await server.wait_closed()
