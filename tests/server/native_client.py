"""A client of the native listener with nothing in between: frames out, frames in. For tests of servers."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from runnel.api.broker import Broker
from runnel.core.batch_format import pack, unpack
from runnel.core.errors import RunnelError
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ListenerAddress
from runnel.server.server import Server
from runnel.server.unix_socket import socket_address
from runnel.wire import binary_messages
from runnel.wire.errors import read_error
from runnel.wire.frames import FROM_SERVER, PREFACE, Frame, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import (
    Goodbye,
    Hello,
    PublishDetails,
    Settlement,
    Subscribe,
    SubscribeReply,
    Welcome,
    call_payload,
    decode_message,
    encode_message,
    read_reply,
    settle_payload,
)
from tests.brokers import local_broker
from tests.patience import PATIENCE


async def until(condition: Callable[[], object]) -> None:
    """Return when it is so; fail after some seconds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.002)


@asynccontextmanager
async def serving(broker: Broker | None = None, **options: Any) -> AsyncIterator[Server]:
    """A server on ports of its own, with a broker in memory if none is given."""
    given: dict[str, Any] = {"port": 0, "json_port": None} | options
    async with broker or local_broker() as served, Server(served, ServerOptions(**given)) as server:
        yield server


class Raw:
    """One connection. Frames that were not waited for stay in `inbox`, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.inbox: deque[Frame] = deque()
        self.decoder = FrameDecoder(kinds=FROM_SERVER)
        self.welcome: Welcome | None = None
        self._ids = 0

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    # -- out ----------------------------------------------------------------------------------------------------

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    def publish(self, topic: str, *values: bytes, about: PublishDetails | None = None, id: int | None = None) -> int:
        """Send a PUBLISH; its id."""
        return self.publish_batch(topic, pack(values), about=about, id=id)

    def publish_batch(
        self, topic: str, batch: bytes, *, about: PublishDetails | None = None, id: int | None = None
    ) -> int:
        id = id or self.new_id()
        self.send(*binary_messages.publish_frame(id, topic.encode(), batch, about))
        return id

    def call(self, method: str, **args: Any) -> int:
        """Send a CALL; its id."""
        id = self.new_id()
        self.send(frame(FrameKind.CALL, id, call_payload(method, args)))
        return id

    def subscribe(self, pattern: str, **options: Any) -> int:
        """Send a SUBSCRIBE; its id."""
        id = self.new_id()
        self.send(frame(FrameKind.SUBSCRIBE, id, encode_message(Subscribe(pattern=pattern, **options))))
        return id

    def credit(self, id: int, given: int = 0, place: int | None = None, *, ask: bool = False) -> None:
        self.send(binary_messages.credit_frame(id, given, place, ask=ask))

    def settle(self, *settlements: Settlement, answered: bool = True) -> int:
        id = self.new_id() if answered else 0
        self.send(frame(FrameKind.SETTLE, id, settle_payload(settlements)))
        return id

    def goodbye(self) -> None:
        self.send(frame(FrameKind.GOODBYE, 0, encode_message(Goodbye(reason="done"))))

    # -- in -----------------------------------------------------------------------------------------------------

    async def hello(self, version: int = 1, **said: Any) -> Welcome:
        """Say hello, and wait for the welcome."""
        self.send(PREFACE, frame(FrameKind.HELLO, 0, encode_message(Hello(version=version, client="raw", **said))))
        _, _, _, _, payload = await self.next(FrameKind.WELCOME)
        self.welcome = decode_message(Welcome, payload)
        return self.welcome

    async def next(
        self, *kinds: FrameKind, id: int | None = None, of: Callable[[Frame], bool] = lambda _: True
    ) -> Frame:
        """The next frame of these kinds, with this id. Other ERRORs are raised, pings answered."""
        seen = 0
        while True:
            while seen < len(self.inbox):
                found = self.inbox[seen]
                if (not kinds or found[0] in kinds) and (id is None or found[3] == id) and of(found):
                    del self.inbox[seen]
                    return found
                if found[0] == FrameKind.ERROR and found[3] in (0, id):
                    raise read_error(found[4])
                seen += 1
            if not await self._more():
                raise EOFError("the server closed the connection")

    async def _more(self) -> bool:
        data = await self.reader.read(1 << 20)
        self.decoder.feed(data)
        for one in self.decoder.frames():
            if one[0] == FrameKind.PING:
                self.send(frame(FrameKind.PONG, one[3], one[4]))
            else:
                self.inbox.append(one)
        return bool(data)

    async def published(self, id: int) -> tuple[int, int, int]:
        """(epoch, first, last) of a publish."""
        return binary_messages.read_published((await self.next(FrameKind.PUBLISHED, id=id))[4])

    async def reply(self, id: int) -> Any:
        """The result of a call."""
        return read_reply((await self.next(FrameKind.REPLY, id=id))[4])

    async def ask(self, method: str, **args: Any) -> Any:
        """Call, and wait for the result."""
        return await self.reply(self.call(method, **args))

    async def error(self, id: int = 0) -> RunnelError:
        """The ERROR for a request, or for the connection."""
        return read_error((await self.next(FrameKind.ERROR, id=id))[4])

    async def subscribed(self, id: int) -> SubscribeReply:
        return decode_message(SubscribeReply, (await self.next(FrameKind.SUBSCRIBED, id=id))[4])

    async def deliver(self, id: int) -> binary_messages.DeliverPayload:
        """The next DELIVER of a subscription."""
        _, _, extra, _, payload = await self.next(FrameKind.DELIVER, id=id)
        return binary_messages.read_deliver(extra, payload)

    async def values(self, id: int, count: int) -> list[bytes]:
        """The next `count` values of a subscription, or a few more."""
        found: list[bytes] = []
        while len(found) < count:
            found += unpack((await self.deliver(id)).batch).values
        return found

    async def grant(self, id: int) -> binary_messages.GrantPayload:
        """The next GRANT of a member."""
        _, _, extra, _, payload = await self.next(FrameKind.GRANT, id=id)
        return binary_messages.read_grant(extra, payload)

    async def eof(self) -> None:
        """Return when the server has closed the connection."""
        while await self._more():
            pass

    # -- its end ------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Vanish without a word."""
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


@asynccontextmanager
async def connected(
    listener: ListenerAddress | Server, *, hello: bool = True, context: ssl.SSLContext | None = None, **said: Any
) -> AsyncIterator[Raw]:
    """A connection to a listener; of a server, to its native one."""
    where = listener if isinstance(listener, ListenerAddress) else listener.listeners[0]
    if where.name == "unix":
        with socket_address(Path(where.host)) as address:
            reader, writer = await asyncio.open_unix_connection(address)
    else:
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
    raw = Raw(reader, writer)
    try:
        if hello:
            await raw.hello(**said)
        yield raw
    finally:
        await raw.close()
