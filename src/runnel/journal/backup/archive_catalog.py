"""The catalog of an archive: which segments and bases it holds, and which points can be restored.

An archive is a folder: `CATALOG`; `segments/`, the segments as they were written and those that bases need;
`bases/NAME/`, the state of the journal when a segment began. A base and the segments that follow it without a gap are
a chain, and any point of a chain can be restored. A file that the catalog does not name does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from runnel.core.clock import from_micros
from runnel.core.errors import ArchiveDamaged, NoArchive
from runnel.journal.format.atomic_file import decode_value, encode_value, read_whole, replace_file
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.storage import OsStorage

VERSION = 1
MAGIC = b"runnel/a"
NAME, SEGMENTS, BASES = "CATALOG", "segments", "bases"


class ArchivedSegment(msgspec.Struct, array_like=True):
    """A segment as it was written: all of it, or (not `whole`) up to `info.end`, where it still grew."""

    info: SegmentInfo
    whole: bool
    through: int = 0  # microseconds: up to then nothing is missing, if this is the last of its chain


class ArchiveBase(msgspec.Struct, array_like=True):
    """The state when segment `number` began, and the older segments as they were when the base was taken.

    Retention and the cleaner may have been at those by then, so a base is good for points from `time` on.
    """

    name: str
    number: int
    position: int  # up to where that segment was written when the base was taken
    time: int  # of the last change by then, in microseconds
    sequence: int  # the next one by then
    taken: int  # microseconds, by the clock
    through: int  # up to then nothing is missing, if no piece follows
    why: str


class RestorableSpan(NamedTuple):
    """Bases whose chains run into each other. Every point in [since, through] can be restored."""

    bases: list[ArchiveBase]
    since: int
    through: int
    pieces: int
    bytes: int


class ArchiveCatalog(msgspec.Struct):
    """The contents of an archive, oldest first."""

    journal: str
    pieces: list[ArchivedSegment] = []
    bases: list[ArchiveBase] = []
    id: str = ""  # of the archive, once it holds a journal

    def chain(self, base: ArchiveBase) -> list[ArchivedSegment]:
        """The pieces that follow on a base, up to the first gap."""
        found: list[ArchivedSegment] = []
        for piece in self.pieces:
            if piece.info.number < base.number:
                continue
            if not (continues(found[-1], piece.info) if found else piece.info.number == base.number):
                break
            found.append(piece)
        return found

    def reach(self, base: ArchiveBase) -> int:
        """Up to when nothing is missing in the chain of a base."""
        chain = self.chain(base)
        return chain[-1].through if chain else base.through

    def base(self, name: str) -> ArchiveBase | None:
        """The base of that name."""
        return next((one for one in self.bases if one.name == name), None)

    def spans(self) -> list[RestorableSpan]:
        """The restorable spans, oldest first. Between two spans entries are missing."""
        joined: list[list[ArchiveBase]] = []
        for base in self.bases:
            if joined and self._reaches(joined[-1][-1], base):
                joined[-1].append(base)
            else:
                joined.append([base])
        found = []
        for bases in joined:
            chain = self.chain(bases[0])
            through = max(map(self.reach, bases))
            found.append(
                RestorableSpan(bases, bases[0].time, through, len(chain), sum(piece.info.end for piece in chain))
            )
        return found

    def _reaches(self, before: ArchiveBase, base: ArchiveBase) -> bool:
        chain = self.chain(before)
        if not chain:
            return before.number == base.number
        return chain[-1].info.number + chain[-1].whole >= base.number

    @property
    def tip(self) -> ArchivedSegment | ArchiveBase | None:
        """The end of the archive, which new entries must continue."""
        if not self.bases:
            return None
        last = self.pieces[-1] if self.pieces else None
        return last if last is not None and last.info.number >= self.bases[-1].number else self.bases[-1]

    @property
    def safe(self) -> int:
        """The number of the newest segment that is whole in the archive, as written or in its newest base."""
        tip = self.tip
        if tip is None:
            return 0
        return tip.info.number - (not tip.whole) if isinstance(tip, ArchivedSegment) else tip.number - 1


def continues(before: ArchivedSegment, info: SegmentInfo) -> bool:
    """Whether a segment continues an archived one without a gap."""
    return before.whole and info.number == before.info.number + 1 and info.first_sequence == before.info.end_sequence


def pool_name(info: SegmentInfo) -> str:
    """The file of a segment in an archive: its own name, and the id that no other segment has."""
    return f"{info.name.removesuffix('.seg')}.{info.id:016x}.seg"


def pool_index_name(info: SegmentInfo) -> str:
    """The file of its index."""
    return f"{info.name.removesuffix('.seg')}.{info.id:016x}.idx"


def base_folder(archive: Path, base: ArchiveBase) -> Path:
    """Where a base lies."""
    return archive / BASES / base.name


def as_utc(micros: int) -> str:
    """A time as text, to the microsecond, in UTC."""
    return from_micros(micros).isoformat(timespec="microseconds").replace("+00:00", "Z")


def write(archive: Path, catalog: ArchiveCatalog) -> None:
    """Swap the catalog; durable when this returns. The files that it names must be durable before."""
    storage = OsStorage(archive)
    replace_file(storage, NAME, [encode(catalog)])
    storage.sync_names()


def encode(catalog: ArchiveCatalog) -> bytes:
    """The bytes of the file."""
    return encode_value(MAGIC, VERSION, catalog)


def load(archive: Path) -> ArchiveCatalog | None:
    """The catalog; None where there is none."""
    try:
        data = read_whole(OsStorage(archive), NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return decode(data, str(archive / NAME))


def decode(data: bytes, file: str) -> ArchiveCatalog:
    """Decode `file`; raises if it is damaged or of a newer version."""
    return decode_value(data, MAGIC, VERSION, ArchiveCatalog, file, "this is not a catalog", damaged=ArchiveDamaged)


class ArchiveFiles(Protocol):
    """Where a restore finds the files of an archive, and its catalog. `shown`: as errors name the archive."""

    shown: str
    catalog: ArchiveCatalog

    def file(self, name: str) -> Path:
        """A file of the archive, by its name in it, such as `segments/…`. `FileNotFoundError` if it is not there."""

    def used(self, name: str) -> None:
        """The file was read, and its contents are known."""


class FolderArchive:
    """An archive in a folder."""

    def __init__(self, archive: Path) -> None:
        self._archive, self.shown = archive, str(archive)
        self.catalog = open_catalog(archive)

    def file(self, name: str) -> Path:
        """Where it lies."""
        return self._archive / name

    def used(self, name: str) -> None:
        """It stays."""


def open_catalog(archive: Path) -> ArchiveCatalog:
    """The catalog of an archive that has to be there."""
    found = load(archive)
    if found is None:
        raise NoArchive(str(archive))
    return found
