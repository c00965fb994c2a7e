"""Connects, and connects again: which server, after what pause, and when to give up.

Below: connection, options. Above: link.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from runnel.client.connection import Connection, dial
from runnel.client.options import ClientOptions
from runnel.core.errors import NotNow, RunnelError
from runnel.core.network_errors import LimitExceeded, ProtocolError
from runnel.wire.messages import Goodbye

if TYPE_CHECKING:
    from runnel.client.link import Link

SHORT_LIFE = 1.0  # seconds; a connection that was lost sooner counts as one that was not made


class Keeper:
    """Keeps a link connected, for as long as `run` does not return."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.goodbye: Goodbye | None = None  # of the server that goes

    async def run(self) -> None:
        """Connect, and connect again when the connection is lost, until that is over."""
        link, rounds, in_vain = self._link, 0, 0
        state, began = link.connection, link.now()
        while True:
            line, error = await self._round()
            if line is not None:
                since = link.now()
                error = await link.live_with(line)
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
            await asyncio.sleep(pause(rounds, goodbye, link.options))

    async def _round(self) -> tuple[Connection | None, RunnelError | None]:
        """Try all servers, in turn; a connection, or why there is none."""
        link, error = self._link, None
        state = link.connection
        for address in link.addresses:
            state.become("reconnecting" if state.connections else "connecting")
            state.address = str(address)
            try:
                if link.prepare is not None:
                    address = await link.prepare(address)
                line = await dial(address, link.options, link.receive)
            except RunnelError as found:
                error = state.error = found
                state.attempts += 1
            else:
                link.addresses = (address, *(one for one in link.addresses if one != address))
                return line, None
        return None, error

    def _is_last(self, in_vain: int, seconds: float, error: RunnelError | None, goodbye: Goodbye | None) -> bool:
        """Whether to give up: after a connection was lost, or after a round through all servers in vain."""
        options = self._link.options
        if goodbye is not None and goodbye.retry is None:
            return True  # the server says that it does not come back
        if self._link.connection.connections:
            return options.reconnect is not True and in_vain >= options.reconnect
        # What was wrong from the beginning, such as a certificate that is not there, stays wrong.
        return seconds >= options.wait or not isinstance(error, NotNow | ProtocolError | LimitExceeded)


def pause(rounds: int, goodbye: Goodbye | None, options: ClientOptions) -> float:
    """How long to wait before the next round. Random: those who lost it together must not come back in step."""
    if goodbye is not None and goodbye.retry is not None:
        return goodbye.retry * random.uniform(1.0, 1.5)
    longest = min(options.backoff_max, options.backoff_min * 2 ** min(rounds, 30))
    return random.uniform(0.0 if rounds == 1 else longest / 4, longest)
