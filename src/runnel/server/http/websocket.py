"""`GET /ws`: a websocket, with the very sessions of the TCP doors behind it.

Text messages are JSON lines, one command or event each; binary ones are the bytes of the native protocol. The first
message says which of the two a connection speaks.
Below: web_transport, lines_door, native. Above: application.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from runnel.core.errors import RunnelError
from runnel.core.network_errors import LimitExceeded, ProtocolError
from runnel.server.http.guard import DENIAL
from runnel.server.http.problem import answer, problem
from runnel.server.http.stream import CONNECTION
from runnel.server.http.web_transport import WebTransport
from runnel.server.lines_door import LinesDoor
from runnel.server.native import native_door
from runnel.server.serving import Serving
from runnel.wire import lines_events
from runnel.wire.trouble import error_frame

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.server.http.websocket_connection import WebSocketConnection
    from runnel.server.options import ServerOptions

LINGER = 2.0  # seconds that a browser has to answer when it is told that the websocket is closed

NORMAL = 1000
GOING_AWAY = 1001
UNSUPPORTED = 1003
REFUSED = 1008

log = logging.getLogger("runnel")


class WebSockets:
    """The route. `serving` is what the other doors of the server share; None: there are none."""

    def __init__(self, broker: Broker, options: ServerOptions, serving: Serving | None = None) -> None:
        self._broker, self._options, self._serving = broker, options, serving

    @property
    def serving(self) -> Serving:
        """What is served. Of an application that was mounted it is made for the first who comes, on his loop."""
        if self._serving is None:
            self._serving = Serving(self._broker, self._options)
        return self._serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one websocket, until either side has enough."""
        await receive()  # that somebody wants to connect
        serving = self.serving
        visit = Visit(serving, scope, receive, send)
        if serving.connections.draining:
            stopping = answer(503, "not_ready", "the server stops", headers={"retry-after": "1"})
            await _deny(stopping, scope, receive, send)
            return
        try:
            visit.sit_down()
        except LimitExceeded as error:
            await _deny(problem(error), scope, receive, send)
            return
        await visit.run()

    async def plain(self, request: Request) -> Response:
        """Somebody asked for the route as for a page."""
        raise HTTPException(426, "this is a websocket: new WebSocket(url)", {"upgrade": "websocket"})


class Visit:
    """One websocket. Among the connections it counts itself, until its first message makes a session of it."""

    def __init__(self, serving: Serving, scope: Scope, receive: Receive, send: Send) -> None:
        self._serving, self._receive, self._send = serving, receive, send
        self._line: WebSocketConnection | None = ((scope.get("extensions") or {}).get(CONNECTION) or {}).get(CONNECTION)
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._peer = tuple(scope.get("client") or ()) or None
        facts: dict[str, Any] = {"peername": self._peer, "door": "websocket"}
        if self._line is not None:
            facts["socket"] = self._line.transport.get_extra_info("socket")
        self._transport = WebTransport(send, serving.options.send_timeout, self._line, self._how, facts)
        self._code = NORMAL
        self._text: bool | None = None  # which of the two it speaks
        self._timer: asyncio.TimerHandle | None = None

    def sit_down(self) -> None:
        """Be counted; `LimitExceeded` if there are as many connections as there may be."""
        if self._line is not None:
            self._line.stand_up()  # it was a connection before
        self._serving.connections.add(self)
        if (limit := self._serving.options.idle_timeout) is not None:
            self._timer = self._loop.call_later(limit, self._say, LimitExceeded("idle_timeout", limit, limit), REFUSED)

    # -- as the rest of the server knows it -------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Who it is and what it holds: nothing yet."""
        held = {"unsent_bytes": 0, "door": "websocket", "subscriptions": 0}
        return {"peer": str(self._peer or ""), "since": self._loop.time() - self._since, **held}

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops: there is nothing to be answered."""
        self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    # -- its life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Speak, until either side has enough."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._send({"type": "websocket.accept"})
            tasks = [self._loop.create_task(one) for one in (self._listen(), self._transport.send_all())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():  # else nobody is there any more
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
            text, data = _read(message)
            if self._text is None and not self._begin(text, data):
                continue
            if text is not self._text:
                self._refuse(text)
                continue
            await self._transport.feed(data)

    def _begin(self, text: bool, data: bytes) -> bool:
        """Somebody has spoken: have the session that understands it."""
        if not (data.strip() if text else data):
            return False  # nothing was said
        transport, serving = self._transport, self._serving
        self._text = text
        if not text and data[:1] == b"{":
            why = "JSON goes in text messages; this came in a binary one, which is for native frames"
            self._say(ProtocolError(why), UNSUPPORTED)
            return False
        self._begun()
        transport.text = text
        if text:
            transport.protocol = LinesDoor(serving.broker, serving.options, serving.connections, whole=True)
        else:
            transport.protocol = native_door(serving)()
            if self._line is not None:
                self._line.allow(serving.options.max_frame)
        transport.protocol.connection_made(transport)
        return not transport.is_closing()

    def _begun(self) -> None:
        """There is a session, or nobody is there any more: neither is waited for, nor counted twice."""
        self._serving.connections.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _refuse(self, text: bool) -> None:
        """Somebody speaks now so and now so."""
        now, first = ("text", "binary") if text else ("binary", "text")
        why = f"a {now} message came on a websocket that began with {first} ones: it speaks what its first message did"
        self._say(ProtocolError(why), UNSUPPORTED)

    def _say(self, error: RunnelError, code: int) -> None:
        """Say what is wrong, and close."""
        transport = self._transport
        transport.text = transport.text or transport.protocol is None
        transport.write(lines_events.error(error) if transport.text else error_frame(0, error))
        self._code = code
        transport.close()

    def _how(self) -> int:
        """The code that it is closed with."""
        if self._serving.connections.draining:
            return GOING_AWAY
        return REFUSED if getattr(self._transport.protocol, "failed", False) else self._code

    async def _part(self) -> None:
        """All is said: close, and see that it is closed."""
        line = self._line
        if line is not None and self._transport.aborted:
            return  # it is closed
        code = self._how()
        reason = "the server stops" if code == GOING_AWAY else ""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                if line is not None:
                    await line.gone.wait()
        if line is not None and not line.gone.is_set():
            line.transport.abort()


def _read(message: Message) -> tuple[bool, bytes]:
    """Whether it is text, and its bytes."""
    text = message.get("text")
    return (False, message.get("bytes") or b"") if text is None else (True, text.encode())


async def _deny(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse the handshake, with a problem where the server can tell it."""
    if DENIAL in scope.get("extensions", ()):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1013})
