"""One native connection: bytes from a transport to frames, and frames to a transport.

Frames to send are gathered and written with one call per loop iteration, without a copy. The memory of a connection is
bounded: the receive buffer, `high_water` bytes to send, and one frame. A peer that does not read is not read from.
The meaning of the frames is in `session`.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, cast

from runnel.core.errors import LimitExceeded, RunnelError
from runnel.runtime.writing import write_all
from runnel.server.connections import CLOSE_PATIENCE, CLOSE_PING, address_of
from runnel.server.memory_budget import MemoryBudget
from runnel.server.options import ServerOptions
from runnel.server.unread_watch import UnreadWatch
from runnel.wire.errors import error_frame
from runnel.wire.frames import FROM_CLIENT, PREFACE, SMALL_BUFFER, Frame, FrameDecoder, FrameKind, frame

LINGER = 1.0  # seconds that a peer has to close once it was sent our last words
DRAIN_TIMEOUT = 5.0  # seconds in which it has to read some of the unsent bytes
MAX_HELLO_FRAME = 64 << 10  # the largest frame of a peer before its HELLO
HANGUP_CHECK = 0.25  # seconds between two checks of a paused connection for a hang-up
ROUNDS_PER_FLUSH = 4  # turns that each source has before others on the loop have theirs
SMALL_WRITE = 16 << 10  # bytes up to which copying costs nothing
_DISCARD_BUFFER = 64 << 10
_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

UNREAD = "it does not read what it is sent"
REFUSED = "it is refused, in a moment"

log = logging.getLogger("runnel")


class NativeConnection(asyncio.BufferedProtocol):
    """The transport side of one native client."""

    transport: asyncio.Transport

    def __init__(
        self,
        options: ServerOptions,
        memory: MemoryBudget,
        session: Callable[[NativeConnection], ConnectionSession],
        gone: Callable[[NativeConnection], None],
    ) -> None:
        self.options = options
        self._memory = memory
        self._held = 0  # bytes that were reported to it
        self.peer_address = ""
        self.loop = asyncio.get_running_loop()
        self.peer = ""
        self.since = self.heard = self.loop.time()
        self.read_paused: set[str] = set()  # why nothing is read for now
        self.closing = False  # nothing is taken any more
        self.failed = False  # it ends because of an error
        self._silent = False  # the last word is said
        self._gone = gone
        self._lost = False
        self._greeted = False
        self._first = b""
        self._view = memoryview(b"")
        self._decoder = FrameDecoder(min(MAX_HELLO_FRAME, options.max_frame), kinds=FROM_CLIENT, preface=PREFACE)
        self._stop = False  # no frames are taken for now
        self._coming_back = False  # `_go_on` is called soon
        self._begun: float | None = None  # when the frame began that is not whole yet
        self._read_paused_since = 0.0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self.writes = 0  # how often collected frames were handed over
        self._high, self._too_high = options.high_water, 2 * options.high_water
        self._full = False  # the transport takes no more for now
        self._unsent = 0  # what the transport held when it was last looked at
        self._due: deque[FrameSource] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()  # answers that wait for room
        self._flushing = False
        self._keepalive: Keepalive | None = None
        self._is_close = False  # whether it is that of `watch_closely`
        self._unread: UnreadWatch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hangup_timer: asyncio.TimerHandle | None = None
        self._frame_timer: asyncio.TimerHandle | None = None
        self.session: ConnectionSession = session(self)

    # -- its life -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; it has `hello_timeout` seconds for its HELLO."""
        self.transport = cast(asyncio.Transport, transport)
        peer = self.transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "of the Unix socket"
        self.peer_address = address_of(peer)
        # A peer that answers pings and reads nothing is as dead as one that does not answer.
        patience = self.options.ping + self.options.ping_timeout
        self._unread = UnreadWatch(self.transport, patience, self._reads_nothing)
        self.transport.set_write_buffer_limits(high=self._high - 1, low=self._high // 2)
        self._timer = self.loop.call_later(self.options.hello_timeout, self._late)
        self.guard(self.session.opened)

    def greeted(self) -> None:
        """Hello was said: larger frames may come, and silence is listened to."""
        self._greeted = True
        if self._timer is not None:
            self._timer.cancel()
        self._decoder.max_frame = self.options.max_frame
        if (allow := self.transport.get_extra_info("allow")) is not None:
            allow(self.options.max_frame)
        self._keepalive = Keepalive(self.options.ping, self.options.ping_timeout, self.loop.time())
        self._wait(self._keepalive.next)

    def watch_closely(self) -> None:
        """Others see that this client is here, and soon when it is not: a silence is short."""
        if self._is_close:
            return
        self._is_close = True
        if self._timer is not None:
            self._timer.cancel()
        ping, patience = min(self.options.ping, CLOSE_PING), min(self.options.ping_timeout, CLOSE_PATIENCE)
        self._keepalive = Keepalive(ping, patience, self.loop.time())
        self._wait(self._keepalive.next)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection was lost: release everything."""
        self._lost = self.closing = True
        for timer in (self._timer, self._hangup_timer, self._frame_timer):
            if timer is not None:
                timer.cancel()
        if self._unread is not None:
            self._unread.stop()
            self._unread = None
        self._memory.hold(self, 0)
        self._out.clear()
        self._due.clear()
        self._out_bytes = 0
        session, self.session = self.session, CLOSED_SESSION  # nothing leads back here: memory is free at once
        self._view = memoryview(b"")
        try:
            session.lost()
        except Exception:
            log.exception("what connection %s held could not all be released", self.peer)
        self._gone(self)

    def eof_received(self) -> bool:
        """The peer sent its end of stream: close."""
        return False

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self.transport.abort()

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops."""
        self.guard(lambda: self.session.drain(reason, retry))

    @property
    def raw_socket(self) -> Any:
        """Its socket, for what the system counts of it."""
        return self.transport.get_extra_info("socket")

    def describe(self) -> dict[str, Any]:
        """The peer and what it holds."""
        unsent = self._out_bytes + self.transport.get_write_buffer_size()
        return {
            "peer": self.peer,
            "since": self.loop.time() - self.since,
            "unsent_bytes": unsent,
            "receive_bytes": self._decoder.held,
            **self.session.describe(),
            **({"listener": listener} if (listener := self.transport.get_extra_info("listener")) else {}),
        }

    def fail(self, error: BaseException) -> None:
        """Send the error, and close."""
        if not self.closing:
            log.warning("connection %s is closed: %s", self.peer, error)
            self.failed = True
            self.close(error_frame(0, error))

    def refuse(self, error: BaseException, seconds: float) -> None:
        """Send the error after some time, and close. It is not read from until then, and no hello is waited for."""
        self.pause(REFUSED)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.fail, error)

    def over_budget(self, error: LimitExceeded) -> None:
        """The server has no more memory for this peer. Behind what it has not read, no last word would reach it."""
        self._free_buffer()
        if self._full:
            log.warning("connection %s is closed: %s", self.peer, error)
            self.abort()
        else:
            self.fail(error)

    def close(self, last_words: bytes = b"", *, listen: bool = False) -> None:
        """Send the collected frames and these last words, and close when the peer has read them.

        Further input is discarded, or with `listen` handled as before: if it were left unread, the system would
        throw away our last words instead.
        """
        if self._silent or self._lost:
            return
        if last_words:
            self.send(last_words)
        self._write()
        self._silent = True
        if not listen:
            self.closing = self._stop = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.transport.is_closing():
            self._linger()
            try:
                if self.transport.can_write_eof():
                    self.transport.write_eof()
                elif self.closing:  # TLS has no half that could be closed
                    self.transport.close()
                    return
            except OSError:  # it is closed already
                self.transport.abort()
                return
            if self.closing:
                self.transport.resume_reading()

    def _linger(self, before: int | None = None) -> None:
        """Give the peer time while it reads; `before`: the unsent bytes at the last check."""
        unsent = self.transport.get_write_buffer_size()
        if before is not None and unsent >= before:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(DRAIN_TIMEOUT if unsent else LINGER, self._linger, unsent)

    def guard(self, step: Callable[[], object]) -> None:
        """Do it; an error ends this connection, and no other."""
        try:
            step()
        except RunnelError as error:
            self.fail(error)
        except Exception as error:
            log.exception("the server failed at connection %s", self.peer)
            self.fail(error)

    # -- bytes in -----------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport puts what arrives."""
        if self.closing:
            return memoryview(bytearray(_DISCARD_BUFFER))
        self._view = view = self._decoder.get_buffer(sizehint)
        return view

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes arrived."""
        if self.closing:
            return
        self.heard = self.loop.time()
        if not self._greeted and len(self._first) < len(PREFACE):
            self._first += bytes(self._view[: min(nbytes, len(PREFACE) - len(self._first))])
        if self._stop:
            self._decoder.buffer_updated(nbytes)
        else:
            self._take_frames(self.heard, self._decoder.received(nbytes))

    def _take_frames(self, now: float, only: Frame | None = None) -> None:
        """Hand the frames that are there to the session, until it has to wait for something; or the one that came."""
        handlers = self.session.handlers
        try:
            if only is not None:
                kind, flags, extra, id, payload = only
                handlers[kind](flags, extra, id, payload)
                if self._held:
                    self._report_memory()
                return
            begun, self._begun = self._begun, None
            for kind, flags, extra, id, payload in self._decoder.frames(views=True):
                begun = None
                handlers[kind](flags, extra, id, payload)
                if self._stop:
                    break
            if self._decoder.pending:
                self._begun = now if begun is None else begun
                if self._frame_timer is None and not self._lost:
                    self._frame_timer = self.loop.call_at(self._begun + self.options.frame_timeout, self._look_at_frame)
                if self._decoder.held > SMALL_BUFFER:
                    self._report_memory()
            elif self._held:
                self._report_memory()
        except RunnelError as error:
            if not self._greeted and not PREFACE.startswith(self._first):
                self._reject_protocol(error)
            else:
                self.fail(error)
        except Exception as error:
            log.exception("the server failed at a frame of connection %s", self.peer)
            self.fail(error)

    def _report_memory(self) -> None:
        """Report the memory used for this peer: the beginning of a frame, and unread output."""
        decoder = self._decoder
        held = decoder.held if decoder.pending and decoder.held > SMALL_BUFFER else 0
        if self._full:
            held += self.transport.get_write_buffer_size()
        if held != self._held and not self.closing:
            self._held = held
            self._memory.hold(self, held)

    def _free_buffer(self) -> None:
        self._view = memoryview(b"")
        self._decoder = FrameDecoder(min(MAX_HELLO_FRAME, self.options.max_frame), kinds=FROM_CLIENT)

    def pause(self, why: str) -> None:
        """Read nothing more until `resume(why)`."""
        if not self.read_paused and not self._lost:
            self._read_paused_since = self.loop.time()
            self.transport.pause_reading()
            if self._hangup_timer is None:
                self._hangup_timer = self.loop.call_later(HANGUP_CHECK, self._look_for_hangup)
        self.read_paused.add(why)
        self._stop = True

    def resume(self, why: str) -> None:
        """One reason not to read ended. Received frames are handled first, soon."""
        if why in self.read_paused:
            self.read_paused.discard(why)
            if not self.read_paused:
                if self._begun is not None:  # time while reading was paused does not count against the peer
                    self._begun += self.loop.time() - max(self._begun, self._read_paused_since)
                self._come_back()

    def rest(self) -> None:
        """Take no more frames until others have run: readers are woken in this iteration and send in the next."""
        self._stop = True
        if not self._coming_back:
            self._coming_back = True
            self.loop.call_soon(self.loop.call_soon, self._go_on)

    def _come_back(self) -> None:
        if not self._coming_back and not self._lost:
            self._coming_back = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._coming_back = False
        if self.read_paused or self.closing:
            return
        self._stop = False
        self._take_frames(self.loop.time())
        if not self.read_paused and not self.closing and not self.transport.is_closing():
            self.transport.resume_reading()

    def _reject_protocol(self, error: RunnelError) -> None:
        """The client speaks another protocol: answer in that protocol, if it is a known one."""
        answer = self.session.stranger(self._first)
        log.warning("connection %s is closed: %s", self.peer, error)
        self.failed = True
        self.close(error_frame(0, error) if answer is None else answer)

    # -- frames out ---------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many bytes may be gathered before it is too much; 0 or less: none."""
        return 0 if self._full else self._high - self._out_bytes - self.transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Send a frame at the end of this turn of the loop. It is not asked whether there is room."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > self._too_high:
            self.pause(UNREAD)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    async def writable(self) -> None:
        """Return when there is room to send something, one after the other: what each sends may fill it."""
        while self.room <= 0 and not self._lost:
            turn = self.loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                self.loop.call_soon(self._let_one_send)

    def _let_one_send(self) -> None:
        waiting = self._waiting
        while waiting and (self._lost or self.room > 0):
            if not (turn := waiting.popleft()).done():
                turn.set_result(None)
                return

    def send_batch(self, head: bytes, batch: bytes) -> None:
        """The same for a frame in two parts. Only from `Source.pump`, where a flush is under way."""
        self._out += (head, batch)
        self._out_bytes += len(head) + len(batch)

    @property
    def gathered(self) -> int:
        """How many pieces wait to be handed over: the place of the next one."""
        return len(self._out)

    def replace(self, place: int, head: bytes) -> None:
        """Send another head at `place`, which `gathered` said before the last of `writes`."""
        self._out_bytes += len(head) - len(self._out[place])
        self._out[place] = head

    def wants(self, source: FrameSource) -> None:
        """`source` may have something to send: it has its turn when there is room."""
        if not source.queued and not self._lost:
            source.queued = True
            self._due.append(source)
            if not self._flushing and not self._full:
                self._flushing = True
                self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Let each source send a little in turn while there is room; write it all at once."""
        if self._lost:
            return
        if self._due:
            self.guard(self._pump)
        self._write()
        self._flushing = bool(self._due) and not self._full
        if self._flushing:
            self.loop.call_soon(self._flush)

    def _pump(self) -> None:
        due, end = self._due, self._out_bytes + self.room
        for _ in range(ROUNDS_PER_FLUSH * len(due)):  # a source may have much to look at, and nothing to send
            if not due or self._out_bytes >= end:
                break
            source = due.popleft()
            source.queued = False
            if source.pump(end - self._out_bytes) and not source.queued:
                source.queued = True
                due.append(source)

    def _write(self) -> None:
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        self.writes += 1
        if out and not self._silent and not self._lost:
            if size <= SMALL_WRITE:
                # For many small frames joining is cheaper than handing over each.
                self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            else:
                write_all(self.transport, out)
        if self.transport.get_write_buffer_size() > self._too_high:
            self.pause(UNREAD)
        elif self.read_paused:
            self.resume(UNREAD)
        if self._waiting:
            self._let_one_send()

    def pause_writing(self) -> None:
        """The transport holds as much as it may."""
        self._full = True
        if self._unread is not None:
            self._unread.start()
        self._report_memory()

    def resume_writing(self) -> None:
        """It has room again."""
        self._full = False
        if self._unread is not None:
            self._unread.stop()
        self._report_memory()
        self.heard = self.loop.time()  # the peer reads
        self.resume(UNREAD)
        self._let_one_send()
        if self._due and not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    # -- time ---------------------------------------------------------------------------------------------------

    def _wait(self, until: float) -> None:
        self._timer = self.loop.call_at(until, self._look)

    def _look(self) -> None:
        assert self._keepalive is not None
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self.heard = now  # the peer sends nothing, or reading is paused, but it reads
        self._unsent = unsent
        pulse = self._keepalive.look(now, self.heard, read_paused=not self.read_paused <= {UNREAD})
        if pulse is KeepaliveAction.DEAD:
            log.info("connection %s is closed: it did not answer a ping", self.peer)
            self.abort()
            return
        if pulse is KeepaliveAction.ASK:
            self.send(_PING)
        self._wait(self._keepalive.next)

    def _reads_nothing(self) -> None:
        log.info("connection %s is closed: it has read nothing of what it was sent", self.peer)
        self.abort()

    def _look_at_frame(self) -> None:
        """A few bytes now and then are no silence: but they must not hold a large buffer for ever."""
        self._frame_timer = None
        if self._begun is None or self.closing:
            return
        now, timeout = self.loop.time(), self.options.frame_timeout
        if self.read_paused or now < self._begun + timeout:
            due = (now if self.read_paused else self._begun) + timeout
            self._frame_timer = self.loop.call_at(due, self._look_at_frame)
        else:
            self.fail(LimitExceeded("frame_timeout", round(now - self._begun, 3), timeout))

    def _look_for_hangup(self) -> None:
        """While nothing is read, the end of input is not seen either: query the system for it."""
        self._hangup_timer = None
        connection = self.transport.get_extra_info("socket")  # None: a foreign ASGI server owns the socket
        if self.read_paused and not self.transport.is_closing() and connection is not None:
            poll = select.poll()
            poll.register(connection.fileno(), _HANGUP)
            if poll.poll(0):
                self.abort()
            else:
                self._hangup_timer = self.loop.call_later(HANGUP_CHECK, self._look_for_hangup)

    def _late(self) -> None:
        """No hello in time. Half of one counts for nothing: or a few bytes an hour would hold a connection."""
        waited = self.loop.time() - self.since
        self.fail(LimitExceeded("hello_timeout", round(waited, 3), self.options.hello_timeout))


_PING = frame(FrameKind.PING, 0)


# -- What a connection calls -----------------------------------------------------------------------------
# A session handles the connection's frames; frame sources send frames while there is room.


FrameHandler = Callable[[int, int, int, bytes], None]
"""Handle a frame: (flags, extra, id, payload)."""


class FrameSource(Protocol):
    """Has frames to send while there is room: a subscription."""

    queued: bool  # whether it waits for its turn; kept by the connection

    def pump(self, room: int) -> bool:
        """Send a little, `room` bytes or a frame more; whether there may be more now."""


class ConnectionSession(Protocol):
    """Handles the frames of a connection."""

    handlers: list[FrameHandler]  # by kind

    def opened(self) -> None:
        """The connection stands."""

    def lost(self) -> None:
        """The connection was lost: release everything held for it."""

    def stranger(self, first: bytes) -> bytes | None:
        """The answer to a peer that speaks another protocol; None: an ERROR frame."""

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops: say goodbye, answer pending requests, and close."""

    def describe(self) -> dict[str, Any]:
        """The memory that it holds."""


class ClosedSession:
    """The session of a closed connection: it ignores everything."""

    handlers: list[FrameHandler]

    def __init__(self) -> None:
        self.handlers = []

    def opened(self) -> None:
        """Does nothing."""

    def lost(self) -> None:
        """Does nothing."""

    def stranger(self, first: bytes) -> bytes | None:
        """Does nothing."""
        return None

    def drain(self, reason: str, retry: float | None) -> None:
        """Does nothing."""

    def describe(self) -> dict[str, Any]:
        """Nothing."""
        return {}


CLOSED_SESSION = ClosedSession()


# -- Keepalive -------------------------------------------------------------------------------------------
# Ping after a silence, give up after a longer one. Time is an argument; the connection sends the pings.


class KeepaliveAction(Enum):
    """The action for a silent connection."""

    ALIVE = "alive"
    ASK = "ask"  # send a ping
    DEAD = "dead"  # the ping was not answered in time


class Keepalive:
    """The keepalive of one peer. Call `look` when `next` has come."""

    __slots__ = ("_asked", "_ping", "_timeout", "next")

    def __init__(self, ping: float, timeout: float, now: float) -> None:
        self._ping, self._timeout = ping, timeout
        self._asked: float | None = None  # when the ping was sent that nothing was heard since
        self.next = now + ping

    def look(self, now: float, heard: float, *, read_paused: bool = False) -> KeepaliveAction:
        """The action at `now`, when the last input was at `heard`, and none is due before `next`.

        `deaf`: nothing is read from the peer for now, so its silence means nothing. It is pinged all the same: where
        there is no peer any more, writing to it fails.
        """
        if self._asked is not None and heard < self._asked and not read_paused:
            if now >= self._asked + self._timeout:
                return KeepaliveAction.DEAD
            self.next = self._asked + self._timeout
            return KeepaliveAction.ALIVE
        if now < heard + self._ping and not read_paused:
            self._asked = None
            self.next = heard + self._ping
            return KeepaliveAction.ALIVE
        self._asked = now
        self.next = now + self._timeout
        return KeepaliveAction.ASK
