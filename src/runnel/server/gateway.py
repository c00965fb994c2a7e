"""Gateway: the listeners of a server that runs elsewhere. It stores nothing, so any number can run side by side.

A native client's bytes are forwarded unchanged, over one connection to the server per client, so that every guarantee
of the protocol holds through any number of gateways. The JSON lines listener is itself a client of the server.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from runnel.client.address import ServerAddress, parse_url
from runnel.client.broker import RemoteBroker
from runnel.client.handshake import failure_reason
from runnel.client.options import ClientOptions
from runnel.core.errors import NotSupported, RunnelError, Unreachable
from runnel.server.connections import Connections
from runnel.server.json_lines.listener import JsonLinesListener, enable_tcp_keepalive
from runnel.server.listener import CLOSE_DEADLINE, RECONNECT_AFTER, ServerSockets
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ListenerAddress
from runnel.wire.errors import error_frame

if TYPE_CHECKING:
    from runnel.broker.broker import Broker


CONNECT_TIMEOUT = 3.0  # seconds for the engine to accept, if its URL sets none: less than clients wait for a WELCOME
WAIT_FOR_EVER = 1e9  # seconds: the JSON listener goes on trying, whenever the engine comes

log = logging.getLogger("runnel")


class Gateway:
    """Listeners in front of another server, the engine. It forwards while its block lasts.

    >>> async with Gateway("runnel://engine:7788", ServerOptions(port=7788)) as gateway:
    ...     print(gateway.listeners)

    `engine` is what `runnel.open` takes for a server; several hosts are tried in turn, and must be listeners of one and
    the same broker. While none can be reached, clients are told so (`Unreachable`), and try again.
    """

    def __init__(self, engine: str, options: ServerOptions | None = None) -> None:
        self.engine, self.options = engine, options or ServerOptions()
        self._addresses, written = parse_url(engine)
        self._client = ClientOptions.of({}, {"connect_timeout": f"{CONNECT_TIMEOUT}", **written})
        self._connections = Connections(self.options.max_connections)
        self._sockets: ServerSockets | None = None
        self._broker: RemoteBroker | None = None
        self._joining: asyncio.Task[RemoteBroker] | None = None
        self._trouble: Unreachable | None = None  # why the engine could not be reached the last time

    def __repr__(self) -> str:
        listeners = ", ".join(listener.url for listener in self.listeners) or "no listeners"
        return f"<Gateway {listeners} before {self.engine}, {self.connections} connections>"

    @property
    def listeners(self) -> list[ListenerAddress]:
        """Where it can be reached: the real port where port 0 was asked for."""
        return [] if self._sockets is None else self._sockets.listeners

    @property
    def connections(self) -> int:
        """How many clients are connected, at all listeners."""
        return len(self._connections)

    async def __aenter__(self) -> Gateway:
        if self._sockets is not None:
            raise NotSupported("starting a gateway twice", "make another one")
        if any(address.tls for address in self._addresses):
            self._client.ssl_context()  # what is wrong with its files is told now, and not to the first client
        self._broker = RemoteBroker(self.engine, wait=WAIT_FOR_EVER, name="gateway")
        self._sockets = ServerSockets(self.options, self._connections, self._make_proxy, self._make_json_listener)
        await self._sockets.open()
        if self.options.json_port is not None:
            self._joining = asyncio.create_task(self._broker.__aenter__())
            self._joining.add_done_callback(_log_failure)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(CLOSE_DEADLINE if error is None else 0.0)

    async def close(self, deadline: float = CLOSE_DEADLINE, retry: float = RECONNECT_AFTER) -> None:
        """Accept nobody any more, let the engine answer what is under way, close. A second call closes at once.

        To native clients it is a lost connection, so that they go to another gateway at once: `retry` counts for
        nobody. What is not done after `deadline` seconds is cut off.
        """
        if self._sockets is not None:
            await self._sockets.close(deadline, "the gateway stops", retry)
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            await asyncio.wait([self._joining])
        if self._broker is not None and self._joining is not None:
            await self._broker.__aexit__(None, None, None)

    def abort(self) -> None:
        """Close everything now, without a word: clients take it for a lost connection, and go elsewhere."""
        if self._sockets is not None:
            self._sockets.abort()

    # -- the native listener ----------------------------------------------------------------------------------------

    def _make_proxy(self) -> asyncio.BaseProtocol:
        return ConnectionProxy(self.options, self._connections, self._dial).near

    async def _dial(self, protocol: asyncio.Protocol) -> None:
        """Connect `protocol` to the engine, or `Unreachable`. The address that answered last is tried first."""
        trouble: Unreachable | None = None
        for address in self._addresses:
            try:
                await self._connect(address, protocol)
            except Unreachable as error:
                trouble = error
            else:
                self._addresses = (address, *(one for one in self._addresses if one != address))
                if self._trouble is not None:
                    log.info("the engine is there again, at %s", address)
                self._trouble = None
                return
        assert trouble is not None
        if self._trouble is None:  # once, and not for every client that tries
            log.warning("clients are sent away: %s", trouble)
        self._trouble = trouble
        raise trouble

    async def _connect(self, address: ServerAddress, protocol: asyncio.Protocol) -> None:
        loop, options = asyncio.get_running_loop(), self._client
        try:
            async with asyncio.timeout(options.connect_timeout):
                if address.path:
                    await loop.create_unix_connection(lambda: protocol, address.path)
                elif address.tls:
                    hostname = options.server_hostname or address.host
                    await loop.create_connection(
                        lambda: protocol,
                        address.host,
                        address.port,
                        ssl=options.ssl_context(),
                        server_hostname=hostname,
                        ssl_handshake_timeout=options.connect_timeout,
                    )
                else:
                    await loop.create_connection(lambda: protocol, address.host, address.port)
        except TimeoutError:
            raise Unreachable(f"{address} (the engine)", f"no answer within {options.connect_timeout:g} s") from None
        except OSError as error:
            raise Unreachable(f"{address} (the engine)", failure_reason(error)) from None

    # -- the JSON listener ------------------------------------------------------------------------------------------

    def _make_json_listener(self) -> asyncio.BaseProtocol:
        broker = self._broker
        assert broker is not None, "made before anybody is accepted"
        refusal = None
        if not broker.connection.connections:
            why = getattr(broker.connection.error, "why", None) or "it was not reached yet"
            refusal = Unreachable(f"{self.engine} (the engine)", why)
        return JsonLinesListener(cast("Broker", broker), self.options, self._connections, refusal)


def _log_failure(joining: asyncio.Task[RemoteBroker]) -> None:
    """Log why the JSON lines listener cannot reach the engine."""
    if not joining.cancelled() and (error := joining.exception()) is not None:
        level = log.error if isinstance(error, RunnelError) else log.critical
        level("the JSON listener cannot reach the engine: %s", error)


# -- Proxying one client ---------------------------------------------------------------------------------
# The bytes of a client, forwarded to the engine (the server behind the gateway) and back, never parsed.
# Backpressure: at most `high_water` bytes, and what one read brought, wait in each direction. Keepalive is end to
# end, between client and engine; when either is gone, the other's connection is closed.


LINGER = 5.0  # seconds that one side has to end when the other has
QUIET_PERIOD = 0.5  # seconds of silence of the engine, after which all that was asked counts as answered
HANGUP_CHECK = 0.25  # seconds between two looks whether somebody is there whom nobody reads from
NOT_CONNECTED, UNREAD, STOPPING = "the engine is not there yet", "the other side does not read", "the gateway stops"
_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_RESET = struct.pack("ii", 1, 0)


Connector = Callable[[asyncio.Protocol], Awaitable[None]]  # connect this protocol to the engine, or raise


class ProxySide(asyncio.Protocol):
    """One end of a proxied connection. `other` gets what arrives here."""

    other: ProxySide

    def __init__(self, proxy: ConnectionProxy, high_water: int) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended = False  # it will say no more
        self.lost = False
        self._finished = False  # nothing more is said to it
        self._proxy, self._high_water = proxy, high_water
        self._held: set[str] = set()  # why nothing is read for now
        self._hangup_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self.transport.set_write_buffer_limits(high=self._high_water)
        enable_tcp_keepalive(transport.get_extra_info("socket"))
        self._proxy.made(self)

    def data_received(self, data: bytes) -> None:
        """Hand them on."""
        self._proxy.passed(self, data)

    def eof_received(self) -> bool:
        """It will say no more, and may still read; with TLS there is no such half."""
        if not self.ended:
            self.ended = True
            self._proxy.side_ended(self)
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self.ended = self.lost = True
        if self._hangup_timer is not None:
            self._hangup_timer.cancel()
        self._proxy.side_lost(self)

    def pause_writing(self) -> None:
        """It does not read as fast as the other side writes."""
        self.other.hold(UNREAD)

    def resume_writing(self) -> None:
        """It has read enough."""
        self.other.release(UNREAD)

    def hold(self, why: str) -> None:
        """Read nothing until `release(why)`."""
        if not self._held and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._look_again()
        self._held.add(why)

    def release(self, why: str) -> None:
        """One reason not to read is gone."""
        if why in self._held:
            self._held.discard(why)
            if not self._held and not self.ended and self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    def drain(self) -> None:
        """Read on, whatever held it: what comes is thrown away. Left unread, it would cost our last words."""
        for why in tuple(self._held):
            self.release(why)

    def write(self, data: bytes) -> None:
        """Send them, if anybody is there."""
        if self.transport is not None and not self._finished and not self.transport.is_closing():
            self.transport.write(data)

    def finish(self) -> None:
        """Nothing more is said to it: it hears that once it has read the rest."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        try:
            if self.ended or not transport.can_write_eof():
                transport.close()
            elif not self._finished:
                transport.write_eof()
            self._finished = True
        except OSError:  # it is gone already
            transport.abort()

    def abort(self) -> None:
        """Close now. Unsent bytes are thrown away by the system, too: or its end would wait behind them, unheard."""
        if self.transport is not None and not self.lost:
            if not self.transport.is_closing():
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    @property
    def unsent(self) -> int:
        """What waits for it to read."""
        return 0 if self.transport is None or self.lost else self.transport.get_write_buffer_size()

    def _look_again(self) -> None:
        if self._hangup_timer is None:
            self._hangup_timer = asyncio.get_running_loop().call_later(HANGUP_CHECK, self._look_for_hangup)

    def _look_for_hangup(self) -> None:
        """While nothing is read, the end of what comes is not seen either: ask the system for it."""
        self._hangup_timer = None
        if not self._held or self.transport is None or self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HANGUP)
        if poll.poll(0):
            self._proxy.hung_up(self)
        else:
            self._look_again()


class ConnectionProxy:
    """One client of a gateway, and its connection to the engine. `near` is the protocol of the client's side."""

    def __init__(self, options: ServerOptions, connections: Connections, dial: Connector) -> None:
        self.near, self.far = ProxySide(self, options.high_water), ProxySide(self, options.high_water)
        self.near.other, self.far.other = self.far, self.near
        self._connections, self._dial = connections, dial
        self._loop = asyncio.get_running_loop()
        self._since = self._heard = self._loop.time()  # `_heard`: the engine
        self._dialing: asyncio.Task[None] | None = None
        self._early = b""  # what the client said before the engine was there: what one read brought
        self._deaf = False  # what the client says goes nowhere
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""

    def __repr__(self) -> str:
        return f"<ConnectionProxy of {self.peer}, {'connected' if self.far.transport else 'connecting'}>"

    # -- its beginning ------------------------------------------------------------------------------------------

    def made(self, side: ProxySide) -> None:
        """One side stands: the client's first, which waits until the engine's does."""
        if side is self.far:
            self._heard = self._loop.time()
            return
        assert self.near.transport is not None
        name = self.near.transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "of the Unix socket"
        try:
            self._connections.add(self)
        except RunnelError as error:
            self._refuse(error)
            return
        if self._connections.draining:
            self.abort()
            return
        self._dialing = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._dial(self.far)
        except RunnelError as error:
            self._refuse(error)
        except Exception:
            log.exception("connection %s could not be relayed", self.peer)
            self.abort()
        else:
            if self.near.lost:
                self.far.abort()
            self.far.write(self._early)
            self._early = b""
            self.near.release(NOT_CONNECTED)

    def _refuse(self, error: RunnelError) -> None:
        """Say why it cannot be; what the client still sends is thrown away, or it would never read our answer."""
        self.near.write(error_frame(0, error))
        self._let_go()

    # -- bytes --------------------------------------------------------------------------------------------------

    def passed(self, side: ProxySide, data: bytes) -> None:
        """`side` said something."""
        if side is self.far:
            self._heard = self._loop.time()
            self.near.write(data)
        elif self.far.transport is None:
            self._early += data
            self.near.hold(NOT_CONNECTED)  # not before: a transport that has just begun may not be paused (uvloop)
        elif not self._deaf:
            self.far.write(data)

    # -- its end ------------------------------------------------------------------------------------------------

    def side_ended(self, side: ProxySide) -> None:
        """`side` has said all: the other hears that, and has a little time to end, too."""
        side.other.finish()
        if side.other.ended or side.other.transport is None or self._deaf:
            side.finish()
        self._arm(LINGER)

    def hung_up(self, side: ProxySide) -> None:
        """`side` ended while nothing was read from it. A client that is gone holds nothing any longer."""
        if side is self.near:
            self.abort()
        else:
            self._arm(LINGER)  # the client may still read the engine's last words

    def side_lost(self, side: ProxySide) -> None:
        """`side` is gone, so the other goes, once it has read what it was sent."""
        if side is self.near and self._dialing is not None:
            self._dialing.cancel()
        other = side.other
        if other.lost or other.transport is None:
            self._over()
        elif side is self.near:
            self.far.abort()
        else:
            self._let_go()
        if side is self.near:
            self._connections.remove(self)

    def _let_go(self) -> None:
        """There is no engine: the client goes when it has read what it was sent, and in any case soon."""
        self._deaf = True
        self.near.drain()
        self.near.finish()
        self._arm(LINGER)

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        if self._timer is None and not self.near.lost:
            self._timer = self._loop.call_later(seconds, self.abort)

    # -- what the gateway does with it --------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Who it is and what it holds."""
        return {
            "peer": self.peer,
            "since": self._loop.time() - self._since,
            "unsent_bytes": self.near.unsent,
            "receive_bytes": self.far.unsent,
            "door": "relay",
        }

    def drain(self, reason: str, retry: float | None) -> None:
        """Take no more from the client, let the engine answer what it has, and close when it is silent.

        It falls silent: without more credit and more requests it has nothing to send.
        """
        if self._dialing is not None and not self._dialing.done():
            self.abort()
            return
        self.near.hold(STOPPING)
        self._heard = self._loop.time()
        self._look_for_silence()

    def _look_for_silence(self) -> None:
        left = self._heard + QUIET_PERIOD - self._loop.time()
        if self.near.lost or self._deaf:
            return
        if left > 0 or self.near.unsent:
            self._loop.call_later(max(left, 0.05), self._look_for_silence)
            return
        self.far.abort()

    def abort(self) -> None:
        """Close both sides now."""
        if self._dialing is not None:
            self._dialing.cancel()
        self.far.abort()
        self.near.abort()
