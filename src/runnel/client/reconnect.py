"""Reconnection after a lost connection: which server to try next, how long to wait, when to give up.

The wait doubles up to `backoff_max` and is random, so that clients do not return in step. A server that says goodbye
may name the wait. On the new connection `outbox` resends unanswered publishes, `calls` resends repeatable calls, and
each `subscription_session` subscribes again.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from runnel.client.connection import ClientConnection, connect
from runnel.client.options import ClientOptions
from runnel.core.errors import LimitExceeded, NotAuthenticated, NotNow, ProtocolError, RunnelError, TokenExpired
from runnel.wire.msgpack_messages import Goodbye

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink

SHORT_LIFE = 1.0  # seconds; a connection that was lost sooner counts as one that was not made


class Reconnector:
    """Keeps a link connected, for as long as `run` does not return."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self.goodbye: Goodbye | None = None  # of the server that goes

    async def run(self) -> None:
        """Connect, and connect again when the connection is lost, until that is over."""
        link, rounds, in_vain = self._link, 0, 0
        state, began = link.connection, link.now()
        while True:
            connection, error = await self._round()
            if connection is not None:
                since = link.now()
                error = await link.run_connection(connection)
                if link.is_over:
                    state.error = None
                    link.end(None)
                    return
                rounds, in_vain = rounds if link.now() - since < SHORT_LIFE else 0, 0
            else:
                in_vain += 1
            goodbye, self.goodbye = self.goodbye, None
            if self._is_last(in_vain, link.now() - began, error, goodbye):
                link.end(error)
                return
            rounds += 1
            await asyncio.sleep(reconnect_delay(rounds, goodbye, link.options))

    async def _round(self) -> tuple[ClientConnection | None, RunnelError | None]:
        """Try all servers, in turn; a connection, or why there is none."""
        link, error = self._link, None
        state = link.connection
        for address in link.addresses:
            state.become("reconnecting" if state.connections else "connecting")
            state.address = str(address)
            try:
                if link.prepare is not None:
                    address = await link.prepare(address)
                connection = await connect(address, link.options, link.receive, link.seen)
            except RunnelError as found:
                error = state.error = found
                state.attempts += 1
            else:
                link.addresses = (address, *(one for one in link.addresses if one != address))
                return connection, None
        return None, error

    def _is_last(self, in_vain: int, seconds: float, error: RunnelError | None, goodbye: Goodbye | None) -> bool:
        """Whether to give up: after a connection was lost, or after a round through all servers in vain."""
        options = self._link.options
        if goodbye is not None and goodbye.retry is None:
            return True  # the server says that it does not come back
        if isinstance(error, NotAuthenticated | TokenExpired) and not options.refreshes and not goodbye:
            return in_vain > 0 or not self._link.connection.connections  # the same token would be refused again
        if self._link.connection.connections:
            return options.reconnect is not True and in_vain >= options.reconnect
        # Errors in the options, such as a missing certificate, are final.
        return seconds >= options.wait or not isinstance(error, NotNow | ProtocolError | LimitExceeded)


def reconnect_delay(rounds: int, goodbye: Goodbye | None, options: ClientOptions) -> float:
    """How long to wait before the next round. Random: clients that lost it together must not come back in step."""
    if goodbye is not None and goodbye.retry is not None:
        return goodbye.retry * random.uniform(1.0, 1.5)
    longest = min(options.backoff_max, options.backoff_min * 2 ** min(rounds, 30))
    return random.uniform(0.0 if rounds == 1 else longest / 4, longest)
