"""The HTTP listener: uvicorn's HTTP and WebSocket protocols on our sockets.

uvicorn parses requests (httptools) and calls the application. Connections are counted, limited and drained like
those of the other listeners. Added here, because uvicorn lacks them: deadlines for incomplete requests and messages,
closing a client that does not read, and the memory budget.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Request

from runnel.core.errors import LimitExceeded
from runnel.server.connections import address_of
from runnel.server.http import health
from runnel.server.http.application import build
from runnel.server.http.errors import PROBLEM_JSON, problem_document, status_of
from runnel.server.http.event_stream import CONNECTION, DirectStream
from runnel.server.limited_log import LimitedLog
from runnel.server.unread_watch import UnreadWatch

if TYPE_CHECKING:
    from runnel.server.options import ServerOptions
    from runnel.server.served_broker import ServedBroker


MAX_HEAD = 64 << 10  # bytes of a request line and its headers, about
HTTP_LINGER = 2.0  # seconds that a client has to read our last words
WEBSOCKET_PING = 7.0  # seconds of silence before a ping, and again until it counts as unanswered, at most
KEEP_ALIVE = 15  # seconds that a connection without a request stays open

log = logging.getLogger("runnel")


class HttpListener:
    """The shared state of all HTTP connections. Calling it makes the protocol of a new connection."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving, self.connections, self.memory = serving, serving.connections, serving.memory
        self._app = build(serving, mounted=False)
        self._given_up = False
        self.config = Config(
            self._serve,
            http=HttpToolsProtocol,
            ws=WebSocketConnection,
            ws_per_message_deflate=False,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        self.config.load()
        self.reload()
        self.state = UvicornState()
        self.refusals = LimitedLog(log)

    @property
    def options(self) -> ServerOptions:
        """The limits for new connections."""
        return self._serving.options

    def reload(self) -> None:
        """The limits of the server may have changed."""
        config, options = self.config, self.options
        config.ws_max_size = options.max_line
        # Browsers answer pings without the page: closed ones leave rooms soon.
        config.ws_ping_interval = min(options.ping, WEBSOCKET_PING)
        config.ws_ping_timeout = min(options.ping_timeout, WEBSOCKET_PING)

    def __call__(self) -> HttpConnection:
        """The protocol of a new connection."""
        return HttpConnection(self)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._given_up:
                raise  # else it is as it should be, and uvicorn need not log it

    def opened(self) -> None:
        """Clients can connect: the console keeps its samples from now on."""
        if self._app.sampling is not None:
            self._app.sampling.begin()

    async def ended(self) -> None:
        """Return when no request is being processed. All clients have gone by now."""
        if self._app.sampling is not None:
            self._app.sampling.stop()
        tasks = [task for task in self.state.tasks if task is not asyncio.current_task()]
        self._given_up = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class UvicornState(ServerState):
    """The state that uvicorn shares between connections. The `date` header is made here, once a second at most."""

    def __init__(self) -> None:
        self._second = 0
        self._headers: list[tuple[bytes, bytes]] = []
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of every response."""
        if (second := int(time.time())) != self._second:
            self._second = second
            self._headers = [(b"date", formatdate(second, usegmt=True).encode())]
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Skips uvicorn's own setup, which is not needed."""


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection."""

    def __init__(self, listener: HttpListener) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(listener.config, listener.state, {}, _loop=self._loop)
        self.logger = http_log
        self._listener = listener
        self._answering: RequestResponseCycle | None = None  # the request that is being answered, or was last
        self._due: tuple[int, str, str] | None = None  # a request to refuse once the ones before it are answered
        self.stream: DirectStream | None = None  # while it carries one
        self._head = 0  # bytes of a head that is not complete
        self._in_head = True
        self._arrived = 0  # bytes of the last input
        self._dismissed = False  # whether what still comes is thrown away
        self._timer: asyncio.TimerHandle | None = None
        self._since = self._loop.time()
        self.peer_address = ""
        self._refusal: LimitExceeded | None = None  # why it may ask for health only
        self._unread: UnreadWatch | None = None

    def __repr__(self) -> str:
        return f"<HttpConnection {self.client}>"

    # -- its life -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self.peer_address = address_of(self.client)
        self._unread = UnreadWatch(transport, self._listener.options.send_timeout, self._reads_nothing)
        connections = self._listener.connections
        try:
            connections.add(self)
        except LimitExceeded as error:
            self._refusal = error
            connections.reserve(self)
        if connections.draining:
            self._refuse(503, "not_ready", "the server stops")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was lost."""
        self._stop_timer()
        if self._unread is not None:
            self._unread.stop()
            self._unread = None
        self._listener.memory.hold(self, 0)
        self._listener.connections.remove(self)
        super().connection_lost(exc)
        if self.stream is not None:
            self.stream.gone()

    def pause_writing(self) -> None:
        """The client has not read the sent bytes: pause."""
        super().pause_writing()
        if self._unread is not None:
            self._unread.start()
        self._listener.memory.hold(self, self.transport.get_write_buffer_size())
        if self.stream is not None:
            self.stream.paused()

    def resume_writing(self) -> None:
        """The client has read: there is room again."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.stop()
        self._listener.memory.hold(self, 0)
        if self.stream is not None:
            self.stream.resumed()

    def over_budget(self, error: LimitExceeded) -> None:
        """The server has no more memory for this client. Behind what it has not read, no last word would reach it."""
        log.warning("an HTTP connection of %s is closed: %s", self.client, error)
        self.transport.abort()

    def _reads_nothing(self) -> None:
        if self.stream is not None:
            self.stream.unread()
        else:
            log.info("an HTTP connection of %s is closed: it has read nothing of its response", self.client)
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came. A head must end some time."""
        if self._dismissed or self.transport.is_closing():
            return
        self._arrived = len(data)
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > MAX_HEAD and not self.transport.is_closing():
                self._refuse_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: {CONNECTION: self}}
        self._head, self._in_head = 0, True
        self._await_head()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        if self._arrived > MAX_HEAD and sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refuse_head()
            raise ValueError  # the parser stops at this
        self._in_head = False
        self._stop_timer()
        refusal = self._refusal
        if refusal is not None and self.url.partition(b"?")[0] not in health.PATHS:
            self._refuse(status_of(refusal), refusal.code, str(refusal))
            raise ValueError
        super().on_headers_complete()
        if refusal is not None:
            self.cycle.keep_alive = False  # others may want to ask, too

    def on_body(self, body: bytes) -> None:
        """Bytes of a body came. That of a GET says nothing, and would be kept as long as a stream lasts."""
        if self.scope["method"] != "GET":
            super().on_body(body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """A request is answered. One whose body was too much is not read to its end."""
        if self._answering is not None and self._answering.more_body and not self.transport.is_closing():
            self._dismiss()
        elif self._due is not None and not self.pipeline and not self.transport.is_closing():
            self._refuse(*self._due)
        else:
            super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """It is a websocket from now on, and no longer this one's."""
        left = partial(self._listener.connections.remove, self)
        made = partial(WebSocketConnection, left, self._listener)
        if self._unread is not None:
            self._unread.stop()
        self.ws_protocol_class = made  # type: ignore[assignment]
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """The input is no HTTP."""
        if not self._dismissed:
            why = "this is no HTTP request, or its line or a header holds what none may; is the port the right one?"
            self._listener.refusals.warning("a request of %s is refused: %s", self.client, why)
            self._refuse(400, "bad_request", why)

    def _refuse_head(self) -> None:
        why = f"the request line and its headers have more than {MAX_HEAD:,} bytes"
        self._refuse(431, "head_too_large", why)

    # -- as the rest of the server knows it ---------------------------------------------------------------------

    @property
    def raw_socket(self) -> Any:
        """Its socket, for what the system counts of it."""
        return self.transport.get_extra_info("socket")

    def describe(self) -> dict[str, Any]:
        """The peer and what it holds."""
        return {
            "peer": str(self.client or ""),
            "since": self._loop.time() - self._since,
            "unsent_bytes": self.transport.get_write_buffer_size(),
            "listener": "http",
            "subscriptions": int(self.stream is not None),
        }

    def drain(self, reason: str, retry: float | None) -> None:
        """Answer pending requests, and close. A stream ends here: its browser reconnects."""
        if self.stream is not None:
            self.stream.end()
        self.shutdown()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self.transport.abort()

    # -- heads --------------------------------------------------------------------------------------------------

    def _await_head(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(self._listener.options.hello_timeout, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """No complete request head arrived in time: a slow attack, or not HTTP."""
        self._timer = None
        if not self.transport.is_closing():
            limit = self._listener.options.hello_timeout
            self._refuse(408, "request_incomplete", f"no whole request came within hello_timeout={limit:g} s")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Refuse the last request, behind the answers to earlier ones; then close."""
        last, answering = self.cycle, self._answering
        if last is not None and last.more_body and not last.response_complete:  # its body is the error
            if last is not answering:
                self.pipeline.popleft()
                self.cycle = self.pipeline[0][0] if self.pipeline else answering  # type: ignore[assignment]
            elif last.response_started:
                self.transport.close()
                return
            else:
                last.disconnected = True
                last.message_event.set()
        if answering is not None and not answering.response_complete and not answering.disconnected:
            self._stop_timer()
            self._dismissed, self._due = True, (status, code, detail)
            return
        body = problem_document(status, code, detail)
        lines = [b"content-type: " + PROBLEM_JSON.encode(), b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self._dismiss()

    def _dismiss(self) -> None:
        """Close when the client has read our last words.

        What it still sends is thrown away: were it left unread, the system would throw away our last words.
        """
        self._stop_timer()
        self._dismissed = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self._loop.call_later(HTTP_LINGER, self.transport.abort)
        else:
            self.transport.close()


# -- WebSocket connections -------------------------------------------------------------------------------
# uvicorn's protocol, hardened: pings are sent while nothing is read from a client, whose silence then means nothing; a
# message must be complete within `frame_timeout`; a dead client is cut off, whatever it has not read.


POLICY_VIOLATION = 1008
MESSAGE_TOO_BIG = 1009
TRY_AGAIN_LATER = 1013
SMALL_MESSAGE = 4 << 10  # bytes of input below which it is not counted
FRAGMENT_OVERHEAD = 64  # bytes that a fragment takes besides its own
MAX_FRAGMENTS = 16_384  # of one message
WEBSOCKET_LINGER = 1.0  # seconds that the system has to send our last word

http_log = logging.getLogger("runnel.http")  # the listener itself answers a malformed request
http_log.setLevel(logging.ERROR)
websocket_log = logging.getLogger("runnel.websocket")  # of every one that comes and goes nothing need be said
websocket_log.setLevel(logging.WARNING)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One WebSocket connection. `left` is called when it stops being an HTTP connection, or closes."""

    def __init__(self, left: Callable[[], None], listener: HttpListener, **given: Any) -> None:
        super().__init__(**given)
        self.logger = self.conn.logger = websocket_log
        self._left, self._frame_timeout, self._memory = left, listener.options.frame_timeout, listener.memory
        self.peer_address = ""
        self._gathered = 0  # bytes of the fragments of a message that is not whole
        self._queued: deque[int] = deque()  # bytes of each message that is whole and waits for the session
        self._handling = 0  # bytes of the one that the session takes in
        self._held = 0  # bytes that were reported to the memory budget
        self._heard = self.loop.time()
        self._whole = 0  # messages
        self._timer: asyncio.TimerHandle | None = None
        self.gone = asyncio.Event()

    # -- what a WebSocket session calls -----------------------------------------------------------------------------

    def release_slot(self) -> None:
        """Count no longer as the connection that it was."""
        self._left()

    def allow(self, size: int) -> None:
        """Messages of so many bytes may come."""
        self.conn.max_message_size = max(size, self.config.ws_max_size)

    def send_many(self, messages: Iterable[bytes], *, text: bool) -> None:
        """Send these messages, with one write."""
        if self.close_sent or self.disconnected or self.conn.close_rcvd is not None:
            return
        send = self.conn.send_text if text else self.conn.send_binary
        for message in messages:
            send(message)
        self.transport.write(b"".join(self.conn.data_to_send()))

    def cut(self, code: int, reason: str = "") -> None:
        """Close now; send a close frame only if no unread bytes precede it."""
        speaks = self.handshake_complete and not self.close_sent and self.conn.close_rcvd is None
        if speaks and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
            self.loop.call_later(WEBSOCKET_LINGER, self.transport.abort)
        else:
            self.transport.abort()

    # -- its life ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """It was an HTTP connection until now."""
        super().connection_made(transport)
        self.peer_address = address_of(self.client)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was lost."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._memory.hold(self, 0)
        self._free_buffers()
        self._left()
        self.gone.set()

    def over_budget(self, error: LimitExceeded) -> None:
        """The server has no more memory for this client."""
        log.warning("a websocket of %s is closed: %s", self.client, error)
        self._free_buffers()
        self.cut(TRY_AGAIN_LATER, f"{error.code}: {error.limit}")

    def _free_buffers(self) -> None:
        """Forget incomplete input: the objects of a closed connection refer to each other for a while."""
        self.frames = []
        self.conn.reader.buffer = bytearray()

    def handle_connect(self, event: Request) -> None:
        """The client asks for a websocket."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[CONNECTION] = {CONNECTION: self}

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._heard = self.loop.time()
        super().data_received(data)
        if not self.handshake_initiated:  # its head was too much for a websocket's: uvicorn would say nothing
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            return
        if self._timer is None and self._is_incomplete():
            self._timer = self.loop.call_later(self._frame_timeout, self._look, self._whole)
        self._report_memory()

    def handle_cont(self, event: Frame) -> None:
        """More of a message came."""
        if len(self.frames) >= MAX_FRAGMENTS:  # each takes room, though it be empty
            self.cut(MESSAGE_TOO_BIG)
        else:
            self._gathered += len(event.data) + FRAGMENT_OVERHEAD
            super().handle_cont(event)
            event.data = b""  # the parser keeps the last frame until the next one comes

    def handle_text(self, event: Frame) -> None:
        """A message began."""
        self._gathered = len(event.data)
        super().handle_text(event)
        event.data = b""

    def handle_bytes(self, event: Frame) -> None:
        """A message began."""
        self._gathered = len(event.data)
        super().handle_bytes(event)
        event.data = b""

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        self._whole += 1
        if not self.close_sent:
            self._queued.append(self._gathered)
        self._gathered = 0
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        """The next message; the one before it is handled now."""
        self._handling = 0
        self._report_memory()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._handling = self._queued.popleft()
        return message

    def _report_memory(self) -> None:
        """Report unhandled input: parts of a message, and whole ones that the session has not taken."""
        held = self._gathered + len(self.conn.reader.buffer) + sum(self._queued) + self._handling
        if held <= SMALL_MESSAGE:
            held = 0
        if held != self._held and not self.close_sent and not self.disconnected:
            self._held = held
            self._memory.hold(self, held)

    def _is_incomplete(self) -> bool:
        return bool(self.frames or self.conn.reader.buffer)

    def _look(self, whole: int) -> None:
        """A few bytes now and then are no silence: but they must not keep a large message incomplete for ever."""
        self._timer = None
        if self.transport.is_closing() or not self._is_incomplete():
            return
        if self._whole != whole or self.read_paused:
            self._timer = self.loop.call_later(self._frame_timeout, self._look, self._whole)
            return
        log.warning("a websocket of %s is closed: frame_timeout=%g s for a message", self.client, self._frame_timeout)
        self.cut(POLICY_VIOLATION)

    def keepalive_timeout(self) -> None:
        """A ping was not answered. A peer that is not read from, or that sends something, is pinged again."""
        self.pong_timer = None
        if self.close_sent or self.transport.is_closing():
            return
        if self.read_paused or self._heard > self.ping_sent_at:
            self.send_keepalive_ping()
            return
        log.info("a websocket of %s is closed: it did not answer a ping", self.client)
        self.transport.abort()
