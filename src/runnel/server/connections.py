"""The open connections of all listeners: counted, limited, drained when the server stops.

Idle connections must not lock out operators and health checks. Beyond `max_connections` a few more are accepted: HTTP
connections that ask for health or metrics, and those on the Unix socket, which only the server's own user can open.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from typing import Any, Protocol

from runnel.core.errors import LimitExceeded

CLOSE_PING, CLOSE_PATIENCE = 5.0, 8.0  # seconds, of a client whose presence is shown, or asked for
RECONNECT_AFTER = 1.0  # seconds after which clients of a server that stops come back
RESERVED = 32  # connections beyond `max_connections`, of each of the two kinds
UNIX_SOCKET = ""  # the address of peers on a Unix socket


class ServerConnection(Protocol):
    """One connection, whatever its protocol."""

    peer_address: str  # as of `address_of`

    @property
    def raw_socket(self) -> Any:
        """Its socket; None where there is none to be had."""

    def describe(self) -> dict[str, Any]:
        """The peer and what it holds, for operators."""

    def drain(self, reason: str, retry: float | None) -> None:
        """Say goodbye, answer pending requests, and close. Returns at once; the connection ends on its own."""

    def abort(self) -> None:
        """Close now, whatever is under way."""


def address_of(peername: object) -> str:
    """The key by which connections count as one peer: an IPv4 address, or an IPv6 /64 network.

    Behind a proxy the host comes from the proxy; one that is no address counts unchanged.
    """
    if not isinstance(peername, tuple | list) or not peername:
        return UNIX_SOCKET
    host = str(peername[0]).partition("%")[0]
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


def is_this_machine(address: str) -> bool:
    """Whether an address, as of `address_of`, is of the machine that the server runs on."""
    return address in (UNIX_SOCKET, "::/64") or address.startswith("127.")


class Connections:
    """All connections of a server. A listener adds a connection when it is made and removes it when it is lost.

    `per_address`: how many of them one peer address may have; those of this machine are not limited by it.
    """

    def __init__(self, limit: int, per_address: int | None = None) -> None:
        self.limit = limit
        self.per_address = limit if per_address is None else per_address
        self.accepted = self.refused = 0
        self.draining = False
        self.operators: set[ServerConnection] = set()  # of standbys and operators: they go last
        self._goodbye: tuple[str, float | None] = "", None
        self._open: dict[ServerConnection, int] = {}
        self._addresses: dict[str, int] = {}  # connections of each, but those of this machine
        self._rejected: set[ServerConnection] = set()  # those that were one too many, until they have read why
        self._reserved: dict[ServerConnection, None] = {}  # those that ask for one thing and go, the oldest first
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(tuple(self._open))

    def add(self, peer: ServerConnection) -> int:
        """Count `peer` in; its number. `LimitExceeded` if there are as many as there may be: then it is not counted."""
        address = peer.peer_address
        if len(self._open) >= self.limit + (RESERVED if address == UNIX_SOCKET else 0):
            raise self._refused(peer, "max_connections", len(self._open) + 1, self.limit)
        if not is_this_machine(address):
            count = self._addresses.get(address, 0) + 1
            if count > self.per_address:
                raise self._refused(peer, "max_peer_connections", count, self.per_address)
            self._addresses[address] = count
        self.accepted += 1
        self._open[peer] = self.accepted
        self._emptied.clear()
        return self.accepted

    def _refused(self, peer: ServerConnection, limit: str, count: int, allowed: int) -> LimitExceeded:
        self.refused += 1
        self._rejected.add(peer)
        return LimitExceeded(limit, count, allowed)

    def reserve(self, peer: ServerConnection) -> None:
        """Let `peer`, which `add` refused, ask for one thing. Where there are too many of these, the oldest is cut off.

        A health check asks at once: a connection that has been idle for long only takes up room.
        """
        while len(self._reserved) >= RESERVED:
            oldest = next(iter(self._reserved))
            del self._reserved[oldest]
            oldest.abort()
        self._reserved[peer] = None

    def remove(self, peer: ServerConnection) -> None:
        """It is closed. Harmless for one that was never counted."""
        self._rejected.discard(peer)
        self._reserved.pop(peer, None)
        if self._open.pop(peer, None) is None:
            return
        address = peer.peer_address
        if (left := self._addresses.pop(address, 0) - 1) > 0:
            self._addresses[address] = left
        self.operators.discard(peer)
        if not self._open:
            self._emptied.set()
        elif self.draining and not self.clients():
            for last in self:
                last.drain(*self._goodbye)

    def clients(self) -> list[ServerConnection]:
        """Those that are not of operators."""
        return [peer for peer in self if peer not in self.operators]

    def numbered(self) -> list[tuple[int, ServerConnection]]:
        """Each of them, with its number: one is never given twice."""
        return [(number, peer) for peer, number in self._open.items()]

    def describe(self) -> list[dict[str, Any]]:
        """Each of them, with its number."""
        return [{"connection": number, **peer.describe()} for number, peer in self.numbered()]

    async def emptied(self) -> None:
        """Return when there are no connections."""
        while self._open:  # a websocket gives its seat up and takes it again
            await self._emptied.wait()

    def drain(self, reason: str, retry: float | None) -> None:
        """Send every connection the goodbye; standbys after the clients, whose publishes they have to confirm."""
        self.draining, self._goodbye = True, (reason, retry)
        for peer in tuple(self._rejected):
            peer.abort()
        for peer in self.clients() or self:
            peer.drain(reason, retry)

    def abort(self) -> None:
        """Close all of them now."""
        for peer in (*self, *self._rejected):
            peer.abort()
