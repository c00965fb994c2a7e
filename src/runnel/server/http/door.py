"""The HTTP door of a server: uvicorn's protocol at a socket of ours, counted, bounded and seen out like any connection.

uvicorn parses (httptools) and calls the application. What it leaves open is closed here: a head that never ends, or
comes byte by byte, and a client that does not read while the server wants to stop.
Below: application, connections. Above: server.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from runnel.core.network_errors import LimitExceeded
from runnel.server.http.application import build
from runnel.server.http.problem import PROBLEM, document, status_of
from runnel.server.http.stream import CONNECTION, Stream
from runnel.server.http.websocket_connection import WebSocketConnection

if TYPE_CHECKING:
    from runnel.server.serving import Serving

MAX_HEAD = 64 << 10  # bytes of a request line and its headers, about
LINGER = 2.0  # seconds that a client has to read our last words
KEEP_ALIVE = 15  # seconds that a connection without a request stays open


class HttpDoor:
    """What the connections of the door share. Called, it makes the protocol of the next one."""

    def __init__(self, serving: Serving) -> None:
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
        self.state = State()

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
        """Return when no request is worked on any more. Everybody is gone by now: nobody waits for an answer."""
        tasks = [task for task in self.state.tasks if task is not asyncio.current_task()]
        self._given_up = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class State(ServerState):
    """What uvicorn shares between connections. Its server would set the date every second; here it is looked at."""

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
    """One connection of the door."""

    def __init__(self, door: HttpDoor) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(door.config, door.state, {}, _loop=self._loop)
        self._door = door
        self.stream: Stream | None = None  # while it carries one
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
        """Somebody is there."""
        super().connection_made(transport)
        try:
            self._door.connections.add(self)
        except LimitExceeded as error:
            self._refuse(status_of(error), error.code, str(error))
            return
        if self._door.connections.draining:
            self._refuse(503, "not_ready", "the server stops")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._let_be()
        self._door.connections.remove(self)
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
        self._let_be()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A request is answered. One whose body was too much is not read to its end."""
        if self.cycle.more_body and not self.transport.is_closing():
            self._dismiss()
        else:
            super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """It is a websocket from now on, and no longer this one's."""
        left = partial(self._door.connections.remove, self)
        made = partial(WebSocketConnection, left, self._door.options.frame_timeout)
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
        self._let_be()
        self._timer = self._loop.call_later(self._door.options.hello_timeout, self._late)

    def _let_be(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """No whole head came in time: somebody who wants to keep us busy, or no HTTP at all."""
        self._timer = None
        if not self.transport.is_closing():
            limit = self._door.options.hello_timeout
            self._refuse(408, "request_incomplete", f"no whole request came within hello_timeout={limit:g} s")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        body = document(status, code, detail)
        lines = [b"content-type: " + PROBLEM.encode(), b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self._dismiss()

    def _dismiss(self) -> None:
        """Close when the client has read our last words.

        What it still sends is thrown away: were it left unread, the system would throw away our last words.
        """
        self._let_be()
        self._dismissed = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self._loop.call_later(LINGER, self.transport.abort)
        else:
            self.transport.close()
