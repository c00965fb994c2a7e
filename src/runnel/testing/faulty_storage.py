"""A storage whose calls fail: a full disk, a broken one, a short write, a failed sync.

It wraps any storage and makes one call fail, or all from one on. Calls are counted, so a test may fail each in turn:

    whole = FaultyStorage(MemoryStorage())
    work(whole)
    for call in range(1, whole.calls + 1):
        storage = FaultyStorage(MemoryStorage(), fail_at=call, error=errno.ENOSPC)
        ...

After a failed sync the kernel marks the pages clean that it could not write: they can still be read, and the next
sync reports success without writing them. Around a `MemoryStorage` that is what happens.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence

from runnel.journal.storage import File, Storage
from runnel.testing import power_loss
from runnel.testing.memory_storage import MemoryFile, MemoryStorage
from runnel.testing.power_loss import PowerLossOutcome

CHANGING = ("create", "rename", "remove", "sync_names", "write", "allocate", "truncate", "sync")
READING = ("open", "names", "read", "size", "map")


class FaultyFile:
    """An open file of a `FaultyStorage`."""

    __slots__ = ("_inner", "_storage", "name")

    def __init__(self, storage: FaultyStorage, inner: File) -> None:
        self._storage, self._inner, self.name = storage, inner, inner.name

    def __repr__(self) -> str:
        return f"<FaultyFile around {self._inner!r}>"

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all of `pieces`; or only `short` bytes of them, and fail."""
        self._storage._step("write", self.name, lambda: self._write_part(offset, pieces))
        self._inner.write(offset, pieces)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on."""
        self._storage._step("read", self.name)
        return self._inner.read(offset, size)

    def size(self) -> int:
        """How long the file is."""
        self._storage._step("size", self.name)
        return self._inner.size()

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long."""
        self._storage._step("allocate", self.name)
        self._inner.allocate(size)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        self._storage._step("truncate", self.name)
        self._inner.truncate(size)

    def sync(self) -> None:
        """Make written bytes durable; or fail, and let later syncs skip them."""
        self._storage._step("sync", self.name, self._forget)
        self._inner.sync()

    def map(self) -> memoryview:
        """The whole file."""
        self._storage._step("map", self.name)
        return self._inner.map()

    def close(self) -> None:
        """Close it. Never fails."""
        self._inner.close()

    def _write_part(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        data = b"".join(pieces)
        short = self._storage.short
        part = data[: int(len(data) * short) if isinstance(short, float) else short]
        if part:
            self._inner.write(offset, [part])

    def _forget(self) -> None:
        if isinstance(self._inner, MemoryFile):
            self._inner.forget(self._storage.fate)


class FaultyStorage:
    """A storage around another one, with a call that fails.

    fail_at  this call raises OSError, counted from 1 among those in `kinds`; None: no call does
    error    the errno it fails with: EIO (the disk is broken) or ENOSPC (it is full)
    kinds    the calls that count and may fail: any of CHANGING and READING
    lasting  whether all later calls in `kinds` fail too, until `fail_at` is set to None: a disk that stays full
    short    a failing write has written this many bytes, or this share of them if it is a float
    fate     which bytes a failing sync has written, around a `MemoryStorage`; see `runnel.testing.power_loss`

    All but `kinds` may be set at any time. `trace` lists the calls that count: `trace[n - 1]` is the operation and the
    name of call n. `failed` counts the calls that did fail.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        fail_at: int | None = None,
        error: int = errno.EIO,
        kinds: Collection[str] = CHANGING,
        lasting: bool = False,
        short: float = 0,
        fate: PowerLossOutcome = power_loss.keep_nothing,
    ) -> None:
        if unknown := set(kinds) - {*CHANGING, *READING}:
            raise ValueError(f"a storage has no calls {sorted(unknown)}; it has {', '.join(CHANGING + READING)}")
        self.inner, self.kinds = inner, frozenset(kinds)
        self.fail_at, self.error, self.lasting, self.short, self.fate = fail_at, error, lasting, short, fate
        self.calls = 0
        self.failed = 0
        self.trace: list[tuple[str, str]] = []

    def __repr__(self) -> str:
        return f"<FaultyStorage around {self.inner!r}, {self.failed} of {self.calls} calls failed>"

    def create(self, name: str) -> FaultyFile:
        """A new, empty file."""
        self._step("create", name)
        return FaultyFile(self, self.inner.create(name))

    def open(self, name: str, *, writable: bool = False) -> FaultyFile:
        """A file that is there."""
        self._step("open", name)
        return FaultyFile(self, self.inner.open(name, writable=writable))

    def names(self) -> list[str]:
        """The files there are, sorted."""
        self._step("names", "")
        return self.inner.names()

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name. Never fails."""
        return self.inner.exists(name)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        self._step("rename", f"{old} -> {new}")
        self.inner.rename(old, new)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._step("remove", name)
        self.inner.remove(name)

    def sync_names(self) -> None:
        """Make names durable; or fail, and let later syncs pass over them."""
        self._step("sync_names", "", self._forget_names)
        self.inner.sync_names()

    def free(self) -> int:
        """How many bytes may still be written before the disk is full."""
        return self.inner.free()

    def total(self) -> int:
        """How many bytes the disk has, free or not."""
        return self.inner.total()

    def _step(self, operation: str, name: str, before_failing: Callable[[], None] | None = None) -> None:
        """Before each call: count it, and fail if it is to fail."""
        if operation not in self.kinds:
            return
        self.calls += 1
        self.trace.append((operation, name))
        if self.fail_at is None or self.calls < self.fail_at or (self.calls > self.fail_at and not self.lasting):
            return
        self.failed += 1
        if before_failing is not None:
            before_failing()
        raise OSError(self.error, os.strerror(self.error), name)

    def _forget_names(self) -> None:
        if isinstance(self.inner, MemoryStorage):
            self.inner.forget_names(self.fate)
