"""A file and fdatasync, with nothing around them: what the disk itself allows. The yardstick, not an alternative.

It is given the very writes and syncs that a journal asked for: as many bytes, in as many pieces, synced as often, on
a file made as a segment is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.disk import Writes
from benchmarks.load import payloads

MEGABYTE = 1 << 20


def replayed(writes: Writes, folder: Path, *, zeroed: bool) -> float:
    """The seconds that the same writes and syncs take bare.

    On a file that is preallocated, and with `zeroed` filled with zeros, which spares the file system from working
    out at every sync where the bytes lie.
    """
    sync = getattr(os, "fdatasync", os.fsync)
    data = memoryview(b"".join(payloads(max(writes.steps) // 1024 + 1, 1024)))
    name = folder / "bare"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        _prepare(file, writes.bytes, zeroed=zeroed)
        steps = [data[:step] for step in writes.steps]
        pwrite, at = os.pwrite, 0
        begun = time.perf_counter()
        for step in steps:
            if step:
                at += pwrite(file, step, at)
            else:
                sync(file)
        spent = time.perf_counter() - begun
    finally:
        os.close(file)
        name.unlink()
    if at != writes.bytes:
        raise OSError(f"only {at:,} of {writes.bytes:,} bytes were written")
    return spent


def _prepare(file: int, size: int, *, zeroed: bool) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
    if zeroed:
        zeros = bytes(MEGABYTE)
        for at in range(0, size, MEGABYTE):
            os.pwrite(file, zeros[: min(MEGABYTE, size - at)], at)
    os.fsync(file)
