"""A file and fdatasync, with nothing around them: what the disk itself allows. The yardstick, not an alternative.

It is given the very writes and syncs that a journal asked for: as many bytes, in as many pieces, synced as often, on
a file made as a segment is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import payloads

MEGABYTE = 1 << 20


class BareFile:
    """A file that takes the same writes and syncs as a segment did, one behind the other."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._at, self._size = fd, 0, size

    def replay(self, steps: Sequence[int]) -> float:
        """The seconds that these take: the bytes of each write, and 0 for each sync."""
        if sum(steps) > self._size - self._at:
            raise ValueError(f"{sum(steps):,} bytes do not fit behind {self._at:,} of {self._size:,}")
        data = memoryview(b"".join(payloads(max(steps, default=0) // 1024 + 1, 1024)))
        pieces = [data[:step] for step in steps]
        sync, pwrite = getattr(os, "fdatasync", os.fsync), os.pwrite
        file, at = self._fd, self._at
        begun = time.perf_counter()
        for piece in pieces:
            if piece:
                at += pwrite(file, piece, at)
            else:
                sync(file)
        spent = time.perf_counter() - begun
        if at != self._at + sum(steps):
            raise OSError(f"only {at - self._at:,} of {sum(steps):,} bytes were written")
        self._at = at
        return spent


@contextmanager
def bare_file(folder: Path, size: int, *, zeroed: bool) -> Iterator[BareFile]:
    """A new file, preallocated, and gone afterwards.

    With `zeroed` it is filled with zeros, which spares the file system from working out at every sync where the bytes
    lie: segments do that for small commits.
    """
    name = folder / "bare"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
        if zeroed:
            zeros = bytes(MEGABYTE)
            for at in range(0, size, MEGABYTE):
                os.pwrite(fd, zeros[: min(MEGABYTE, size - at)], at)
        os.fsync(fd)
        yield BareFile(fd, size)
    finally:
        os.close(fd)
        name.unlink()
