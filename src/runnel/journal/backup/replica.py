"""The folder of a standby: a journal that is a copy of the primary's, segment by segment, byte for byte.

Files of the primary's manifest are copied and checked, then the manifest is swapped: so the folder is at every moment a
whole journal as the primary once had it. Entries of the segment that grows are appended as they come. Every crc is
checked before anything is written. One thread at a time; it does no network I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from runnel.core.checksum import crc_of
from runnel.core.errors import FormatUnknown, JournalDamaged, ReplicaDamaged, StandbyRefused
from runnel.core.replication import ASYNC, SYNC, FileOffer, FollowReply, JournalPlace
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format import checkpoint, lineage, manifest, segment, watermark
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import HEADER, HOLDS_RECORDS, MAGIC, MAX_LENGTH
from runnel.journal.format.index import IndexFile, end_sequence
from runnel.journal.format.lineage import Lineage
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import (
    START,
    TEMPORARY,
    ActiveSegment,
    SegmentInfo,
    check_header,
    entries,
    release_reserved,
)
from runnel.journal.options import JournalOptions
from runnel.journal.storage import File, OsStorage


class NeededFile(NamedTuple):
    """A file of the primary that is to be copied: bytes [start, end); `end` 0: all of it, however long it is."""

    name: str
    start: int
    end: int
    info: SegmentInfo | None  # of a segment and of an index
    before: int = 0  # of a checkpoint: the number of the one before it


class Replica:
    """A standby's folder. Its lock is the caller's."""

    def __init__(self, lock: FolderLock, options: JournalOptions, found: Lineage) -> None:
        self.folder, self.options, self.lineage = lock.folder, options, found
        self._lock = lock
        self.storage = OsStorage(self.folder)
        self.sequence = self.time = 0  # the end of the sequences, and the time of the last entry
        self.verified = 0  # bytes that were checked and stored in this life
        self.crc = 0  # of the manifest that counts
        self._manifest: Manifest | None = None
        self._active: ActiveSegment | None = None
        self._mark: File | None = None
        self._partial = b""  # the beginning of an entry that has not come whole yet
        self._found: list[SegmentInfo] = []  # segments that were here before, and may be longer than the manifest says
        self._known: dict[str, int] = {}  # files that were checked, and the id of the segment they are of
        self._rejoins = self._begun_anew = False  # these files may be removed; the folder is the journal of a primary

    def __repr__(self) -> str:
        return f"<Replica {str(self.folder)!r} of {self.lineage.shown_primary}, at {self.place}>"

    @classmethod
    def open(cls, lock: FolderLock, options: JournalOptions, primary: str, *, rejoin: bool = False) -> Replica:
        """The folder, ready to follow `primary`; a new one where there is none.

        A folder that holds a journal of its own is refused, unless it is to `rejoin`: then what the primary has not,
        goes, as soon as `accept` has seen that it is the newer one.
        """
        storage = OsStorage(lock.folder)
        before = lineage.load(storage)
        if before is not None and before.is_standby:
            if before.primary != primary:
                before.primary = primary
                lineage.write(storage, before)
            made = cls(lock, options, before)
            if before.whole:
                made._resume()
        else:
            holds = any(name == manifest.NAME or name.endswith((".seg", ".ckpt")) for name in storage.names())
            if holds and not rejoin:
                raise StandbyRefused(
                    f"{str(lock.folder)!r} holds the journal of a primary; --rejoin makes a standby of it, and "
                    "discards what the new primary does not have"
                )
            found = Lineage(id=lineage.new_id(), is_standby=True, primary=primary, whole=False)
            if before is not None:
                found.origin, found.number = before.origin, max(before.number, before.superseded)
            made = cls(lock, options, found)
            made._begun_anew = holds
            if not holds:
                lineage.write(storage, found)
        made._rejoins = rejoin
        return made

    # -- where it is --------------------------------------------------------------------------------------------

    @property
    def place(self) -> JournalPlace | None:
        """Up to where it is durable; None: its files are no journal yet."""
        active = self._active
        return None if active is None else JournalPlace(active.info.number, active.info.id, active.synced)

    @property
    def ahead(self) -> int:
        """Bytes behind `place` that have come, of an entry that is not whole yet."""
        return len(self._partial)

    def _resume(self) -> None:
        """Continue behind the last whole entry. The primary sends the torn rest again."""
        data = read_whole(self.storage, manifest.NAME)
        found = manifest.decode(data)
        self._manifest, self.crc = found, crc_of(data)
        for info in found.segments:
            if info.sealed:
                self._known[info.name] = self._known[info.index_name] = info.id
        for number in found.checkpoints:
            self._known[checkpoint.name_of(number)] = 0
        if missing := self._known.keys() - set(self.storage.names()):
            for name in missing:  # an operator removed a damaged file: the primary sends it again
                del self._known[name]
            self.crc = 0  # the primary sends its manifest, and the files that it needs
        if found.clean:
            last = found.segments[-1] if found.segments else None
            self.sequence, self.time = (last.end_sequence, last.last_time) if last else (0, 0)
            return
        info = found.segments[-1]
        data = read_whole(self.storage, info.name)
        check_header(data, info)
        self.sequence, self.time = info.first_sequence, info.first_time
        end = START
        for one in entries(data, START, info, START):
            end = one.end
            self._note(one.parts, one.time)
        mark = watermark.read(self.storage)
        if mark is not None and mark.id == info.id and end < mark.position:
            raise JournalDamaged(info.name, end, f"the standby had synced up to {mark.position}")
        file = self.storage.open(info.name, writable=True)
        active = ActiveSegment(info, file, max(self.options.segment_bytes, end))
        file.truncate(end)  # nothing that is torn stays behind the end
        proven = mark.position if mark is not None and mark.id == info.id else START
        # After a failed sync the page cache holds bytes that are not on the disk, and a second one writes nothing.
        file.write(proven, [data[proven:end]])
        file.allocate(active.limit)
        active.end = end
        active.sync()
        self._active = active
        self._publish()

    def _note(self, parts: Sequence[object], time: int) -> None:
        self.time = max(self.time, time)
        for part in parts:
            if part.kind in HOLDS_RECORDS:  # type: ignore[attr-defined]
                self.sequence = max(self.sequence, end_sequence(part))  # type: ignore[arg-type]

    def _publish(self) -> None:
        """Say up to where the folder is durable, for other processes that read it, and for the next life."""
        active = self._active
        if active is not None:
            if self._mark is None:
                self._mark = self.storage.create(watermark.NAME)
            watermark.write(self._mark, active.info.number, active.info.id, active.synced)

    # -- the segment that grows ---------------------------------------------------------------------------------

    def append(self, data: bytes) -> None:
        """Bytes that follow on `place` and `ahead`: check the entries that are whole now, and make them durable."""
        active = self._active
        assert active is not None, "a folder with a place follows"
        data = self._partial + data
        end = active.end
        for one in entries(data, 0, active.info, end):
            end = one.end
            self._note(one.parts, one.time)
        whole = end - active.end
        rest = data[whole:]
        if len(rest) >= HEADER.size:
            magic, _, length, *_ = HEADER.unpack_from(rest)
            if magic != MAGIC or length > MAX_LENGTH or len(rest) >= length:
                self._partial = b""
                raise ReplicaDamaged(active.info.name, end, "the crc of an entry is wrong")
        if whole:
            try:
                active.write([data[:whole]], whole)
                active.sync()
            except OSError:
                active.end, self._partial = active.synced, b""  # it is sent and written again
                raise
            self._publish()
            self.verified += whole
        self._partial = rest

    # -- files --------------------------------------------------------------------------------------------------

    def needed(self, found: Manifest) -> list[NeededFile]:
        """The files to copy before the folder can be the journal that the manifest describes."""
        files: list[NeededFile] = []
        before = 0
        for number in found.checkpoints:
            name = checkpoint.name_of(number)
            if name not in self._known:
                files.append(NeededFile(name, 0, 0, None, before))
            before = number
        for info in found.segments:
            if info.sealed:
                files += self.needed_of(info)
        return files

    def needed_of(self, info: SegmentInfo) -> list[NeededFile]:
        """The bytes to copy of a sealed segment."""
        files: list[NeededFile] = []
        active = self._active
        if active is not None and active.info.id == info.id:
            if active.end < info.end:
                files.append(NeededFile(info.name, active.end, info.end, info))
        elif self._known.get(info.name) != info.id and not self._is_here(info):
            files.append(NeededFile(info.name, self._begun(info), info.end, info))
        if self._known.get(info.index_name) != info.id:
            files.append(NeededFile(info.index_name, 0, 0, info))
        return files

    def _is_here(self, info: SegmentInfo) -> bool:
        """Whether the file is there from before, and whole."""
        try:
            self._check_segment(info.name, info)
        except (FileNotFoundError, JournalDamaged):
            return False
        file = self.storage.open(info.name, writable=True)
        try:
            file.sync()  # its last owner may not have
        finally:
            file.close()
        self._known[info.name] = info.id
        self._found.append(info)
        return True

    def _begun(self, info: SegmentInfo) -> int:
        """How much of a file came before the copy was cut off."""
        try:
            file = self.storage.open(info.name + TEMPORARY)
        except FileNotFoundError:
            return 0
        try:
            check_header(file.read(0, START), info)
            return min(file.size(), info.end)
        except (JournalDamaged, FormatUnknown):
            return 0
        finally:
            file.close()

    def write(self, needed: NeededFile, at: int, data: bytes) -> None:
        """Bytes of a file, from `at` on. They count when `finish` has checked all of it."""
        active = self._active
        if active is not None and needed.info is not None and needed.name == active.info.name:
            self.append(data)
            return
        temporary = needed.name + TEMPORARY
        file = self.storage.open(temporary, writable=True) if at else self.storage.create(temporary)
        try:
            file.write(at, [data])
        finally:
            file.close()

    def finish(self, needed: NeededFile) -> None:
        """All of a file has come: check it, and give it its name."""
        active = self._active
        if active is not None and needed.name == active.info.name:
            if active.end != needed.end:
                raise ReplicaDamaged(needed.name, active.end, f"the segment was sealed with {needed.end} bytes")
            return
        temporary = needed.name + TEMPORARY
        try:
            self._check(needed, temporary)
        except JournalDamaged as error:
            with suppress(FileNotFoundError):
                self.storage.remove(temporary)
            raise ReplicaDamaged(needed.name, error.position, error.why) from None
        file = self.storage.open(temporary, writable=True)
        try:
            file.sync()
        finally:
            file.close()
        self.storage.rename(temporary, needed.name)
        self._known[needed.name] = 0 if needed.info is None else needed.info.id

    def _check(self, needed: NeededFile, file: str) -> None:
        if needed.info is None:
            data = read_whole(self.storage, file)
            checkpoint.verify(data, int(needed.name.partition(".")[0]), needed.before)
            self.verified += len(data)
        elif needed.name == needed.info.name:
            self._check_segment(file, needed.info)
            self.verified += needed.info.end
        else:
            data = read_whole(self.storage, file)
            IndexFile(memoryview(data), needed.info)
            self.verified += len(data)

    def _check_segment(self, name: str, info: SegmentInfo) -> None:
        """Raise unless a file holds the segment, every entry of it whole."""
        data = read_whole(self.storage, name)[: info.end]
        check_header(data, info)
        end = START
        for one in entries(data, START, info, START):
            end = one.end
        if end != info.end:
            raise JournalDamaged(info.name, end, f"the segment was sealed with {info.end} bytes")

    # -- the manifest -------------------------------------------------------------------------------------------

    def adopt(self, data: bytes, header: bytes) -> None:
        """Be the journal that a manifest of the primary describes; its files are here.

        `header`: the first bytes of the segment that is being written.
        """
        found = manifest.decode(data)
        old = self._active
        active = old
        if found.clean:
            active = None
        elif old is None or old.info.id != found.segments[-1].id:
            info = found.segments[-1]
            check_header(header, info)
            created = segment.HEADER.unpack_from(header)[-1]
            active = ActiveSegment.create(self.storage, info, self.options.segment_bytes, created)
            active.sync()
        self.storage.sync_names()  # whatever the manifest names must be there before it is
        manifest.write(self.storage, found)
        if not self.lineage.whole:
            self.lineage.whole = True
            lineage.write(self.storage, self.lineage)
        if active is not old:
            if old is not None:
                old.file.close()
            self._active, self._partial = active, b""
            for info in found.segments:
                if old is not None and info.id == old.info.id:
                    self._known[info.name] = info.id
                    self._found.append(info)
        while self._found:  # they were sealed, perhaps before the end that is here
            release_reserved(self.storage, self._found.pop())
        last = found.segments[-1] if found.segments else None
        if last is not None:
            self.sequence = max(self.sequence, last.first_sequence, last.end_sequence)
            self.time = max(self.time, last.first_time, last.last_time)
        self._manifest, self.crc = found, crc_of(data)
        self._publish()
        self._clear_up()

    def _clear_up(self) -> None:
        """Remove what the manifest does not name, unless another process is looking; segments on offer stay."""
        assert self._manifest is not None
        if self._lock.has_readers():
            return
        offered = {name for info in self._offered for name in (info.name, info.index_name)}
        offered |= {name + TEMPORARY for name in offered}
        for name in self._manifest.unnamed(self.storage.names()):
            if name not in offered:
                self._known.pop(name, None)
                with suppress(FileNotFoundError):
                    self.storage.remove(name)

    _offered: tuple[SegmentInfo, ...] = ()

    def offered(self, offers: Sequence[FileOffer]) -> list[SegmentInfo]:
        """Segments that will replace others soon: keep their received bytes."""
        self._offered = tuple(SegmentInfo(*offer) for offer in offers)
        return list(self._offered)

    def has(self, info: SegmentInfo) -> bool:
        """Whether a segment and its index are here."""
        return self._known.get(info.name) == info.id and self._known.get(info.index_name) == info.id

    # -- promises -----------------------------------------------------------------------------------------------

    def learn(self, said: FollowReply) -> None:
        """Store what the primary says about the journal and the mode, if it is new.

        The mode is "sync" only once everything that the primary has is here: from then on it acknowledges nothing that
        is not. The lease is stored before it is granted.
        """
        known = self.lineage
        mode = known.mode
        if said.mode == ASYNC:
            mode = ASYNC
        elif self.place is not None and self.place == said.end:
            mode = SYNC
        learned = msgspec.structs.replace(
            known, origin=said.origin, number=said.generation, key=said.key, mode=mode, lease=said.lease or known.lease
        )
        if learned != known:
            lineage.write(self.storage, learned)
            self.lineage = learned

    def accept(self, said: FollowReply) -> None:
        """Raise StandbyRefused if the primary's journal is not what this folder is to be a copy of.

        Only here, once a primary has answered that may be followed, a folder that rejoins stops being what it was.
        """
        known = self.lineage
        other = known.origin not in ("", said.origin)
        if other and not self._rejoins:
            raise StandbyRefused(
                f"{str(self.folder)!r} is a copy of journal {known.origin}, and {known.shown_primary} has journal "
                f"{said.origin}; begin with an empty folder, or --rejoin"
            )
        if not other and said.generation < known.number:
            raise StandbyRefused(
                f"{known.shown_primary} is of generation {said.generation}, and this folder of {known.number}: "
                "it is an old primary"
            )
        if other or self._begun_anew:
            self._begun_anew = False
            self.lineage = msgspec.structs.replace(known, origin=said.origin, number=said.generation, key="")
            self.start_over()

    def start_over(self) -> None:
        """The primary continues with another journal: keep matching files, and be no journal until all are copied."""
        self.close()
        self.lineage = msgspec.structs.replace(self.lineage, whole=False, mode=ASYNC)
        lineage.write(self.storage, self.lineage)
        with suppress(FileNotFoundError):
            self.storage.remove(manifest.NAME)
        self._known.clear()
        self._manifest, self.crc, self._partial = None, 0, b""

    def follows(self, found: Manifest) -> bool:
        """Whether the manifest is of the journal that is here, and no file of it has the name of another one."""
        if self._manifest is None:
            return True
        mine = {info.name: info.id for info in self._manifest.segments}
        same = self._manifest.journal == found.journal  # a promotion that was cut off has begun another one
        return same and all(mine.get(info.name, info.id) == info.id for info in found.segments)

    def close(self) -> None:
        """Close the files. The folder is unchanged."""
        active, self._active = self._active, None
        if active is not None:
            active.file.close()
        if self._mark is not None:
            self._mark.close()
            self._mark = None
