"""An archive in object storage: the same files under the same names, one object each.

A run is made in a small folder beside the journal, of links to its segments, and then uploaded: segments that are new,
the state, and last the catalog, which replaces exactly the one that the run began with. So an aborted run, and one that
another run overtakes, leave the archive unchanged. The segment that still grows is an object of its own for each length
(`NAME.seg.END`), since an object cannot be added to; the shorter one goes after the catalog was replaced.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runnel.core.errors import ArchiveBusy, BackupStoreFailed, NoArchive
from runnel.journal.backup import archive_catalog
from runnel.journal.backup.archive import ArchiveReport, archive
from runnel.journal.backup.archive_catalog import (
    BASES,
    NAME,
    SEGMENTS,
    ArchiveCatalog,
    pool_name,
)
from runnel.journal.backup.object_store import ObjectChanged, ObjectStore
from runnel.journal.check.scan import Progress
from runnel.journal.format import manifest
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.write import archive_holds
from runnel.journal.write.archive_holds import ArchiveHolder

MARK = ".runnel-backup-"  # how the folder of a run begins
ABANDONED = 60.0  # seconds after which such a folder that no process has locked is one of a run that was killed


@contextmanager
def _work_folder(beside: Path | None) -> Iterator[Path]:
    """A folder for one run: beside the journal, where segments can be linked, or elsewhere, as copies.

    What a run left there that was killed goes: its links would keep the segments on the disk.
    """
    if beside is not None:
        _clear_up(beside)
    try:
        place = Path(tempfile.mkdtemp(prefix=MARK, dir=beside))
    except OSError:
        place = Path(tempfile.mkdtemp(prefix=MARK))
    lock = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def _clear_up(parent: Path) -> None:
    for place in parent.glob(f"{MARK}*"):
        with suppress(OSError):  # another run has it, or is clearing it up
            lock = os.open(place, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(lock).st_mtime > ABANDONED:
                    shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(lock)


def back_up(
    folder: str | Path,
    url: str,
    *,
    new_base: bool = False,
    hold: bool | None = None,
    progress: Progress | None = None,
    uploading: Progress | None = None,
    now: int | None = None,
) -> ArchiveReport:
    """Bring the archive at `url` up to this moment, as `archive` does one in a folder.

    `progress` gets the bytes that are read and checked, `uploading` those that were written and read back.
    """
    source, store = Path(folder), ObjectStore(url)
    with _work_folder(source.absolute().parent) as place:
        upload = _Upload(store, place, uploading)
        upload.fetch()
        return archive(
            source,
            place,
            new_base=new_base,
            hold=hold,
            progress=progress,
            now=now,
            name=store.url,
            saved=upload.run,
        )


def release(folder: str | Path, url: str) -> list[ArchiveHolder]:
    """Have an archive at `url` hold no more, though it may not be there any more; what it held."""
    store = ObjectStore(url)
    try:
        known = load_catalog(store)[0].id
    except (NoArchive, BackupStoreFailed):
        known = ""
    return archive_holds.release(Path(folder), known, store.url)


def load_catalog(store: ObjectStore) -> tuple[ArchiveCatalog, str | None]:
    """The catalog of an archive, and its version."""
    try:
        data, version = store.read(NAME)
    except FileNotFoundError:
        raise NoArchive(store.url) from None
    return archive_catalog.decode(data, f"{store.url}/{NAME}"), version


class StoredArchive:
    """The files of an archive in object storage, fetched when a restore asks for them. See `ArchiveFiles`.

    Those that the next run of a backup deletes are fetched with the catalog.
    """

    def __init__(self, url: str, place: Path, *, keep: bool) -> None:
        self._store, self._place, self._keep = ObjectStore(url), place, keep
        self.shown = self._store.url
        found, version = load_catalog(self._store)
        while not self._has_growing(found):
            before = version
            found, version = load_catalog(self._store)
            if version == before:
                break  # it is missing: a restore that needs it says so
        self.catalog = found

    def _has_growing(self, catalog: ArchiveCatalog) -> bool:
        """Fetch the segments that still grow; False if one is not there: a run has put a longer one in its place."""
        self._growing = {pool_name(one.info): _growing(one.info) for one in catalog.pieces if not one.whole}
        try:
            for name in self._growing:
                self.file(f"{SEGMENTS}/{name}")
        except FileNotFoundError:
            return False
        return True

    def file(self, name: str) -> Path:
        """A file of the archive, by its name in it. `FileNotFoundError` if it is not there."""
        target = self._place / name
        if not target.exists():
            folder, _, last = name.rpartition("/")
            stored = self._growing.get(last, last)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.partial")
            self._store.fetch(f"{folder}/{stored}", partial)
            partial.rename(target)
        return target

    def used(self, name: str) -> None:
        """A segment was read: where nothing is made of it, it need not take up room."""
        if not self._keep:
            (self._place / name).unlink(missing_ok=True)


@contextmanager
def stored_archive(url: str, target: str | Path | None) -> Iterator[StoredArchive]:
    """The archive at `url` for a restore. Fetched files lie beside the new folder, so that it can be linked."""
    beside = None if target is None else Path(target).absolute().parent
    if beside is not None:
        beside.mkdir(parents=True, exist_ok=True)
    with _work_folder(beside) as place:
        yield StoredArchive(url, place, keep=target is not None)


def _growing(info: SegmentInfo) -> str:
    """The object of a segment that still grows, up to where it is archived."""
    return f"{pool_name(info)}.{info.end}"


class _Upload:
    """The files that one run has to upload."""

    def __init__(self, store: ObjectStore, place: Path, progress: Progress | None) -> None:
        self._store, self._place, self._progress = store, place, progress
        self._version: str | None = None
        self._before: ArchiveCatalog | None = None
        self._done = self._total = 0

    def fetch(self) -> None:
        """Fetch the catalog into the folder of the run, and the segment list of the newest base."""
        try:
            self._before, self._version = load_catalog(self._store)
        except NoArchive:
            return
        archive_catalog.write(self._place, self._before)
        for base in self._before.bases[-1:]:
            name = f"{BASES}/{base.name}/{manifest.NAME}"
            target = self._place / name
            target.parent.mkdir(parents=True)
            with suppress(FileNotFoundError):  # then all of its segments are written again
                target.write_bytes(self._store.read(name)[0])

    def run(self, catalog: ArchiveCatalog) -> None:
        """Upload the new files, then the catalog; from then on they count."""
        growing = {pool_name(one.info): one.info for one in catalog.pieces if not one.whole}
        known = set() if self._before is None else {base.name for base in self._before.bases}
        files = [
            *((f"{SEGMENTS}/{path.name}", path) for path in sorted((self._place / SEGMENTS).iterdir())),
            *(
                (f"{BASES}/{path.parent.name}/{path.name}", path)
                for path in sorted((self._place / BASES).glob("*/*"))
                if path.parent.name not in known
            ),
        ]
        self._total = sum(path.stat().st_size for _, path in files)
        self._done = 0
        try:
            for name, path in files:
                if path.name == manifest.NAME:  # of a base that another run may have begun in the same second
                    self._store.swap(name, path.read_bytes(), None)
            for name, path in files:
                info = growing.get(path.name)
                self._store.write(name if info is None else f"{SEGMENTS}/{_growing(info)}", path, self._told)
            self._version = self._store.swap(NAME, archive_catalog.encode(catalog), self._version)
        except ObjectChanged:
            raise ArchiveBusy(self._store.url, None) from None
        self._forget(catalog)
        self._before = archive_catalog.decode(archive_catalog.encode(catalog), NAME)

    def _forget(self, catalog: ArchiveCatalog) -> None:
        """Delete the growing segment of the run before. One that is left over costs its bytes, and nothing else."""
        needed = {_growing(one.info) for one in catalog.pieces if not one.whole}
        for one in [] if self._before is None else self._before.pieces:
            if not one.whole and _growing(one.info) not in needed:
                with suppress(BackupStoreFailed):
                    self._store.delete(f"{SEGMENTS}/{_growing(one.info)}")

    def _told(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)
