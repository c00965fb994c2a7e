"""Questions that may not be awaited: a plain socket, one question, one answer.

What is synchronous in the API (statistics, say) cannot wait for a loop that is waiting itself. Each question has
a connection of its own, so that any thread may ask, and nothing is left behind by a fork.
Below: wire, plain. Above: link, group.
"""

from __future__ import annotations

import socket
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any

from runnel.client.plain import MAX_FRAME, dial, greeting, read_greeting, reason
from runnel.core.errors import Forked, RunnelError
from runnel.core.network_errors import NoAnswer, Unreachable
from runnel.wire.frame import FROM_SERVER, FrameDecoder, Kind, frame
from runnel.wire.messages import call_payload, read_reply
from runnel.wire.trouble import read_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runnel.client.link import Link

_READ = 256 * 1024


class Side:
    """Asks a server, beside the connection of a link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<Side of {self._link!r}>"

    def call(self, method: str, args: dict[str, Any]) -> Any:
        """The result of a CALL, while this thread waits. The server's error is raised; `NoAnswer` after the timeout."""
        link = self._link
        if link.home.forked:
            raise Forked
        timeout = link.options.timeout
        if link.home.loop is not None and link.home.is_here():  # all else on the loop stands still meanwhile
            shortest = link.options.connect_timeout
            timeout = shortest if timeout is None else min(timeout, shortest)
        error: RunnelError | None = None
        for address in link.addresses:
            try:
                with closing(dial(address, link.options)) as line:
                    line.settimeout(timeout)
                    return self._exchange(line, method, args, timeout)
            except Unreachable as found:
                error = found
            except TimeoutError as found:
                if isinstance(found, RunnelError):
                    raise
                raise NoAnswer(f"{method}()", timeout or 0.0, link.state) from None
            except OSError as found:
                error = Unreachable(str(address), reason(found))
        assert error is not None, "a link has an address"
        raise error

    def _exchange(self, line: socket.socket, method: str, args: dict[str, Any], timeout: float | None) -> Any:
        """Greet, ask, and read until the answer."""
        until = None if timeout is None else monotonic() + timeout
        line.sendall(greeting(self._link.options) + frame(Kind.CALL, 1, call_payload(method, args)))
        is_greeted = False
        for kind, id, payload in _frames(line, until):
            if not is_greeted:
                read_greeting(kind, payload)
                is_greeted = True
            elif kind == Kind.REPLY and id == 1:
                line.sendall(frame(Kind.GOODBYE, 0, b"\x80"))
                return read_reply(payload)
            elif kind == Kind.ERROR:
                raise read_error(payload)
        raise ConnectionResetError("it was closed before the answer")


def _frames(line: socket.socket, until: float | None) -> Iterator[tuple[int, int, bytes]]:
    """Kind, id and payload of the frames that come, up to the end."""
    decoder = FrameDecoder(MAX_FRAME, kinds=FROM_SERVER)
    while data := line.recv(_READ):
        decoder.feed(data)
        for kind, _, _, id, payload in decoder.frames():
            yield kind, id, payload
        if until is not None:
            line.settimeout(max(until - monotonic(), 0.001))
