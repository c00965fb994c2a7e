"""Calls: requests with one answer each, over the connection or, blocking, over a socket of their own.

After a lost connection a repeatable call is sent again; any other fails with `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any

from runnel.client.handshake import MAX_FRAME, connect_socket, failure_reason, hello_bytes, read_welcome
from runnel.core.errors import Forked, NoAnswer, RunnelError, Unreachable
from runnel.wire.errors import read_error
from runnel.wire.frames import FROM_SERVER, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import call_payload, read_reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runnel.client.server_link import ServerLink


class ClientCall:
    """A request, and the future of its answer."""

    __slots__ = ("again", "answer", "id", "kind", "payload")

    def __init__(self, kind: int, payload: bytes, answer: asyncio.Future[bytes], *, again: bool) -> None:
        self.kind, self.payload, self.answer, self.again = kind, payload, answer, again
        self.id = 0  # of its frame, when it is under way


class ClientCalls:
    """The requests of a link that are not answered."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._waiting: list[ClientCall] = []  # for a connection
        self._sent: dict[int, ClientCall] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def __repr__(self) -> str:
        return f"<ClientCalls, {len(self._sent)} under way, {len(self._waiting)} waiting>"

    async def request(self, what: str, kind: int, payload: bytes, *, again: bool, timeout: float | None) -> bytes:
        """The payload of the answer; `NoAnswer` after `timeout` seconds. If it is given up, the server is informed."""
        call = ClientCall(kind, payload, asyncio.get_running_loop().create_future(), again=again)
        self._send(call)
        try:
            async with asyncio.timeout(timeout):
                return await call.answer
        except TimeoutError as error:
            if isinstance(error, RunnelError):
                raise  # the server's own
            raise NoAnswer(what, timeout or 0.0, self._link.state) from self._link.connection.error
        finally:
            self._forget(call)

    def _send(self, call: ClientCall) -> None:
        if self._link.state == "connected":
            call.id = self._link.new_id()
            self._sent[call.id] = call
            self._link.send(frame(call.kind, call.id, call.payload))
        else:
            self._waiting.append(call)

    def _forget(self, call: ClientCall) -> None:
        """The caller stopped waiting: it is answered, or given up."""
        if call.id and self._sent.pop(call.id, None) is not None:
            self._link.send(frame(FrameKind.CANCEL, call.id))
        elif call in self._waiting:
            self._waiting.remove(call)

    def answered(self, kind: int, id: int, payload: bytes) -> bool:
        """A REPLY or an ERROR came; whether it was for one of these."""
        call = self._sent.pop(id, None)
        if call is None:
            return False
        if not call.answer.done():
            if kind == FrameKind.REPLY:
                call.answer.set_result(payload)
            else:
                call.answer.set_exception(read_error(payload))
        return True

    def connected(self) -> None:
        """Send the waiting calls."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._send(call)

    def lost(self, error: Callable[[], RunnelError]) -> None:
        """The connection was lost: keep repeatable calls, and fail the rest."""
        sent, self._sent = self._sent, {}
        for call in sent.values():
            call.id = 0
            if call.again:
                self._waiting.append(call)
            elif not call.answer.done():
                call.answer.set_exception(error())

    def end(self, error: Callable[[], RunnelError]) -> None:
        """There will be no connection any more."""
        for call in (*self._sent.values(), *self._waiting):
            if not call.answer.done():
                call.answer.set_exception(error())
        self._sent, self._waiting = {}, []


# -- Blocking calls --------------------------------------------------------------------------------------
# Synchronous methods such as `statistics()` cannot wait on the event loop, which may be the caller's own.
# Each call opens a socket of its own, so any thread may call, and a fork inherits nothing.


_READ = 256 * 1024


class BlockingCalls:
    """Asks a server, beside the connection of a link."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<BlockingCalls of {self._link!r}>"

    def call(self, method: str, args: dict[str, Any]) -> Any:
        """The result of a CALL, while this thread waits. The server's error is raised; `NoAnswer` after the timeout."""
        link = self._link
        if link.loop_owner.forked:
            raise Forked
        timeout = link.options.timeout
        if (
            link.loop_owner.loop is not None and link.loop_owner.is_here()
        ):  # all else on the loop stands still meanwhile
            shortest = link.options.connect_timeout
            timeout = shortest if timeout is None else min(timeout, shortest)
        error: RunnelError | None = None
        for address in link.addresses:
            try:
                with closing(connect_socket(address, link.options)) as sock:
                    sock.settimeout(timeout)
                    return self._exchange(sock, method, args, timeout)
            except Unreachable as found:
                error = found
            except TimeoutError as found:
                if isinstance(found, RunnelError):
                    raise
                raise NoAnswer(f"{method}()", timeout or 0.0, link.state) from None
            except OSError as found:
                error = Unreachable(str(address), failure_reason(found))
        assert error is not None, "a link has an address"
        raise error

    def _exchange(self, sock: socket.socket, method: str, args: dict[str, Any], timeout: float | None) -> Any:
        """Greet, ask, and read until the answer."""
        until = None if timeout is None else monotonic() + timeout
        hello = hello_bytes(self._link.options, token=self._link.options.current_token())
        sock.sendall(hello + frame(FrameKind.CALL, 1, call_payload(method, args)))
        is_greeted = False
        for kind, id, payload in _frames(sock, until):
            if not is_greeted:
                read_welcome(kind, payload)
                is_greeted = True
            elif kind == FrameKind.REPLY and id == 1:
                sock.sendall(frame(FrameKind.GOODBYE, 0, b"\x80"))
                return read_reply(payload)
            elif kind == FrameKind.ERROR:
                raise read_error(payload)
        raise ConnectionResetError("it was closed before the answer")


def _frames(sock: socket.socket, until: float | None) -> Iterator[tuple[int, int, bytes]]:
    """Kind, id and payload of the frames that come, up to the end."""
    decoder = FrameDecoder(MAX_FRAME, kinds=FROM_SERVER)
    while data := sock.recv(_READ):
        decoder.feed(data)
        for kind, _, _, id, payload in decoder.frames():
            yield kind, id, payload
        if until is not None:
            sock.settimeout(max(until - monotonic(), 0.001))
