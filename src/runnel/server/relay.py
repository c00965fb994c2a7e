"""The bytes of one client on their way to an engine and back: copied as they are, and never looked at.

Whoever does not read has its peer wait: at most `high_water` bytes and what one read brought wait in each direction.
Keepalive is between the client and the engine, through here; when either of them is gone, the other is let go.
Below: connections. Above: gateway.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

from runnel.core.errors import RunnelError
from runnel.server.connections import Connections
from runnel.server.lines_door import watch_over
from runnel.server.options import ServerOptions
from runnel.wire.trouble import error_frame

LINGER = 5.0  # seconds that one side has to end when the other has
QUIET = 0.5  # seconds of silence of the engine, after which all that was asked counts as answered
HANGUP_LOOK = 0.25  # seconds between two looks whether somebody is there whom nobody reads from
NO_ENGINE, UNREAD, STOPPING = "the engine is not there yet", "the other side does not read", "the gateway stops"
_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_RESET = struct.pack("ii", 1, 0)

log = logging.getLogger("runnel")

Dial = Callable[[asyncio.Protocol], Awaitable[None]]  # connect this protocol to the engine, or raise


class Side(asyncio.Protocol):
    """One end of a relay. `other` gets what arrives here."""

    other: Side

    def __init__(self, relay: Relay, high_water: int) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended = False  # it will say no more
        self.lost = False
        self._finished = False  # nothing more is said to it
        self._relay, self._high_water = relay, high_water
        self._held: set[str] = set()  # why nothing is read for now
        self._hangup_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self.transport.set_write_buffer_limits(high=self._high_water)
        watch_over(transport.get_extra_info("socket"))
        self._relay.made(self)

    def data_received(self, data: bytes) -> None:
        """Hand them on."""
        self._relay.passed(self, data)

    def eof_received(self) -> bool:
        """It will say no more, and may still read; with TLS there is no such half."""
        if not self.ended:
            self.ended = True
            self._relay.side_ended(self)
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self.ended = self.lost = True
        if self._hangup_timer is not None:
            self._hangup_timer.cancel()
        self._relay.side_lost(self)

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
            self._hangup_timer = asyncio.get_running_loop().call_later(HANGUP_LOOK, self._look_for_hangup)

    def _look_for_hangup(self) -> None:
        """While nothing is read, the end of what comes is not seen either: ask the system for it."""
        self._hangup_timer = None
        if not self._held or self.transport is None or self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HANGUP)
        if poll.poll(0):
            self._relay.hung_up(self)
        else:
            self._look_again()


class Relay:
    """One client of a gateway, and its connection to the engine. `Relay(...).near` is what the client talks to."""

    def __init__(self, options: ServerOptions, connections: Connections, dial: Dial) -> None:
        self.near, self.far = Side(self, options.high_water), Side(self, options.high_water)
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
        return f"<Relay of {self.peer}, {'connected' if self.far.transport else 'connecting'}>"

    # -- its beginning ------------------------------------------------------------------------------------------

    def made(self, side: Side) -> None:
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
            self.near.release(NO_ENGINE)

    def _refuse(self, error: RunnelError) -> None:
        """Say why it cannot be; what the client still sends is thrown away, or it would never read our answer."""
        self.near.write(error_frame(0, error))
        self._let_go()

    # -- bytes --------------------------------------------------------------------------------------------------

    def passed(self, side: Side, data: bytes) -> None:
        """`side` said something."""
        if side is self.far:
            self._heard = self._loop.time()
            self.near.write(data)
        elif self.far.transport is None:
            self._early += data
            self.near.hold(NO_ENGINE)  # not before: a transport that has just begun may not be paused (uvloop)
        elif not self._deaf:
            self.far.write(data)

    # -- its end ------------------------------------------------------------------------------------------------

    def side_ended(self, side: Side) -> None:
        """`side` has said all: the other hears that, and has a little time to end, too."""
        side.other.finish()
        if side.other.ended or side.other.transport is None or self._deaf:
            side.finish()
        self._arm(LINGER)

    def hung_up(self, side: Side) -> None:
        """`side` ended while nothing was read from it. A client that is gone holds nothing any longer."""
        if side is self.near:
            self.abort()
        else:
            self._arm(LINGER)  # the client may still read the engine's last words

    def side_lost(self, side: Side) -> None:
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
        left = self._heard + QUIET - self._loop.time()
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
