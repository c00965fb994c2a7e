"""JSON lines: cuts bytes into lines, one command or event per line.

A line ends with LF or CRLF; empty lines are ignored. A line that is too long is refused before it is complete,
so no peer can fill the memory with one.
"""

from __future__ import annotations

import re
from collections import deque

from runnel.core.errors import LimitExceeded, ProtocolError

MAX_LINE = 1 << 20

_NATIVE = b"RNL\x01"
_HTTP = re.compile(rb"[A-Z]{3,16} \S{1,8192} HTTP/\d|host:", re.IGNORECASE)


class LineDecoder:
    r"""Bytes in, whole lines out.

    >>> lines = LineDecoder(limit=100)
    >>> lines.feed(b'{"command": "PI')
    >>> lines.next_line()
    >>> lines.feed(b'NG"}\r\n')
    >>> lines.next_line()
    b'{"command": "PING"}'
    """

    __slots__ = ("_buffer", "_looked", "_seen", "_start", "limit")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.limit = limit  # bytes of a line
        self._buffer = bytearray()
        self._start = 0  # of the line that is under way
        self._seen = 0  # no end of line before this
        self._looked = False  # whether the first bytes were looked at

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes."""
        if self._start:  # moves only the rest of one line
            del self._buffer[: self._start]
            self._seen -= self._start
            self._start = 0
        self._buffer += data

    def next_line(self) -> bytes | None:
        """The next line that is not empty, without its end; None: feed more bytes.

        `LimitExceeded` for a line that is too long, `ProtocolError` for other protocols: both on every call, since
        nothing behind it can be trusted.
        """
        if not self._looked:
            self._look()
        buffer = self._buffer
        while True:
            end = buffer.find(b"\n", self._seen)
            length = (len(buffer) if end < 0 else end) - self._start
            if length > self.limit and not (length == self.limit + 1 and buffer[self._start + self.limit] == 13):
                raise LimitExceeded("max_line", length, self.limit)
            if end < 0:
                self._seen = len(buffer)  # never scan a byte twice
                return None
            self._looked = True  # it was a line, so these are lines
            line = buffer[self._start : end].strip()
            self._start = self._seen = end + 1
            if line:
                return self._checked(bytes(line))

    def last_line(self) -> bytes | None:
        """The bytes behind the last end of line, at the end of input; None: there are none.

        A command that was cut short is not valid JSON, so that it is refused and not half understood.
        """
        line = bytes(self._buffer[self._start :].strip())
        self._start = self._seen = len(self._buffer)
        return self._checked(line) if line else None

    @property
    def held(self) -> int:
        """Bytes that were fed and not handed out."""
        return len(self._buffer) - self._start

    def _look(self) -> None:
        """Tell a client that speaks another protocol at once: it may never send an end of line."""
        if self._buffer.startswith(_NATIVE):
            raise ProtocolError(
                "this listener speaks JSON lines, and a native client came; the native protocol has another port"
            )
        if self._buffer[:1] == b"\x16":
            raise ProtocolError("this listener speaks JSON lines without TLS, and a TLS handshake came")
        self._looked = len(self._buffer) >= len(_NATIVE)

    @staticmethod
    def _checked(line: bytes) -> bytes:
        # A page in a browser can make it send an HTTP request to a port of this machine, with commands as its
        # body. Whatever begins as HTTP ends here.
        if line[:1] != b"{" and _HTTP.match(line):
            raise ProtocolError("this listener speaks JSON lines, and an HTTP request came; HTTP is another port")
        return line


class WebSocketLines:
    """Lines that come one by one, as the messages of a websocket do: the same as `LineDecoder`, without ends of line.

    What is within a line is as it came, line feeds too: JSON may have them between its words.
    """

    __slots__ = ("_lines", "held", "limit")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.limit = limit  # bytes of a line
        self._lines: deque[bytes] = deque()
        self.held = 0

    def feed(self, data: bytes) -> None:
        """Add the next line."""
        self._lines.append(data)
        self.held += len(data)

    def next_line(self) -> bytes | None:
        """The next line that is not empty; None: there is none yet. `LimitExceeded`, for ever, for a long one."""
        lines = self._lines
        while lines:
            if len(lines[0]) > self.limit:
                raise LimitExceeded("max_line", len(lines[0]), self.limit)
            line = lines.popleft()
            self.held -= len(line)
            if line := line.strip():
                return line
        return None

    def last_line(self) -> bytes | None:
        """Nothing is left behind the last line."""
        return None
