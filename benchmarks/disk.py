"""Where the figures that wait for a disk are measured, and what the journal asked of that disk.

Such a figure is worth nothing on a file system in memory, so those are refused, and the folder,
its file system and its bare fsync are stated beside the figures.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.conditions import bare_fsync_p50

FSYNC = "µs bare fsync p50"
PER_SECOND = "records/s"
PER_SYNC = "records a sync"
IN_MEMORY = ("tmpfs", "ramfs")
PREFIX = "runnel-bench-"


class Unsuitable(Exception):
    """A folder that figures of a disk cannot be measured in."""


@contextmanager
def scratch(folder: Path | None = None) -> Iterator[Path]:
    """A new folder inside `folder` that is gone afterwards; refuses file systems in memory.

    Without a `folder`: where temporary files go, if that is the file system of the working directory; otherwise
    the working directory itself.
    """
    here = Path.cwd()
    if folder is None:
        temporary = Path(tempfile.gettempdir())
        folder = temporary if temporary.stat().st_dev == here.stat().st_dev else here
    if not folder.is_dir():
        raise Unsuitable(f"{folder} is not a folder")
    if (kind := file_system(folder)) in IN_MEMORY:
        raise Unsuitable(f"{folder} lies in memory ({kind}), where a sync costs nothing; choose one on a disk")
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def emptied(folder: Path) -> AsyncIterator[Path]:
    """A new folder in `folder` for one measurement. Removed with its dirty pages: the next one does not sync them."""
    made = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def file_system(folder: Path) -> str:
    """What kind of file system `folder` lies on, as far as the system tells."""
    return _mount(folder)[1]


def where(folder: Path) -> str:
    """The sentence about the disk that every question states."""
    device, kind = _mount(folder)
    return f"measured on {device} ({kind}); every figure has the bare fsync of its own round beside it"


def _mount(folder: Path) -> tuple[str, str]:
    """Device and kind of the file system of `folder`: the last mount whose point lies above it counts."""
    found, longest = ("unknown", "unknown"), -1
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return found
    inside = folder.resolve()
    for line in lines:
        device, point, kind = line.split()[:3]
        if inside.is_relative_to(point) and len(point) >= longest:
            found, longest = (device, kind), len(point)
    return found


def bare_fsync(folder: Path, times: int) -> dict[str, float]:
    """The figure of the disk that stands beside all others: 4 KiB appended and synced, in microseconds."""
    return {FSYNC: bare_fsync_p50(folder, times) * 1e6}


@dataclass(slots=True)
class Writes:
    """What a journal asked of its segments: the bytes of each write, and 0 for each sync.

    Left out: the zeros that a segment is filled with ahead of small commits. A bare file gets them before the clock
    runs.
    """

    steps: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """All that was written."""
        return sum(self.steps)

    @property
    def syncs(self) -> int:
        """How often it was synced."""
        return self.steps.count(0)


@contextmanager
def watching(writes: Writes) -> Iterator[None]:
    """Note what journals write to their segments, and sync, within the block; costs a list's append a call."""
    from runnel.journal.format.segment import ZERO_STEP
    from runnel.journal.storage import OsFile

    write, sync, note = OsFile.write, OsFile.sync, writes.steps.append

    def noted_write(file: Any, offset: int, pieces: Sequence[Any]) -> None:
        write(file, offset, pieces)
        if ".seg" in file.name and not (len(pieces) == 1 and len(pieces[0]) == ZERO_STEP):
            note(sum(map(len, pieces)))

    def noted_sync(file: Any) -> None:
        sync(file)
        if ".seg" in file.name:
            note(0)

    with patch.object(OsFile, "write", noted_write), patch.object(OsFile, "sync", noted_sync):
        yield
