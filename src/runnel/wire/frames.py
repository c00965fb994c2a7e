"""Frames of the native protocol: bytes in, frames out.

A frame is a header of 12 bytes and a payload. Little-endian:

    0   u32  length     bytes behind this field: 8 + the payload
    4   u8   kind       see `FrameKind`
    5   u8   flags      see `FLAGS`; any other bit is 0
    6   u16  extra      bytes of the topic's name in PUBLISH, DELIVER and GRANT; 0 in all others
    8   u32  id         of the request or subscription; 0: the connection itself

The peer is not trusted: an announced length costs no memory before its bytes have arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from struct import Struct

from runnel.core.errors import LimitExceeded, ProtocolError

PREFACE = b"RNL\x01"
"""The bytes that a client sends before its first frame."""

HEADER = Struct("<IBBHI")
"""Length, kind, flags, extra, id."""

FRAME_HEADER_SIZE = HEADER.size
MAX_FRAME = 80 << 20
"""The bytes that a whole frame may have, by default."""

MAX_CONTROL_FRAME = 8 << 20
"""The bytes of a frame that carries no records: read at once, it becomes many times as much."""

MAX_PING = 64

SMALL_BUFFER = 4 << 10  # what a quiet connection holds
LARGE_BUFFER = 256 << 10  # what a busy one reads into, when no frame needs more
KEPT_BUFFER = 1 << 20  # a buffer above this goes as soon as its frame is out
_QUIET = 8  # small reads in a row after which a connection counts as quiet

_BEHIND_LENGTH = FRAME_HEADER_SIZE - 4


class FrameKind(IntEnum):
    """The type of a frame."""

    HELLO = 1
    WELCOME = 2
    PING = 3
    PONG = 4
    PUBLISH = 5
    PUBLISHED = 6
    CALL = 7
    REPLY = 8
    ERROR = 9
    CANCEL = 10
    SUBSCRIBE = 11
    SUBSCRIBED = 12
    CREDIT = 13
    DELIVER = 14
    GAP = 15
    END = 16
    UNSUBSCRIBE = 17
    GRANT = 18
    SETTLE = 19
    LAPSED = 20
    GOODBYE = 21
    RECALL = 22


# The bits of `flags`. A kind that is not in FLAGS has none.
HAS_DETAILS = 1  # PUBLISH: what a message says about itself lies between topic and batch
HAS_POSITION = 1  # CREDIT, UNSUBSCRIBE: the place is meant
ASK = 2  # CREDIT: one take may be sent
HAS_COUNTS = 4  # CREDIT: how much a take may have, and what the reader counts, are said too
DROPPED = 1  # DELIVER: these records were dropped, and are shown for on_drop
SHARED = 2  # DELIVER: other subscriptions get the same records; only to clients that said `SHARED_DELIVER` in HELLO
MORE = 1  # GRANT: another frame of the same lease follows, or a LAPSED

FLAGS: dict[FrameKind, int] = {
    FrameKind.PUBLISH: HAS_DETAILS,
    FrameKind.CREDIT: HAS_POSITION | ASK | HAS_COUNTS,
    FrameKind.DELIVER: DROPPED | SHARED,
    FrameKind.UNSUBSCRIBE: HAS_POSITION,
    FrameKind.GRANT: MORE,
}

FROM_CLIENT = frozenset(
    {
        FrameKind.HELLO,
        FrameKind.PING,
        FrameKind.PONG,
        FrameKind.PUBLISH,
        FrameKind.CALL,
        FrameKind.CANCEL,
        FrameKind.SUBSCRIBE,
        FrameKind.CREDIT,
        FrameKind.UNSUBSCRIBE,
        FrameKind.SETTLE,
        FrameKind.GOODBYE,
    }
)
"""The kinds that a client may send."""

FROM_SERVER = frozenset(
    {
        FrameKind.WELCOME,
        FrameKind.PING,
        FrameKind.PONG,
        FrameKind.PUBLISHED,
        FrameKind.REPLY,
        FrameKind.ERROR,
        FrameKind.SUBSCRIBED,
        FrameKind.DELIVER,
        FrameKind.GAP,
        FrameKind.END,
        FrameKind.GRANT,
        FrameKind.LAPSED,
        FrameKind.GOODBYE,
        FrameKind.RECALL,
    }
)
"""The kinds that a server may send."""

_WITH_TOPIC = frozenset({FrameKind.PUBLISH, FrameKind.DELIVER, FrameKind.GRANT})
_SMALL = frozenset(
    {
        FrameKind.HELLO,
        FrameKind.CANCEL,
        FrameKind.SUBSCRIBE,
        FrameKind.CREDIT,
        FrameKind.UNSUBSCRIBE,
        FrameKind.SETTLE,
        FrameKind.GOODBYE,
    }
)

Frame = tuple[int, int, int, int, bytes]
"""(kind, flags, extra, id, payload). A plain tuple: there are very many of them."""


def frame(kind: int, id: int, payload: bytes = b"", flags: int = 0, extra: int = 0) -> bytes:
    """One whole frame."""
    return HEADER.pack(_BEHIND_LENGTH + len(payload), kind, flags, extra, id) + payload


def frame_header(kind: int, id: int, size: int, flags: int = 0, extra: int = 0) -> bytes:
    """The header of a frame whose payload has `size` bytes."""
    return HEADER.pack(_BEHIND_LENGTH + size, kind, flags, extra, id)


class FrameDecoder:
    """Cuts what arrives into frames, by three calls made for `asyncio.BufferedProtocol`.

    ::

        decoder.get_buffer(hint)  # where the next bytes go
        decoder.buffer_updated(count)  # so many came
        for kind, flags, extra, id, payload in decoder.frames():
            ...

    `feed(data)` does the first two for bytes at hand. Each payload is copied once, out of the
    buffer into bytes of its own, so that nothing that is kept holds the buffer.

    The buffer is small while a connection is quiet, grows to `LARGE_BUFFER` while it is busy, and
    beyond it, up to `max_frame`, only for a frame of which as much has arrived already.

    - `kinds`: what the peer may send, `FROM_CLIENT` or `FROM_SERVER`; None: everything.
    - `preface`: bytes that must come before the first frame.

    What breaks the protocol raises `ProtocolError`, a frame that is too large `LimitExceeded`, when its
    header is seen and before its payload is; frames before it were handed out. Then the decoder is of no use.
    """

    def __init__(
        self, max_frame: int = MAX_FRAME, *, kinds: frozenset[FrameKind] | None = None, preface: bytes = b""
    ) -> None:
        self._kinds = frozenset(FrameKind) if kinds is None else kinds
        self._preface = preface
        self._view = memoryview(bytearray(SMALL_BUFFER))
        self._size = SMALL_BUFFER
        self._start = self._end = 0  # the bytes between were not handed out yet
        self._wanted = 0  # bytes of the frame that begins at `_start`, once its header was seen
        self._busy = False  # the last read filled all the room there was
        self._quiet = 0  # how many reads in a row were small
        self.max_frame = max_frame

    def __repr__(self) -> str:
        return f"<FrameDecoder {self._end - self._start:,} bytes of {self._size:,}>"

    @property
    def max_frame(self) -> int:
        """The bytes that a whole frame may have. It may be changed between two frames, as after a HELLO."""
        return self._max_frame

    @max_frame.setter
    def max_frame(self, allowed: int) -> None:
        self._max_frame = allowed
        self._longest, self._forbidden = _rules(self._kinds, allowed)

    @property
    def held(self) -> int:
        """The bytes of memory that the buffer takes."""
        return self._size

    @property
    def pending(self) -> int:
        """The bytes that came and were not handed out: of the beginning of a frame, when all frames were taken."""
        return self._end - self._start

    def unread(self) -> bytes:
        """The bytes that came and were not handed out, to find out what a peer speaks that breaks the protocol."""
        return bytes(self._view[self._start : self._end])

    # -- bytes in -----------------------------------------------------------------------------------------------

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Where to put what arrives next. Never empty."""
        if not self._end and not self._busy and self._size == SMALL_BUFFER:
            return self._view
        self._arrange()
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were put where `get_buffer` said."""
        self._busy = count == self._size - self._end
        self._end += count
        if self._size > SMALL_BUFFER:
            self._quiet = self._quiet + 1 if count < SMALL_BUFFER else 0

    def received(self, count: int) -> Frame | None:
        """The same; and the received frame, if the bytes are exactly one. None: call `frames`.

        The frame is handed out with this, and as `frames` does it with `views`.
        """
        if not self._end and count < SMALL_BUFFER == self._size and count >= FRAME_HEADER_SIZE and not self._preface:
            view = self._view
            length, kind, flags, extra, id = HEADER.unpack_from(view)
            has_topic = kind in _WITH_TOPIC
            if (
                length + 4 == count
                and length <= self._longest[kind]
                and not flags & self._forbidden[kind]
                and (has_topic or not extra)
            ):
                self._busy = False
                data = view[FRAME_HEADER_SIZE:count]
                return kind, flags, extra, id, data if has_topic else bytes(data)  # type: ignore[return-value]
        self.buffer_updated(count)
        return None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take these bytes in: for blocking sockets and for tests."""
        rest = memoryview(data)
        while rest:
            room = self.get_buffer(len(rest))[: len(rest)]
            room[:] = rest[: len(room)]
            self.buffer_updated(len(room))
            rest = rest[len(room) :]

    def _arrange(self) -> None:
        """Make room behind the unread bytes: by another buffer where this one is too small or too large."""
        start, end, size = self._start, self._end, self._size
        have, wanted = end - start, size
        if have == size:
            # At most a few times the received bytes: a peer that announces much and sends little gets little.
            wanted = min(self._wanted, size * (4 if size < LARGE_BUFFER else 2)) if self._wanted > size else 2 * size
        elif self._busy and size < LARGE_BUFFER:
            wanted = min(4 * size, LARGE_BUFFER)
        elif have <= SMALL_BUFFER // 2 and size > KEPT_BUFFER:
            wanted = LARGE_BUFFER
        elif have <= SMALL_BUFFER // 2 and self._quiet >= _QUIET:
            wanted = SMALL_BUFFER
        if wanted != size:
            # A new one: the socket reader may still hold a view of the old one, so it cannot be resized.
            view = memoryview(bytearray(wanted))
            view[:have] = self._view[start:end]
            self._view, self._size, self._quiet = view, wanted, 0
            self._start, self._end = 0, have
        elif start and (not have or size - end < size // 4):
            self._view[:have] = self._view[start:end]
            self._start, self._end = 0, have

    # -- frames out ---------------------------------------------------------------------------------------------

    def frames(self, *, views: bool = False) -> Iterator[Frame]:
        """The received whole frames, in order, each once. Take them all before more bytes come in.

        With `views`, the payloads of those that carry a batch are views of the buffer, and good only until the next
        frame is taken: the reader of the batch makes the one copy.
        """
        if self._preface:
            self._pass_preface()
        unpack, view, forbidden = HEADER.unpack_from, self._view, self._forbidden
        start, end = self._start, self._end
        while end - start >= FRAME_HEADER_SIZE:
            length, kind, flags, extra, id = unpack(view, start)
            # `_longest` is looked up each time: the handler of the last frame may have raised the limit.
            if length > self._longest[kind] or flags & forbidden[kind] or length < _BEHIND_LENGTH:
                raise self._refused(length, kind, flags)
            if extra and kind not in _WITH_TOPIC:
                raise ProtocolError(f"a {FrameKind(kind).name} frame has extra={extra}, and must have 0")
            payload, stop = start + FRAME_HEADER_SIZE, start + 4 + length
            if stop > end:
                self._wanted = stop - start
                return
            self._start = start = stop
            data = view[payload:stop]
            yield kind, flags, extra, id, data if views and kind in _WITH_TOPIC else bytes(data)  # type: ignore[misc]
        self._wanted = 0
        if start == end:
            self._start = self._end = 0

    def _pass_preface(self) -> None:
        came = bytes(self._view[self._start : min(self._end, self._start + len(self._preface))])
        if not self._preface.startswith(came):
            raise ProtocolError(f"the first bytes are {came!r}, and a client of this protocol begins with {PREFACE!r}")
        self._start += len(came)
        self._preface = self._preface[len(came) :]

    def _refused(self, length: int, kind: int, flags: int) -> ProtocolError | LimitExceeded:
        """The error of a header."""
        if kind not in self._kinds:
            known = kind in _NAMES
            name = f"a {_NAMES[kind]} frame" if known else f"a frame of kind {kind}"
            return ProtocolError(f"{name} came, which {'this side does not take' if known else 'is not known'}")
        name = _NAMES[kind]
        if length < _BEHIND_LENGTH:
            return ProtocolError(f"a {name} frame has length {length}, and its header alone is {_BEHIND_LENGTH}")
        allowed = min(self._max_frame, MAX_CONTROL_FRAME) if kind in _SMALL else self._max_frame
        if length + 4 > allowed:
            return LimitExceeded("max_frame", length + 4, allowed)
        if flags & self._forbidden[kind]:
            return ProtocolError(f"a {name} frame has flags {flags:#04x}, of which some are reserved")
        return ProtocolError(f"the payload of a {name} frame is {length - _BEHIND_LENGTH} bytes, at most {MAX_PING}")


_NAMES = {int(kind): kind.name for kind in FrameKind}


@lru_cache(64)
def _rules(kinds: frozenset[FrameKind], max_frame: int) -> tuple[list[int], list[int]]:
    """By kind: the longest length that a frame may have, -1 for kinds that may not come; and the flags that may not."""
    longest, forbidden = [-1] * 256, [0xFF] * 256
    for kind in kinds:
        longest[kind] = max_frame - 4
        forbidden[kind] = 0xFF & ~FLAGS.get(kind, 0)
    for kind in kinds & _SMALL:
        longest[kind] = min(max_frame, MAX_CONTROL_FRAME) - 4
    for kind in kinds & {FrameKind.PING, FrameKind.PONG}:
        longest[kind] = min(max_frame - 4, _BEHIND_LENGTH + MAX_PING)
    return longest, forbidden
