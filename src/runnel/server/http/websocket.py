"""`GET /ws`: a WebSocket, with the same sessions behind it as the TCP listeners.

Text messages are JSON lines, one command or event each; binary messages are bytes of the native protocol. The first
message decides which of the two a connection speaks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from runnel.core.errors import LimitExceeded, ProtocolError, RunnelError
from runnel.server.connections import RECONNECT_AFTER, ServerConnection, address_of
from runnel.server.http.authentication import SERVING
from runnel.server.http.cross_origin import DENIAL_EXTENSION
from runnel.server.http.errors import error_response, problem_response
from runnel.server.http.event_stream import connection_of
from runnel.server.http.stop_signals import ended_by_signals
from runnel.server.json_lines.listener import JsonLinesListener
from runnel.server.native.session import native_listener
from runnel.server.served_broker import ServedBroker
from runnel.wire import json_events
from runnel.wire.errors import error_frame

if TYPE_CHECKING:
    from runnel.server.http.listener import WebSocketConnection


CLOSE_TIMEOUT = 2.0  # seconds that a browser has to answer a close frame

NORMAL_CLOSURE = 1000
GOING_AWAY = 1001
UNSUPPORTED_DATA = 1003
POLICY_VIOLATION = 1008
STOPPING = "the server stops"

log = logging.getLogger("runnel")


class TextProtocol(Protocol):
    """Makes the protocol of a WebSocket that speaks JSON lines."""

    def __call__(self, serving: ServedBroker, *, whole: bool) -> JsonLinesListener:
        """`whole`: each piece of data is a line."""


class WebSocketRoutes:
    """The route. `text` makes the protocol of a connection that begins with a text message."""

    def __init__(self, serving: ServedBroker, text: TextProtocol = JsonLinesListener) -> None:
        self._serving, self._text = serving, text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one websocket, until either side has enough."""
        await receive()  # the connect message
        serving = scope.get(SERVING) or self._serving  # without a login, its first message has to bring one
        session = WebSocketSession(serving, scope, receive, send, self._text)
        if serving.connections.draining:
            stopping = problem_response(503, "not_ready", STOPPING, headers={"retry-after": "1"})
            await _deny(stopping, scope, receive, send)
            return
        try:
            session.take_slot()
        except LimitExceeded as error:
            await _deny(error_response(error), scope, receive, send)
            return
        with ended_by_signals(session.stop) if connection_of(scope) is None else nullcontext():
            await session.run()

    async def plain(self, request: Request) -> Response:
        """The route was requested without an upgrade to a websocket."""
        raise HTTPException(426, "this is a websocket: new WebSocket(url)", {"upgrade": "websocket"})


class WebSocketSession:
    """One WebSocket. It counts as a connection until its first message makes a session of it."""

    def __init__(self, serving: ServedBroker, scope: Scope, receive: Receive, send: Send, text: TextProtocol) -> None:
        self._serving, self._receive, self._send, self._text_protocol = serving, receive, send, text
        self._connection: WebSocketConnection | None = connection_of(scope)
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._peer = tuple(scope.get("client") or ()) or None
        self.peer_address = address_of(self._peer)
        facts: dict[str, Any] = {"peername": self._peer, "listener": "websocket"}
        if self._connection is not None:
            facts["socket"] = self._connection.transport.get_extra_info("socket")
            facts["allow"] = self._connection.allow  # for frames that are larger than lines, after a HELLO
        self._transport = WebSocketTransport(send, serving.options.send_timeout, self._connection, self._how, facts)
        self._code = NORMAL_CLOSURE
        self._text: bool | None = None  # which of the two it speaks
        self._timer: asyncio.TimerHandle | None = None

    def take_slot(self) -> None:
        """Be counted; `LimitExceeded` if there are as many connections as there may be."""
        if self._connection is not None:
            self._connection.release_slot()  # it was a connection before
        self._serving.connections.add(self)
        limit = self._serving.options.hello_timeout
        late = LimitExceeded("hello_timeout", limit, limit)
        self._timer = self._loop.call_later(limit, self._say, late, POLICY_VIOLATION)

    # -- as the rest of the server knows it -------------------------------------------------------------------------

    @property
    def raw_socket(self) -> Any:
        """Its socket, for what the system counts of it."""
        return self._transport.get_extra_info("socket")

    def describe(self) -> dict[str, Any]:
        """The peer; it holds nothing yet."""
        held = {"unsent_bytes": 0, "listener": "websocket", "subscriptions": 0}
        return {"peer": str(self._peer or ""), "since": self._loop.time() - self._since, **held}

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops: there is nothing to be answered."""
        self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def stop(self) -> None:
        """The server of the application stops: answer pending requests, say goodbye, and close."""
        self._code = GOING_AWAY
        protocol = self._transport.protocol
        (self if protocol is None else cast(ServerConnection, protocol)).drain(STOPPING, RECONNECT_AFTER)

    # -- its life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Speak, until either side has enough."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._send({"type": "websocket.accept"})
            tasks = [self._loop.create_task(one) for one in (self._listen(), self._transport.send_all())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():  # else the client disconnected
                await self._part()
        finally:
            for one in tasks:
                one.cancel()
            if tasks:
                await asyncio.wait(tasks)
            self._begun()
            self._transport.lost()
            for one in tasks:
                if not one.cancelled() and (error := one.exception()) is not None and not isinstance(error, OSError):
                    log.error("the server failed at a websocket of %s", self._peer, exc_info=error)

    async def _listen(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            if self._transport.is_closing():
                continue  # it is thrown away, as long as the other side speaks
            text, data = _read_message(message)
            if self._text is None and not self._begin(text, data):
                continue
            if text is not self._text:
                self._refuse(text)
                continue
            await self._transport.feed(data)

    def _begin(self, text: bool, data: bytes) -> bool:
        """The first message: start the session of its protocol."""
        if not (data.strip() if text else data):
            return False  # nothing was said
        transport, serving = self._transport, self._serving
        self._text = text
        if not text and data[:1] == b"{":
            why = "JSON goes in text messages; this came in a binary one, which is for native frames"
            self._say(ProtocolError(why), UNSUPPORTED_DATA)
            return False
        self._begun()
        transport.text = text
        if text:
            transport.protocol = self._text_protocol(serving, whole=True)
        else:
            transport.protocol = native_listener(serving)()
        transport.protocol.connection_made(transport)
        return not transport.is_closing()

    def _begun(self) -> None:
        """The session began, or the client disconnected: stop the timer and the count of this one."""
        self._serving.connections.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _refuse(self, text: bool) -> None:
        """The client mixes text and binary messages."""
        now, first = ("text", "binary") if text else ("binary", "text")
        why = f"a {now} message came on a websocket that began with {first} ones: it speaks what its first message did"
        self._say(ProtocolError(why), UNSUPPORTED_DATA)

    def _say(self, error: RunnelError, code: int) -> None:
        """Send the error, and close."""
        transport = self._transport
        transport.text = transport.text or transport.protocol is None
        transport.write(json_events.error(error) if transport.text else error_frame(0, error))
        self._code = code
        transport.close()

    def _how(self) -> int:
        """The code that it is closed with."""
        if self._serving.connections.draining:
            return GOING_AWAY
        return POLICY_VIOLATION if getattr(self._transport.protocol, "failed", False) else self._code

    async def _part(self) -> None:
        """All is said: close, and see that it is closed."""
        connection = self._connection
        if connection is not None and self._transport.aborted:
            return  # it is closed
        code = self._how()
        reason = STOPPING if code == GOING_AWAY else ""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                if connection is not None:
                    await connection.gone.wait()
        if connection is not None and not connection.gone.is_set():
            connection.transport.abort()


def _read_message(message: Message) -> tuple[bool, bytes]:
    """Whether it is text, and its bytes."""
    text = message.get("text")
    return (False, message.get("bytes") or b"") if text is None else (True, text.encode())


async def _deny(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse the handshake, with a problem document where the server supports it."""
    if DENIAL_EXTENSION in scope.get("extensions", ()):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1013})


# -- A WebSocket as a transport --------------------------------------------------------------------------
# A session of the TCP listeners talks to it as to a socket. A JSON line is one text message; native bytes are binary
# messages, cut anywhere. Unsent bytes are counted, so that a session pauses as on a socket. A browser that reads
# nothing for `patience` seconds is disconnected.


MAX_BINARY_MESSAGE = 256 << 10  # bytes of a binary message: clients have their bounds, and where one ends means nothing
BURST_BYTES = 64 << 10  # bytes that are handed on at once
MESSAGES_PER_TURN = 64  # messages after which others on the loop have their turn
DEFAULT_HIGH_WATER = 64 << 10  # bytes that may wait, by default
CHECKS_PER_TIMEOUT = 4  # times within its patience that a browser is looked at


class DirectConnection(Protocol):
    """The connection below, on our own listener. Mounted elsewhere there is none, and messages go out one by one."""

    transport: Any  # its socket's
    writable: asyncio.Event

    def send_many(self, messages: Iterable[bytes], *, text: bool) -> None:
        """Send these messages, with one write."""

    def cut(self, code: int) -> None:
        """Close now; send a close frame only if no unread bytes precede it."""


class WebSocketTransport(asyncio.Transport):
    """The transport of a session, over a WebSocket. `send_all` sends, in a task of its own."""

    def __init__(
        self,
        send: Send,
        patience: float,
        connection: DirectConnection | None,
        how: Callable[[], int],
        facts: dict[str, Any],
    ) -> None:
        super().__init__(facts)
        self.protocol: asyncio.BaseProtocol | None = None
        self.text = False
        self.aborted = False
        self._send, self._patience, self._connection = send, patience, connection
        self._how = how  # the code that it is closed with
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._high, self._low = DEFAULT_HIGH_WATER, DEFAULT_HIGH_WATER // 4
        self._paused = False  # the session has paused writing
        self._sent = self._seen = 0  # messages: so far, and at the last check
        self._still = 0  # looks since anything moved
        self._below = 0  # bytes that the connection below held when it was last looked at
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None  # the sender waits for something to send
        self._sender: asyncio.Task[None] | None = None
        self._deaf: asyncio.Future[None] | None = None  # while the session wants nothing to be read

    # -- what a session calls: writing ------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it, some time soon."""
        if self._closing or not data:
            return
        data = bytes(data)
        if self.text:
            messages = data.split(b"\n")
            messages.pop()  # behind the last line is nothing
        else:
            messages = [data[at : at + MAX_BINARY_MESSAGE] for at in range(0, len(data), MAX_BINARY_MESSAGE)]
        if self._connection is not None and not self._queue and self._connection.writable.is_set():
            self._connection.send_many(messages, text=self.text)
            return
        self._queue.extend(messages)
        self._size += len(data)
        if self._size > self._high and not self._paused:
            self._paused = True
            self._tell("pause_writing")
        self._wake()
        if self._timer is None:
            self._still, self._seen, self._below = 0, self._sent, self._held_below()
            self._timer = self._loop.call_later(self._patience / CHECKS_PER_TIMEOUT, self._look)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """How many bytes may wait before the session is paused, and at how many it continues."""
        self._high = DEFAULT_HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent yet, where known."""
        return self._size + self._held_below()

    def can_write_eof(self) -> bool:
        """A websocket has no half that could be closed."""
        return False

    def close(self) -> None:
        """Send pending messages, then close."""
        self._closing = True
        self._wake()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        if self.aborted:
            return
        self.aborted = self._closing = True
        self._queue.clear()
        self._size = 0
        if self._connection is not None:
            self._connection.cut(self._how())
        if self._sender is not None:
            self._sender.cancel()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._closing

    # -- what a session calls: reading ------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Bring nothing more, until `resume_reading`."""
        if self._deaf is None:
            self._deaf = self._loop.create_future()

    def resume_reading(self) -> None:
        """Continue."""
        if self._deaf is not None:
            self._deaf.set_result(None)
            self._deaf = None

    def is_reading(self) -> bool:
        """Whether input is delivered."""
        return self._deaf is None and not self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The session's."""
        assert self.protocol is not None, "begun"
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another one is spoken to from now on."""
        self.protocol = protocol

    # -- what the websocket calls -----------------------------------------------------------------------------------

    async def feed(self, data: bytes) -> None:
        """Deliver input to the session, as fast as it takes it."""
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            left = memoryview(data)
            while left and await self._reads():
                room = memoryview(protocol.get_buffer(len(left)))
                count = min(len(room), len(left))
                room[:count] = left[:count]
                protocol.buffer_updated(count)
                left = left[count:]
        elif await self._reads():
            cast(asyncio.Protocol, protocol).data_received(data)

    async def send_all(self) -> None:
        """Send written messages, until it is closed and all are sent. Raises errors of sending."""
        self._sender = asyncio.current_task()
        if self.aborted:
            return
        some = self._send_burst if self._connection is not None else self._send_turn
        while True:
            while self._queue:
                await some()
                if self._paused and self._size <= self._low:
                    self._paused = False
                    self._tell("resume_writing")
            if self._closing:
                return
            self._idle = self._loop.create_future()
            await self._idle
            self._idle = None

    def lost(self) -> None:
        """The connection was lost, with all unsent messages."""
        self._closing = True
        self._queue.clear()
        self._size = 0
        self.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.protocol is not None:
            self.protocol.connection_lost(None)

    # -- within -----------------------------------------------------------------------------------------------------

    async def _send_burst(self) -> None:
        connection, queue = self._connection, self._queue
        assert connection is not None, "on a listener of ours"
        await connection.writable.wait()
        burst: list[bytes] = []
        size = 0
        while queue and size < BURST_BYTES:
            burst.append(queue.popleft())
            size += len(burst[-1])
        self._size -= size + len(burst) if self.text else size
        self._sent += len(burst)
        connection.send_many(burst, text=self.text)
        if queue:
            await asyncio.sleep(0)

    async def _send_turn(self) -> None:
        for _ in range(min(len(self._queue), MESSAGES_PER_TURN)):
            message = self._queue[0]  # it waits here while it is sent, for others to see
            shape = {"text": message.decode()} if self.text else {"bytes": message}
            await self._send({"type": "websocket.send", **shape})
            self._queue.popleft()
            self._size -= len(message) + self.text
            self._sent += 1
        await asyncio.sleep(0)

    async def _reads(self) -> bool:
        """Wait until the session reads; False: it will not any more."""
        while self._deaf is not None and not self._closing:
            await asyncio.wait([self._deaf])
        return not self._closing

    def _look(self) -> None:
        """Whether any pending bytes were read lately."""
        self._timer = None
        if not self._queue or self.aborted:
            return
        below = self._held_below()  # it may read, and not enough yet for more to be sent
        self._still = 0 if self._sent != self._seen or below < self._below else self._still + 1
        self._seen, self._below = self._sent, below
        if self._still < CHECKS_PER_TIMEOUT:
            self._timer = self._loop.call_later(self._patience / CHECKS_PER_TIMEOUT, self._look)
            return
        peer = self.get_extra_info("peername")
        log.info("a websocket of %s is dropped: it has read nothing for %g s", peer, self._patience)
        self.abort()

    def _held_below(self) -> int:
        return 0 if self._connection is None else self._connection.transport.get_write_buffer_size()

    def _tell(self, what: str) -> None:
        if self.protocol is not None:
            tell: Callable[[], None] = getattr(self.protocol, what)
            tell()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
