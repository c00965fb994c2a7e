"""Files: the port through which the journal uses the operating system, and the system's own files behind it.

Nothing is durable before it is synced: bytes of a file by `File.sync`, names (created, renamed, removed) by
`Storage.sync_names`. `runnel.testing` has two more storages: one in memory that loses power, and one that fails.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class File(Protocol):
    """One open file. Reads and writes say where; there is no current position."""

    @property
    def name(self) -> str:
        """Its name when it was opened."""

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all of `pieces`, one behind the other, from `offset` on. Raises OSError unless all were written."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only at the end of the file."""

    def size(self) -> int:
        """How long the file is."""

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long and reserve the space; new bytes read as zeros."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return when everything written to this file, and its length, is durable."""

    def map(self) -> memoryview:
        """The whole file, to be read without copying. It must not change any more."""

    def close(self) -> None:
        """Close it. Closing twice is harmless."""


class Storage(Protocol):
    """One folder of files, without folders in it."""

    def create(self, name: str) -> File:
        """A new, empty file, open for reading and writing. An old one of that name is cut to nothing."""

    def open(self, name: str, *, writable: bool = False) -> File:
        """A file that is there. Raises FileNotFoundError."""

    def names(self) -> list[str]:
        """The files there are, sorted."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of any other file that has it."""

    def remove(self, name: str) -> None:
        """Remove a file; open handles keep reading. Raises FileNotFoundError."""

    def sync_names(self) -> None:
        """Return when every create, rename and remove so far is durable."""

    def free(self) -> int:
        """How many bytes may still be written before the disk is full."""

    def total(self) -> int:
        """How many bytes the disk has, free or not."""


# -- The files of the operating system -------------------------------------------------------------------


MAX_PIECES = 1024  # that one pwritev takes (IOV_MAX)


class OsFile:
    """A file of the system."""

    __slots__ = ("_fd", "_map", "name")

    _fd: int

    def __init__(self, name: str, fd: int) -> None:
        self.name, self._fd = name, fd
        self._map: memoryview | None = None

    def __repr__(self) -> str:
        return f"<OsFile {self.name!r}{'' if self._fd >= 0 else ', closed'}>"

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all of `pieces` from `offset` on."""
        if offset < 0:  # the system would take -1 for "where you are", and overwrite the head of the file
            raise OSError(errno.EINVAL, "a negative offset", self.name)
        left = list(pieces)
        while left:
            now = left[:MAX_PIECES]
            wanted = sum(map(len, now))
            written = os.pwritev(self._fd, now, offset)
            offset += written
            if written == wanted:
                del left[:MAX_PIECES]
                continue
            if written == 0:
                raise OSError(errno.EIO, "nothing more could be written", self.name)
            while written >= len(left[0]):  # the system may write a part; the rest is written again
                written -= len(left.pop(0))
            left[0] = memoryview(left[0])[written:]

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on."""
        found = os.pread(self._fd, size, offset)
        if len(found) == size or not found:
            return found
        parts = [found]
        got = len(found)
        while got < size and (more := os.pread(self._fd, size - got, offset + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def size(self) -> int:
        """How long the file is."""
        return os.fstat(self._fd).st_size

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long and reserve the space."""
        if size > self.size():
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, size)
            else:  # macOS: no space is reserved, so a full disk shows itself only when writing
                os.ftruncate(self._fd, size)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Return when everything written to this file is durable."""
        if self._fd < 0:
            raise OSError(errno.EBADF, "bad file descriptor: the file is closed", self.name)
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)  # fsync there stops at the drive's cache
        else:
            os.fdatasync(self._fd)

    def map(self) -> memoryview:
        """The whole file, mapped."""
        if self._map is None:
            size = self.size()
            mapped = mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) if size else b""
            self._map = memoryview(mapped)
        return self._map

    def close(self) -> None:
        """Close it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()  # a segment that retention dropped is closed when its last reader is done


class OsStorage:
    """A folder of the system."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()  # the process may change its working directory

    def __repr__(self) -> str:
        return f"<OsStorage {str(self.folder)!r}>"

    def create(self, name: str) -> OsFile:
        """A new, empty file."""
        return OsFile(name, os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640))

    def open(self, name: str, *, writable: bool = False) -> OsFile:
        """A file that is there."""
        return OsFile(name, os.open(self.folder / name, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def names(self) -> list[str]:
        """The files there are, sorted."""
        with os.scandir(self.folder) as found:
            return sorted(entry.name for entry in found if entry.is_file(follow_symlinks=False))

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        # Not `stat`: once its times were read, Linux writes them anew with the next write of the file, and
        # a sync takes 40 µs longer.
        return os.access(f"{self.folder}/{name}", os.F_OK)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        os.replace(self.folder / old, self.folder / new)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self.folder / name)

    def sync_names(self) -> None:
        """Return when every create, rename and remove so far is durable."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free(self) -> int:
        """How many bytes may still be written before the disk is full."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def total(self) -> int:
        """How many bytes the disk has, free or not."""
        found = os.statvfs(self.folder)
        return found.f_blocks * found.f_frsize
