"""A websocket at a door of ours: uvicorn's protocol, with what it leaves open closed.

Its pings go on while nobody reads from a client, whose silence then means nothing; a message must be whole some
time; and whoever is gone is cut off, whatever it has not read.
Below: uvicorn. Above: door, and websocket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from runnel.server.http.stream import CONNECTION

TOO_SLOW = 1008
TOO_BIG = 1009
FRAGMENTS = 16_384  # of one message
LINGER = 1.0  # seconds that the system has to send our last word

log = logging.getLogger("runnel")
quiet = logging.getLogger("runnel.websocket")  # of every one that comes and goes nothing need be said
quiet.setLevel(logging.WARNING)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One of them. `left` is called when it no longer is the connection that was accepted, or is gone."""

    def __init__(self, left: Callable[[], None], frame_timeout: float, **given: Any) -> None:
        super().__init__(**given)
        self.logger = self.conn.logger = quiet
        self._left, self._frame_timeout = left, frame_timeout
        self._heard = self.loop.time()
        self._whole = 0  # messages
        self._timer: asyncio.TimerHandle | None = None
        self.gone = asyncio.Event()

    # -- what a visit calls -----------------------------------------------------------------------------------------

    def stand_up(self) -> None:
        """Count no longer as the connection that it was."""
        self._left()

    def allow(self, size: int) -> None:
        """Messages of so many bytes may come."""
        self.conn.max_message_size = max(size, self.config.ws_max_size)

    def send_many(self, messages: Iterable[bytes], *, text: bool) -> None:
        """Send these messages, with one write."""
        if self.close_sent or self.disconnected or self.conn.close_rcvd is not None:
            return
        send = self.conn.send_text if text else self.conn.send_binary
        for message in messages:
            send(message)
        self.transport.write(b"".join(self.conn.data_to_send()))

    def cut(self, code: int) -> None:
        """Close now: with a word, if there is nothing before it that nobody reads."""
        speaks = self.handshake_complete and not self.close_sent and self.conn.close_rcvd is None
        if speaks and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.conn.send_close(code)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
            self.loop.call_later(LINGER, self.transport.abort)
        else:
            self.transport.abort()

    # -- its life ---------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._left()
        self.gone.set()

    def handle_connect(self, event: Request) -> None:
        """Somebody wants a websocket."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[CONNECTION] = {CONNECTION: self}

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._heard = self.loop.time()
        super().data_received(data)
        if not self.handshake_initiated:  # its head was too much for a websocket's: uvicorn would say nothing
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            return
        if self._timer is None and self._is_incomplete():
            self._timer = self.loop.call_later(self._frame_timeout, self._look, self._whole)

    def handle_cont(self, event: Frame) -> None:
        """More of a message came."""
        if len(self.frames) >= FRAGMENTS:  # each takes room, though it be empty
            self.cut(TOO_BIG)
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        self._whole += 1
        super().send_receive_event_to_app()

    def _is_incomplete(self) -> bool:
        return bool(self.frames or self.conn.reader.buffer)

    def _look(self, whole: int) -> None:
        """A few bytes now and then are no silence: but they must not hold what is to be a large message for ever."""
        self._timer = None
        if self.transport.is_closing() or not self._is_incomplete():
            return
        if self._whole != whole or self.read_paused:
            self._timer = self.loop.call_later(self._frame_timeout, self._look, self._whole)
            return
        log.warning("a websocket of %s is closed: frame_timeout=%g s for a message", self.client, self._frame_timeout)
        self.cut(TOO_SLOW)

    def keepalive_timeout(self) -> None:
        """A ping was not answered. Who is not read from, or says something, is asked again."""
        self.pong_timer = None
        if self.close_sent or self.transport.is_closing():
            return
        if self.read_paused or self._heard > self.ping_sent_at:
            self.send_keepalive_ping()
            return
        log.info("a websocket of %s is closed: it did not answer a ping", self.client)
        self.transport.abort()
