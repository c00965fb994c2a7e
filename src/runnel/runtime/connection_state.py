"""The state of a broker's connection to its server, for users to read and to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from runnel.core.errors import BrokerClosed, InvalidOption, NoAnswer, RunnelError

STATES = ("new", "connecting", "connected", "reconnecting", "closed")


class ConnectionState:
    """The connection of a broker to its server, as it is now. Read its attributes; none of them waits.

    - `state`: "new", "connecting" (for the first time), "connected", "reconnecting", "closed".
    - `address`: the server's, that it is connected to or tries; `server`: what that says it is, once it has.
    - `error`: why it was lost, or could not be made, the last time; None while all is well.
    - `attempts`: how often it was tried in vain since it was there last; `connections`: how often it was made.
    - `failed`: how many records that were published without waiting were refused, or lost when the broker was closed.
    """

    def __init__(self) -> None:
        self.state = "new"
        self.address: str | None = None
        self.server: str | None = None
        self.error: RunnelError | None = None
        self.attempts = 0
        self.connections = 0
        self.failed = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        where = f" to {self.address}" if self.address else ""
        return f"<Connection{where}, {self.state}{f', {self.error.code}' if self.error else ''}>"

    def count_failed(self) -> None:
        """Count a record of `publish_nowait` that was refused; the refusal is only logged."""
        self.failed += 1

    def become(self, state: str) -> None:
        """Change the state, and wake the tasks that wait for it."""
        if state == self.state:
            return
        self.state = state
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changes(self) -> AsyncIterator[str]:
        """The state now, and each one that follows, up to "closed". One that was very short may be left out."""
        seen = ""
        while True:
            if self.state != seen:
                seen = self.state
                yield seen
            if seen == "closed":
                return
            if self.state == seen:
                await self._changed()

    async def wait(self, state: str = "connected", timeout: float | None = None) -> None:
        """Return when it is in `state`; `NoAnswer` after `timeout` seconds, or why it was closed, if it was."""
        if state not in STATES:
            raise InvalidOption("state", state, f"expected one of {', '.join(STATES)}")
        try:
            async with asyncio.timeout(timeout):
                while self.state not in (state, "closed"):
                    await self._changed()
        except TimeoutError:
            raise NoAnswer(f"waiting to be {state}", timeout or 0.0, self.state) from self.error
        if self.state != state:
            raise self.error or BrokerClosed(f"waiting to be {state}")

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
