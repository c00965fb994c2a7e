"""Snapshot: a copy of a folder while its owner keeps writing. The copy can be opened as a journal.

Files that no longer change are linked where the file system can; so a snapshot costs next to nothing until the owner
drops the linked files. The segment that still grows is copied up to the durable watermark, and sealed there. The
manifest comes last, and the folder gets its name when everything in it is durable.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from runnel.core.errors import FolderUnusable, JournalDamaged
from runnel.journal.check.scan import Progress
from runnel.journal.folder_lock import ReadersLease
from runnel.journal.format import manifest, watermark
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.options import JournalOptions
from runnel.journal.read.inspection import UnsyncedTail, check_folder, consistent_view, owner_of, unsynced_tail
from runnel.journal.storage import File, OsStorage
from runnel.journal.write.journal import Journal

MAX_RETRIES = 100  # times that the owner may swap the manifest while we look
COPY_BYTES = 1024 * 1024


class Snapshot(msgspec.Struct, frozen=True):
    """The contents of a snapshot."""

    target: str
    journal: str
    segments: int
    linked: int  # files
    copied: int
    bytes: int  # of all files
    copied_bytes: int
    unsynced_records: int = 0  # that the owner had written and not yet synced: they are not in it
    unsynced_bytes: int = 0


class _Counts:
    def __init__(self) -> None:
        self.linked = self.copied = self.bytes = self.copied_bytes = 0


def snapshot(folder: str | Path, target: str | Path, progress: Progress | None = None) -> Snapshot:
    """Make a snapshot in `target`, which must not exist or be empty."""
    source, place = Path(folder), Path(target)
    check_folder(source)
    _check_target(source, place)
    lease = ReadersLease(source)
    try:
        for _ in range(MAX_RETRIES):
            owned = owner_of(source) is not None  # asked first: if it ends meanwhile, the copy ends where it stood
            found, position = consistent_view(source)
            try:
                return _make(source, place, found, position, owned, progress)
            except OSError as error:
                missing = sorted(name for name in found.files() if not (source / name).exists())
                if manifest.load(OsStorage(source)) != found and isinstance(error, FileNotFoundError):
                    continue  # the owner has just closed, and with it went a segment that held nothing but state
                if missing and isinstance(error, FileNotFoundError):
                    raise JournalDamaged(missing[0], 0, "it is missing") from None
                if error.filename and error.filename2 is None and Path(error.filename).parent == source:
                    raise  # the original cannot be read
                raise FolderUnusable(str(place), error.strerror or str(error)) from None
    finally:
        lease.release()
    raise FolderUnusable(str(source), "its owner swapped the manifest whenever it was read")


def _check_target(source: Path, place: Path) -> None:
    """Raise unless a snapshot can go there."""
    try:
        if place.resolve().is_relative_to(source.resolve()):
            raise FolderUnusable(str(place), f"it lies in {str(source)!r} itself; name a place outside of it")
        if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
            raise FolderUnusable(str(place), "there is something in it already")
    except OSError as error:
        raise FolderUnusable(str(place), error.strerror or str(error)) from None


def _make(
    source: Path, place: Path, found: Manifest, position: int, owned: bool, progress: Progress | None
) -> Snapshot:
    place.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    counts, left_out = _Counts(), UnsyncedTail()
    try:
        names = sorted(found.files() - {manifest.NAME})
        total = sum((source / name).stat().st_size for name in names)
        active = None if found.clean else found.segments[-1]
        for name in names:
            if active is not None and name == active.name:
                # A crashed journal has no writer: all of it is copied, and opening the copy sorts it out.
                end = position if owned else (source / name).stat().st_size
                _copy(source / name, making / name, end, counts)
                if owned and found.fsync != "commit":
                    left_out = unsynced_tail(OsStorage(source), active, position)
                _write_watermark(making, active, position)
            else:
                _link(source / name, making / name, counts)
            if progress is not None:
                progress(min(counts.bytes, total), total)
        OsStorage(making).sync_names()  # whatever the manifest names must be there before it is
        manifest.write(OsStorage(making), found)
        if active is not None:
            # As if its owner had closed it: opening it finds nothing to recover, and we know that it opens.
            Journal.open(OsStorage(making), JournalOptions(found.fsync, segment_bytes=COPY_BYTES, min_free=0)).close()
        counts.bytes += (making / manifest.NAME).stat().st_size
        os.rename(making, place)  # over an empty folder, too
        OsStorage(place.parent).sync_names()
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    if progress is not None:
        progress(total, total)
    return Snapshot(
        str(place),
        found.journal,
        len(found.segments),
        counts.linked,
        counts.copied,
        counts.bytes,
        counts.copied_bytes,
        *left_out,
    )


def _link(source: Path, target: Path, counts: _Counts) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        _copy(source, target, source.stat().st_size, counts)
        return
    counts.linked += 1
    counts.bytes += target.stat().st_size


def _copy(source: Path, target: Path, size: int, counts: _Counts) -> None:
    """The first `size` bytes, durable but for the name."""
    reading = OsStorage(source.parent).open(source.name)
    try:
        writing = OsStorage(target.parent).create(target.name)
        try:
            at = 0
            while at < size and (data := _read(reading, at, min(COPY_BYTES, size - at), source)):
                writing.write(at, [data])
                at += len(data)
            writing.sync()
        finally:
            writing.close()
    finally:
        reading.close()
    counts.copied += 1
    counts.bytes += at
    counts.copied_bytes += at


def _read(file: File, at: int, size: int, source: Path) -> bytes:
    try:
        return file.read(at, size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(source)) from None  # whose fault it is


def _write_watermark(folder: Path, info: SegmentInfo, position: int) -> None:
    """The durable state of the copied segment is durable here."""
    file = OsStorage(folder).create(watermark.NAME)
    try:
        watermark.write(file, info.number, info.id, position)
        file.sync()
    finally:
        file.close()
