"""The folder lock: one process owns a folder, and any number of readers hold a lease while they look.

The owner holds `flock` on LOCK and writes its pid there. A removed LOCK lets another process in, so the owner checks
before every acknowledgement that the file it has locked is still the one at that path (`FolderLock.check`). Readers
hold a shared lock on READERS; while one does, the owner removes no file that a manifest has named. A server that wants
a folder which another process took over holds a lock on CLAIM, and that process releases the folder.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows: a broker in memory works there
    fcntl = None  # type: ignore[assignment]

from runnel.core.errors import FolderInUse, FolderUnusable

LOCK, READERS, CLAIM = "LOCK", "READERS", "CLAIM"
SHARED = "shared"  # written behind the pid of an owner that lets others in
YIELDS = "yields"  # and behind that, of one that releases the folder to a process that claims it
TRIES = 5
LONGEST_COMMAND = 120  # characters, in a message

_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs")

log = logging.getLogger("runnel")


class FolderLost(OSError):
    """The folder is not this owner's any more: its files were removed, or another process has it."""


class FolderOwner(NamedTuple):
    """The owner of a folder (None: not known), whether it shares the folder, and whether it yields to a claim."""

    pid: int | None
    shares: bool = False
    yields: bool = False


def read_owner(lock: int) -> FolderOwner:
    """The contents of the lock file, as any owner writes it."""
    pid, *rest = os.pread(lock, 64, 0).decode(errors="replace").split() or [""]
    return FolderOwner(int(pid) if pid.isdigit() else None, SHARED in rest, YIELDS in rest)


def command_of_owner(lock: int) -> str | None:
    """The command line of the process in the lock file, where the system says it and says that it has the file open."""
    pid = read_owner(lock).pid
    if pid is None or pid == os.getpid():
        return None
    process = Path("/proc") / str(pid)
    try:
        if not any(os.path.samestat(os.fstat(lock), one.stat()) for one in (process / "fd").iterdir() if one.exists()):
            return None  # a pid of another container
        words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    command = shlex.join(word.decode(errors="replace") for word in words)
    return command if len(command) <= LONGEST_COMMAND else f"{command[: LONGEST_COMMAND - 1]}…"


def recorded_owner(folder: Path) -> FolderOwner:
    """The process that owns a folder, or did last, by its own account. Asking does not take the lock."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return FolderOwner(None)
    try:
        return read_owner(fd)
    finally:
        os.close(fd)


class FolderLock:
    """The ownership of a folder. It ends with `release`, or with the process.

    `shares`: the owner lets other processes in at a socket, and says so in the file. `yields`: it releases the folder
    while there is a `FolderClaim`, and says that, too. `tries`: how often to look again, when it is taken.
    """

    def __init__(self, folder: Path, *, shares: bool = False, yields: bool = False, tries: int = TRIES) -> None:
        self.folder = folder
        self._said = [SHARED] * shares + [YIELDS] * yields
        self._path = str(folder.absolute() / LOCK)  # the process may change its working directory
        self._identity: tuple[int, int] | None = None
        self._tries = tries
        self._fd = -1
        self._readers = -1

    def take(self) -> None:
        """Make the folder if need be, and own it; else FolderInUse names the owner. Harmless for the owner."""
        if self._fd >= 0:
            return
        if fcntl is None:
            raise FolderUnusable(str(self.folder), "this system has no flock, so two brokers could own it at once")
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)  # records are for this user's processes
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            is_file = self.folder.exists() and not self.folder.is_dir()
            why = "it is a file, not a folder" if is_file else error.strerror or str(error)
            raise FolderUnusable(str(self.folder), why) from None
        for left in range(self._tries, -1, -1):  # a process that only asks for the owner holds it for a moment
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if left:
                    time.sleep(0.01)
                    continue
                owner, command = read_owner(self._fd), command_of_owner(self._fd)
                self.release()
                raise FolderInUse(str(self.folder), owner.pid, shares=owner.shares, command=command) from None
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{' '.join([str(os.getpid()), *self._said])}\n".encode(), 0)
            self._readers = os.open(self.folder / READERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            self.release()
            raise FolderUnusable(str(self.folder), error.strerror or str(error)) from None
        found = os.fstat(self._fd)
        self._identity = found.st_dev, found.st_ino
        if is_network(kind := file_system(self.folder)):
            log.warning("%s lies on a network file system (%s): locks and syncs may not hold there", self.folder, kind)

    def check(self) -> None:
        """Raise FolderLost unless the path of LOCK leads to the file that is locked here. From any thread.

        Another process opens the folder in this order: it makes its own LOCK, then it reads the journal. So whatever
        was written before a check that passes, the next owner reads: that much may be acknowledged.
        """
        try:
            found = os.stat(self._path)
        except OSError as error:
            why = f"{self._path} is gone ({error.strerror}), and another process may own the folder"
            raise FolderLost(why) from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise FolderLost(f"{self._path} was replaced: another process owns the folder")

    def has_readers(self) -> bool:
        """Whether another process is looking at the folder now, so that files must stay."""
        try:
            fcntl.flock(self._readers, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._readers, fcntl.LOCK_UN)
        return False

    def release(self) -> None:
        """Release ownership. In the child of a fork this closes the copy, and the parent keeps the folder."""
        for fd in (self._fd, self._readers):
            if fd >= 0:
                os.close(fd)
        self._fd = self._readers = -1


class FolderClaim:
    """Asks for a folder: while it is held, an owner that yields releases the folder, and no standby takes it over."""

    def __init__(self, folder: Path) -> None:
        self._path, self._fd = folder / CLAIM, -1

    def hold(self) -> None:
        """Claim the folder, if no other process does. Harmless twice."""
        if self._fd >= 0:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError:  # then the owner does not see it, and keeps the folder
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            self._fd = fd

    def release(self) -> None:
        """Claim it no more. Harmless twice."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def is_claimed(folder: Path) -> bool:
    """Whether a process holds a claim to the folder now."""
    try:
        fd = os.open(folder / CLAIM, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class ReadersLease:
    """While it is held, no file that the manifest named is removed."""

    def __init__(self, folder: Path) -> None:
        try:
            self._fd = os.open(folder / READERS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1  # a copy or a snapshot, without an owner
            return
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def release(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_network(kind: str) -> bool:
    """Whether locks and syncs may not hold on this kind of file system."""
    return kind.startswith(_NETWORK)


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on; '' where the system does not say."""
    if sys.platform != "linux":
        return ""
    path, best, kind = str(folder.resolve()), "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, fs, *_ = line.split(" ")
        mount = mount.encode().decode("unicode_escape")
        if (path == mount or path.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, fs
    return kind
