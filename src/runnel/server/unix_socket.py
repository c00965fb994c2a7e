"""A Unix socket file: bound, protected (mode 0600: same user only), and removed on close.

A file left by a dead server is replaced; a file that a live server listens on is not. Servers starting at the same time
take turns under a lock on the folder: otherwise two could see the same dead file, and the second remove the new one
of the first.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runnel.core.errors import AddressInUse, InvalidOption

MAX_PATH = 107 if sys.platform == "linux" else 103  # what fits into a sockaddr_un with its final zero
MODE = 0o600
LOCK_TIMEOUT = 0.5  # seconds that a starting process waits for another


class UnixSocket:
    """A listening socket and its file. `replace`: whatever socket is there is known to be of no use any more."""

    def __init__(self, path: Path, backlog: int, *, replace: bool = False, mode: int = MODE) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            with _folder_lock(path.parent), socket_address(path) as address:
                _remove_stale(path, address, replace=replace)
                self._bind(address)
                os.chmod(path, mode)  # no client can connect before `listen`
                self._inode = _inode(path)
                self.socket.listen(backlog)
        except BaseException:
            self.socket.close()
            raise

    def _bind(self, address: str) -> None:
        try:
            self.socket.bind(address)
        except OSError as error:
            why = f"no socket can be made there: {os.strerror(error.errno or 0)}"
            raise InvalidOption("unix", str(self.path), why) from error

    def close(self) -> None:
        """Stop listening and take the file away, unless another server has put its own there."""
        self.socket.close()
        if _inode(self.path) == self._inode:
            with suppress(OSError):  # a read-only file system, for example: the next server replaces the remaining file
                self.path.unlink()


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """An address by which the socket at `path` can be bound or connected to, however long the path is."""
    if len(os.fsencode(path)) <= MAX_PATH:
        yield str(path)
        return
    if sys.platform != "linux" or len(os.fsencode(path.name)) > MAX_PATH - len("/proc/self/fd/12345/"):
        raise InvalidOption("unix", str(path), f"the path of a socket has at most {MAX_PATH} bytes; use a shorter one")
    # The address names the folder by a handle on it, so only the last name has to fit.
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidOption("unix", str(path), f"{path.parent}: {os.strerror(error.errno or 0)}") from error
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _remove_stale(path: Path, address: str, *, replace: bool) -> None:
    """Remove the socket of a dead server; raise if it is in use, or not a socket."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InvalidOption("unix", str(path), "there is a file that is not a socket; choose another path")
    if replace:
        path.unlink(missing_ok=True)
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # EAGAIN: the owner is so busy that its backlog is full. Anything else: not ours to remove
    raise AddressInUse(str(path))


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Wait for other processes that make a socket here; not for long: a lock on a folder may mean anything."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # not there, or not ours to read: binding says so, if it matters
        yield
        return
    try:
        until = time.monotonic() + LOCK_TIMEOUT
        while not _locked(handle) and time.monotonic() < until:
            time.sleep(0.005)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    import fcntl  # a system without it has no such sockets either

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
