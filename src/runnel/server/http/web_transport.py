"""A websocket as a transport, so that a session of the TCP doors is spoken to over it as over a socket.

What a session writes goes out as messages: a line of JSON is a text message, native bytes are binary ones, cut
anywhere. Whatever waits to be sent waits here and is counted, so that a session pauses as it does at a socket. A
browser that reads none of it for `patience` seconds is dropped.
Below: nothing. Above: websocket.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from starlette.types import Send

PIECE = 256 << 10  # bytes of a binary message: clients have their bounds, and where one ends means nothing
BURST = 64 << 10  # bytes that are handed on at once
TURN = 64  # messages after which others on the loop have their turn
HIGH = 64 << 10  # bytes that may wait, unless somebody says otherwise
LOOKS = 4  # times within its patience that a browser is looked at

log = logging.getLogger("runnel")


class Line(Protocol):
    """The connection below, at a door of ours. Elsewhere there is none, and messages go out one by one."""

    transport: Any  # its socket's
    writable: asyncio.Event

    def send_many(self, messages: Iterable[bytes], *, text: bool) -> None:
        """Send these messages, with one write."""

    def cut(self, code: int) -> None:
        """Close now: with a word, if there is nothing before it that nobody reads."""


class WebTransport(asyncio.Transport):
    """The bytes of a session, out and in. `send_all` is what sends, in a task of its own."""

    def __init__(
        self, send: Send, patience: float, line: Line | None, how: Callable[[], int], facts: dict[str, Any]
    ) -> None:
        super().__init__(facts)
        self.protocol: asyncio.BaseProtocol | None = None
        self.text = False
        self.aborted = False
        self._send, self._patience, self._line = send, patience, line
        self._how = how  # the code that it is closed with
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._high, self._low = HIGH, HIGH // 4
        self._paused = False  # the session was told to write no more
        self._sent = self._seen = 0  # messages: so far, and when it was last looked
        self._still = 0  # looks since anything moved
        self._below = 0  # bytes that the connection below held when it was last looked at
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None  # the sender waits for something to send
        self._sender: asyncio.Task[None] | None = None
        self._deaf: asyncio.Future[None] | None = None  # while the session wants nothing to be read

    # -- what a session calls: writing ------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it, some time soon."""
        if self._closing or not data:
            return
        data = bytes(data)
        if self.text:
            messages = data.split(b"\n")
            messages.pop()  # behind the last line is nothing
        else:
            messages = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
        if self._line is not None and not self._queue and self._line.writable.is_set():
            self._line.send_many(messages, text=self.text)
            return
        self._queue.extend(messages)
        self._size += len(data)
        if self._size > self._high and not self._paused:
            self._paused = True
            self._tell("pause_writing")
        self._wake()
        if self._timer is None:
            self._still, self._seen, self._below = 0, self._sent, self._held_below()
            self._timer = self._loop.call_later(self._patience / LOOKS, self._look)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """How many bytes may wait before the session is paused, and at how many it goes on."""
        self._high = HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent yet, as far as can be known."""
        return self._size + self._held_below()

    def can_write_eof(self) -> bool:
        """A websocket has no half that could be closed."""
        return False

    def close(self) -> None:
        """Send what waits, then close."""
        self._closing = True
        self._wake()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        if self.aborted:
            return
        self.aborted = self._closing = True
        self._queue.clear()
        self._size = 0
        if self._line is not None:
            self._line.cut(self._how())
        if self._sender is not None:
            self._sender.cancel()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._closing

    # -- what a session calls: reading ------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Bring nothing more, until `resume_reading`."""
        if self._deaf is None:
            self._deaf = self._loop.create_future()

    def resume_reading(self) -> None:
        """Go on."""
        if self._deaf is not None:
            self._deaf.set_result(None)
            self._deaf = None

    def is_reading(self) -> bool:
        """Whether what comes is brought."""
        return self._deaf is None and not self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The session's."""
        assert self.protocol is not None, "begun"
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another one is spoken to from now on."""
        self.protocol = protocol

    # -- what the websocket calls -----------------------------------------------------------------------------------

    async def feed(self, data: bytes) -> None:
        """Bring the session what came, as fast as it takes it."""
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            left = memoryview(data)
            while left and await self._reads():
                room = memoryview(protocol.get_buffer(len(left)))
                count = min(len(room), len(left))
                room[:count] = left[:count]
                protocol.buffer_updated(count)
                left = left[count:]
        elif await self._reads():
            cast(asyncio.Protocol, protocol).data_received(data)

    async def send_all(self) -> None:
        """Send what is written, until it is closed and all is sent. Raises what sending raises."""
        self._sender = asyncio.current_task()
        if self.aborted:
            return
        some = self._send_burst if self._line is not None else self._send_turn
        while True:
            while self._queue:
                await some()
                if self._paused and self._size <= self._low:
                    self._paused = False
                    self._tell("resume_writing")
            if self._closing:
                return
            self._idle = self._loop.create_future()
            await self._idle
            self._idle = None

    def lost(self) -> None:
        """It is gone, and so is whatever was not sent."""
        self._closing = True
        self._queue.clear()
        self._size = 0
        self.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.protocol is not None:
            self.protocol.connection_lost(None)

    # -- within -----------------------------------------------------------------------------------------------------

    async def _send_burst(self) -> None:
        line, queue = self._line, self._queue
        assert line is not None, "at a door of ours"
        await line.writable.wait()
        burst: list[bytes] = []
        size = 0
        while queue and size < BURST:
            burst.append(queue.popleft())
            size += len(burst[-1])
        self._size -= size + len(burst) if self.text else size
        self._sent += len(burst)
        line.send_many(burst, text=self.text)
        if queue:
            await asyncio.sleep(0)

    async def _send_turn(self) -> None:
        for _ in range(min(len(self._queue), TURN)):
            message = self._queue[0]  # it waits here while it is sent, for others to see
            shape = {"text": message.decode()} if self.text else {"bytes": message}
            await self._send({"type": "websocket.send", **shape})
            self._queue.popleft()
            self._size -= len(message) + self.text
            self._sent += 1
        await asyncio.sleep(0)

    async def _reads(self) -> bool:
        """Wait until the session reads; False: it will not any more."""
        while self._deaf is not None and not self._closing:
            await asyncio.wait([self._deaf])
        return not self._closing

    def _look(self) -> None:
        """Whether anything was read lately of what waits."""
        self._timer = None
        if not self._queue or self.aborted:
            return
        below = self._held_below()  # it may read, and not enough yet for more to be sent
        self._still = 0 if self._sent != self._seen or below < self._below else self._still + 1
        self._seen, self._below = self._sent, below
        if self._still < LOOKS:
            self._timer = self._loop.call_later(self._patience / LOOKS, self._look)
            return
        peer = self.get_extra_info("peername")
        log.info("a websocket of %s is dropped: it has read nothing for %g s", peer, self._patience)
        self.abort()

    def _held_below(self) -> int:
        return 0 if self._line is None else self._line.transport.get_write_buffer_size()

    def _tell(self, what: str) -> None:
        if self.protocol is not None:
            tell: Callable[[], None] = getattr(self.protocol, what)
            tell()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
