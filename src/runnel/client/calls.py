"""Requests that get one answer: sent, sent again where that does no harm, and answered or given up.

Below: wire. Above: link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from runnel.core.errors import RunnelError
from runnel.core.network_errors import NoAnswer
from runnel.wire.frame import Kind, frame
from runnel.wire.trouble import read_error

if TYPE_CHECKING:
    from runnel.client.link import Link


class Call:
    """A request, and who waits for its answer."""

    __slots__ = ("again", "answer", "id", "kind", "payload")

    def __init__(self, kind: int, payload: bytes, answer: asyncio.Future[bytes], *, again: bool) -> None:
        self.kind, self.payload, self.answer, self.again = kind, payload, answer, again
        self.id = 0  # of its frame, when it is under way


class Calls:
    """The requests of a link that are not answered."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: list[Call] = []  # for a connection
        self._sent: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def __repr__(self) -> str:
        return f"<Calls, {len(self._sent)} under way, {len(self._waiting)} waiting>"

    async def request(self, what: str, kind: int, payload: bytes, *, again: bool, timeout: float | None) -> bytes:
        """The payload of the answer; `NoAnswer` after `timeout` seconds. Given up, the server is told."""
        call = Call(kind, payload, asyncio.get_running_loop().create_future(), again=again)
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

    def _send(self, call: Call) -> None:
        if self._link.state == "connected":
            call.id = self._link.new_id()
            self._sent[call.id] = call
            self._link.send(frame(call.kind, call.id, call.payload))
        else:
            self._waiting.append(call)

    def _forget(self, call: Call) -> None:
        """Nobody waits any more: because it is answered, or because it is given up."""
        if call.id and self._sent.pop(call.id, None) is not None:
            self._link.send(frame(Kind.CANCEL, call.id))
        elif call in self._waiting:
            self._waiting.remove(call)

    def answered(self, kind: int, id: int, payload: bytes) -> bool:
        """A REPLY or an ERROR came; whether it was for one of these."""
        call = self._sent.pop(id, None)
        if call is None:
            return False
        if not call.answer.done():
            if kind == Kind.REPLY:
                call.answer.set_result(payload)
            else:
                call.answer.set_exception(read_error(payload))
        return True

    def connected(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._send(call)

    def lost(self, error: Callable[[], RunnelError]) -> None:
        """The connection is gone: keep what may be sent again, and fail the rest."""
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
