"""Point-in-time restore: make a folder from an archive, with the journal's state at a point in time.

The newest base before the point, then every whole entry behind it up to the point. Every crc on the way is checked;
damage, a missing file or a gap is an error that names it. The new folder gets its name when everything is durable.

No (epoch, offset) and no sequence ever names two records: the offsets that the journal assigned after the point are
unknown here, so the new one skips further ahead than any of them, and gets its own id.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from runnel.core.errors import ArchiveDamaged, FolderUnusable, JournalDamaged, PointNotArchived
from runnel.journal.backup.archive import FileCopier
from runnel.journal.backup.archive_catalog import (
    BASES,
    SEGMENTS,
    ArchiveBase,
    ArchiveCatalog,
    ArchiveFiles,
    FolderArchive,
    as_utc,
    pool_index_name,
    pool_name,
)
from runnel.journal.check.scan import Progress
from runnel.journal.clean.live_records import LiveSnapshot
from runnel.journal.format import checkpoint, manifest
from runnel.journal.format.atomic_file import replace_file
from runnel.journal.format.entry import HOLDS_RECORDS, Entry, PartKind
from runnel.journal.format.index import IndexFile, end_sequence
from runnel.journal.format.ledger import Ledger, trim_part
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import START, SegmentInfo, check_header, entries
from runnel.journal.read.recovery import recover
from runnel.journal.read.segment_reader import rebuild_index
from runnel.journal.storage import OsStorage
from runnel.journal.write.journal import SKIPPED_EPOCHS, SKIPPED_OFFSETS

GIVEN = 16  # records in a microsecond: more than any journal hands out


class Point(NamedTuple):
    """Up to where: the last entry not younger than `time`, or before one that holds a record beyond `sequence`."""

    time: int | None = None
    sequence: int | None = None

    def __str__(self) -> str:
        if self.time is not None:
            return as_utc(self.time)
        return "everything" if self.sequence is None else f"sequence {self.sequence}"

    def is_before(self, entry: Entry) -> bool:
        """Whether an entry lies behind the point."""
        if self.time is not None:
            return entry.time > self.time
        if self.sequence is None:
            return False
        return any(part.kind in HOLDS_RECORDS and end_sequence(part) - 1 > self.sequence for part in entry.parts)

    def is_after(self, base: ArchiveBase) -> bool:
        """Whether a base is good for the point."""
        if self.time is not None:
            return base.time <= self.time
        return self.sequence is None or base.sequence <= self.sequence + 1


class Restored(msgspec.Struct, frozen=True):
    """The restored records, and the archive that they are from."""

    target: str
    journal: str  # its own id
    source: str  # the id of the journal that was archived
    base: str
    time: int  # of the last change that is in it, in microseconds
    sequence: int  # behind the last record that is in it
    entries: int  # read behind the base
    segments: int
    linked: int  # files
    copied: int
    bytes: int
    copied_bytes: int
    skipped: int  # offsets, and sequences, that are not given again
    notes: list[str]
    dry_run: bool = False


def restore(
    archive: str | Path | ArchiveFiles,
    target: str | Path | None,
    point: Point | None = None,
    *,
    base: str | None = None,
    link: bool = True,
    progress: Progress | None = None,
    now: int | None = None,
) -> Restored:
    """Make the folder `target`, which must not exist or be empty. With None everything is read, and nothing made.

    `progress` gets the bytes that are read, and then from the beginning those that are copied.
    """
    source, point = FolderArchive(Path(archive)) if isinstance(archive, str | Path) else archive, point or Point()
    found = source.catalog
    chosen = choose_base(found, point, base)
    place = None if target is None else _checked_target(Path(target), source)
    replay = _Replay(source, chosen, progress)
    replay.run(point)
    replay.check_reached(point)
    now = max(time.time_ns() // 1000 if now is None else now, found.spans()[-1].through)
    return _FolderWriter(replay, chosen, link=link, progress=progress).make(place, now)


def choose_base(found: ArchiveCatalog, point: Point, name: str | None) -> ArchiveBase:
    """The newest base that is not after the point, or the one that was named."""
    if name is not None:
        named = found.base(name)
        if named is None:
            there = ", ".join(one.name for one in found.bases)
            raise PointNotArchived(f"base {name!r}", f"there is no such base, only {there}")
        if not point.is_after(named):
            raise PointNotArchived(
                str(point), f"base {name} was taken after it, at {as_utc(named.time)} and sequence {named.sequence}"
            )
        return named
    good = [one for one in found.bases if point.is_after(one)]
    if not good:
        first = found.bases[0]
        raise PointNotArchived(
            str(point), f"the archive begins after it, at {as_utc(first.time)} and sequence {first.sequence}"
        )
    return good[-1]


def _checked_target(place: Path, source: ArchiveFiles) -> Path:
    try:
        if isinstance(source, FolderArchive) and place.resolve().is_relative_to(Path(source.shown).resolve()):
            raise FolderUnusable(str(place), f"it lies in the archive {source.shown!r}; name a place outside of it")
        if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
            raise FolderUnusable(str(place), "there is something in it already")
    except OSError as error:
        raise FolderUnusable(str(place), error.strerror or str(error)) from None
    return place


class _Used(NamedTuple):
    """A segment of the archive that the new journal may need, and its index."""

    info: SegmentInfo
    places: IndexFile | None  # None: it has to be made again
    may_link: bool


class _Replay:
    """Reads a base and the entries behind it, into the state at a point."""

    def __init__(self, files: ArchiveFiles, base: ArchiveBase, progress: Progress | None) -> None:
        self.files, self.catalog, self.base = files, files.catalog, base
        self.ledger = Ledger()
        self.used: list[_Used] = []
        self.entries = 0
        self.notes: list[str] = []
        self._stopped = False  # at an entry behind the point
        self._progress = progress
        self._done = self._total = 0

    def run(self, point: Point) -> None:
        state = self._load_base()
        chain = self.catalog.chain(self.base)
        self._total = sum(info.end for info in (*state.segments, *(piece.info for piece in chain)))
        for info in state.segments:
            for _ in self._entries(info):
                pass  # they are checked
            self._use(info)
        for piece in chain:
            self._replay(piece.info, point, whole=piece.whole)
            if self._stopped:
                break

    def check_reached(self, point: Point) -> None:
        """Raise unless the archive covers everything up to the point."""
        if self._stopped or point == Point():
            return
        reach = self.catalog.reach(self.base)
        if point.time is not None and point.time <= reach:
            return
        if point.sequence is not None and point.sequence < self.ledger.sequence:
            return
        told = f"{as_utc(reach)}, sequence {self.ledger.sequence - 1}"
        later = [one for one in self.catalog.bases if one.time > self.ledger.time and not self._in_chain(one)]
        if later:
            raise PointNotArchived(
                str(point),
                f"what happened between {told} and {as_utc(later[0].time)}, sequence {later[0].sequence} is not in the "
                f"archive ({later[0].why})",
            )
        raise PointNotArchived(str(point), f"the archive ends at {told}; archive again, or leave out --until")

    def _in_chain(self, base: ArchiveBase) -> bool:
        return any(base in span.bases and self.base in span.bases for span in self.catalog.spans())

    def _load_base(self) -> Manifest:
        folder = f"{BASES}/{self.base.name}"
        try:
            state = manifest.load(OsStorage(self._base_file(folder, manifest.NAME)))
            if state is None:
                raise JournalDamaged(manifest.NAME, 0, "it is missing")
            before = 0
            for number in state.checkpoints:
                place = self._base_file(folder, checkpoint.name_of(number))
                checkpoint.load(OsStorage(place), number, before, self.ledger)
                before = number
            self.ledger.forget_placed(state.placed)
        except JournalDamaged as error:
            file = f"{self.files.shown}/{folder}/{error.file}"
            raise ArchiveDamaged(file, error.position, error.why) from None
        return state

    def _base_file(self, folder: str, name: str) -> Path:
        """Have a file of the base; the folder that it is in."""
        try:
            return self.files.file(f"{folder}/{name}").parent
        except FileNotFoundError:
            raise JournalDamaged(name, 0, "it is missing") from None

    def _replay(self, info: SegmentInfo, point: Point, *, whole: bool) -> None:
        """Take a segment into the ledger, up to the point."""
        end = START
        for found in self._entries(info):
            if self._stopped or point.is_before(found):
                self._stopped = True  # the rest is only checked
                continue
            # These files are in the form that they were written in, without the cleaner's changes.
            cleaned = info.number > self.base.number or found.position >= self.base.position
            parts = [part for part in found.parts if not (cleaned and part.kind == PartKind.COMPACTED)]
            self.ledger.apply(parts, found.time)
            self.entries += 1
            end = found.end
        if whole and end == info.end:
            self._use(info)
        elif end > START:
            cut = msgspec.structs.replace(
                info, end=end, end_sequence=self.ledger.sequence, last_time=max(self.ledger.time, info.first_time)
            )
            self.used.append(_Used(cut, None, may_link=False))

    def _entries(self, info: SegmentInfo) -> Iterator[Entry]:
        """All entries of a segment, each of them checked; raises when one is not whole."""
        name = f"{SEGMENTS}/{pool_name(info)}"
        file = f"{self.files.shown}/{name}"
        try:
            data = self.files.file(name).read_bytes()[: info.end]
        except FileNotFoundError:
            raise ArchiveDamaged(file, 0, "it is missing") from None
        try:
            check_header(data, info)
        except JournalDamaged as error:
            raise ArchiveDamaged(file, error.position, error.why) from None
        end = START
        for found in entries(data, START, info, START):
            yield found
            end = found.end
        if end != info.end:
            why = "the crc of an entry is wrong" if len(data) == info.end else f"it is cut short at {len(data)}"
            raise ArchiveDamaged(file, end, why)
        self.files.used(name)
        self._done += info.end
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _use(self, info: SegmentInfo) -> None:
        """All of a segment belongs to the new journal."""
        name = pool_index_name(info)
        places = None
        try:
            places = IndexFile(memoryview(self.files.file(f"{SEGMENTS}/{name}").read_bytes()), info)
        except (FileNotFoundError, JournalDamaged) as error:
            why = error.why if isinstance(error, JournalDamaged) else "it is missing"
            self.notes.append(f"{name} is damaged ({why}); it was made again from the segment")
        self.used.append(_Used(info, places, may_link=True))

    def wanted(self) -> list[_Used]:
        """The segments in which anything is left at the point."""
        wants = LiveSnapshot.of(self.ledger).wants
        return [
            one
            for one in self.used
            if one.places is None or any(wants(topic, found.end - 1) for topic, found in one.places.topics())
        ]


class _FolderWriter:
    """Writes the new folder."""

    def __init__(self, replay: _Replay, base: ArchiveBase, *, link: bool, progress: Progress | None) -> None:
        self.replay, self.base = replay, base
        self.carrier = FileCopier(link=link, carried=self._tell)
        self._progress = progress
        self._done = self._total = 0

    def _tell(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def make(self, place: Path | None, now: int) -> Restored:
        replay, ledger = self.replay, self.replay.ledger
        at, reached = ledger.time, ledger.sequence
        used = replay.wanted()
        skip = skipped(at or self.base.taken, now)
        journal = secrets.token_hex(8)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            making = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
            try:
                self._fill(making, used, skip, now, journal)
                os.rename(making, place)  # over an empty folder, too
                OsStorage(place.parent).sync_names()
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise
        carrier = self.carrier
        return Restored(
            str(place or ""),
            journal,
            replay.catalog.journal,
            self.base.name,
            at,
            reached,
            replay.entries,
            len(used),
            carrier.linked,
            carrier.copied,
            carrier.bytes,
            carrier.copied_bytes,
            skip,
            replay.notes,
            place is None,
        )

    def _fill(self, making: Path, used: list[_Used], skip: int, now: int, journal: str) -> None:
        files, storage, ledger = self.replay.files, OsStorage(making), self.replay.ledger
        self._total = sum(one.info.end for one in used)
        for info, places, may_link in used:
            segment = files.file(f"{SEGMENTS}/{pool_name(info)}")
            self.carrier.carry(segment, making / info.name, info.end, link=may_link)
            if places is not None:
                self.carrier.carry(files.file(f"{SEGMENTS}/{pool_index_name(info)}"), making / info.index_name)
            else:
                replace_file(storage, info.index_name, [rebuild_index(storage, info)[0].encode(info)])
        skip_ahead(ledger, skip, now)
        last = max((one.info.number for one in self.replay.used), default=0)
        number = max(last + 1, self.base.number)
        size = checkpoint.write(storage, number, 0, ledger)
        self.carrier.settle()
        storage.sync_names()  # whatever the manifest names must be there before it is
        segments = [one.info for one in used]
        manifest.write(storage, Manifest(journal, segments, [number], number, full_bytes=size))
        recover(storage, lambda: "")  # so that we know that it opens


def skipped(since: int, now: int) -> int:
    """How many offsets may have been given between two times (microseconds), and more."""
    return SKIPPED_OFFSETS + GIVEN * max(0, now - since)


def skip_ahead(ledger: Ledger, skip: int, now: int) -> None:
    """Let the journal continue beyond all ids that may have been assigned."""
    ledger.sequence = max(ledger.sequence, ledger.reserved) + skip
    ledger.epoch += SKIPPED_EPOCHS
    trims = [trim_part(topic.id, topic.first, topic.end + skip, time=now) for topic in ledger.topics.values()]
    ledger.apply(trims, ledger.time)
