"""Detects a peer that reads none of its pending output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

CHECKS = 2  # within the time allowed: a late first check could miss that the peer reads


class UnreadWatch:
    """Calls `expired` once the peer of a transport has read nothing for `seconds`, while there is something to read.

    Started when the transport says that its buffer is full (`pause_writing`), stopped when it has room again
    (`resume_writing`) or the connection is lost. A peer that reads slowly has as long as it takes.
    """

    __slots__ = ("_expired", "_interval", "_timer", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, seconds: float, expired: Callable[[], None]) -> None:
        self._transport, self._interval, self._expired = transport, seconds / CHECKS, expired
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The transport takes no more for now."""
        if self._timer is None:
            self._wait(self._transport.get_write_buffer_size(), 1)

    def stop(self) -> None:
        """The peer has read enough, or disconnected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, unsent: int, check: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._check, unsent, check)

    def _check(self, before: int, check: int) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent < before:
            self._wait(unsent, 1)
        elif check < CHECKS:
            self._wait(unsent, check + 1)
        else:
            self._timer = None
            self._expired()
