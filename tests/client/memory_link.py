"""A client's subscriptions linked to a real session of a server, in memory: bytes pass when a test says so.

The server is the real one from its protocol on; of the client, the link is played. So a connection can be cut
between any two bytes, again and again, within one turn of the loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import runnel
from runnel import Broker
from runnel.api.group_subscription import open_subscription
from runnel.client.backend import RemoteBackend
from runnel.client.options import ClientOptions
from runnel.core.errors import ConnectionLost, RunnelError
from runnel.runtime.clock import SystemClock
from runnel.server.native.connection import NativeConnection
from runnel.server.native.session import native_listener
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker
from runnel.wire.errors import read_error
from runnel.wire.frames import FROM_CLIENT, FROM_SERVER, PREFACE, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import Hello, Welcome, call_payload, decode_message, encode_message, read_reply


class Transport(asyncio.Transport):
    """The server's end: what it writes waits here."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self._told = told

    def write(self, data: Any) -> None:
        self.written += data
        self._told()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class AlwaysHere:
    """A loop owner that is on its own loop, and open."""

    def is_here(self) -> bool:
        return True

    def check_usable(self, doing: str) -> None:
        pass


class JoinedLink:
    """What a subscription needs of a link; `flow`: whether bytes pass by themselves, at once."""

    verify = True
    address = "runnel://joined"

    def __init__(self, serving: ServedBroker, *, flow: bool = True, clock: Any = None, **options: Any) -> None:
        self.options = ClientOptions(**options)
        self.clock = clock or SystemClock()
        self.welcome = Welcome()
        self.blockers: set[Any] = set()
        self.flow = flow
        self.sent: list[tuple[FrameKind, int, int, bytes]] = []
        self.state = "new"
        self.ahead = 0.0  # seconds that the client takes the server's clock to be ahead
        self.answers: dict[str, Any] = {}  # to what is asked synchronously
        self._door = native_listener(serving)
        self._attached: dict[Any, None] = {}
        self._owners: dict[int, Any] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._server: NativeConnection | None = None
        self._transport = Transport(self._soon)
        self._last = 0
        self.loop_owner: Any = AlwaysHere()
        self.backend: Any = RemoteBackend(self)  # type: ignore[arg-type]

    # -- as a link ----------------------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def origin(self) -> str | None:
        return self.welcome.journal

    def skew(self) -> float:
        return self.ahead

    def server_time(self) -> float:
        return self.clock.time() + self.ahead

    def check_usable(self, doing: str) -> None:
        pass

    def is_here(self) -> bool:
        return True

    def new_id(self) -> int:
        self._last += 1
        return self._last

    def send(self, data: bytes, *, ahead: bool = False) -> None:
        if self._server is not None:
            decoder = FrameDecoder(kinds=FROM_CLIENT)
            decoder.feed(data)
            self.sent += [(FrameKind(kind), flags, id, payload) for kind, flags, _, id, payload in decoder.frames()]
            self._feed(data)

    def flush_soon(self, owner: Any) -> None:
        asyncio.get_running_loop().call_soon(owner.flush)

    def attach(self, owner: Any) -> int:
        self._attached[owner] = None
        owner.id = 0
        if self._server is not None:
            self._introduce(owner)
        return int(owner.id)

    def detach(self, owner: Any) -> None:
        self._attached.pop(owner, None)
        self._owners.pop(owner.id, None)

    def ask(self, method: str, args: dict[str, Any]) -> Any:
        found = self.answers[method]
        return found(args) if callable(found) else found

    async def call(self, method: str, args: dict[str, Any], *, again: bool = True, timeout: float | None = -1) -> Any:
        id = self.new_id()
        self._replies[id] = asyncio.get_running_loop().create_future()
        self.send(frame(FrameKind.CALL, id, call_payload(method, args)))
        return read_reply(await self._replies[id])

    # -- as a test ----------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> list[FrameKind]:
        """The frames that the client sent, but for credit."""
        return [kind for kind, *_ in self.sent if kind is not FrameKind.CREDIT]

    def connect(self) -> None:
        """A new connection, and everybody is told."""
        self._server, self._transport = self._door(), Transport(self._soon)
        self._decoder = FrameDecoder(kinds=FROM_SERVER)
        self._last = 0
        self._server.connection_made(self._transport)
        self._feed(PREFACE + frame(FrameKind.HELLO, 0, encode_message(Hello(version=1))))
        self.state = "connected"
        for owner in list(self._attached):
            self._introduce(owner)

    def cut(self) -> None:
        """The connection is lost: what was under way either way never arrives."""
        server, self._server = self._server, None
        self.state = "reconnecting"
        self._owners.clear()
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.set_exception(ConnectionLost(self.address, "it was cut"))
        for owner in list(self._attached):
            owner.lost()
        if server is not None:
            server.connection_lost(None)

    def close(self, error: RunnelError | None = None) -> None:
        attached, self._attached = list(self._attached), {}
        for owner in attached:
            owner.closed(error)

    def pass_on(self, most: int | None = None) -> int:
        """Let so many bytes of the server through; how many there were."""
        written = self._transport.written
        data = bytes(written[: len(written) if most is None else most])
        del written[: len(data)]
        if data and self._server is not None:
            self._decoder.feed(data)
            for kind, flags, extra, id, payload in self._decoder.frames():
                self.receive(kind, flags, extra, id, payload)
        return len(data)

    def receive(self, kind: int, flags: int, extra: int, id: int, payload: bytes) -> None:
        if kind == FrameKind.WELCOME:
            self.welcome = decode_message(Welcome, payload)
        elif (owner := self._owners.get(id)) is not None:
            owner.frame(kind, flags, extra, payload)
        elif (reply := self._replies.pop(id, None)) is not None:
            if kind == FrameKind.REPLY:
                reply.set_result(payload)
            else:
                reply.set_exception(read_error(payload))

    async def settle(self, turns: int = 20) -> None:
        """Let both ends run; with `flow`, what they say passes."""
        for _ in range(turns):
            await asyncio.sleep(0)
            if self.flow:
                self.pass_on()

    def _introduce(self, owner: Any) -> None:
        owner.id = self.new_id()
        self._owners[owner.id] = owner
        owner.connected()

    def _feed(self, data: bytes) -> None:
        server = self._server
        while data and server is not None:
            room = server.get_buffer(len(data))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            server.buffer_updated(count)
            data = data[count:]

    def _soon(self) -> None:
        """The server has something to say."""
        if self.flow:
            asyncio.get_running_loop().call_soon(self._flow)

    def _flow(self) -> None:
        if self.flow:
            self.pass_on()


@asynccontextmanager
async def joined(
    *, flow: bool = True, where: Any = None, clock: Any = None, **options: Any
) -> AsyncIterator[tuple[Broker, JoinedLink]]:
    """A broker, and a link that is connected to it."""
    async with runnel.open(clock=clock) if where is None else runnel.open(where, clock=clock) as broker:
        link = JoinedLink(ServedBroker(broker, ServerOptions()), flow=flow, clock=clock, **options)
        link.connect()
        link.pass_on()
        try:
            yield broker, link
        finally:
            if link.state == "connected":
                link.cut()
            link.close()


async def pumped(link: JoinedLink, work: Any) -> Any:
    """What comes of `work` while bytes pass."""
    task = asyncio.ensure_future(work)
    for _ in range(100_000):
        if task.done():
            return task.result()
        await asyncio.sleep(0)
        link.pass_on()
    task.cancel()
    raise AssertionError("nothing comes of it")


def subscribe(link: JoinedLink, pattern: str = "t", **options: Any) -> Any:
    return open_subscription(link.backend, pattern, **options)
