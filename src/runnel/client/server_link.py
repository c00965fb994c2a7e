"""The link to a server: it outlives single connections, and routes each frame to its handler.

All frames of one loop iteration are written together, publishes first, so a publish stays ahead of later calls. When
the connection drops, publishes, calls and subscriptions resend their own state on the next one (see `reconnect`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from runnel.client.address import ServerAddress
from runnel.client.calls import BlockingCalls, ClientCalls
from runnel.client.connection import ClientConnection
from runnel.client.options import ClientOptions
from runnel.client.outbox import LANES, UNSAID, Route
from runnel.client.publishing import ClientPublisher
from runnel.client.reader import RemoteReader
from runnel.client.receive_buffer import SharedBatch
from runnel.client.reconnect import Reconnector
from runnel.core.batch_format import read_batch_header
from runnel.core.clock import Clock
from runnel.core.errors import BrokerClosed, ConnectionLost, ProtocolError, RunnelError
from runnel.core.position import Position, Span
from runnel.core.replication import Generation
from runnel.runtime.connection_state import ConnectionState
from runnel.runtime.loop_owner import LoopOwner
from runnel.wire.binary_messages import read_deliver, read_shares
from runnel.wire.frames import SHARED, FrameKind, frame
from runnel.wire.msgpack_messages import (
    Goodbye,
    PublishDetails,
    Welcome,
    call_payload,
    decode_message,
    encode_message,
    read_reply,
)

LAST_ID = 2**32 - 1
REFRESH_AT = 0.8  # of the life of a token
MIN_REFRESH = 0.1  # seconds between two tries to refresh it
HEARING = "hearing what became of it"  # what a broker that was closed meanwhile cannot do any more

logger = logging.getLogger("runnel")


class FrameHandler(Protocol):
    """An object with an id of its own on the connection, for more than one answer: a subscription."""

    id: int  # set by the link: before every connected(), a new one for every connection

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that reads it, once that is known. For `WouldDeadlock`: see `ServerLink.blockers`."""

    @property
    def is_left(self) -> bool:
        """Whether its user has left, and only the server's answer to that is to come."""

    def connected(self) -> None:
        """There is a connection, and `id` is the handler's on it: send SUBSCRIBE (again)."""

    def frame(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """A frame with the handler's id."""

    def flush(self) -> None:
        """Send what it gathers for the end of the turn."""

    def lost(self) -> None:
        """The connection was lost; `connected()` is called when there is another."""

    def closed(self, error: RunnelError | None) -> None:
        """There will be no connection any more: the broker was closed (None), or this is why."""


class ServerLink:
    """The link to a server. Everything here is called on the broker's loop, but `ask`."""

    def __init__(self, addresses: Sequence[ServerAddress], options: ClientOptions, clock: Clock) -> None:
        self.addresses, self.options, self.clock = tuple(addresses), options, clock
        self.connection = ConnectionState()
        counted = self.connection.count_failed
        self.loop_owner = LoopOwner(
            self._on_loop_bound, self._forked, entered=False, before="it is connected", refused=counted
        )
        self.welcome = Welcome()
        self.seen: Generation | None = None  # the highest generation of the journal, if it ever had a standby
        self.blockers: set[FrameHandler] = set()  # readers that publishers may wait for; publishes name them
        self.publishing = ClientPublisher(self)
        self.blocking_calls = BlockingCalls(self)
        self.loop: asyncio.AbstractEventLoop
        self.prepare: Callable[[ServerAddress], Awaitable[ServerAddress]] | None = (
            None  # asked before every attempt where to go
        )
        self._carries_clients = False  # whether a server publishes for its clients over it
        self._learning: asyncio.Task[None] | None = None
        self._calls = ClientCalls(self)
        self._handlers: dict[int, FrameHandler] = {}
        self._attached: dict[FrameHandler, None] = {}
        self._current: ClientConnection | None = None
        self._reconnector = Reconnector(self)
        self._reconnect_task: asyncio.Task[None] | None = None
        self._last_id = 0
        self._pieces: list[bytes] = []
        self._to_flush: list[FrameHandler] = []  # handlers that have something to send at the end of this turn
        self._ahead: list[bytes] = []  # those that are sent before publishes
        self._is_due = False  # whether a write is scheduled
        self._linger: asyncio.TimerHandle | None = None
        self._skew = 0.0
        self._deadline: asyncio.TimerHandle | None = None  # of closing
        self._is_closing = self.said_goodbye = False
        self._drained: asyncio.Future[None] | None = None  # done when only readers keep it open

    def __repr__(self) -> str:
        return f"<ServerLink {self.connection!r}, {len(self._attached)} subscriptions>"

    # -- what others ask ----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """See `ConnectionState`."""
        return self.connection.state

    @property
    def verify(self) -> bool:
        """Whether the crc of received frames has to be checked: not where TLS or the system ensures it."""
        address = self._current.address if self._current is not None else self.addresses[0]
        return not (address.tls or address.path)

    @property
    def address(self) -> str:
        """The server's, for messages."""
        return self.connection.address or str(self.addresses[0])

    def is_here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return self.loop_owner.is_here()

    @property
    def origin(self) -> str | None:
        """To what places of the server belong: they are others where this is another one."""
        found = self.welcome.origin
        return self.welcome.journal if isinstance(found, msgspec.UnsetType) else found

    def skew(self) -> float:
        """The difference from the local clock to the server's."""
        return self._skew

    def server_time(self) -> float:
        """The server's time, in seconds since 1970, as estimated here."""
        return self.clock.time() + self._skew

    def now(self) -> float:
        """The loop's time."""
        return self.loop.time()

    def check_usable(self, doing: str) -> None:
        """Raise unless the broker is open, entered, in this process and on this loop, and not given up."""
        self.loop_owner.check_usable(doing)
        if self.connection.state == "closed" and self.connection.error is not None:
            raise self.connection.error

    async def call(
        self, method: str, args: dict[str, Any], *, again: bool = True, timeout: float | None = UNSAID
    ) -> Any:
        """The result of a CALL; the error that the server answered is raised.

        `again`: it may be sent twice, after a reconnect; otherwise a lost connection is `ConnectionLost`.
        `timeout` in seconds, None: no limit; as in the options if none is given. After it, `NoAnswer`.
        """
        payload = call_payload(method, args)
        return read_reply(await self.request(FrameKind.CALL, payload, again=again, timeout=timeout, what=f"{method}()"))

    async def request(
        self, kind: int, payload: bytes, *, again: bool = True, timeout: float | None = UNSAID, what: str = "a request"
    ) -> bytes:
        """The payload of the REPLY to a frame of any kind that is answered by REPLY or ERROR."""
        self.check_usable(what)
        self.at_once()
        timeout = self.options.timeout if timeout == UNSAID else timeout
        return await self._calls.request(what, kind, payload, again=again, timeout=timeout)

    def ask(self, method: str, args: dict[str, Any]) -> Any:
        """The result of a CALL while this thread waits: from any thread. Frames of the loop are sent first."""
        if self.loop_owner.loop is not None and self.loop_owner.is_here():
            self.flush_all()
        return self.blocking_calls.call(method, args)

    async def publish(self, topic: str, batch: bytes, about: PublishDetails | None = None) -> Span:
        """Publish a batch that its producer numbered; sent again unchanged after a reconnect."""
        self.check_usable("publishing")
        header = read_batch_header(batch)
        name = topic.encode()
        await self.publishing.room(topic, len(batch))
        route = Route(topic, name, header.producer % LANES)
        outgoing = self.publishing.add_packed(route, batch, header.count, about)
        first = await self.publishing.answer(outgoing)
        return Span(first, Position(first.epoch, first.offset + header.count - 1))

    # -- sending ------------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """An id that is free on this connection."""
        self._last_id += 1
        if self._last_id == LAST_ID and self._current is not None:
            # On another connection they begin anew, and all that is under way is sent again there.
            self.loop.call_soon(self._current.fail, ConnectionLost(str(self._current.address), "its ids are used up"))
        return self._last_id

    def send(self, frame: bytes, *, ahead: bool = False) -> None:
        """Write `frame` with all others of this loop iteration. Dropped while not connected.

        `ahead`: before publishes, so that the server knows of room before it looks for some.
        """
        if self._current is not None:
            (self._ahead if ahead else self._pieces).append(frame)
            self._write_soon()

    def cancel(self, id: int) -> None:
        """The caller no longer waits for the answer to `id`."""
        self.send(frame(FrameKind.CANCEL, id))

    def flush_soon(self, handler: FrameHandler) -> None:
        """Have the `flush` of `handler` called at the end of this turn of the loop, before all is written."""
        self._to_flush.append(handler)
        self._write_soon()

    def later(self, call: Callable[[], object]) -> None:
        """Have `call` made at the next turn of the loop."""
        self.loop.call_soon(call)

    def soon(self) -> None:
        """Something was published: send it at the end of this turn, or after the linger."""
        if self.options.linger:
            if self._linger is None:
                self._linger = self.loop.call_later(self.options.linger, self.at_once)
        elif not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._flush)

    def at_once(self) -> None:
        """Do not linger: send all frames at the end of this loop iteration."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
            self._write_soon()

    def _write_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._to_flush:
            handlers, self._to_flush = self._to_flush, []
            for handler in handlers:
                handler.flush()
        self._is_due = False
        connection = self._current
        if connection is None:
            return
        pieces = self.publishing.take() if connection.is_writable and self._linger is None else []
        if self._ahead:
            pieces = self._ahead + pieces
            self._ahead = []
        if self._pieces:
            pieces += self._pieces
            self._pieces = []
        if pieces:
            connection.write(pieces)
        if self._is_closing:
            self._try_to_end()

    def flush_all(self) -> None:
        """Write everything gathered now, so that a call on another connection sees its effects."""
        for handler in list(self._attached):
            handler.flush()
        self.at_once()
        self._flush()

    # -- whose a frame is ---------------------------------------------------------------------------------------

    def attach(self, handler: FrameHandler) -> int:
        """Give `handler` an id (handler.id). If connected, handler.connected() is called before this returns."""
        self.check_usable("subscribing")
        self._attached[handler] = None
        handler.id = 0
        if self._current is not None:
            self.at_once()
            self._introduce(handler)
        return handler.id

    def detach(self, handler: FrameHandler) -> None:
        """Forget `handler`: frames with its id are dropped from now on. Harmless twice."""
        self._attached.pop(handler, None)
        if self._handlers.get(handler.id) is handler:
            del self._handlers[handler.id]
        if self._is_closing:
            self._write_soon()

    def _introduce(self, handler: FrameHandler) -> None:
        handler.id = self.new_id()
        self._handlers[handler.id] = handler
        handler.connected()

    def receive(self, kind: int, flags: int, extra: int, id: int, payload: bytes) -> None:
        """Route a received frame to its handler. A frame without a handler is late, and dropped."""
        handler = self._handlers.get(id)
        if handler is None and kind == FrameKind.PUBLISHED:
            self.publishing.published(id, payload)
            if self._is_closing or self.publishing.outbox.has_ready:
                self._write_soon()
        elif flags & SHARED and kind == FrameKind.DELIVER:
            self._deliver_shared(extra, id, payload)
        elif handler is not None:
            handler.frame(kind, flags, extra, payload)
        elif kind in (FrameKind.REPLY, FrameKind.ERROR):
            if not self._calls.answered(kind, id, payload) and kind == FrameKind.ERROR:
                self.publishing.refused(id, payload)
                if self._is_closing or self.publishing.outbox.has_ready:
                    self._write_soon()
        elif kind == FrameKind.GOODBYE:
            self._reconnector.goodbye = decode_message(Goodbye, payload)
        elif id == 0:
            raise ProtocolError(f"the server sent {FrameKind(kind).name} for the connection itself")

    def _deliver_shared(self, extra: int, first: int, payload: bytes) -> None:
        """A DELIVER for several subscriptions: read once for all."""
        others, rest = read_shares(payload)
        where = read_deliver(extra, rest)
        shared = SharedBatch(where)
        for id in (first, *others):
            handler = self._handlers.get(id)
            if isinstance(handler, RemoteReader):
                handler.deliver(where, len(rest), shared)
            elif handler is not None:
                handler.frame(FrameKind.DELIVER, 0, extra, bytes(rest))

    # -- life ---------------------------------------------------------------------------------------------------

    def _on_loop_bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def _forked(self) -> None:
        """In the child of a fork the connection is the parent's: not even closing it may reach the server."""
        connection, self._current = self._current, None
        if connection is not None:
            connection.abandon()
        self.publishing.outbox.seal()

    async def open(self) -> None:
        """Connect for the first time, or raise."""
        self.loop_owner.entered = True
        self.loop_owner.check_usable("connecting")
        self._reconnect_task = self.loop.create_task(self._reconnector.run())
        self._reconnect_task.add_done_callback(self._kept)
        self._drained = self.loop.create_future()
        try:
            await self.connection.wait("connected")
        except BaseException as error:
            self.loop_owner.close()
            self.end(error if isinstance(error, RunnelError) else None)
            raise

    def _kept(self, keeping: asyncio.Task[None]) -> None:
        """The reconnector ended. If it failed, that is a bug: all handlers get the error."""
        if not keeping.cancelled() and (error := keeping.exception()) is not None:
            logger.error("the connection to %s cannot be kept", self.address, exc_info=error)
            self.end(ConnectionLost(self.address, f"{type(error).__name__}: {error}"))

    async def run_connection(self, connection: ClientConnection) -> RunnelError | None:
        """Live with a connection until it is lost; why it was."""
        self._current, self.welcome = connection, connection.welcome
        if not isinstance(generation := connection.welcome.generation, msgspec.UnsetType):
            self.seen = generation
        connection.on_writable = self._write_soon
        self._skew = connection.welcome.time - self.clock.time() if connection.welcome.time else 0.0
        self._last_id, self.said_goodbye = 0, False
        if connection.welcome.max_frame:
            self.publishing.outbox.max_frame = connection.welcome.max_frame
        state = self.connection
        state.server, state.error, state.attempts = connection.welcome.server, None, 0
        state.connections += 1
        state.become("connected")
        for handler in list(self._attached):
            self._introduce(handler)
        self._calls.connected()
        self._write_soon()
        if self._carries_clients:
            self.carry_clients()
        expires = connection.welcome.expires
        refreshing = None
        if self.options.refreshes and isinstance(expires, float):
            refreshing = self.loop.create_task(self._refresh_token(expires))
        try:
            error = await connection.over
        finally:
            if refreshing is not None:
                refreshing.cancel()
            self._lost(connection)
        state.error = error
        return error

    async def _refresh_token(self, expires: float | None) -> None:
        """Continue with new tokens before the present one expires. Without one the server ends the connection."""
        while expires is not None:
            left = expires - self.server_time()
            await asyncio.sleep(max(left * REFRESH_AT, MIN_REFRESH))
            try:
                token = await self.options.fetch_token()
                expires = (await self.call("authenticate", {"token": token}))["expires"]
            except RunnelError as error:
                logger.warning("no new token for %s yet: %s", self.address, error)

    def carry_clients(self) -> None:
        """A server publishes over this link for its clients: send no more than the other server keeps reading."""
        self._carries_clients = True
        if self._current is not None:
            self._learning = self.loop.create_task(self._learn_limit())

    async def _learn_limit(self) -> None:
        """Bound pending publishes by the server's limit for one connection: half, since it counts more for each."""
        own = self.options.max_pending_bytes
        self.publishing.outbox.limit = own // 2
        with suppress(RunnelError):
            limits = (await self.call("info", {}))["limits"]
            self.publishing.outbox.limit = min(own, limits["max_pending_bytes"] // 2)

    def _lost(self, connection: ClientConnection) -> None:
        if self.connection.state == "closed":
            return
        address, why = str(connection.address), connection.why
        self._current, self._pieces, self._ahead = None, [], []
        self.connection.become("reconnecting")
        self.publishing.lost(lambda: ConnectionLost(address, why))
        self._calls.lost(lambda: ConnectionLost(address, why))
        self._handlers.clear()
        for handler in [] if self.is_over else list(self._attached):
            handler.lost()

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse new calls; send pending frames, say goodbye, and end. Harmless twice."""
        if self.loop_owner.state == "open" and self._reconnect_task is not None:
            self.loop_owner.take_posted()
        if not self.loop_owner.close():
            return
        self._is_closing = True
        self.publishing.close()
        if self._reconnect_task is None or self._reconnect_task.done() or not self.loop.is_running():
            self.end(None)
            return
        self.publishing.outbox.seal()
        self.at_once()
        self._deadline = self.loop.call_later(self.options.close_timeout, self.end, None, True)
        self._write_soon()
        if self._current is None:
            self._try_to_end()

    def _try_to_end(self) -> None:
        """Closing: say goodbye once all is sent; end once no caller waits.

        The server answers pending requests, and ends the subscriptions, of which some may be in the way of that.
        """
        outbox = self.publishing.outbox
        if self._current is None:
            if outbox.is_empty and not self._calls:
                self.end(None)
            return
        if outbox.is_sent and not self.said_goodbye:
            self.said_goodbye = True
            for handler in list(self._attached):
                handler.flush()  # an ack that was given before the end counts; behind the GOODBYE it would be too late
            goodbye = frame(FrameKind.GOODBYE, 0, encode_message(Goodbye(reason="closed")))
            self._current.write([*self._ahead, *self._pieces, goodbye])
            self._ahead, self._pieces = [], []
        if outbox.is_empty and not self._calls and self.said_goodbye:
            self._part()
            if not self._attached:
                self._current.close()

    @property
    def is_over(self) -> bool:
        """Whether a connection that ends now was the last, because all that was to be done is."""
        return self.said_goodbye and self.publishing.outbox.is_empty

    def end(self, error: RunnelError | None, is_late: bool = False) -> None:
        """Close for good, and notify all handlers. `is_late`: open subscriptions have not received all records."""
        if self.connection.state == "closed":
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if error is not None:
            self.connection.error = error
        self.connection.become("closed")
        connection, self._current = self._current, None
        if connection is not None and not self.loop.is_closed():
            connection.fail(ConnectionLost(str(connection.address), "the broker was closed"))

        def why() -> RunnelError:
            return BrokerClosed(HEARING) if error is None else ConnectionLost(self.address, str(error))

        if self._reconnect_task is not None and not self.loop.is_closed():
            if self._reconnect_task is not asyncio.current_task(self.loop):
                self._reconnect_task.cancel()
            self.publishing.end(why)
            self._calls.end(why)
            self._part()
        attached, self._attached = list(self._attached), {}
        self._handlers.clear()
        unread = BrokerClosed("reading what is left on the server") if is_late and connection is not None else error
        for handler in attached:
            handler.closed(unread)

    def _part(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def ended(self) -> None:
        """After close: return when it is over, or when only subscriptions that are still read keep it open."""
        if self._drained is None or self._reconnect_task is None or self.loop_owner.forked:
            return
        await asyncio.wait([self._drained])
        if all(handler.is_left for handler in self._attached):
            await asyncio.wait([self._reconnect_task])
