"""Waiting until a server has what was settled on disk. It is sent at once, whoever awaits it and when.

Below: link, wire. Above: group_subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runnel.core.errors import BrokerClosed, RunnelError
from runnel.core.network_errors import ConnectionLost, NoAnswer
from runnel.surface.waiting import tell
from runnel.wire.frame import Kind, frame
from runnel.wire.messages import Settlement, settle_payload
from runnel.wire.trouble import read_error

if TYPE_CHECKING:
    from runnel.client.link import Link


class Receipt:
    """One SETTLE that is answered, on the connection that it was sent on or never, and in time.

    Whoever makes one has looked whether the link is usable: what is settled here is sent here, or nowhere.
    """

    task: asyncio.Task[Any] | None = None

    def __init__(self, link: Link, settled: Sequence[Settlement]) -> None:
        self.id = 0
        self._link, self._settled, self._is_sent = link, settled, False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_seen)
        timeout = link.options.timeout
        self._timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, self._late, timeout)
        link.attach(self)
        if not self._is_sent:
            self.lost()

    def __repr__(self) -> str:
        return f"<Receipt {self.id} for {len(self._settled)}>"

    def connected(self) -> None:
        """Send it."""
        self._link.send(frame(Kind.SETTLE, self.id, settle_payload(self._settled)))
        self._is_sent = True

    def frame(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """The answer."""
        self._answered(read_error(payload) if kind == Kind.ERROR else None)

    def flush(self) -> None:
        """It was sent at once."""

    def lost(self) -> None:
        """Nobody knows whether it was done. The leases are void either way."""
        self._answered(ConnectionLost(self._link.address, "an ack was not answered, and its record may come again"))

    def closed(self, error: RunnelError | None) -> None:
        """Nobody will know."""
        self._answered(error or BrokerClosed("acking"))

    def _late(self, timeout: float) -> None:
        self._answered(NoAnswer("a durable ack", timeout, self._link.state))

    def _answered(self, error: RunnelError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._link.detach(self)
        tell(self.done, error)


def _seen(done: asyncio.Future[None]) -> None:
    """Whoever does not await it does not want to hear what became of it."""
    if not done.cancelled():
        done.exception()
