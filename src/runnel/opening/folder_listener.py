"""The Unix socket in a shared folder, where the owner accepts other processes.

The server is loaded when the first process connects: a program that is alone never pays for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from importlib import import_module
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from runnel.core.errors import FolderUnusable, NotSupported
from runnel.runtime.loop_owner import detach_sockets
from runnel.server.unix_socket import MAX_PATH, UnixSocket

if TYPE_CHECKING:
    from runnel.core.backend import Backend
    from runnel.server.server import Server

SOCKET = "socket"
ELSEWHERE = "socket.path"  # names the socket of a folder whose own path is too long for one
BACKLOG = 1024
DEADLINE = 2.0  # seconds to answer pending requests, when the owner closes
RETRY = 0.01  # seconds after which the others look for the new owner

log = logging.getLogger("runnel")

_listeners: WeakSet[FolderListener] = WeakSet()


def socket_of(folder: Path) -> Path:
    """Where the owner of a folder listens, if known."""
    near = folder / SOCKET
    if len(os.fsencode(near)) <= MAX_PATH:
        return near
    try:
        return Path((folder / ELSEWHERE).read_text().strip() or near)
    except OSError:
        return near


class FolderListener:
    """The socket of the folder that `backend` owns. Everything here is called on the backend's loop."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._backend, self._folder = backend, folder
        self._file: UnixSocket | None = None  # until the server adopts it
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._thread = 0
        self.path = folder / SOCKET

    def __repr__(self) -> str:
        state = "served" if self._server is not None else "open" if self._file is not None else "closed"
        return f"<FolderListener {str(self.path)!r}, {state}>"

    def open(self) -> None:
        """Listen. An existing socket file is that of a dead owner: the holder of the lock may replace it."""
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        try:
            self.path = _choose_path(self._folder)
            self._file = UnixSocket(self.path, BACKLOG, replace=True)
        except OSError as error:
            why = f"no socket can be made in it ({error.strerror}); open it with share=False if it need not be shared"
            raise FolderUnusable(str(self._folder), why) from error
        self._loop.add_reader(self._file.socket, self._first_connection)
        _listeners.add(self)

    def _first_connection(self) -> None:
        assert self._file is not None
        self._loop.remove_reader(self._file.socket)
        self._serving = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        """The first process connects: start the server."""
        await asyncio.to_thread(import_module, "runnel.server.server")
        from runnel.api.broker import Broker
        from runnel.server import Server, ServerOptions

        if self._file is not None and self._server is None:
            server = Server(Broker(self._backend), ServerOptions(port=None, json_port=None))
            self.hand_to(await server.__aenter__())

    def hand_to(self, server: Server) -> None:
        """Have a server let others in here, beside its own listeners. The socket is its own from now on."""
        if self._file is not None:
            self._loop.remove_reader(self._file.socket)
            file, self._file, self._server = self._file, None, server
            server.adopt(file)

    # -- calls in the owner's process ---------------------------------------------------------------------------

    def is_here(self) -> bool:
        """Whether this is the owner's thread."""
        return get_ident() == self._thread

    def answer(self, method: str, args: dict[str, Any]) -> Any:
        """The result of a call that does not wait, for a caller on the owner's own thread."""
        from runnel.server.native.calls import CALLS, Caller, check_method
        from runnel.wire.msgpack_messages import encode_message, read_reply

        if self._server is None or self._server.serving is None:
            raise NotSupported(f"{method}() now", "there is no connection to the owner of the folder yet")
        check_method(method)
        work: Any = CALLS[method](Caller(self._server.serving, _no_subscription, _no_subscription), args)
        try:
            work.send(None)
        except StopIteration as done:
            return read_reply(encode_message(done.value))
        work.close()
        raise NotSupported(f"{method}() on the loop of the folder's owner", "it takes waiting there; call it elsewhere")

    # -- the end ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Say goodbye to the other processes, answer pending requests, and accept no more connections."""
        if self._server is not None:
            await self._server.close(DEADLINE, RETRY)
        self.shut()

    def shut(self) -> None:
        """Close it now, without a goodbye. Connected processes look for the next owner. Harmless twice."""
        _listeners.discard(self)
        file, self._file = self._file, None
        server, self._server = self._server, None
        alive = self._thread and not self._loop.is_closed()
        if self._serving is not None and alive:
            self._serving.cancel()
        if file is not None:
            if alive:
                self._loop.remove_reader(file.socket)
            file.close()
        if server is not None and alive:
            server.abort()
        if (file is not None or server is not None) and self.path.parent != self._folder:
            _remove_socket(self._folder, self.path)

    def abandon(self) -> None:
        """In the child of a fork: the listener is the parent's."""
        if self._file is not None:
            detach_sockets([self._file.socket.fileno()])
        if self._server is not None:
            self._server.abandon()


def listener_at(path: str) -> FolderListener | None:
    """The listener of an owner in this process."""
    return next((listener for listener in _listeners if str(listener.path) == path), None)


def _choose_path(folder: Path) -> Path:
    """Where to listen: in the folder; if that path is too long for a socket, elsewhere, named by a file in it."""
    near = folder / SOCKET
    if len(os.fsencode(near)) <= MAX_PATH:
        return near
    import tempfile

    before = socket_of(folder)
    if before != near:
        _remove_socket(folder, before)
    far = Path(tempfile.mkdtemp(prefix="runnel-")) / SOCKET  # a folder that is this user's alone
    note = folder / f"{ELSEWHERE}.new"
    note.write_text(f"{far}\n")
    note.replace(folder / ELSEWHERE)
    return far


def _remove_socket(folder: Path, socket: Path) -> None:
    """The remains of an owner's socket in another folder."""
    try:
        (folder / ELSEWHERE).unlink(missing_ok=True)
        if socket.name == SOCKET and socket.parent.name.startswith("runnel-"):
            socket.unlink(missing_ok=True)
            socket.parent.rmdir()
    except OSError as error:
        log.debug("%s is left behind: %s", socket, error)


def _no_subscription(subscription: int) -> Any:
    raise NotSupported("a call about a subscription", "it goes over the connection of that")


def _after_fork() -> None:
    for listener in list(_listeners):
        listener.abandon()
    _listeners.clear()


os.register_at_fork(after_in_child=_after_fork)
