"""A blocking connection for one thread, to a server or the owner of a folder; to a cluster: `cluster_connection`.

Spark tasks are short and synchronous, and each commit is a process of its own, so this loads neither asyncio nor the
client. After a lost connection unanswered calls are sent again: callers make calls that may be repeated. Each call has
one deadline, however often its connection is lost, and connections that answer nothing are made after growing, random
pauses. If no process has the folder open, this one opens it and lets the other tasks in.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from runnel.client.address import ServerAddress, parse_url
from runnel.client.handshake import MAX_FRAME, connect_socket, failure_reason, hello_bytes, read_welcome
from runnel.client.options import ClientOptions
from runnel.core.errors import ConnectionLost, NoAnswer, NotSupported, Unreachable
from runnel.core.stages import StageKey
from runnel.spark.options import BrokerLocation
from runnel.wire.errors import read_error
from runnel.wire.frames import FROM_SERVER, FrameDecoder, FrameKind, frame
from runnel.wire.msgpack_messages import Welcome, call_payload, read_reply

if TYPE_CHECKING:
    from runnel.spark.cluster_connection import ClusterConnection

CONNECT_SECONDS = 30.0  # seconds of retries, by default: a server may be restarting

BrokerConnection: TypeAlias = "BlockingConnection | ClusterConnection"
CarriedStages: TypeAlias = dict[StageKey, tuple[str, list[bytes]]]
"""Stages that Spark's messages carry to the driver, since the broker has none: the topic of each, and its batches."""


@contextmanager
def open_connection(location: BrokerLocation) -> Iterator[BrokerConnection]:
    """A connection to where `location` is."""
    if location.is_cluster and location.url is not None:
        from runnel.spark.cluster_connection import ClusterConnection  # it loads asyncio and the backend

        with ClusterConnection(location.url, location.client) as cluster:
            yield cluster
        return
    if location.url is not None:
        url = parse_url(location.url)
        options = ClientOptions.of(location.client, {"wait": str(CONNECT_SECONDS), "name": "spark"} | url.options)
        with BlockingConnection(lambda: url.addresses, options) as connection:
            yield connection
        return
    assert location.path is not None, "options name a server or a folder"
    options = ClientOptions.of({"wait": CONNECT_SECONDS, "name": "spark"})
    with ExitStack() as held:
        owner = FolderAccess(Path(location.path).absolute(), options, held)
        with BlockingConnection(owner.addresses, options) as connection:
            yield connection


class FolderAccess:
    """The owner of a folder: another process, or this one, from when it is needed until `held` is left."""

    def __init__(self, folder: Path, options: ClientOptions, held: ExitStack) -> None:
        self._folder, self._options, self._held = folder, options, held
        self._is_open = False

    def __repr__(self) -> str:
        return (
            f"<FolderAccess to {str(self._folder)!r}, {'perhaps this process' if self._is_open else 'another process'}>"
        )

    def addresses(self) -> Sequence[ServerAddress]:
        """The way to the owner. Without an answer the folder is opened: this process owns it, or joins the owner."""
        if not self._is_open and not self._answers():
            from runnel import blocking

            self._held.enter_context(blocking.open(self._folder))
            self._is_open = True  # from now on it takes over on its own, if it has to
        return [self._address()]

    def _answers(self) -> bool:
        try:
            connect_socket(self._address(), self._options).close()
        except Unreachable:
            return False
        return True

    def _address(self) -> ServerAddress:
        from runnel.opening.folder_listener import socket_of  # only a folder needs it: it loads the event loop

        return ServerAddress("", 0, str(socket_of(self._folder)))


# -- The connection --------------------------------------------------------------------------------------


MAX_PENDING_CALLS = 4  # calls that may be pending when another is sent
RECONNECT_SECONDS = 30.0  # seconds to find a server again, if no timeout says otherwise
PAUSES = (0.05, 1.0)  # seconds between two attempts to have a connection that answers, the first and the longest
_READ = 64 * 1024


class PendingCall:
    """A call that was sent, and its answer."""

    __slots__ = ("error", "frame", "is_over", "method", "result")

    def __init__(self, method: str, data: bytes) -> None:
        self.method, self.frame = method, data
        self.is_over = False
        self.result: Any = None
        self.error: Exception | None = None


class BlockingConnection:
    """Talks to one of several servers. Use it as a context manager; it connects when it is first asked something."""

    def __init__(self, where: Callable[[], Sequence[ServerAddress]], options: ClientOptions) -> None:
        self._where, self._options = where, options  # asked before each round: a folder may have another owner then
        self._socket: socket.socket | None = None
        self._decoder = FrameDecoder(MAX_FRAME, kinds=FROM_SERVER)
        self._asked: dict[int, PendingCall] = {}  # not answered, in order
        self._next = 1
        self._in_vain = 0  # connections in a row that were lost before anything was answered
        self._welcome: Welcome | None = None
        self.carried: CarriedStages = {}  # none: the server has them
        self.losses = 0
        """How often the connection was lost while something was not answered."""

    def __repr__(self) -> str:
        state = "connected" if self._socket is not None else "not connected"
        return f"<BlockingConnection, {state}, {len(self._asked)} questions under way>"

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def welcome(self) -> Welcome:
        """The server's description of itself."""
        if self._welcome is None:
            self._connect(monotonic() + self._options.wait)
        assert self._welcome is not None
        return self._welcome

    @property
    def fsync(self) -> str | None:
        """When the server syncs what it stores."""
        return self.welcome.fsync

    def check_durable(self) -> None:
        """Raise if the server keeps nothing: then it cannot stage."""
        if not self.welcome.durable:
            raise NotSupported(
                "writing from Spark", "this server lives in memory only; start it with a folder (--data)"
            )

    # -- asking -------------------------------------------------------------------------------------------------

    def ask(self, method: str, **args: Any) -> Any:
        """The answer to a call, or the server's error; `NoAnswer` if none comes in time."""
        until = self._deadline()
        question = self._send(method, args, until)
        try:
            self._listen(lambda: question.is_over, until)
        except BaseException:
            self._asked = {id: one for id, one in self._asked.items() if one is not question}  # it is not asked again
            raise
        if question.error is not None:
            raise question.error
        return question.result

    def tell(self, method: str, **args: Any) -> PendingCall:
        """Send a call without waiting for its answer, unless too many are under way. See `settle`."""
        until = self._deadline()
        self._listen(lambda: len(self._asked) < MAX_PENDING_CALLS, until)
        return self._send(method, args, until)

    def settle(self) -> None:
        """Return when all that was sent is answered."""
        self._listen(lambda: not self._asked, self._deadline())

    def close(self) -> None:
        """Say goodbye. Unanswered calls stay unknown. Harmless twice."""
        connection, self._socket = self._socket, None
        if connection is not None:
            try:
                connection.sendall(frame(FrameKind.GOODBYE, 0, b"\x80"))
            except OSError:
                pass  # it is closed already
            connection.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _deadline(self) -> float | None:
        """When a call that is made now must be answered; None: whenever."""
        timeout = self._options.timeout
        return None if timeout is None else monotonic() + timeout

    def _send(self, method: str, args: dict[str, Any], until: float | None) -> PendingCall:
        id, self._next = self._next, self._next + 1
        question = PendingCall(method, frame(FrameKind.CALL, id, call_payload(method, args)))
        if self._socket is None:
            self._connect(monotonic() + self._options.wait)
        self._asked[id] = question
        assert self._socket is not None
        try:
            self._socket.sendall(question.frame)
        except OSError as error:
            self._again(error, until)
        return question

    def _listen(self, is_done: Callable[[], bool], until: float | None) -> None:
        """Take answers in until `is_done` says so, or raise `NoAnswer` at the deadline."""
        while not is_done():
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                first = next(iter(self._asked.values()))
                raise NoAnswer(f"{first.method}()", self._options.timeout or 0.0, "connected")
            try:
                self._take(left)
            except TimeoutError:
                pass  # the next round says that it is too late
            except OSError as error:
                self._again(error, until)

    def _take(self, timeout: float | None) -> None:
        """Wait for bytes, and read what they say."""
        assert self._socket is not None
        self._socket.settimeout(timeout)
        data = self._socket.recv(_READ)
        if not data:
            raise ConnectionResetError("the server closed it")
        self._decoder.feed(data)
        for kind, _, _, id, payload in self._decoder.frames():
            if kind == FrameKind.PING:
                self._socket.sendall(frame(FrameKind.PONG, id, payload))
            elif kind == FrameKind.ERROR and not id:
                raise read_error(payload)
            elif kind in (FrameKind.REPLY, FrameKind.ERROR) and (question := self._asked.pop(id, None)) is not None:
                if kind == FrameKind.REPLY:
                    question.result = read_reply(payload)
                else:
                    question.error = read_error(payload)
                question.is_over = True
                self._in_vain = 0

    # -- connecting ---------------------------------------------------------------------------------------------

    def _again(self, error: Exception, until: float | None) -> None:
        """The connection was lost: make another by then, and repeat unanswered calls."""
        if self._asked:
            self.losses += 1
        if until is None:
            until = monotonic() + RECONNECT_SECONDS
        while True:
            self._in_vain += 1
            if self._in_vain > 1:  # a server that takes connections and drops them is left alone for a while
                sleep(max(0.0, min(_pause(self._in_vain - 1), until - monotonic())))
            try:
                self._connect(until)
                assert self._socket is not None
                for question in self._asked.values():
                    self._socket.sendall(question.frame)
            except Unreachable as found:
                self._asked.clear()  # they are not sent again
                raise ConnectionLost(found.address, f"{failure_reason(error)}, and then {found.why}") from found
            except OSError as found:  # lost again; within the time that is left
                error = found
            else:
                return

    def _connect(self, until: float) -> None:
        """A new connection to the first server that answers; `Unreachable` when none has by then."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        rounds = 0
        while True:
            for address in self._where():
                try:
                    self._socket = self._greeted(address)
                    return
                except Unreachable as error:
                    failure = error
            rounds += 1
            pause = _pause(rounds)
            if monotonic() + pause > until:
                raise failure
            sleep(pause)

    def _greeted(self, address: ServerAddress) -> socket.socket:
        connection = connect_socket(address, self._options)
        try:
            connection.sendall(hello_bytes(self._options, token=self._options.current_token()))
            decoder = FrameDecoder(MAX_FRAME, kinds=FROM_SERVER)
            while data := connection.recv(_READ):
                decoder.feed(data)
                for kind, _, _, _, payload in decoder.frames():
                    self._welcome = read_welcome(kind, payload)
                    self._decoder = decoder  # the first frame is all that a server says unasked
                    return connection
            raise ConnectionResetError("it was closed before the server greeted")
        except OSError as error:
            connection.close()
            raise Unreachable(str(address), failure_reason(error)) from None
        except BaseException:
            connection.close()
            raise


def _pause(attempts: int) -> float:
    """Seconds to wait after so many attempts in vain. Random: the tasks of a job must not come back in step."""
    first, longest = PAUSES
    pause = min(first * 2 ** min(attempts - 1, 16), longest)
    return random.uniform(pause / 2, pause)
