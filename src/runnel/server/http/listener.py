"""The HTTP listener: uvicorn's HTTP and WebSocket protocols on our sockets.

uvicorn parses requests (httptools) and calls the application. Connections are counted, limited and drained like
those of the other listeners. Added here, because uvicorn lacks them: deadlines for incomplete requests and messages,
and closing a client that does not read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Request

from runnel.core.errors import LimitExceeded
from runnel.server.http.application import build
from runnel.server.http.errors import PROBLEM_JSON, problem_document, status_of
from runnel.server.http.event_stream import CONNECTION, DirectStream

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker


MAX_HEAD = 64 << 10  # bytes of a request line and its headers, about
HTTP_LINGER = 2.0  # seconds that a client has to read our last words
KEEP_ALIVE = 15  # seconds that a connection without a request stays open


class HttpListener:
    """What all HTTP connections share. Calling it makes the protocol of a new connection."""

    def __init__(self, serving: ServedBroker) -> None:
        self.options, self.connections = options, connections = serving.options, serving.connections
        self._app = build(serving.broker, options, lambda: connections.draining, serving=serving)
        self._given_up = False
        self.config = Config(
            self._serve,
            http=HttpToolsProtocol,
            ws=WebSocketConnection,
            ws_max_size=options.max_line,
            ws_ping_interval=options.ping,
            ws_ping_timeout=options.ping_timeout,
            ws_per_message_deflate=False,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        self.config.load()
        self.state = UvicornState()

    def __call__(self) -> HttpConnection:
        """The protocol of a new connection."""
        return HttpConnection(self)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._given_up:
                raise  # else it is as it should be, and uvicorn need not log it

    async def ended(self) -> None:
        """Return when no request is being processed. All clients have gone by now."""
        tasks = [task for task in self.state.tasks if task is not asyncio.current_task()]
        self._given_up = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class UvicornState(ServerState):
    """What uvicorn shares between connections. The `date` header is made here, once a second at most."""

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
        """What uvicorn begins with is not needed."""


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection."""

    def __init__(self, listener: HttpListener) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(listener.config, listener.state, {}, _loop=self._loop)
        self._listener = listener
        self.stream: DirectStream | None = None  # while it carries one
        self._head = 0  # bytes of a head that is not complete
        self._in_head = True
        self._arrived = 0  # bytes of what came last
        self._dismissed = False  # whether what still comes is thrown away
        self._timer: asyncio.TimerHandle | None = None
        self._since = self._loop.time()

    def __repr__(self) -> str:
        return f"<HttpConnection {self.client}>"

    # -- its life -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        super().connection_made(transport)
        try:
            self._listener.connections.add(self)
        except LimitExceeded as error:
            self._refuse(status_of(error), error.code, str(error))
            return
        if self._listener.connections.draining:
            self._refuse(503, "not_ready", "the server stops")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_timer()
        self._listener.connections.remove(self)
        super().connection_lost(exc)
        if self.stream is not None:
            self.stream.gone()

    def pause_writing(self) -> None:
        """The client has not read what was sent: no more for now."""
        super().pause_writing()
        if self.stream is not None:
            self.stream.paused()

    def resume_writing(self) -> None:
        """The client has read: there is room again."""
        super().resume_writing()
        if self.stream is not None:
            self.stream.resumed()

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
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A request is answered. One whose body was too much is not read to its end."""
        if self.cycle.more_body and not self.transport.is_closing():
            self._dismiss()
        else:
            super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """It is a websocket from now on, and no longer this one's."""
        left = partial(self._listener.connections.remove, self)
        made = partial(WebSocketConnection, left, self._listener.options.frame_timeout)
        self.ws_protocol_class = made  # type: ignore[assignment]
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        if not self._dismissed:
            why = "this is no HTTP request, or its line or a header holds what none may; is the port the right one?"
            self._refuse(400, "bad_request", why)

    def _refuse_head(self) -> None:
        why = f"the request line and its headers have more than {MAX_HEAD:,} bytes"
        self._refuse(431, "head_too_large", why)

    # -- as the rest of the server knows it ---------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Who it is and what it holds."""
        return {
            "peer": str(self.client or ""),
            "since": self._loop.time() - self._since,
            "unsent_bytes": self.transport.get_write_buffer_size(),
            "door": "http",
            "subscriptions": int(self.stream is not None),
        }

    def drain(self, reason: str, retry: float | None) -> None:
        """Answer what is under way, and close. A stream ends here: its browser comes back."""
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
# uvicorn's protocol, hardened: pings go on while nothing is read from a client, whose silence then means nothing; a
# message must be complete within `frame_timeout`; a dead client is cut off, whatever it has not read.


POLICY_VIOLATION = 1008
MESSAGE_TOO_BIG = 1009
MAX_FRAGMENTS = 16_384  # of one message
WEBSOCKET_LINGER = 1.0  # seconds that the system has to send our last word

log = logging.getLogger("runnel")
websocket_log = logging.getLogger("runnel.websocket")  # of every one that comes and goes nothing need be said
websocket_log.setLevel(logging.WARNING)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One WebSocket connection. `left` is called when it stops being an HTTP connection, or is gone."""

    def __init__(self, left: Callable[[], None], frame_timeout: float, **given: Any) -> None:
        super().__init__(**given)
        self.logger = self.conn.logger = websocket_log
        self._left, self._frame_timeout = left, frame_timeout
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

    def cut(self, code: int) -> None:
        """Close now: with a word, if there is nothing before it that nobody reads."""
        speaks = self.handshake_complete and not self.close_sent and self.conn.close_rcvd is None
        if speaks and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.conn.send_close(code)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
            self.loop.call_later(WEBSOCKET_LINGER, self.transport.abort)
        else:
            self.transport.abort()

    # -- its life ---------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._left()
        self.gone.set()

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

    def handle_cont(self, event: Frame) -> None:
        """More of a message came."""
        if len(self.frames) >= MAX_FRAGMENTS:  # each takes room, though it be empty
            self.cut(MESSAGE_TOO_BIG)
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        self._whole += 1
        super().send_receive_event_to_app()

    def _is_incomplete(self) -> bool:
        return bool(self.frames or self.conn.reader.buffer)

    def _look(self, whole: int) -> None:
        """A few bytes now and then are no silence: but they must not hold what is to be a large message for ever."""
        self._timer = None
        if self.transport.is_closing() or not self._is_incomplete():
            return
        if self._whole != whole or self.read_paused:
            self._timer = self.loop.call_later(self._frame_timeout, self._look, self._whole)
            return
        log.warning("a websocket of %s is closed: frame_timeout=%g s for a message", self.client, self._frame_timeout)
        self.cut(POLICY_VIOLATION)

    def keepalive_timeout(self) -> None:
        """A ping was not answered. Who is not read from, or says something, is asked again."""
        self.pong_timer = None
        if self.close_sent or self.transport.is_closing():
            return
        if self.read_paused or self._heard > self.ping_sent_at:
            self.send_keepalive_ping()
            return
        log.info("a websocket of %s is closed: it did not answer a ping", self.client)
        self.transport.abort()
