"""Listening sockets: bound, with TLS where configured, accepting connections at a bounded rate.

After a restart thousands of clients reconnect at once: they wait in the backlog and are accepted a few at a time, so
that connected clients hardly notice. All listeners of a server open together, or none does.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from runnel.core.errors import AddressInUse, InvalidOption, PublicBindRefused
from runnel.runtime.waiting import resolve_waiter
from runnel.server.connections import RESERVED, Connections
from runnel.server.options import ServerOptions, TlsOptions
from runnel.server.served_broker import ListenerAddress
from runnel.server.unix_socket import MODE, UnixSocket

BACKLOG = 4096  # connections that wait to be accepted; the system may allow fewer
ACCEPTS_PER_TURN = 16  # connections that are accepted before others on the loop have their turn
RESERVED_HANDLES = 128  # handles that are kept for files
TLS_FIRST = 0.05  # seconds that a client has to begin a TLS handshake where the server would speak first
TLS_HANDSHAKE = b"\x16"  # the first byte of one
ACCEPT_PAUSE = 1.0  # seconds to wait when the system has no handles left

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("runnel")


ProtocolFactory = Callable[[], asyncio.BaseProtocol]  # makes the protocol of each new connection
Greet = Callable[[Any], tuple[bytes, ProtocolFactory]]  # address -> first bytes, protocol factory


class Acceptor:
    """Accepts connections on the sockets of one listener."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.BaseProtocol],
        rate: AcceptRate,
        *,
        context: ssl.SSLContext | None = None,
        handshake_timeout: float | None = None,
        greet: Greet | None = None,
    ) -> None:
        self.sockets = sockets
        self._greet = greet  # where TLS is spoken, the server says something first, unless the client begins TLS
        self._factory, self._rate = factory, rate
        self.adopt(context, handshake_timeout)
        self._loop = asyncio.get_running_loop()
        self._last_handle = handles_for_connections()
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[None]] = set()
        for one in sockets:
            self._loop.add_reader(one, self._accept, one)

    @property
    def speaks_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self._context is not None

    def adopt(self, context: ssl.SSLContext | None, handshake_timeout: float | None) -> None:
        """Use this certificate for connections that come from now on; None: no TLS."""
        self._context = context
        self._handshake_timeout = handshake_timeout if context is not None else None

    def close(self) -> None:
        """Accept no more connections. Present ones stay."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for one in self.sockets:
            self._loop.remove_reader(one)
            one.close()
        self.sockets = []
        # A connection that is being accepted now gets in and receives the goodbye. Not cancelled: uvloop would have
        # called connection_made and never connection_lost, and the server would wait for its end.

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            pause = self._rate.pause(self._loop.time())
            if pause > 0:
                self._rest(listening, pause)
                return
            try:
                connection, _peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._rate.give_back()
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                log.error("no connection can be accepted for now: %s; raise the limit of open files (ulimit -n)", error)
                self._rest(listening, ACCEPT_PAUSE)
                return
            if connection.fileno() >= self._last_handle:
                connection.close()
                log.error("a connection is refused: the other handles are the journal's; raise ulimit -n")
                self._rest(listening, ACCEPT_PAUSE)
                return
            connection.setblocking(False)
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
            # One that is cancelled before its first step does not get to close anything itself.
            opening.add_done_callback(partial(_close_if_cancelled, connection))

    def _rest(self, listening: socket.socket, seconds: float) -> None:
        """Look at this socket again after some time."""
        self._loop.remove_reader(listening)
        self._timers[listening] = self._loop.call_later(seconds, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        del self._timers[listening]
        self._loop.add_reader(listening, self._accept, listening)

    async def _open(self, connection: socket.socket) -> None:
        try:
            _set_socket_options(connection)
            factory = self._factory
            if self._greet is not None and self._context is not None and not await _begins_with_tls(connection):
                greeting, factory = self._greet(connection.getpeername())
                await self._loop.sock_sendall(connection, greeting)
            await self._loop.connect_accepted_socket(
                factory, connection, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout
            )
        except (OSError, TimeoutError) as error:  # it is closed already, or speaks no TLS
            connection.close()
            log.debug("a connection came to nothing: %s", error)
        except asyncio.CancelledError:
            connection.close()
            raise


async def _begins_with_tls(connection: socket.socket) -> bool:
    """Whether the client begins a TLS handshake at once. Nothing is read."""
    loop = asyncio.get_running_loop()
    spoken: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, resolve_waiter, spoken)
    try:
        async with asyncio.timeout(TLS_FIRST):
            await spoken
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE


def handles_for_connections() -> int:
    """The handle from which on none is given to a connection.

    Some are kept back for files: a journal that cannot open its next one has failed until it is reopened.
    The system gives the lowest that is free, so a high one means that there are as many.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed - min(RESERVED_HANDLES, allowed // 4)


def connections_allowed(wanted: int) -> int:
    """How many connections of `wanted` can be served with the handles that are free, and still answer health checks.

    If missing handles refused them, and not their number, operators could not reach the server either.
    """
    with socket.socket() as probe:
        used = probe.fileno()
    possible = max(1, handles_for_connections() - used - 2 * RESERVED)
    if possible < wanted:
        log.info("%d of max_connections=%d are served: raise the limit of open files (ulimit -n)", possible, wanted)
    return min(wanted, possible)


class AcceptRate:
    """How many connections a second are let in, over all sockets; a tenth of a second's worth at once."""

    def __init__(self, rate: float) -> None:
        self.adopt(rate)
        self._left = self._most
        self._at: float | None = None

    def adopt(self, rate: float) -> None:
        """The rate from now on."""
        self._rate, self._most = rate, max(1.0, rate / 10)

    def pause(self, now: float) -> float:
        """0: one more is let in, and counted. Else the seconds to wait before asking again."""
        if self._at is not None:
            self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        # Longer than it takes for the next one alone, so that a storm costs a few wake-ups and not one for each.
        return max((1 - self._left) / self._rate, 0.01)

    def give_back(self) -> None:
        """No connection."""
        self._left += 1


async def bind_tcp(host: str, port: int, *, insecure_public: bool) -> list[socket.socket]:
    """Sockets that listen on every address of `host`, all on one port."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidOption("host", host, f"no such name or address: {error.strerror or error}") from error
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _, address in addresses:
        if not insecure_public and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise PublicBindRefused(host)
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    try:
        for family, address in addresses:
            try:
                sockets.append(_bind(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                refused = error  # this machine has no IPv6, say
            port = sockets[0].getsockname()[1] if sockets else port  # of 0: what the first one got
        if not sockets and refused is not None:
            raise refused
    except OSError as error:
        for one in sockets:
            one.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"{host}:{port}") from error
        if error.errno == errno.EACCES:
            raise InvalidOption("port", port, "this user may not listen on it; choose one above 1023") from error
        raise InvalidOption("host", host, f"this machine cannot listen there: {error.strerror}") from error
    return sockets


def bind_unix(path: Path, *, mode: int = MODE) -> UnixSocket:
    """A listening socket file. The file of a dead server is replaced."""
    return UnixSocket(path, BACKLOG, mode=mode)


def _bind(family: int, address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _close_if_cancelled(connection: socket.socket, opening: asyncio.Task[None]) -> None:
    if opening.cancelled():
        connection.close()


def _set_socket_options(connection: socket.socket) -> None:
    """Small answers go out at once, and the system too looks after whether the other machine is still there."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


# -- All sockets of a server -----------------------------------------------------------------------------


CLOSE_DEADLINE = 10.0  # seconds to answer pending requests, by default


class NatsFactory(Protocol):
    """The same of the NATS listener, which says something before TLS begins."""

    context: ssl.SSLContext | None

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""

    def greet(self, address: Any) -> tuple[bytes, ProtocolFactory]:
        """The bytes sent to a client before TLS begins, and the maker of its protocol then."""


class ServerSockets:
    """All listeners of one server: `native` on a TCP port and a Unix socket, the others on ports of their own."""

    def __init__(
        self,
        options: ServerOptions,
        connections: Connections,
        native: ProtocolFactory,
        lines: ProtocolFactory,
        http: ProtocolFactory | None = None,
        nats: NatsFactory | None = None,
        *,
        optional_certificates: bool = False,
    ) -> None:
        self._optional = optional_certificates
        self.listeners: list[ListenerAddress] = []
        self._options, self._connections = options, connections
        self._native, self._lines, self._http, self._nats = native, lines, http, nats
        self._rate = AcceptRate(options.accept_rate)
        self._acceptors: list[Acceptor] = []
        self._files: list[UnixSocket] = []

    @property
    def sockets(self) -> list[socket.socket]:
        """Those that listen."""
        return [one for acceptor in self._acceptors for one in acceptor.sockets]

    async def open(self) -> None:
        """Open every listener that the options ask for, or none of them."""
        options = self._options
        context = self.read_certificates(optional=self._optional)
        try:
            if options.port is not None:
                scheme = "runnel" if context is None else "runnels"
                await self._open_tcp("native", scheme, options.port, self._native, context)
            if options.unix is not None:
                # With authentication the peers' users are known, and rules say what they may do.
                self.adopt(bind_unix(options.unix.absolute(), mode=0o600 if options.auth is None else 0o666))
            if options.json_port is not None:
                scheme = "tcp" if context is None else "tls"
                await self._open_tcp("json", scheme, options.json_port, self._lines, context)
            if options.http_port is not None and self._http is not None:
                scheme = "http" if context is None else "https"
                await self._open_tcp("http", scheme, options.http_port, self._http, context)
            if options.nats_port is not None and self._nats is not None:
                self._nats.context = context
                scheme = "nats" if context is None else "tls"
                await self._open_tcp("nats", scheme, options.nats_port, self._nats, context, self._nats.greet)
        except BaseException:
            self.stop()
            raise

    async def _open_tcp(
        self,
        name: str,
        scheme: str,
        port: int,
        factory: ProtocolFactory,
        context: ssl.SSLContext | None,
        greet: Greet | None = None,
    ) -> None:
        options = self._options
        is_safe = options.insecure_public or options.auth is not None
        sockets = await bind_tcp(options.host, port, insecure_public=is_safe)
        self._acceptors.append(
            Acceptor(
                sockets,
                factory,
                self._rate,
                context=context,
                handshake_timeout=options.hello_timeout,
                greet=greet,
            )
        )
        real = sockets[0].getsockname()[1]
        shown = f"[{options.host}]" if ":" in options.host else options.host
        self.listeners.append(ListenerAddress(name, f"{scheme}://{shown}:{real}", options.host, real))

    def read_certificates(self, *, optional: bool) -> ssl.SSLContext | None:
        """The certificate and key that are in their files now; None: the server speaks no TLS."""
        return None if self._options.ssl is None else server_context(self._options.ssl, optional=optional)

    def reload(self, options: ServerOptions, context: ssl.SSLContext | None) -> None:
        """Accept connections with this certificate, at the rate of these options, from now on."""
        self._rate.adopt(options.accept_rate)
        for acceptor in self._acceptors:
            if acceptor.speaks_tls:
                acceptor.adopt(context, options.hello_timeout)

    def adopt(self, file: UnixSocket) -> None:
        """Let clients in at a socket that listens already, too. It ends with the other listeners."""
        self._files.append(file)
        self._acceptors.append(Acceptor([file.socket], self._native, self._rate))
        self.listeners.append(ListenerAddress("unix", f"runnel+unix://{quote(str(file.path))}", str(file.path), 0))

    def stop(self) -> None:
        """Accept no more connections. Present ones stay."""
        for acceptor in self._acceptors:
            acceptor.close()
        for file in self._files:
            file.close()
        self._acceptors, self._files = [], []

    async def close(self, deadline: float, reason: str, retry: float | None) -> None:
        """Accept no more connections and close the present ones within `deadline` seconds; a second call: at once."""
        self.stop()
        connections = self._connections
        if connections.draining:
            connections.abort()
        else:
            connections.drain(reason, retry)
            try:
                async with asyncio.timeout(deadline):
                    await connections.emptied()
            except TimeoutError:
                if deadline > 0:
                    log.warning("%d connections are cut off: the server's deadline has come", len(connections))
                connections.abort()
        await connections.emptied()

    def abort(self) -> None:
        """Close everything now, without a word: clients take it for a lost connection, and come back."""
        self.stop()
        self._connections.draining = True
        self._connections.abort()


# -- TLS -------------------------------------------------------------------------------------------------
# TLS 1.2 and later, with client certificates where they are required.


def server_context(options: TlsOptions, *, optional: bool = False) -> ssl.SSLContext:
    """The TLS context for `options`; an error names the file that is wrong. `optional`: as are client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for option in ("cert", "key", "client_ca"):
        path = getattr(options, option)
        if path is not None and not path.is_file():
            raise InvalidOption(option, str(path), "there is no such file")
    try:
        # A passphrase would be requested on the terminal: a server must not hang there.
        context.load_cert_chain(options.cert, options.key, password=b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = f"{options.cert} and {options.key} are no certificate with its key, in PEM, without passphrase: {error}"
        raise InvalidOption("cert", str(options.cert), why) from error
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except (ssl.SSLError, OSError) as error:
            raise InvalidOption("client_ca", str(options.client_ca), f"no certificates in PEM: {error}") from error
        # Where a token may stand for a certificate, a peer shows either: the login decides.
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context
