"""The connection to a cluster: one TCP connection to one of its servers, replaced by another when it drops.

Subscriptions are made again on the next connection. A request is answered on the connection that it was sent on, or
fails with `ConnectionLost`: its caller knows whether it may be repeated. A server that does not answer pings counts as
down; so does one through which JetStream does not answer, while there are others: it may be cut off from them. The
requests of one loop iteration share a write.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from importlib.metadata import version
from secrets import token_hex
from typing import Any

from runnel.cluster.options import ClusterOptions, NatsAddress, parse_server
from runnel.core.errors import (
    BadAddress,
    BrokerClosed,
    ConnectionLost,
    InvalidOption,
    LimitExceeded,
    NoAnswer,
    NoResponders,
    ProtocolError,
    RunnelError,
    TooLarge,
    Unreachable,
)
from runnel.runtime.connection_state import ConnectionState
from runnel.wire import nats
from runnel.wire.nats import Message

log = logging.getLogger("runnel")

Receive = Callable[[Message], None]

HIGH_WATER = 1 << 20
CUT_OFF = 6.0  # seconds without an answer of JetStream after which another server is tried: longer than most elections


class NatsLink:
    """Outlives connections. Used on one event loop."""

    def __init__(self, servers: tuple[NatsAddress, ...], options: ClusterOptions) -> None:
        self.servers, self.options = list(servers), options
        self.connection = ConnectionState()
        self.connection.address = str(servers[0])
        self.info: dict[str, Any] = {}
        self.is_over = False
        self.on_connected: list[Callable[[], None]] = []  # called after each new connection
        self.max_payload = 1 << 20
        self._subscriptions: dict[int, tuple[str, str | None, Receive]] = {}
        self._sids = 0
        self._inbox = f"_INBOX.{token_hex(12)}"
        self._requests: dict[str, asyncio.Future[Message]] = {}
        self._request_number = 0
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._is_to_flush = False
        self._keeper: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[RunnelError] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unanswered_pings = 0
        self._doubts: dict[str, tuple[float, float]] = {}  # when JetStream did not answer, first and last, by kind
        self._up: _Connection | None = None
        self._flushes: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<NatsLink {self.connection!r}>"

    @property
    def state(self) -> str:
        """Connected or not, in a word."""
        return self.connection.state

    # -- its life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect for the first time, or raise."""
        self._loop = asyncio.get_running_loop()
        self.subscribe(f"{self._inbox}.*", self._answered)
        first = self._loop.create_future()
        self._keeper = self._loop.create_task(self._keep(first))
        await first

    def close(self) -> None:
        """End it: requests fail, and nothing more arrives."""
        if not self.is_over:
            self.is_over = True
            self._flush()
            self._fail_requests(BrokerClosed("waiting for the cluster"))
            self._drop_transport()
            if self._keeper is not None:
                self._keeper.cancel()
            self.connection.become("closed")

    def forked(self) -> None:
        """In the child of a fork: the connection is the parent's."""
        self.is_over = True
        self._transport = None

    async def _keep(self, first: asyncio.Future[None]) -> None:
        """Connect, and connect again when the connection is lost."""
        loop, rounds = asyncio.get_running_loop(), 0
        began = loop.time()
        while not self.is_over:
            error = await self._round()
            if error is None:
                rounds = 0
                if not first.done():
                    first.set_result(None)
                assert self._lost is not None
                error = await self._lost
                if self.is_over:
                    return
                self._broken(error)
            elif not first.done() and (
                loop.time() - began >= self.options.wait or isinstance(error, InvalidOption | BadAddress)
            ):
                self.connection.become("closed")
                first.set_exception(error)
                return
            rounds += 1
            longest = min(self.options.backoff_max, self.options.backoff_min * 2 ** min(rounds, 16))
            await asyncio.sleep(random.uniform(0.0 if rounds == 1 else longest / 4, longest))

    async def _round(self) -> RunnelError | None:
        """Try all servers in turn; None: connected."""
        error: RunnelError | None = None
        state = self.connection
        for address in list(self.servers):
            state.become("reconnecting" if state.connections else "connecting")
            state.address = str(address)
            try:
                async with asyncio.timeout(self.options.connect_timeout):
                    await self._connect(address)
            except TimeoutError:
                error = Unreachable(str(address), f"no greeting in {self.options.connect_timeout:g} s")
            except OSError as found:
                error = Unreachable(str(address), str(found) or type(found).__name__)
            except RunnelError as found:
                error = found
            else:
                # The next round begins with another one: this one was just lost.
                self.servers.remove(address)
                self.servers.append(address)
                return None
            self._drop_transport()
            state.error, state.attempts = error, state.attempts + 1
        return error

    async def _connect(self, address: NatsAddress) -> None:
        loop, options = asyncio.get_running_loop(), self.options
        hostname = options.server_hostname or address.host
        early = options.ssl_context() if options.handshake_first else None
        protocol = _Connection(self)
        transport, _ = await loop.create_connection(
            lambda: protocol, address.host, address.port, ssl=early, server_hostname=hostname if early else None
        )
        self._transport = transport
        info = await protocol.greeting
        self._learn(info)
        if early is None and (options.wants_tls or info.get("tls_required")):
            context = options.ssl_context()
            secured = await loop.start_tls(transport, protocol, context, server_hostname=hostname)
            assert secured is not None, "the transport is open"
            self._transport = transport = secured
            protocol.transport = transport
        said = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "echo": True,
            "lang": "python-runnel",
            "version": version("runnel-mq"),
            "name": options.name or "runnel",
            **options.credentials(info.get("nonce")),
        }
        transport.write(nats.connect(said) + nats.PING)
        protocol.pong = loop.create_future()
        await protocol.pong
        protocol.is_up = True
        self._up, self._lost = protocol, protocol.lost
        self._doubts.clear()
        self._unanswered_pings = 0
        transport.set_write_buffer_limits(HIGH_WATER)
        transport.write(b"".join(nats.subscribe(to, sid, queue) for sid, (to, queue, _) in self._subscriptions.items()))
        state = self.connection
        state.address, state.error, state.attempts = str(address), None, 0
        state.server = f"nats-server {info.get('version', '?')}"
        state.connections += 1
        protocol.watch(options.ping)
        state.become("connected")
        for call in list(self.on_connected):
            call()

    def _learn(self, info: dict[str, Any]) -> None:
        """Apply INFO: the server's description of itself and of its cluster."""
        self.info = {**self.info, **info}
        self.max_payload = int(info.get("max_payload", self.max_payload))
        for url in info.get("connect_urls") or ():
            try:
                address = parse_server(url, url)
            except BadAddress:
                continue
            if address not in self.servers:
                self.servers.append(address)

    def _broken(self, error: RunnelError) -> None:
        self.connection.error, self._up = error, None
        self.connection.become("reconnecting")
        self._drop_transport()
        self._fail_requests(ConnectionLost(self.connection.address or "", "the outcome of a request is unknown"))

    def _drop_transport(self) -> None:
        transport, self._transport = self._transport, None
        self._outgoing.clear()
        if transport is not None:
            if self.is_over:
                transport.close()
            else:
                transport.abort()

    def _fail_requests(self, error: RunnelError) -> None:
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved, where no task waits any more
        flushes, self._flushes = self._flushes, []
        for waiter in flushes:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()

    def answered(self, doubt: str) -> None:
        """JetStream did through this server what another attempt of this kind was in doubt about."""
        self._doubts.pop(doubt, None)

    def unanswered(self, doubt: str) -> None:
        """JetStream did not answer, or has no leader: try another server, if that lasts long."""
        assert self._loop is not None
        now = self._loop.time()
        first, last = self._doubts.get(doubt, (now, now))
        first = now if now - last > CUT_OFF else first  # nothing was tried meanwhile
        self._doubts[doubt] = first, now
        if now - first > CUT_OFF and len(self.servers) > 1 and self._up is not None:
            why = f"JetStream did not answer for {CUT_OFF:g} s through it"
            self._up.end(ConnectionLost(self.connection.address or "", why))

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> bool:
        """Send at the end of this loop iteration; False: there is no connection."""
        if self._transport is None or self.connection.state != "connected":
            return False
        self._outgoing.append(data)
        if not self._is_to_flush:
            self._is_to_flush = True
            assert self._loop is not None
            self._loop.call_soon(self._flush)
        return True

    def _flush(self) -> None:
        self._is_to_flush = False
        if self._outgoing and self._transport is not None:
            data, self._outgoing = b"".join(self._outgoing), []
            self._transport.write(data)

    def publish(self, subject: str, payload: bytes, reply: str | None = None, head: bytes | None = None) -> bool:
        """Send a message that is not answered here; False: there is no connection."""
        return self.send(nats.publish(subject, payload, reply, head))

    def subscribe(self, subject: str, receive: Receive, queue: str | None = None) -> int:
        """Subscribe, on this connection and on every later one; returns the id."""
        self._sids += 1
        sid = self._sids
        self._subscriptions[sid] = (subject, queue, receive)
        self.send(nats.subscribe(subject, sid, queue))
        return sid

    def unsubscribe(self, sid: int) -> None:
        """End a subscription."""
        if self._subscriptions.pop(sid, None) is not None:
            self.send(nats.unsubscribe(sid))

    def new_inbox(self) -> str:
        """A subject that nothing else uses."""
        return f"_INBOX.{token_hex(12)}"

    def start_request(self, subject: str, payload: bytes, head: bytes | None = None) -> asyncio.Future[Message]:
        """Send a request; a future for its answer. `NoResponders` without subscribers."""
        assert self._loop is not None
        self._request_number += 1
        token = f"{self._request_number:x}"
        future: asyncio.Future[Message] = self._loop.create_future()
        size = len(payload) + (0 if head is None else len(head))
        if size > self.max_payload:  # the server would end the connection, with all that is under way
            future.set_exception(TooLarge("a message", size, "max_payload of the cluster", self.max_payload))
            return future
        if not self.send(nats.publish(subject, payload, f"{self._inbox}.{token}", head)):
            error = (
                BrokerClosed("a request")
                if self.is_over
                else Unreachable(self.connection.address or "", "not connected now")
            )
            future.set_exception(error)
            return future
        self._requests[token] = future
        future.add_done_callback(lambda _: self._requests.pop(token, None))
        return future

    async def request(self, subject: str, payload: bytes, timeout: float, head: bytes | None = None) -> Message:
        """Send a request, and wait for the answer; `NoAnswer` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self.start_request(subject, payload, head)
        except TimeoutError:
            raise NoAnswer(f"a request to {subject}", timeout, self.state) from None

    async def flushed(self) -> None:
        """Return when the server has processed everything sent so far on this connection."""
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        if not self.send(nats.PING):
            raise Unreachable(self.connection.address or "", "not connected now")
        self._flushes.append(waiter)
        await waiter

    async def connected(self, timeout: float) -> None:
        """Return when there is a connection."""
        if self.connection.state != "connected":
            await self.connection.wait("connected", timeout)

    # -- receiving ----------------------------------------------------------------------------------------------

    def received(self, operations: list[nats.Operation], protocol: _Connection) -> None:
        """Process received bytes."""
        subscriptions = self._subscriptions
        for one in operations:
            if one.__class__ is Message:
                found = subscriptions.get(one.sid)
                if found is not None:
                    found[2](one)
            elif isinstance(one, nats.Signal):
                if one.name == "PING":
                    if protocol.transport is not None:
                        protocol.transport.write(nats.PONG)
                elif one.name == "PONG":
                    self._unanswered_pings = 0
                    if self._flushes:
                        waiter = self._flushes.pop(0)
                        if not waiter.done():
                            waiter.set_result(None)
            elif isinstance(one, nats.Info):
                self._learn(one.fields)
                if one.fields.get("ldm"):
                    protocol.end(ConnectionLost(self.connection.address or "", "the server is shutting down"))
            elif isinstance(one, nats.Failure):
                if _is_fatal(one.why):
                    protocol.end(Unreachable(self.connection.address or "", one.why))
                else:
                    log.warning("the cluster refused something: %s", one.why)

    def _answered(self, message: Message) -> None:
        future = self._requests.get(message.subject.rpartition(".")[2])
        if future is None or future.done():
            return
        status = None if message.head is None or message.payload else nats.read_status(message.head)
        if status is not None and status[0] == 503:
            future.set_exception(NoResponders(message.subject))
        else:
            future.set_result(message)

    def ping(self, protocol: _Connection) -> None:
        """Ask whether the server is there; give up on it if the last ping was not answered."""
        if self._unanswered_pings:
            protocol.end(ConnectionLost(self.connection.address or "", "it did not answer a ping"))
        elif protocol.transport is not None:
            self._unanswered_pings += 1
            self._flushes.append(asyncio.get_running_loop().create_future())  # keeps the order of answers
            self.send(nats.PING)


def _is_fatal(why: str) -> bool:
    return not why.lower().startswith(("permissions violation", "invalid subject", "maximum payload"))


class _Connection(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, link: NatsLink) -> None:
        loop = asyncio.get_running_loop()
        self._link, self._parser = link, nats.NatsParser()
        self.transport: asyncio.Transport | None = None
        self.greeting: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.pong: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[RunnelError] = loop.create_future()
        self.is_up = False
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a TCP connection

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            operations = self._parser.feed(data)
        except (ProtocolError, LimitExceeded) as error:
            self.end(error)
            return
        if self.is_up:
            self._link.received(operations, self)
            return
        for at, one in enumerate(operations):
            if isinstance(one, nats.Info) and not self.greeting.done():
                self.greeting.set_result(one.fields)
            elif isinstance(one, nats.Failure):
                self.end(_refusal(self._link.connection.address or "", one.why))
            elif isinstance(one, nats.Signal) and one.name == "PONG" and self.pong is not None and not self.pong.done():
                self.pong.set_result(None)
            elif isinstance(one, nats.Signal) and one.name == "PING" and self.transport is not None:
                self.transport.write(nats.PONG)
            elif isinstance(one, nats.Info):
                self._link.received(operations[at : at + 1], self)

    def connection_lost(self, error: Exception | None) -> None:
        why = str(error) if error is not None else "the server closed the connection"
        if isinstance(error, ssl.SSLError):
            why = f"TLS: {why}"
        self.end(ConnectionLost(self._link.connection.address or "", why))

    def end(self, error: RunnelError) -> None:
        """It is over."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.lost.done():
            self.lost.set_result(error)
        for waiter in (self.greeting, self.pong):
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
                waiter.exception()
        if self.transport is not None:
            self.transport.abort()

    def watch(self, interval: float) -> None:
        """Ping after each interval of silence."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            if not self._heard:
                self._link.ping(self)
            else:
                self._link._unanswered_pings = 0
            self._heard = False
            if not self.lost.done():
                self._timer = loop.call_later(interval, look)

        self._timer = loop.call_later(interval, look)


def _refusal(address: str, why: str) -> RunnelError:
    if "authorization" in why.lower() or "authentication" in why.lower():
        return InvalidOption("user", "...", f"{address} refused it: {why}; check user, token, nkey or creds")
    return Unreachable(address, why)
