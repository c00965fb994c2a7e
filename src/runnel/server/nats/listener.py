"""The NATS listener, and its connections: bytes in, operations handled in order, bytes out.

A client has to say CONNECT, or anything, within `hello_timeout`, and to answer pings. A client that does not read is
not written to beyond `high_water`: records wait in the log, and after `send_timeout` without reading anything it is cut
off as a slow consumer. A client that waits for the disk is not read from.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from secrets import token_hex
from typing import Any, cast

from runnel.core.errors import (
    AccessRevoked,
    LimitExceeded,
    NotAuthenticated,
    NotSupported,
    ProtocolError,
    RunnelError,
    TokenExpired,
)
from runnel.core.record import NATS_INBOX
from runnel.server.access.access import Access
from runnel.server.access.control import Peer
from runnel.server.access.peers import facts_of
from runnel.server.connections import CLOSE_PATIENCE, CLOSE_PING, address_of
from runnel.server.limited_log import LimitedLog
from runnel.server.nats.headers import head_of
from runnel.server.nats.live import LiveSubjects, is_live
from runnel.server.nats.memory_topics import IDLE_SECONDS, MemoryTopics
from runnel.server.nats.session import ClientOptions, NatsSession, read_options
from runnel.server.nats.subscription import NatsSubscription
from runnel.server.nats.traffic import Traffic
from runnel.server.served_broker import ServedBroker
from runnel.server.unread_watch import UnreadWatch
from runnel.wire import nats

MAX_CONNECT = 64 << 10  # bytes of a CONNECT
SMALL = 4 << 10  # bytes of input below which it is not counted
OPERATIONS_PER_TURN = 1024  # operations after which others on the loop have their turn
LAME_DUCK = 1.0  # seconds between the notice that the server stops and the end of a connection with subscriptions
LINGER = 5.0  # seconds that a client has to read our last words
SWEEP_SECONDS = IDLE_SECONDS / 4
NATS_VERSION = "2.10.0"  # of the core protocol that is spoken here; clients look for features by it

log = logging.getLogger("runnel")
_closed = LimitedLog(log)


class NatsListener:
    """The shared state of the connections of one listener. Called for each accepted connection."""

    def __init__(self, serving: ServedBroker) -> None:
        self.serving = serving
        self.context: ssl.SSLContext | None = None  # set before the first connection, if clients have to speak TLS
        self.live, self.traffic = LiveSubjects(), Traffic()
        self.made = MemoryTopics(serving.backend.reclaim, self._size_of)
        self.id = token_hex(16).upper()
        self._clients = count(1)
        self._wanting: deque[NatsSubscription] = deque()  # those that may have something to send
        self._pumping = False
        self._loop = asyncio.get_running_loop()
        self._sweeping: asyncio.TimerHandle | None = None
        serving.backend.route_replies(NATS_INBOX, self._reply)
        self._sweep()

    def __call__(self) -> NatsConnection:
        """The protocol of a new connection."""
        return NatsConnection(self, next(self._clients))

    def greet(self, address: Any) -> tuple[bytes, Callable[[], NatsConnection]]:
        """INFO for a client that has to begin TLS now, and the maker of its protocol then."""
        client = next(self._clients)
        return nats.info(self.info(client, address)), lambda: NatsConnection(self, client, greeted=True)

    def close(self) -> None:
        """No more connections come, and the last has gone."""
        self.serving.backend.route_replies(NATS_INBOX, None)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def info(self, client: int, address: tuple[str, int] | None, **more: Any) -> dict[str, Any]:
        """The server's description of itself."""
        serving, context = self.serving, self.context
        here = next((one for one in serving.listeners if one.name == "nats"), None)
        return {
            "server_id": self.id,
            "server_name": f"runnel-{self.id[:8]}",
            "version": NATS_VERSION,
            "runnel": serving.version,
            "proto": 1,
            "host": "" if here is None else here.host,
            "port": 0 if here is None else here.port,
            "headers": True,
            "max_payload": serving.options.max_payload,
            "client_id": client,
            "jetstream": False,
            **({"client_ip": address[0]} if address else {}),
            **({"auth_required": True} if serving.auth is not None else {}),
            **(
                {}
                if context is None
                else {"tls_required": True, "tls_verify": context.verify_mode == ssl.CERT_REQUIRED}
            ),
            **more,
        }

    def figures(self) -> dict[str, int]:
        """Figures of its clients, as a NATS server names them."""
        peers = [one for one in self.serving.connections if isinstance(one, NatsConnection)]
        traffic = self.traffic
        return {
            "connections": len(peers),
            "subscriptions": sum(len(one.session.subscriptions) for one in peers),
            "in_msgs": traffic.in_msgs,
            "in_bytes": traffic.in_bytes,
            "out_msgs": traffic.out_msgs,
            "out_bytes": traffic.out_bytes,
            "slow_consumers": traffic.slow_consumers,
        }

    def _reply(self, inbox: str, value: bytes, headers: Mapping[str, str]) -> bool:
        """A reply of another listener, or of this process, to the request of a NATS client.

        Its reply subject is no topic: records of a topic come from the topic, and from nowhere else.
        """
        if not inbox or not is_live(inbox):
            return False
        _, head = head_of({name: text for name, text in headers.items() if text}, None)
        return self.live.deliver(inbox, None, head, value)

    def _size_of(self, topic: str) -> int:
        """The bytes that a topic in memory holds."""
        use = self.serving.backend.topic_use(topic)
        return 0 if use is None else use.size

    def _sweep(self) -> None:
        self.made.sweep(self._loop.time())
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    # -- subscriptions with something to send -------------------------------------------------------------------

    def wants(self, subscription: NatsSubscription) -> None:
        """Have it send soon."""
        self._wanting.append(subscription)
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump_soon)

    def _pump_soon(self) -> None:
        self._pumping = False
        self.pump()

    def pump(self) -> None:
        """Have each subscription that waits send what its connection has room for."""
        wanting = self._wanting
        for _ in range(len(wanting)):
            subscription = wanting.popleft()
            subscription.queued = False
            connection = cast(NatsConnection, subscription.outlet)
            if (room := connection.room) <= 0:
                connection.stalled.append(subscription)
                subscription.queued = True
            elif connection.guarded(subscription.pump, room) and not subscription.queued and not subscription.ended:
                subscription.queued = True
                self.wants(subscription)


class NatsConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, listener: NatsListener, client: int, *, greeted: bool = False) -> None:
        self._client, self._greeted = client, greeted
        self._listener, self._serving = listener, listener.serving
        self._options, self._connections = self._serving.options, self._serving.connections
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.peer_address = ""
        self.room = self._options.high_water  # bytes that may be written; 0: the client has to read first
        self._is_full = False  # whether it has to read before records are sent to it
        self.stalled: list[NatsSubscription] = []  # subscriptions that wait for room
        self.session: NatsSession
        self._peer: Any = ""
        self._parser = nats.NatsParser(self._options.max_payload, max_json=MAX_CONNECT)
        self._backlog: deque[nats.Operation] = deque()
        self._waits: asyncio.Task[None] | None = None  # for what the next operation has to wait
        self._paused: set[str] = set()  # why nothing is read
        self._gathered: list[bytes] = []
        self._flushing = False
        self._unanswered = 0  # bytes of publishes that are not answered
        self._connected = self._heard = self._closing = self._lost = False
        self._held = 0
        self._since = self._active = self._loop.time()
        self._pings = 0  # sent and not answered
        self._ping, self._patience = self._options.ping, self._options.ping_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._slowed: asyncio.TimerHandle | None = None
        self._watch: UnreadWatch | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<NatsConnection {self._client} of {self._peer}>"

    # -- its life -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected, and speaks TLS if it has to."""
        transport = cast(asyncio.Transport, transport)
        self.transport = transport
        self._peer = transport.get_extra_info("peername")
        self.peer_address = address_of(self._peer)
        transport.set_write_buffer_limits(high=self._options.high_water)
        self._watch = UnreadWatch(transport, self._options.send_timeout, self._slow_consumer)
        self._timer = self._loop.call_later(self._options.hello_timeout, self._look)
        listener = self._listener
        self.session = NatsSession(self._serving, self, listener.live, listener.made, listener.traffic, self._client)
        try:
            self._connections.add(self)
            if (refusal := self._serving.refusal()) is not None:
                raise refusal
        except RunnelError as error:
            self.refuse(error)
            return
        if self._connections.draining:
            self.abort()
        elif not self._greeted:
            self.write(nats.info(listener.info(self._client, self._peer or None)))

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._closing:
            return
        self._heard, self._active, self._pings = True, self._loop.time(), 0
        try:
            found = self._parser.feed(data)
        except RunnelError as error:
            self.refuse(error)
            return
        if self._parser.held > SMALL or self._held:
            self._report_memory()
        if self._backlog or self._waits is not None:
            self._backlog.extend(found)
            self.pause("backlog")
        else:
            self._handle(found)
        self._look_for_error()

    def _look_for_error(self) -> None:
        """Refuse what broke the rules, when all before it is done."""
        if self._waits is None and not self._backlog and isinstance(error := self._parser.error, RunnelError):
            self.refuse(error)

    def eof_received(self) -> bool:
        """The client has closed its side."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The client disconnected."""
        if self._lost:
            return
        self._lost = self._closing = True
        self.room = 0
        if (access := self._serving.access) is not None:
            access.on_end = access.on_slow = None
            access.release()
        self._connections.remove(self)
        self._serving.memory.hold(self, 0)
        self.session.lost()
        for timer in (self._timer, self._slowed):
            if timer is not None:
                timer.cancel()
        if self._watch is not None:
            self._watch.stop()
        self._backlog.clear()
        self.stalled.clear()
        if self._waits is not None:
            self._waits.cancel()

    def pause_writing(self) -> None:
        """The client does not read as fast as is written."""
        self.room, self._is_full = 0, True
        if self._watch is not None:
            self._watch.start()
        self.pause("unread")
        self._report_memory()

    def resume_writing(self) -> None:
        """It has read enough."""
        if self._lost:
            return
        self.room, self._is_full = self._options.high_water, False
        if self._watch is not None:
            self._watch.stop()
        self._report_memory()
        stalled, self.stalled = self.stalled, []
        for subscription in stalled:
            self._listener.wants(subscription)
        self.resume("unread")

    @property
    def raw_socket(self) -> Any:
        """Its socket, for what the system counts of it."""
        return None if self.transport is None else self.transport.get_extra_info("socket")

    def describe(self) -> dict[str, Any]:
        """The peer and what it holds."""
        options = self.session.options
        return {
            "peer": str(self._peer or ""),
            "since": self._loop.time() - self._since,
            "unsent_bytes": 0 if self.transport is None else self.transport.get_write_buffer_size(),
            "receive_bytes": self._parser.held,
            "listener": "nats",
            "client": " ".join(filter(None, (options.name, options.lang, options.version))),
            **({} if (access := self._serving.access) is None else {"principal": access.principal.name}),
            "subscriptions": len(self.session.subscriptions),
            "pending": self.session.unanswered,
        }

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops: notify the client, which may connect elsewhere, answer pending requests, and close."""
        if self._closing or self.transport is None:
            return
        self.write(nats.info(self._listener.info(self._client, self._peer or None, ldm=True)))
        self._spawn(self._part())

    async def _part(self) -> None:
        if self.session.subscriptions:
            await asyncio.sleep(LAME_DUCK)
        if self._waits is not None:
            await asyncio.wait([self._waits])
        await self.session.all_answered()
        self._listener.pump()
        self._close()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        if self.transport is not None:
            self.transport.abort()

    def over_budget(self, error: LimitExceeded) -> None:
        """The server has no more memory for this client."""
        _closed.warning("NATS connection %d is closed: %s", self._client, error)
        self.abort()

    # -- reading ------------------------------------------------------------------------------------------------

    def pause(self, why: str) -> None:
        """Read nothing more for now."""
        if not self._paused and self.transport is not None and not self._lost:
            self.transport.pause_reading()
        self._paused.add(why)

    def resume(self, why: str) -> None:
        """Read on, if there is no other reason not to."""
        if why in self._paused:
            self._paused.discard(why)
            if not self._paused and self.transport is not None and not self._lost and not self._closing:
                self.transport.resume_reading()

    def guarded(self, work: Any, *arguments: Any) -> Any:
        """Call `work`; its failure ends this connection and no other."""
        try:
            return work(*arguments)
        except RunnelError as error:
            self.refuse(error)
        except Exception:
            log.exception("the server failed at NATS connection %d", self._client)
            self.abort()
        return None

    def _handle(self, operations: list[nats.Operation] | deque[nats.Operation]) -> None:
        """Do operations in order, until one has to be waited for."""
        handle = self.session.handle
        try:
            for at, operation in enumerate(operations):
                waits = handle(operation) if self._connected else self._first(operation)
                if waits is not None or at >= OPERATIONS_PER_TURN:
                    rest = list(operations)[at + 1 :]
                    self._backlog = deque(rest)
                    self._wait(waits)
                    return
                if self._closing:
                    return
                handle = self.session.handle
        except RunnelError as error:
            self.refuse(error)
        except Exception:
            log.exception("the server failed at NATS connection %d", self._client)
            self.abort()

    def _wait(self, waits: Awaitable[None] | None) -> None:
        self.pause("backlog")
        self._waits = self._spawn(self._go_on_after(waits))

    async def _go_on_after(self, waits: Awaitable[None] | None) -> None:
        try:
            if waits is None:
                await asyncio.sleep(0)
            else:
                await waits
        except RunnelError as error:
            self.refuse(error)
            return
        except Exception:
            log.exception("the server failed at NATS connection %d", self._client)
            self.abort()
            return
        self._waits = None
        if self._closing and not self._backlog:
            return
        backlog, self._backlog = self._backlog, deque()
        self._handle(backlog)
        if self._waits is None:
            self.resume("backlog")
            self._look_for_error()

    def _first(self, operation: nats.Operation) -> Awaitable[None] | None:
        """CONNECT; without authentication a client may also begin with anything else, as with telnet."""
        if not isinstance(operation, nats.Connect):
            if self._serving.auth is not None and operation is not nats.PONG_SIGNAL:
                raise NotAuthenticated("log in first, with CONNECT")
            return self.session.handle(operation)
        self.session.options = options = read_options(operation)
        if (auth := self._serving.auth) is not None and self._serving.access is None:
            peer = Peer(self.peer_address, "nats")
            try:
                access = auth.login(options.credential, peer, **facts_of(self.transport))
                self._check_user(options, access)
            except RunnelError as error:
                return self._refuse_later(error, auth.login_delay(peer))
            self._serving = self._serving.guarded(access)
            access.on_end, access.on_slow = self._access_ended, self._slow_down
            self.session.adopt(self._serving)
        self._connected = True
        if options.verbose:
            self.write(nats.OK)
        return None

    @staticmethod
    def _check_user(options: ClientOptions, access: Access) -> None:
        """A user who is named beside a token has to be the one that the token is for."""
        if options.user and options.password and options.user != access.principal.name:
            access.release()
            raise NotAuthenticated("the token is for another user")

    async def _refuse_later(self, error: RunnelError, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.refuse(error)

    def _access_ended(self, error: RunnelError) -> None:
        self._loop.call_soon(self.refuse, error)

    def _slow_down(self, seconds: float) -> None:
        self.pause("too fast")
        if self._slowed is not None:
            self._slowed.cancel()
        self._slowed = self._loop.call_later(seconds, self.resume, "too fast")

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send it with all that this turn of the loop sends."""
        if self._closing:
            return
        self._gathered.append(data)
        self.room -= len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        elif self.room < -self._options.high_water:
            self._flush()  # live messages come without requests

    def _flush(self) -> None:
        self._flushing = False
        gathered, self._gathered = self._gathered, []
        if self.transport is None or not gathered or self.transport.is_closing():
            return
        if self._is_full:
            self.room = 0
            if self.transport.get_write_buffer_size() > self._options.max_pending_bytes:
                self._slow_consumer()
                return
            self.transport.write(b"".join(gathered))
            self._report_memory()
            return
        self.room = self._options.high_water  # unless `pause_writing` is called now
        self.transport.write(b"".join(gathered))
        if self.stalled and not self._is_full:
            self.resume_writing()

    def wants(self, subscription: NatsSubscription) -> None:
        """It may have something to send."""
        self._listener.wants(subscription)

    def pump_all(self) -> None:
        """Have every subscription of the listener that waits send now."""
        self._listener.pump()

    def answered(self, size: int) -> None:
        """A publish of so many bytes was answered; below 0: one is waited for."""
        self._unanswered -= size
        if self._unanswered >= self._options.max_pending_bytes:
            self.pause("unanswered")
        elif "unanswered" in self._paused:
            self.resume("unanswered")

    # -- the end ------------------------------------------------------------------------------------------------

    def refuse(self, error: RunnelError) -> None:
        """Send the error in the form of a NATS server, and close."""
        if self._closing:
            return
        _closed.warning("NATS connection %d of %s is closed: %s", self._client, self._peer, error)
        self.write(nats.failure(_named(error, logged_in=self._serving.access is not None)))
        self._close()

    def _close(self) -> None:
        if self._closing or self.transport is None:
            return
        self._closing = True
        self._flush()
        self.session.end_subscriptions()
        transport = self.transport
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER, transport.abort)
        if transport.can_write_eof():
            # Further input is discarded: if it were left unread, the system would discard our last words.
            try:
                transport.write_eof()
                self._paused.clear()
                transport.resume_reading()
            except OSError:  # it is closed
                transport.abort()
        else:
            transport.close()

    def _slow_consumer(self) -> None:
        _closed.warning("NATS connection %d of %s is closed: it reads too little", self._client, self._peer)
        self._listener.traffic.slow_consumers += 1
        self._closing = True
        self.abort()

    def _look(self) -> None:
        """Look whether it has said something, and is still there."""
        now, options = self._loop.time(), self._options
        if not self._connected and not (self._heard and self._serving.auth is None):
            self.refuse(LimitExceeded("hello_timeout", round(now - self._since, 1), options.hello_timeout))
            return
        if self._paused:
            self._active = now  # it is not read from, so its silence says nothing
        idle = now - self._active
        if self._pings and idle >= self._ping + self._patience:
            self.refuse(LimitExceeded("ping_timeout", round(idle, 1), self._ping + self._patience))
            return
        if idle >= self._ping and not self._pings:
            self._pings = 1
            self.write(nats.PING)
        due = self._ping - idle if not self._pings else self._ping + self._patience - idle
        self._timer = self._loop.call_later(max(0.05, due), self._look)

    def watch_closely(self) -> None:
        """Others ask who is subscribed: they see soon when this client is lost."""
        options = self._options
        ping, patience = min(options.ping, CLOSE_PING), min(options.ping_timeout, CLOSE_PATIENCE)
        if (ping, patience) != (self._ping, self._patience) and self._timer is not None and not self._closing:
            self._ping, self._patience = ping, patience
            self._timer.cancel()
            self._timer = self._loop.call_later(0, self._look)

    def _report_memory(self) -> None:
        """Report the memory used for this client: incomplete and unhandled input, and unread output."""
        held = self._parser.held if self._parser.held > SMALL else 0
        if "unread" in self._paused and self.transport is not None:
            held += self.transport.get_write_buffer_size()
        if held != self._held and not self._closing:
            self._held = held
            self._serving.memory.hold(self, held)


def _named(error: RunnelError, *, logged_in: bool) -> str:
    """The error as NATS clients know it; they look for these words."""
    if isinstance(error, TokenExpired):
        return "User Authentication Expired"
    if isinstance(error, AccessRevoked):
        return "User Authentication Revoked"
    if isinstance(error, NotAuthenticated):
        return "User Authentication Expired" if logged_in else "Authorization Violation"
    if isinstance(error, LimitExceeded):
        return _LIMITS.get(error.limit, re.sub(r"[\r\n']", " ", f"Limit Exceeded: {error}"))
    if isinstance(error, ProtocolError):
        return "Unknown Protocol Operation" if "no operation" in str(error) else "Parser Error"
    if isinstance(error, NotSupported):
        return re.sub(r"[\r\n']", " ", f"Not Supported: {error}")
    return re.sub(r"[\r\n']", " ", str(error))


_LIMITS = {
    "max_payload": "Maximum Payload Violation",
    "max_control_line": "maximum control line exceeded",
    "max_connections": "Maximum Connections Exceeded",
    "max_peer_connections": "Maximum Connections Exceeded",
    "hello_timeout": "Authentication Timeout",
    "ping_timeout": "Stale Connection",
}
