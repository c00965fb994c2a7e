"""Archive holds: segments that are not yet safe in an archive are neither cleaned nor dropped.

They stand in a small file in the journal's folder. An archive run replaces it as a whole; the owner reads it before
anything is removed. Where it cannot be read nothing is removed: an archive may depend on it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from runnel.journal.format.atomic_file import decode_value, encode_value, read_whole
from runnel.journal.storage import OsStorage, Storage

VERSION = 1
MAGIC = b"runnel/h"
NAME = "ARCHIVED"
NEW = "ARCHIVED.new"  # not one of the temporary names that an owner clears up
ALL_SEGMENTS = 1 << 63  # above the number of any segment
AGAIN = "; delete it, and archive with --hold again"


class ArchiveHolder(msgspec.Struct, frozen=True, array_like=True):
    """An archive that holds: segments up to the number `through` are safe in it. Times are in microseconds."""

    id: str
    place: str  # where it lay when it came by
    through: int
    since: int  # when it began to hold
    seen: int  # when it came by


def load(storage: Storage) -> list[ArchiveHolder]:
    """The archives that hold, by place; none where there is no file. Raises JournalDamaged and OSError."""
    try:
        data = read_whole(storage, NAME)
    except FileNotFoundError:
        return []
    return decode_value(
        data, MAGIC, VERSION, list[ArchiveHolder], NAME, "this does not say which archives hold", advice=AGAIN
    )


def safe(holders: Sequence[ArchiveHolder]) -> int:
    """The number up to which segments are safe in every archive that holds."""
    return min((one.through for one in holders), default=ALL_SEGMENTS)


def hold(folder: Path, holder: ArchiveHolder) -> None:
    """Begin a hold of an archive, or move its position; durable when this returns. The time of its begin stays."""
    with _changing(folder) as storage:
        before = load(storage)
        since = min([one.since for one in before if one.id == holder.id], default=holder.since)
        now = msgspec.structs.replace(holder, since=since)
        _write(storage, [*(one for one in before if one.id != holder.id), now])


def release(folder: Path, id: str, place: str) -> list[ArchiveHolder]:
    """Have an archive hold no more: the one of this id, or if there is none the one of this place; what it was."""
    with _changing(folder) as storage:
        before = load(storage)
        gone = [one for one in before if one.id == id] or [one for one in before if one.place == place]
        if gone:
            _write(storage, [one for one in before if one not in gone])
        return gone


class ArchiveHold:
    """Whether an archive holds while it is added to, and under which id; '' before it first did."""

    def __init__(self, folder: Path, place: str, id: str, through: int) -> None:
        self._folder, self._place, self._through = folder, place, through
        self.id = id
        self.holds = self._is_new = False

    def __repr__(self) -> str:
        return f"<ArchiveHold by {self._place!r}, {'on' if self.holds else 'off'}>"

    def begin(self, wanted: bool | None, now: int) -> None:
        """Begin to hold, leave it unchanged (None), or end it."""
        if wanted is False:
            release(self._folder, self.id, self._place)
            return
        if wanted is None and not self.id:
            return
        before = load(OsStorage(self._folder))
        if not self.id:  # a first run that was cut off may have left its own
            self.id = next((one.id for one in before if one.place == self._place), secrets.token_hex(8))
        known = [one for one in before if one.id == self.id]
        self.holds = wanted is True or bool(known)
        self._is_new = self.holds and not known
        if self.holds and (not known or known[0].through > self._through):
            self.move(self._through, now)

    def move(self, through: int, now: int) -> None:
        """Segments up to this number are safe in the archive."""
        if self.holds:
            hold(self._folder, ArchiveHolder(self.id, self._place, through, now, now))

    def undo(self) -> None:
        """The run failed: do not begin to hold."""
        if self._is_new:
            release(self._folder, self.id, self._place)


@contextmanager
def _changing(folder: Path) -> Iterator[OsStorage]:
    """The folder, while no other process changes the file: several archives may run at once."""
    import fcntl  # a system without it has no journals to archive

    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # on the folder itself: owner and readers lock files in it
        yield OsStorage(folder)
    finally:
        os.close(fd)


def _write(storage: OsStorage, holders: Sequence[ArchiveHolder]) -> None:
    data = encode_value(MAGIC, VERSION, sorted(holders, key=lambda one: one.place))
    file = storage.create(NEW)
    try:
        file.write(0, [data])
        file.sync()
        storage.rename(NEW, NAME)
    finally:
        file.close()
    storage.sync_names()
