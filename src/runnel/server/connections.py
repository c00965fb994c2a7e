"""The open connections of all listeners: counted, limited (`max_connections`), drained when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

from runnel.core.errors import LimitExceeded


class ServerConnection(Protocol):
    """One connection, whatever its protocol."""

    def describe(self) -> dict[str, Any]:
        """Who it is and what it holds, for those who look after the server."""

    def drain(self, reason: str, retry: float | None) -> None:
        """Say goodbye, answer what is under way, and close. Returns at once; the connection ends by itself."""

    def abort(self) -> None:
        """Close now, whatever is under way."""


class Connections:
    """All connections of a server. A listener adds a connection when it is made and removes it when it is lost."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.accepted = self.refused = 0
        self.draining = False
        self._open: dict[ServerConnection, int] = {}
        self._rejected: set[ServerConnection] = set()  # those that were one too many, until they have read why
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(tuple(self._open))

    def add(self, peer: ServerConnection) -> int:
        """Count `peer` in; its number. `LimitExceeded` if there are as many as there may be: then it is not counted."""
        if len(self._open) >= self.limit:
            self.refused += 1
            self._rejected.add(peer)
            raise LimitExceeded("max_connections", len(self._open) + 1, self.limit)
        self.accepted += 1
        self._open[peer] = self.accepted
        self._emptied.clear()
        return self.accepted

    def remove(self, peer: ServerConnection) -> None:
        """It is gone. Harmless for one that was never counted."""
        self._rejected.discard(peer)
        if self._open.pop(peer, None) is not None and not self._open:
            self._emptied.set()

    def describe(self) -> list[dict[str, Any]]:
        """Each of them, with its number."""
        return [{"connection": number, **peer.describe()} for peer, number in self._open.items()]

    async def emptied(self) -> None:
        """Return when nobody is connected."""
        while self._open:  # a websocket gives its seat up and takes it again
            await self._emptied.wait()

    def drain(self, reason: str, retry: float | None) -> None:
        """Tell everybody that the server stops."""
        self.draining = True
        for peer in tuple(self._rejected):
            peer.abort()
        for peer in self:
            peer.drain(reason, retry)

    def abort(self) -> None:
        """Close all of them now."""
        for peer in (*self, *self._rejected):
            peer.abort()
