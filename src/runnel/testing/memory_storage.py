"""A folder in memory that loses power: the possible disk contents after a restart.

Bytes are durable once their file was synced, names (created, renamed, removed) once the folder was. Until then each
page, each length and each name may be found old or new, independently of the others: a later write without an earlier
one, a page torn between two sectors, a file with its name and without its bytes.

A test cuts the power at each call in turn and looks what recovery makes of what is left:

    storage = MemoryStorage(crash_at=7)  # the seventh call that changes something does not happen
    with pytest.raises(PowerLost):
        work(storage)
    recover(storage.after_power_loss(Random(1)))
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from random import Random
from threading import RLock
from typing import NoReturn

from runnel.testing import power_loss
from runnel.testing.power_loss import Inode, NameChange, PowerLossOutcome

ENDLESS = 1 << 40  # the free bytes of a disk without a capacity

SyncHook = Callable[[str, str, int], bool]
"""Asked at each sync: the operation ("sync" or "sync_names"), the file's name ("" for the folder), and which sync of
the storage this is, counted from 1."""


class PowerLost(BaseException):
    """The power went. Not an Exception, so that no handler catches it by accident."""

    def __init__(self, call: int, operation: str, name: str) -> None:
        self.call, self.operation, self.name = call, operation, name
        super().__init__(f"the power went at call {call}: {operation} {name!r}")


class MemoryFile:
    """An open file of a `MemoryStorage`."""

    __slots__ = ("_inode", "_mode", "_storage", "name")

    def __init__(self, storage: MemoryStorage, name: str, inode: Inode, *, writable: bool) -> None:
        self._storage, self.name, self._inode = storage, name, inode
        self._mode = 2 if writable else 1  # 0 once it is closed

    def __repr__(self) -> str:
        return f"<MemoryFile {self.name!r}, {len(self._inode.content)} bytes{'' if self._mode else ', closed'}>"

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all of `pieces` from `offset` on; on a full disk, as many bytes as there is room for."""
        data = b"".join(pieces)
        storage, inode = self._storage, self._inode
        with storage._lock:
            self._check(2, offset)
            storage._step("write", self.name)
            wanted = len(data)
            if storage.capacity is not None:
                data = data[: max(0, len(inode.content) + storage.free() - offset)]
            if data:
                inode.change(storage.calls, offset, data)
            if storage._dying:
                storage._die()
            if len(data) < wanted:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on."""
        self._check(1, offset)
        return bytes(self._inode.content[offset : offset + size])

    def size(self) -> int:
        """How long the file is."""
        self._check(1, 0)
        return len(self._inode.content)

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long."""
        storage, inode = self._storage, self._inode
        with storage._lock:
            self._check(2, size)
            storage._step("allocate", self.name)
            missing = size - len(inode.content)
            if missing > 0:
                if missing > storage.free():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
                inode.change(storage.calls, size, None)
            if storage._dying:
                storage._die()

    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long. Raises BufferError while it is mapped: the system would crash later."""
        storage = self._storage
        with storage._lock:
            self._check(2, size)
            storage._step("truncate", self.name)
            self._inode.change(storage.calls, size, None)
            if storage._dying:
                storage._die()

    def sync(self) -> None:
        """Make the bytes and the length durable, but not the name."""
        with self._storage._lock:
            self._check(1, 0)
            self._storage._sync("sync", self.name, self._inode.settle)

    def forget(self, fate: PowerLossOutcome = power_loss.keep_nothing) -> None:
        """Simulate a failed sync: changes stay readable, but no later sync makes them durable.

        The kernel marks pages clean that it could not write. `fate` says which ones were written all the same.
        """
        storage, inode = self._storage, self._inode
        with storage._lock:
            inode.durable, inode.pending = inode.found(fate, storage.page, storage.sector), []

    def map(self) -> memoryview:
        """The whole file, without copying."""
        self._check(1, 0)
        return memoryview(self._inode.content or b"").toreadonly()

    def close(self) -> None:
        """Close it. Harmless even without power."""
        self._mode = 0

    def _check(self, mode: int, at: int) -> None:
        if self._storage._lost:
            self._storage._die()
        if self._mode < mode:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.name)
        if at < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)


class MemoryStorage:
    """A folder of files in memory, with a power cable to pull.

    page        bytes that reach the disk together if they are not torn; small ones make small files interesting
    sector      bytes that are never torn
    capacity    bytes that all files together may have, or None
    crash_at    this call, counted from 1, raises `PowerLost` instead of being carried out, and so does all after it
    midway      with crash_at: that call is carried out first, though nothing is synced any more, late syncs included
    skip_sync   syncs that do nothing when this says yes: what if one were forgotten?
    delay_sync  syncs that take effect only after the next changing call: what if one came too late? Crash `midway`
                as well to see the moment between that call and the sync

    All but the first two may be set at any time. `calls` counts the calls that change something or sync, and `trace`
    lists them: `trace[n - 1]` is the operation and the name of call n.
    """

    def __init__(
        self,
        page: int = 4096,
        *,
        sector: int = 512,
        capacity: int | None = None,
        crash_at: int | None = None,
        midway: bool = False,
        skip_sync: SyncHook | None = None,
        delay_sync: SyncHook | None = None,
    ) -> None:
        self.page, self.sector, self.capacity = page, sector, capacity
        self.crash_at, self.midway = crash_at, midway
        self.skip_sync, self.delay_sync = skip_sync, delay_sync
        self.calls = 0
        self.syncs = 0
        self.trace: list[tuple[str, str]] = []
        self._names: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: list[NameChange] = []
        self._late: list[tuple[int, Callable[[], None]]] = []  # syncs to carry out once that call was
        self._dying = False  # the call under way is the last one
        self._lost = False
        self._lock = RLock()

    def __repr__(self) -> str:
        state = ", without power" if self._lost else ""
        return f"<MemoryStorage of {len(self._names)} files after {self.calls} calls{state}>"

    def create(self, name: str) -> MemoryFile:
        """A new, empty file. An old one of that name is the same file, cut to nothing."""
        with self._lock:
            self._step("create", name)
            inode = self._names.get(name)
            if inode is None:
                inode = self._names[name] = Inode()
                self._pending.append((self.calls, inode, name))
            else:
                inode.change(self.calls, 0, None)
            if self._dying:
                self._die()
            return MemoryFile(self, name, inode, writable=True)

    def open(self, name: str, *, writable: bool = False) -> MemoryFile:
        """A file that is there."""
        return MemoryFile(self, name, self._find(name), writable=writable)

    def names(self) -> list[str]:
        """The files there are, sorted."""
        if self._lost:
            self._die()
        return sorted(self._names)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return name in self._names

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        with self._lock:
            inode = self._find(old)
            self._step("rename", f"{old} -> {new}")
            del self._names[old]
            self._names[new] = inode
            self._pending.append((self.calls, inode, new))
            if self._dying:
                self._die()

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._lock:
            inode = self._find(name)
            self._step("remove", name)
            del self._names[name]
            self._pending.append((self.calls, inode, None))
            if self._dying:
                self._die()

    def sync_names(self) -> None:
        """Make every create, rename and remove so far durable, but not the contents of the files."""
        with self._lock:
            self._sync("sync_names", "", self._settle_names)

    def forget_names(self, fate: PowerLossOutcome = power_loss.keep_nothing) -> None:
        """Simulate a failed `sync_names`; see `MemoryFile.forget`."""
        with self._lock:
            self._durable = power_loss.found_names(self._durable, self._names.values(), self._pending, fate)
            self._pending = []

    def free(self) -> int:
        """How many bytes may still be written."""
        if self._lost:
            self._die()
        if self.capacity is None:
            return ENDLESS
        return max(0, self.capacity - sum(len(inode.content) for inode in self._names.values()))

    def total(self) -> int:
        """How many bytes all files together may have."""
        return ENDLESS if self.capacity is None else self.capacity

    def after_power_loss(self, fate: Random | PowerLossOutcome) -> MemoryStorage:
        """The folder after the power loss, here or at `crash_at`. This one is unchanged."""
        choose = _at_random(fate) if isinstance(fate, Random) else fate
        with self._lock:
            self._catch_up()
            names = power_loss.found_names(self._durable, self._names.values(), self._pending, choose)
            found = MemoryStorage(self.page, sector=self.sector, capacity=self.capacity)
            found._names = {name: Inode(names[name].found(choose, self.page, self.sector)) for name in sorted(names)}
            found._durable = dict(found._names)
            return found

    def after_kill(self) -> MemoryStorage:
        """The folder as the next process finds it: all that was written is there, and no more durable than before."""
        with self._lock:
            self._catch_up()
            copies: dict[Inode, Inode] = {}

            def copy(inode: Inode) -> Inode:
                if inode not in copies:
                    copies[inode] = made = Inode(bytes(inode.durable))
                    made.content = bytearray(inode.content)
                    made.pending = [(call - self.calls, at, data) for call, at, data in inode.pending]
                return copies[inode]

            found = MemoryStorage(self.page, sector=self.sector, capacity=self.capacity)
            found._names = {name: copy(inode) for name, inode in self._names.items()}
            found._durable = {name: copy(inode) for name, inode in self._durable.items()}
            found._pending = [(call - self.calls, copy(inode), name) for call, inode, name in self._pending]
            return found

    def worst(self) -> Iterator[tuple[str, MemoryStorage]]:
        """The ends that break programs first, with what to call them: a few fixed ones, two for each pending call."""
        for fate in (
            power_loss.keep_nothing,
            power_loss.keep_everything,
            power_loss.keep_names,
            power_loss.keep_names_and_lengths,
            power_loss.keep_data,
        ):
            yield fate.__name__, self.after_power_loss(fate)
        inodes = {*self._names.values(), *self._durable.values()}
        calls = {change[0] for change in self._pending}.union(*({c[0] for c in inode.pending} for inode in inodes))
        for call in sorted(calls):
            yield f"keep_after({call})", self.after_power_loss(power_loss.keep_after(call))
            yield f"keep_until({call})", self.after_power_loss(power_loss.keep_until(call))

    def _find(self, name: str) -> Inode:
        if self._lost:
            self._die()
        inode = self._names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return inode

    def _step(self, operation: str, name: str) -> None:
        """Before each changing call: count it, and see whether it is the one that never comes back."""
        if self._lost or self._dying:
            self._die()
        if self._late:
            self._catch_up()
        self.calls += 1
        self.trace.append((operation, name))
        if self.calls == self.crash_at:
            self._dying = self.midway and operation not in ("sync", "sync_names")
            if not self._dying:
                self._die()

    def _die(self) -> NoReturn:
        self._lost = True
        raise PowerLost(self.calls, *self.trace[-1])

    def _sync(self, operation: str, name: str, settle: Callable[[], None]) -> None:
        self._step(operation, name)
        self.syncs += 1
        if self.skip_sync is not None and self.skip_sync(operation, name, self.syncs):
            return
        if self.delay_sync is not None and self.delay_sync(operation, name, self.syncs):
            self._late.append((self.calls + 1, settle))
            return
        settle()

    def _settle_names(self) -> None:
        self.forget_names(power_loss.keep_everything)

    def _catch_up(self) -> None:
        """Carry out the delayed syncs that are due: those whose next call was carried out."""
        done = self.calls - self._lost
        due = [settle for call, settle in self._late if call <= done]
        self._late = [(call, settle) for call, settle in self._late if call > done]
        for settle in due:
            settle()


def _at_random(random: Random) -> PowerLossOutcome:
    below = random.randrange
    return lambda kind, calls: below(len(calls))
