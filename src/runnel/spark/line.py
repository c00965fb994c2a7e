"""A connection to a server for one thread: questions go out one after the other, and no loop waits for the answers.

Tasks of Spark are short and synchronous, and each commit of a query is a process of its own: so this loads neither
asyncio nor the client. A connection that is lost is made again, and what was not answered is asked again; whoever asks
sees to it that asking twice does no harm.
Below: client.plain, wire. Above: access, staging, committing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from runnel.client.address import Address
from runnel.client.options import ClientOptions
from runnel.client.plain import MAX_FRAME, dial, greeting, read_greeting, reason
from runnel.core.errors import NotSupported
from runnel.core.network_errors import ConnectionLost, NoAnswer, Unreachable
from runnel.wire.frame import FROM_SERVER, FrameDecoder, Kind, frame
from runnel.wire.messages import Welcome, call_payload, read_reply
from runnel.wire.trouble import read_error

AHEAD = 4  # questions that may be under way when another is asked
PATIENCE = 30.0  # seconds to find a server again, if no timeout says otherwise
PAUSES = (0.05, 1.0)  # seconds between two rounds through the servers, the first and the longest
_READ = 64 * 1024


class Question:
    """A call that was sent, and its answer."""

    __slots__ = ("error", "frame", "is_over", "method", "result")

    def __init__(self, method: str, data: bytes) -> None:
        self.method, self.frame = method, data
        self.is_over = False
        self.result: Any = None
        self.error: Exception | None = None


class Line:
    """Talks to one of several servers. Use it as a context manager; it connects when it is first asked something."""

    def __init__(self, where: Callable[[], Sequence[Address]], options: ClientOptions) -> None:
        self._where, self._options = where, options  # asked before each round: a folder may have another owner then
        self._socket: socket.socket | None = None
        self._decoder = FrameDecoder(MAX_FRAME, kinds=FROM_SERVER)
        self._asked: dict[int, Question] = {}  # not answered, in order
        self._next = 1
        self._welcome: Welcome | None = None
        self.losses = 0
        """How often the connection was lost while something was not answered."""

    def __repr__(self) -> str:
        state = "connected" if self._socket is not None else "not connected"
        return f"<Line, {state}, {len(self._asked)} questions under way>"

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def welcome(self) -> Welcome:
        """What the server said of itself."""
        if self._welcome is None:
            self._connect(monotonic() + self._options.wait)
        assert self._welcome is not None
        return self._welcome

    def check_durable(self) -> None:
        """Raise if the server keeps nothing: then it cannot stage."""
        if not self.welcome.durable:
            raise NotSupported(
                "writing from Spark", "this server lives in memory only; start it with a folder (--data)"
            )

    # -- asking -------------------------------------------------------------------------------------------------

    def ask(self, method: str, **args: Any) -> Any:
        """The answer to a call, or the server's error; `NoAnswer` if none comes in time."""
        question = self._send(method, args)
        self._listen(lambda: question.is_over)
        if question.error is not None:
            raise question.error
        return question.result

    def tell(self, method: str, **args: Any) -> Question:
        """Send a call without waiting for its answer, unless too many are under way. See `settle`."""
        self._listen(lambda: len(self._asked) < AHEAD)
        return self._send(method, args)

    def settle(self) -> None:
        """Return when all that was told is answered."""
        self._listen(lambda: not self._asked)

    def close(self) -> None:
        """Say goodbye. What is not answered stays unknown. Harmless twice."""
        line, self._socket = self._socket, None
        if line is not None:
            try:
                line.sendall(frame(Kind.GOODBYE, 0, b"\x80"))
            except OSError:
                pass  # it is gone already
            line.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _send(self, method: str, args: dict[str, Any]) -> Question:
        id, self._next = self._next, self._next + 1
        question = Question(method, frame(Kind.CALL, id, call_payload(method, args)))
        if self._socket is None:
            self._connect(monotonic() + self._options.wait)
        self._asked[id] = question
        self._put(question.frame)
        return question

    def _put(self, data: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(data)
        except OSError as error:
            self._again(error)

    def _listen(self, until: Callable[[], bool]) -> None:
        """Take answers in until `until` says so."""
        timeout = self._options.timeout
        patience = None if timeout is None else monotonic() + timeout
        losses = self.losses
        while not until():
            if self.losses != losses and timeout is not None:  # asked anew: it has as long again
                losses, patience = self.losses, monotonic() + timeout
            left = None if patience is None else patience - monotonic()
            if left is not None and left <= 0:
                first = next(iter(self._asked.values()))
                raise NoAnswer(f"{first.method}()", timeout or 0.0, "connected")
            try:
                self._take(left)
            except TimeoutError:
                pass  # the next round says that it is too late
            except OSError as error:
                self._again(error)

    def _take(self, timeout: float | None) -> None:
        """Wait for bytes, and read what they say."""
        assert self._socket is not None
        self._socket.settimeout(timeout)
        data = self._socket.recv(_READ)
        if not data:
            raise ConnectionResetError("the server closed it")
        self._decoder.feed(data)
        for kind, _, _, id, payload in self._decoder.frames():
            if kind == Kind.PING:
                self._put(frame(Kind.PONG, id, payload))
            elif kind == Kind.ERROR and not id:
                raise read_error(payload)
            elif kind in (Kind.REPLY, Kind.ERROR) and (question := self._asked.pop(id, None)) is not None:
                if kind == Kind.REPLY:
                    question.result = read_reply(payload)
                else:
                    question.error = read_error(payload)
                question.is_over = True

    # -- connecting ---------------------------------------------------------------------------------------------

    def _again(self, error: Exception) -> None:
        """The connection is lost: make another, and ask again what was not answered."""
        if self._asked:
            self.losses += 1
        timeout = self._options.timeout
        until = monotonic() + (PATIENCE if timeout is None else timeout)
        while True:
            try:
                self._connect(until)
                assert self._socket is not None
                for question in self._asked.values():
                    self._socket.sendall(question.frame)
            except Unreachable as found:
                raise ConnectionLost(found.address, f"{reason(error)}, and then {found.why}") from found
            except OSError as found:  # lost again; within the time that is left
                error = found
            else:
                return

    def _connect(self, until: float) -> None:
        """A new connection to the first server that answers; `Unreachable` when none has by then."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        pause, longest = PAUSES
        while True:
            for address in self._where():
                try:
                    self._socket = self._greeted(address)
                    return
                except Unreachable as error:
                    failure = error
            if monotonic() + pause > until:
                raise failure
            sleep(pause)
            pause = min(2 * pause, longest)

    def _greeted(self, address: Address) -> socket.socket:
        line = dial(address, self._options)
        try:
            line.sendall(greeting(self._options))
            decoder = FrameDecoder(MAX_FRAME, kinds=FROM_SERVER)
            while data := line.recv(_READ):
                decoder.feed(data)
                for kind, _, _, _, payload in decoder.frames():
                    self._welcome = read_greeting(kind, payload)
                    self._decoder = decoder  # the first frame is all that a server says unasked
                    return line
            raise ConnectionResetError("it was closed before the server greeted")
        except OSError as error:
            line.close()
            raise Unreachable(str(address), reason(error)) from None
        except BaseException:
            line.close()
            raise
