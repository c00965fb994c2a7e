"""Archiving: add the new entries of a journal to an archive, beside its running owner.

Each run adds the segments that were sealed since the last one, and the durable part of the one that still grows. The
first run, and each one that missed something, takes a base: the state, and all older segments in their present form.
Files come first and the catalog last, so a run that is cut off leaves the archive as it was. An archive may hold the
journal: then entries that it does not have yet are neither cleaned nor dropped.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from runnel.core.errors import ArchiveBusy, ArchiveMismatch, FolderInUse, FolderUnusable, JournalDamaged, NotSupported
from runnel.journal.backup import archive_catalog
from runnel.journal.backup.archive_catalog import (
    BASES,
    SEGMENTS,
    ArchiveBase,
    ArchiveCatalog,
    ArchivedSegment,
    continues,
    pool_index_name,
    pool_name,
)
from runnel.journal.check.scan import Progress
from runnel.journal.folder_lock import LOCK, READERS, FolderLock, ReadersLease
from runnel.journal.format import checkpoint, lineage, manifest
from runnel.journal.format.entry import HOLDS_RECORDS
from runnel.journal.format.index import end_sequence
from runnel.journal.format.ledger import Ledger
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import START, TEMPORARY, SegmentInfo, check_header, entries
from runnel.journal.read.inspection import check_folder, consistent_view, owner_of
from runnel.journal.storage import OsStorage
from runnel.journal.write import archive_holds
from runnel.journal.write.archive_holds import ArchiveHold, ArchiveHolder

COPY_BYTES = 1024 * 1024  # bytes copied at a time


class FileCopier:
    """Counts what it carries. With `link=False` everything is copied."""

    def __init__(self, *, link: bool = True, carried: Callable[[int], None] = lambda size: None) -> None:
        self.linked = self.copied = 0  # files
        self.bytes = self.copied_bytes = 0
        self._link, self._carried = link, carried
        self._folders: set[Path] = set()

    def __repr__(self) -> str:
        return f"<FileCopier, {self.linked} files linked, {self.copied} copied>"

    def carry(
        self,
        source: Path,
        target: Path,
        size: int | None = None,
        *,
        link: bool = True,
        check: Callable[[Path], None] | None = None,
    ) -> None:
        """The first `size` bytes of a file (all by default) as `target`, replacing a file of that name.

        Only a file that never changes again below `size` may be linked. `check` reads the copy, and raises if it is
        invalid: then `target` stays unchanged.
        """
        size = source.stat().st_size if size is None else size
        temporary = target.with_name(target.name + TEMPORARY)
        temporary.unlink(missing_ok=True)
        if not (self._link and link and self._linked(source, temporary)):
            self._copy(source, temporary, 0, size, create=True)
            self.copied += 1
        else:
            self.linked += 1
            self._carried(size)
        if check is not None:
            try:
                check(temporary)
            except BaseException:
                temporary.unlink()
                raise
        os.replace(temporary, target)
        temporary.unlink(missing_ok=True)  # a rename of one link to a file over another leaves both
        self.bytes += size
        self._folders.add(target.parent)

    def extend(self, source: Path, target: Path, start: int, end: int) -> None:
        """Copy bytes [start, end) behind those that `target` has. They are not safe before this returns."""
        if target.stat().st_nlink > 1:  # never write into a file that has another link
            temporary = target.with_name(target.name + TEMPORARY)
            temporary.unlink(missing_ok=True)
            self._copy(target, temporary, 0, start, create=True)
            self._copy(source, temporary, start, end, create=False)
            os.replace(temporary, target)
            self._folders.add(target.parent)
            self.bytes += end - start
            return
        self._copy(source, target, start, end, create=False)
        self.bytes += end - start

    def settle(self) -> None:
        """Return when the names of everything that was carried are durable."""
        for folder in sorted(self._folders):
            OsStorage(folder).sync_names()
        self._folders.clear()

    def _linked(self, source: Path, target: Path) -> bool:
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            return False
        return True

    def _copy(self, source: Path, target: Path, start: int, end: int, *, create: bool) -> None:
        reading = OsStorage(source.parent).open(source.name)
        try:
            folder = OsStorage(target.parent)
            writing = folder.create(target.name) if create else folder.open(target.name, writable=True)
            try:
                at = start
                while at < end and (data := reading.read(at, min(COPY_BYTES, end - at))):
                    writing.write(at, [data])
                    at += len(data)
                    self.copied_bytes += len(data)
                    self._carried(len(data))
                writing.sync()
            finally:
                writing.close()
        finally:
            reading.close()


# -- Runs ------------------------------------------------------------------------------------------------


MAX_RETRIES = 100  # times that the owner may swap the manifest while we look


class ArchiveReport(msgspec.Struct, frozen=True):
    """The additions of one run, and the end of the archive (microseconds)."""

    archive: str
    journal: str
    segments: list[SegmentInfo]  # added whole
    growing_bytes: int  # added of the segment that still grows
    linked: int  # files
    copied: int
    bytes: int
    copied_bytes: int
    base: str | None  # the one that was taken
    why: str | None  # it was
    missed: str | None  # what went before it could be archived
    since: int  # the first point of the newest chain
    through: int  # and the last
    holds: bool = False  # what it has not got yet stays in the journal until it comes by again


class _View(NamedTuple):
    """A journal at one moment: its manifest, and up to where its last segment is durable (0: it is closed)."""

    found: Manifest
    position: int
    owned: bool

    @property
    def active(self) -> SegmentInfo | None:
        return None if self.found.clean else self.found.segments[-1]


class ArchivePlan(NamedTuple):
    """The plan of a run: segments that continue the archive, and a new base if something was `missed`."""

    segments: list[SegmentInfo]
    missed: str | None


def archive(
    folder: str | Path,
    target: str | Path,
    *,
    new_base: bool = False,
    link: bool = True,
    hold: bool | None = None,
    progress: Progress | None = None,
    now: int | None = None,
    name: str | None = None,
    saved: Callable[[ArchiveCatalog], None] | None = None,
) -> ArchiveReport:
    """Bring the archive in `target` up to this moment; a new one where there is none. Run it again and again.

    From a run with `hold=True` on the journal keeps entries that are not in the archive yet, however long that takes.
    None leaves this unchanged, until a run with `hold=False`, or `release`. A run that fails does not begin to hold.

    Where `target` is only on the way to the archive called `name`, `saved` brings it there: with the new catalog,
    before the journal may drop records.
    """
    source, place = Path(folder), Path(target)
    check_folder(source)
    _check_target(source, place)
    if hold and (found := lineage.load(OsStorage(source))) is not None and found.is_standby:
        why = "what its primary drops goes from it, too; back it up often enough, or hold at the primary"
        raise NotSupported("holding the folder of a standby", why)
    lock = FolderLock(place)
    try:
        lock.take()
    except FolderInUse as busy:
        raise ArchiveBusy(str(place), busy.pid) from None
    try:
        lease = ReadersLease(source)
        holding = ArchiveHold(source, str(place.resolve()) if name is None else name, *_archive_id(place))
        try:
            # Before we look: what we see of the journal is held by then, or is ours by the lease.
            holding.begin(hold, time.time_ns() // 1000 if now is None else now)
            for _ in range(MAX_RETRIES):
                began = time.time_ns() // 1000 if now is None else now
                view = _look(source)
                try:
                    done = _ArchiveRun(source, place, view, holding, link=link, progress=progress, saved=saved)
                    report = done.run(began, new_base=new_base)
                    return report if name is None else msgspec.structs.replace(report, archive=name)
                except FileNotFoundError:
                    if manifest.load(OsStorage(source)) != view.found:
                        continue  # the owner has just closed, and with it went a segment that held nothing but state
                    missing = sorted(name for name in view.found.files() if not (source / name).exists())
                    if missing:
                        raise JournalDamaged(missing[0], 0, "it is missing") from None
                    raise
        except BaseException:
            holding.undo()
            raise
        finally:
            lease.release()
    finally:
        lock.release()
    raise FolderUnusable(str(source), "its owner swapped the manifest whenever it was read")


def release(folder: str | Path, target: str | Path) -> list[ArchiveHolder]:
    """Have an archive hold no more, though it is not there any more; what it held. It is not added to."""
    source, place = Path(folder), Path(target)
    check_folder(source)
    return archive_holds.release(source, _archive_id(place)[0], str(place.resolve()))


def _archive_id(place: Path) -> tuple[str, int]:
    """The id of an archive, and the number up to which segments are safe in it."""
    known = archive_catalog.load(place)
    return ("", 0) if known is None else (known.id, known.safe)


def _check_target(source: Path, place: Path) -> None:
    """Raise unless an archive is there, or can be."""
    try:
        if place.resolve().is_relative_to(source.resolve()):
            raise FolderUnusable(str(place), f"it lies in {str(source)!r} itself; name a place outside of it")
        if not os.path.lexists(place) or (place / archive_catalog.NAME).exists():
            return
        if not place.is_dir() or {path.name for path in place.iterdir()} - {SEGMENTS, BASES, LOCK, READERS}:
            raise FolderUnusable(str(place), "it contains files, but no archive")
    except OSError as error:
        raise FolderUnusable(str(place), error.strerror or str(error)) from None


def _look(folder: Path) -> _View:
    owned = owner_of(folder) is not None  # asked first: what it acknowledged before is durable in what we find
    return _View(*consistent_view(folder), owned)


def plan_archive(known: ArchiveCatalog, found: Manifest, archive: str) -> ArchivePlan:
    """The entries that continue the archive. Raises ArchiveMismatch if the journal is not the one that it grew from."""
    if known.journal != found.journal:
        raise ArchiveMismatch(archive, f"it holds journal {known.journal}, not {found.journal}")
    there = {info.number: info for info in found.segments if not info.generation}
    for piece in known.pieces:
        info = there.get(piece.info.number)
        if info is not None and (info.id != piece.info.id or not _fits(piece, info)):
            raise ArchiveMismatch(archive, f"segment {info.number} is not what it was: this is another life of it")
    tip = known.tip
    if tip is None:
        return ArchivePlan([], None)
    if isinstance(tip, ArchivedSegment):
        expected = tip.info.number + tip.whole
        oldest = tip.info.number + 1
    else:
        expected = oldest = tip.number
    if found.next_number < oldest:
        raise ArchiveMismatch(archive, f"the journal ends before segment {oldest}: it is older than its archive")
    segments: list[SegmentInfo] = []
    before = tip if isinstance(tip, ArchivedSegment) and tip.whole else None
    for info in found.segments:
        if info.generation or info.number < expected:
            continue
        if info.number != expected or (before is not None and not continues(before, info)):
            return ArchivePlan(segments, _missed(expected, max(expected, info.number - 1)))
        segments.append(info)
        expected, before = expected + 1, ArchivedSegment(info, whole=True)
    if expected != found.next_number:
        return ArchivePlan(segments, _missed(expected, found.next_number - 1))
    return ArchivePlan(segments, None)


def _fits(piece: ArchivedSegment, info: SegmentInfo) -> bool:
    if piece.whole:
        return info.end == piece.info.end
    return not info.sealed or info.end >= piece.info.end


def _missed(first: int, last: int) -> str:
    several = first != last
    which = f"segments {first} to {last} were" if several else f"segment {first} was"
    return (
        f"{which} gone before the archive had all of {'them' if several else 'it'}: dropped by retention, cleaned, "
        "mended, or without records when the broker closed"
    )


class _ArchiveRun:
    """One run, on one view of the journal."""

    def __init__(
        self,
        source: Path,
        place: Path,
        view: _View,
        holding: ArchiveHold,
        *,
        link: bool,
        progress: Progress | None,
        saved: Callable[[ArchiveCatalog], None] | None,
    ) -> None:
        self._saved = saved
        self.source, self.place, self.view, self.holding = source, place, view, holding
        self.pool = place / SEGMENTS
        self.known = archive_catalog.load(place) or ArchiveCatalog(view.found.journal)
        self.known.id = holding.id
        self._done = self._total = 0
        self._progress = progress
        self.carrier = FileCopier(link=link, carried=self._tell)

    def _tell(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def run(self, began: int, *, new_base: bool) -> ArchiveReport:
        known, view = self.known, self.view
        todo = plan_archive(known, view.found, str(self.place))
        first = known.tip is None
        why = "the first" if first else "something was missed" if todo.missed else "asked for" if new_base else None
        for folder in (self.pool, self.place / BASES):
            folder.mkdir(parents=True, exist_ok=True)
        sealed = [info for info in todo.segments if info.sealed]
        self._total = sum(info.end for info in sealed) + view.position
        if why is not None:
            self._total += sum(info.end for info in view.found.segments if info.sealed)
        added: list[SegmentInfo] = []
        try:
            added.extend(map(self._add, sealed))  # one by one: those before a damaged one are in it
            if why is not None:
                self._carry_older()
        except JournalDamaged:
            if added:
                self._save(began)  # whole entries count; nothing behind the damage does
            raise
        # Behind a gap nothing else is of use: all that came before the segment that grows is in the base.
        grown = 0 if view.active is None else self._grow(view.active)
        base = None if why is None else self._take_base(why if todo.missed is None else todo.missed, began)
        self._reach(began)
        self._save(began)
        if first:
            OsStorage(self.place.parent).sync_names()
        carrier = self.carrier
        newest = known.spans()[-1]
        return ArchiveReport(
            str(self.place),
            known.journal,
            added,
            grown,
            carrier.linked,
            carrier.copied,
            carrier.bytes,
            carrier.copied_bytes,
            None if base is None else base.name,
            why,
            todo.missed,
            newest.since,
            newest.through,
            self.holding.holds,
        )

    def _save(self, now: int) -> None:
        """Commit the copied files to the catalog."""
        self.carrier.settle()
        OsStorage(self.place).sync_names()
        archive_catalog.write(self.place, self.known)
        if self._saved is not None:
            self._saved(self.known)
        self.holding.move(self.known.safe, now)

    # -- segments -----------------------------------------------------------------------------------------------

    def _add(self, info: SegmentInfo) -> SegmentInfo:
        """A sealed segment that continues the archive."""
        self._carry(info)
        pieces = self.known.pieces
        if pieces and pieces[-1].info.number == info.number:
            pieces.pop()  # it was archived while it grew
        pieces.append(ArchivedSegment(info, whole=True, through=info.last_time))
        return info

    def _carry(self, info: SegmentInfo) -> None:
        """A sealed segment, every entry of it checked before it gets its name."""

        def check(file: Path) -> None:
            data = self._read(file, 0, info.end)
            check_header(data, info)
            end = START
            for found in entries(data, START, info, START):
                end = found.end
            if end != info.end:
                raise JournalDamaged(info.name, end, f"the segment was sealed with {info.end} bytes")

        self.carrier.carry(self.source / info.name, self.pool / pool_name(info), info.end, check=check)
        self.carrier.carry(self.source / info.index_name, self.pool / pool_index_name(info))

    def _grow(self, info: SegmentInfo) -> int:
        """Archive the durable part of the segment that is being written; the number of new bytes."""
        pieces, end = self.known.pieces, self.view.position
        before = pieces[-1] if pieces and pieces[-1].info.id == info.id else None
        start = 0 if before is None else before.info.end
        if end <= max(start, START):
            return 0
        target = self.pool / pool_name(info)
        piece = ArchivedSegment(msgspec.structs.replace(info, end=end), whole=False)
        if before is None or not target.exists():  # of an archive elsewhere, all of it is written again
            self.carrier.carry(self.source / info.name, target, end, link=False)
            check_header(self._read(target, 0, START), info)
        else:
            self.carrier.extend(self.source / info.name, target, start, end)
        if before is not None:
            piece.info.last_time, piece.info.end_sequence = before.info.last_time, before.info.end_sequence
            pieces.pop()
        self._survey(piece.info, target, max(start, START))
        pieces.append(piece)
        return end - start

    def _survey(self, info: SegmentInfo, file: Path, start: int) -> None:
        """Store the last time and sequence of the added entries, which must be whole."""
        reached = start
        for found in entries(self._read(file, start, info.end), 0, info, start):
            reached = found.end
            info.last_time = max(info.last_time, found.time)
            for part in found.parts:
                if part.kind in HOLDS_RECORDS:
                    info.end_sequence = max(info.end_sequence, end_sequence(part))
        if reached != info.end:
            raise JournalDamaged(info.name, reached, f"the journal was synced up to {info.end}")

    @staticmethod
    def _read(file: Path, start: int, end: int) -> bytes:
        with file.open("rb") as opened:
            opened.seek(start)
            return opened.read(end - start)

    # -- bases --------------------------------------------------------------------------------------------------

    def _take_base(self, why: str, began: int) -> ArchiveBase:
        """The state when the last segment began, and all segments before it."""
        found, active = self.view.found, self.view.active
        number = found.next_number if active is None else active.number
        if found.checkpoints and found.checkpoints[-1] != number:
            raise JournalDamaged(manifest.NAME, 0, "its last checkpoint is not that of its last segment")
        sealed = [info for info in found.segments if info.sealed]
        ledger = self._state(self.source, found)
        piece = self.known.pieces[-1] if self.known.pieces else None
        base = ArchiveBase(self._new_name(), number, START, ledger.time, ledger.sequence, began, ledger.time, why)
        if active is not None and piece is not None and piece.info.id == active.id:
            base.position = piece.info.end
            base.time = base.through = max(ledger.time, piece.info.last_time)
            base.sequence = max(ledger.sequence, piece.info.end_sequence)
        self._write_base(base, msgspec.structs.replace(found, segments=sealed, next_number=number))
        self.known.bases.append(base)
        return base

    def _carry_older(self) -> None:
        """The sealed segments that a base needs, in their present form."""
        known = self._known()
        for info in self.view.found.segments:
            if not info.sealed:
                continue
            if (info.number, info.generation, info.id) not in known:
                self._carry(info)
            else:
                self._tell(info.end)

    def _known(self) -> set[tuple[int, int, int]]:
        """The segments that are in the archive, whole."""
        found = {(piece.info.number, 0, piece.info.id) for piece in self.known.pieces if piece.whole}
        for base in self.known.bases[-1:]:
            before = manifest.load(OsStorage(archive_catalog.base_folder(self.place, base)))
            found |= {(info.number, info.generation, info.id) for info in before.segments} if before else set()
        return found

    @staticmethod
    def _state(folder: Path, found: Manifest) -> Ledger:
        ledger, before = Ledger(), 0
        for one in found.checkpoints:
            checkpoint.load(OsStorage(folder), one, before, ledger)
            before = one
        return ledger

    def _new_name(self) -> str:
        stem = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        taken = {base.name for base in self.known.bases}
        return next(name for at in range(len(taken) + 1) if (name := f"{stem}-{at}" if at else stem) not in taken)

    def _write_base(self, base: ArchiveBase, state: Manifest) -> None:
        final = archive_catalog.base_folder(self.place, base)
        making = final.with_name(final.name + TEMPORARY)
        for left in (making, final):
            shutil.rmtree(left, ignore_errors=True)  # of a run that was cut off
        making.mkdir()
        for number in state.checkpoints:
            name = checkpoint.name_of(number)
            self.carrier.carry(self.source / name, making / name, link=False)
        self._state(making, state)  # read back: a base without its state is worth nothing
        self.carrier.settle()
        manifest.write(OsStorage(making), state)
        making.rename(final)
        OsStorage(final.parent).sync_names()

    # -- the end of the archive ---------------------------------------------------------------------------------

    def _reach(self, began: int) -> None:
        """Note up to when nothing is missing."""
        tip, view = self.known.tip, self.view
        assert tip is not None, "the first run takes a base"
        last = tip.info.last_time if isinstance(tip, ArchivedSegment) else tip.time
        if view.found.clean or (view.owned and view.found.fsync == "commit"):
            # Entries acknowledged before the look were durable then. Without a sync at every commit they need not be.
            last = max(last, began)
        tip.through = max(tip.through, last)
