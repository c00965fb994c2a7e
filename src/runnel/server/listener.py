"""Where connections come in: sockets that listen, and the rate at which they are accepted.

Thousands of clients that come back at once wait in the backlog and are let in a few at a time, so that those who are
connected hardly notice.
Below: unix_socket. Above: server.
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
from typing import Any

from runnel.core.errors import InvalidOption
from runnel.core.network_errors import AddressInUse, PublicBindRefused
from runnel.server.unix_socket import UnixSocket

BACKLOG = 4096  # connections that wait to be accepted; the system may allow fewer
TURN = 16  # connections that are accepted before others on the loop have their turn
RESERVE = 128  # handles that are kept for files
REST = 1.0  # seconds to wait when the system has no handles left

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("runnel")


class Listener:
    """Some sockets that listen for the same door."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.BaseProtocol],
        rate: AcceptRate,
        *,
        context: ssl.SSLContext | None = None,
        handshake_timeout: float | None = None,
    ) -> None:
        self.sockets = sockets
        self._factory, self._rate, self._context = factory, rate, context
        self._handshake_timeout = handshake_timeout if context is not None else None
        self._loop = asyncio.get_running_loop()
        self._last_handle = handles_for_connections()
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[None]] = set()
        for one in sockets:
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        """Accept nobody any more. Those who are connected stay."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for one in self.sockets:
            self._loop.remove_reader(one)
            one.close()
        self.sockets = []
        # Whoever is being let in just now gets in, and is told that the server stops. Not cancelled: uvloop would have
        # told the protocol that it is connected, and never that it is not, and its end would be waited for.

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(TURN):
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
                if error.errno not in _PASSING:
                    raise
                log.error("no connection can be accepted for now: %s; raise the limit of open files (ulimit -n)", error)
                self._rest(listening, REST)
                return
            if connection.fileno() >= self._last_handle:
                connection.close()
                log.error("a connection is refused: the other handles are the journal's; raise ulimit -n")
                self._rest(listening, REST)
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
            _tune(connection)
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout
            )
        except (OSError, TimeoutError) as error:  # it is gone already, or speaks no TLS
            connection.close()
            log.debug("a connection came to nothing: %s", error)
        except asyncio.CancelledError:
            connection.close()
            raise


def handles_for_connections() -> int:
    """The handle from which on none is given to a connection.

    Some are kept back for files: a journal that cannot open its next one has failed, for everybody and for good.
    The system gives the lowest that is free, so a high one means that there are as many.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed - min(RESERVE, allowed // 4)


class AcceptRate:
    """How many connections a second are let in, over all sockets; a tenth of a second's worth at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate / 10)
        self._left = self._most
        self._at: float | None = None

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
        """Nobody came."""
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
                sockets.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _NOT_HERE:
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


def bind_unix(path: Path) -> UnixSocket:
    """A socket file that listens. What a dead server left there is replaced."""
    return UnixSocket(path, BACKLOG)


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
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


def _tune(connection: socket.socket) -> None:
    """Small answers go out at once, and the system too looks after whether the other machine is still there."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
