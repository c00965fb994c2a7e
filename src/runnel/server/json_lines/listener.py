"""One JSON lines connection: bytes in, commands handled in order, lines out.

There are no pings, because people would have to read them: TCP keepalive finds dead peers, and a connection without
a subscription closes after `idle_timeout` seconds of silence. The first line must be whole within `hello_timeout`,
any other that has begun within `frame_timeout`. A client that does not read is not read from, so that a connection
holds at most `high_water` bytes to send, `max_pending_bytes` of publishes, and one line.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from runnel.core.errors import LimitExceeded, RunnelError
from runnel.server.access.access import Access
from runnel.server.access.control import MAX_BEFORE_LOGIN, Peer
from runnel.server.access.peers import facts_of
from runnel.server.connections import address_of
from runnel.server.json_lines.session import JsonLinesSession
from runnel.server.served_broker import ServedBroker, http_refusal, is_http
from runnel.wire import json_events as events
from runnel.wire.frames import PREFACE
from runnel.wire.json_commands import Id
from runnel.wire.json_lines import LineDecoder, WebSocketLines

READ_AHEAD = 64 << 10  # bytes that came in and are not handled yet, beyond which nothing more is read
SMALL_LINE = 4 << 10  # bytes of input below which it is not counted
COMMANDS_PER_TURN = 64  # commands after which others on the loop have their turn
LINGER = 5.0  # seconds that a client has to read our last words, and that its last commands have to finish
PROBE_INTERVAL = 1.0  # seconds after which a client that closed its side is looked for again
TCP_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}  # gone after 14 seconds of silence

log = logging.getLogger("runnel")


class JsonLinesListener(asyncio.Protocol):
    """One JSON lines connection: `JsonLinesListener(serving)` for each that is accepted.

    `whole`: each piece of data is a line. `session` makes the session that handles the commands.
    """

    def __init__(
        self, serving: ServedBroker, *, whole: bool = False, session: Callable[..., JsonLinesSession] = JsonLinesSession
    ) -> None:
        self._serving, self._options, self._connections = serving, serving.options, serving.connections
        self._whole = whole
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self.peer_address = ""
        self._session = session(serving, self, self._log_in)
        self._decoder = self._empty_decoder()
        self._worker: asyncio.Task[None] | None = None
        self._wanted: asyncio.Future[None] | None = None  # the worker waits for something to happen
        self._room: asyncio.Future[None] | None = None  # writers wait for the client to read
        self._ended = self._lost = self._closing = False
        self.failed = False  # it ends because of an error
        self._goodbye: str | None = None
        self._since = self._active = self._loop.time()
        self._greeted = False  # a whole line came
        self._begun: float | None = self._since  # since when the next line is waited for, if it has to come
        self._heard = False  # whether the client has sent anything
        self._held = 0  # bytes that were reported to the memory budget
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<JsonLinesListener {self._peer}, {len(self._session.streams)} subscriptions>"

    # -- its life -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self._transport = transport
        transport.set_write_buffer_limits(high=self._options.high_water)
        peer = transport.get_extra_info("peername")
        self._peer, self.peer_address = str(peer or ""), address_of(peer)
        enable_tcp_keepalive(transport.get_extra_info("socket"))
        try:
            self._session.number = self._connections.add(self)
            if (refusal := self._serving.refusal()) is not None:
                raise refusal
        except RunnelError as error:
            self._fail(error)
            return
        if (access := self._serving.access) is not None:  # by a cookie or a ticket of its WebSocket
            access.on_end = self._access_ended
            if access.ended is not None:  # before its first message
                self._fail(access.ended)
                return
        if self._connections.draining:  # it came in while the listener was being closed
            self.abort()
            return
        self._worker = asyncio.create_task(self._work())
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Bytes came: the worker makes commands of them."""
        if self._closing:
            return
        if not self._heard and not self._whole:
            if data.startswith(PREFACE[: len(data)]):
                self._fail(self._serving.wrong_listener("json", "native"))
                return
            if is_http(data):
                self._close(http_refusal(self._serving.wrong_listener("json", "http")))
                return
        self._heard = True
        self._decoder.feed(data)
        if self._decoder.held >= READ_AHEAD and self._transport is not None:
            self._transport.pause_reading()
        if self._decoder.held > SMALL_LINE:
            self._report_memory()
        self._wake()

    def eof_received(self) -> bool:
        """The client has said all it wanted, and may still read."""
        self._ended = True
        self._wake()
        transport = self._transport
        return not self._closing and transport is not None and transport.get_extra_info("ssl_object") is None

    def connection_lost(self, error: Exception | None) -> None:
        """The client disconnected. Commands sent before are still done; records that it held are released."""
        self._ended = self._lost = True
        if (access := self._session.access) is not None:
            access.on_end = None
            access.release()
        self._connections.remove(self)
        self._serving.memory.hold(self, 0)
        self.resume_writing()
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._worker is None or self._worker.done():
            self._release()
        else:
            self._timer = self._loop.call_later(LINGER, self._release)

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        if self._room is None:
            self._room = self._loop.create_future()
            self._active = self._loop.time()
            self._report_memory()

    def resume_writing(self) -> None:
        """It has read enough."""
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
            self._active = self._loop.time()
            self._report_memory()

    @property
    def raw_socket(self) -> Any:
        """Its socket, for what the system counts of it."""
        return self._transport and self._transport.get_extra_info("socket")

    def describe(self) -> dict[str, Any]:
        """The peer and what it holds."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return {
            "peer": self._peer,
            "since": self._loop.time() - self._since,
            "unsent_bytes": unsent,
            "receive_bytes": self._decoder.held,
            "listener": (self._transport and self._transport.get_extra_info("listener")) or "json",
            "subscriptions": len(self._session.streams),
            **({} if (access := self._session.access) is None else {"principal": access.principal.name}),
            "deliveries": len(self._session.deliveries),
            "pending": len(self._session.answers),
        }

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops: answer pending commands, say goodbye, and close."""
        self._goodbye = reason
        self._wake()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def over_budget(self, error: LimitExceeded) -> None:
        """The server has no more memory for this client. Behind what it has not read, no last word would reach it."""
        log.warning("JSON connection %s is closed: %s", self._peer, error)
        self._decoder = self._empty_decoder()
        if self._room is not None:
            self.abort()
        else:
            self._give_up(error)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send it, unless the client disconnected."""
        if self._transport is not None and not self._closing and not self._lost:
            self._transport.write(data)

    async def writable(self) -> None:
        """Return when the client has read enough for more to be sent."""
        while (room := self._room) is not None:
            await asyncio.wait([room])  # many wait for this one: to be cancelled alone is to be cancelled

    # -- commands -----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Handle one command after another, until the client or the server has had enough."""
        try:
            reason, id = await self._handle_all()
            if reason is None and not self._lost:
                await self._session.end_of_input()
            else:
                await self._session.close()
            await self._finish()
            reason = reason or self._goodbye
            self._close(b"" if reason is None else events.Bye(reason, id).line(), at_once=self._is_idle())
        except RunnelError as error:  # the protocol is broken
            log.warning("JSON connection %s is closed: %s", self._peer, error)
            await self._session.close()
            await self._finish()
            self._fail(error)
        except Exception:
            log.exception("the server failed at JSON connection %s", self._peer)
            self.abort()
        finally:
            self._session.lost()
            if self._lost:
                self._release()

    async def _handle_all(self) -> tuple[str | None, Id | None]:
        """Why no more commands are handled: what to say of it, and the id of the command that asked for it."""
        session, handled = self._session, 0
        while self._goodbye is None:
            line = self._decoder.next_line()
            if line is None:
                if self._ended:
                    line = self._decoder.last_line()
                    quits = None if line is None else await session.handle(line)
                    return (None, None) if quits is None else ("you quit", quits.id)
                await self._more()
                continue
            self._active = self._loop.time()
            if session.is_ready:
                self._greeted, self._begun = True, None
            await session.answers.room()
            await self.writable()
            if (quits := await session.handle(line)) is not None:
                return "you quit", quits.id
            if not self._greeted and session.is_ready:
                self._greeted, self._begun = True, None
            handled += 1
            if handled % COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return self._goodbye, None

    async def _log_in(self, token: str) -> Access:
        """Find out who the client is. A failed login is answered after some time."""
        auth, transport = self._serving.auth, self._transport
        assert auth is not None
        peer = Peer(self.peer_address, (transport and transport.get_extra_info("listener")) or "json")
        try:
            access = auth.login(token, peer, **facts_of(transport))
        except RunnelError:
            await asyncio.sleep(auth.login_delay(peer))
            raise
        access.on_end = self._access_ended
        self._decoder.limit = self._options.max_line
        return access

    def _access_ended(self, error: RunnelError) -> None:
        """The token expired, or was taken back."""
        self._loop.call_soon(self._give_up, error)

    async def _more(self) -> None:
        """Wait until something came, or the end. A first line, and one that has begun, must be whole in time."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        if self._held:
            self._report_memory()
        if self._greeted and not self._decoder.held:
            self._begun = None
            await self._happens(None)
            return
        now, limit = self._loop.time(), "frame_timeout" if self._greeted else "hello_timeout"
        if self._begun is None:
            self._begun = now
        allowed: float = getattr(self._options, limit)
        if now >= self._begun + allowed:
            raise LimitExceeded(limit, round(now - self._begun, 3), allowed)
        await self._happens(self._begun + allowed - now)

    def _report_memory(self) -> None:
        """Report the memory used for this client: unhandled input, and unread output."""
        held = self._decoder.held if self._decoder.held > SMALL_LINE else 0
        if self._room is not None and self._transport is not None:
            held += self._transport.get_write_buffer_size()
        if held != self._held and not self._closing and not self._lost:
            self._held = held
            self._serving.memory.hold(self, held)

    def _empty_decoder(self) -> LineDecoder | WebSocketLines:
        most = self._options.max_line
        if not self._session.is_ready:
            most = min(most, MAX_BEFORE_LOGIN)
        return (WebSocketLines if self._whole else LineDecoder)(most)

    async def _happens(self, seconds: float | None, *others: asyncio.Future[Any]) -> None:
        """Return when something happened to this connection or one of `others` is done, or after so many seconds."""
        self._wanted = self._loop.create_future()
        await asyncio.wait([self._wanted, *others], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def _finish(self) -> None:
        """No more commands: return when all are answered and no subscription is left, or the client disconnected.

        A client that has closed its side and one that disconnected look the same until something is sent to them; so
        they are pinged.
        """
        session, now, pause = self._session, self._loop.time, PROBE_INTERVAL
        ping_at = now() if session.streams else now() + PROBE_INTERVAL
        answered = asyncio.create_task(session.answers.emptied())
        try:
            while session.streams or len(session.answers):
                if self._lost or self._goodbye is not None:
                    await session.close()
                    if self._lost:
                        await answered
                        return
                if self._ended and now() >= ping_at:
                    if self._room is None:
                        self.write(events.Ping().line())
                    ping_at, pause = now() + pause, self._options.ping
                seconds = max(0.0, ping_at - now()) if self._ended else None
                await self._happens(seconds, *([] if answered.done() else [answered]))
        finally:
            answered.cancel()

    # -- the end ------------------------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        """Whether the server goes, and this client waits for nothing: it is not waited for either."""
        return self._goodbye is not None and not self._decoder.held and self._room is None

    def _close(self, last_words: bytes, *, at_once: bool = False) -> None:
        """Send these last words, and close when the client has read them.

        What it still sends is thrown away: were it left unread, the system would throw away our last words. `at_once`:
        it sends nothing, so that nothing has to be waited for.
        """
        transport = self._transport
        if transport is None or self._closing or self._lost:
            return
        if last_words:
            transport.write(last_words)
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER, transport.abort)
        if self._ended or at_once or not transport.can_write_eof():
            transport.close()
        else:
            transport.write_eof()
            transport.resume_reading()

    def _fail(self, error: RunnelError) -> None:
        """Send the error, and close."""
        self.failed = True
        self._close(events.error(error))

    def _release(self) -> None:
        """Cancel pending work of a client that disconnected."""
        if self._timer is not None:
            self._timer.cancel()
        if self._worker is not None and self._worker is not asyncio.current_task():
            self._worker.cancel()
        self._session.answers.abandon()
        self._session.lost()

    def _arm(self) -> None:
        """Look after the idle time."""
        limit = self._options.idle_timeout
        if limit is None or self._closing or self._lost:
            return
        idle = self._loop.time() - self._active
        busy = self._room is None and self._session.is_busy
        if idle < limit or busy:
            self._timer = self._loop.call_later(limit if busy else limit - idle, self._arm)
        elif self._room is not None:
            log.warning("JSON connection %s is closed: it has read nothing for %.0f s", self._peer, idle)
            self.abort()
        else:
            self._give_up(LimitExceeded("idle_timeout", round(idle, 1), limit))

    def _give_up(self, error: RunnelError) -> None:
        """Handle no more input, send the error, and close."""
        if self._worker is not None:
            self._worker.cancel()
        self._fail(error)


def enable_tcp_keepalive(connection: Any) -> None:
    """Have the operating system detect a dead peer."""
    if connection is None or connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in TCP_KEEPALIVE.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
