"""The open journal: appends entries, syncs them, rolls to a new segment, drops and replaces segments.

`write` returns when its entries are durable (depending on `fsync`). A segment rolls when the next entry does not
fit, or when it is older than `segment_age`; each roll writes a checkpoint. After a failed write or sync the journal
refuses writes until it is reopened; reading continues. For one thread at a time.
"""

from __future__ import annotations

import errno
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from runnel.core.errors import DiskFull, FormatUnknown, JournalDamaged, JournalFailed, RunnelError
from runnel.core.statistics import SYNC_BOUNDS, Histogram
from runnel.journal.clean.cleaning_job import CleaningJob
from runnel.journal.clean.live_records import LiveSnapshot
from runnel.journal.folder_lock import FolderLost
from runnel.journal.format import checkpoint, manifest, watermark
from runnel.journal.format.atomic_file import replace_file
from runnel.journal.format.entry import HOLDS_RECORDS, HOLDS_STAGED, Draft, Part, WriteFailed, size_of
from runnel.journal.format.index import IndexBuilder
from runnel.journal.format.ledger import Ledger, sequence_part, trim_part
from runnel.journal.format.manifest import Manifest, ManifestNotDurable
from runnel.journal.format.segment import START, ActiveSegment, SegmentInfo, release_reserved
from runnel.journal.options import JournalOptions
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.recovery import Recovered, RecoveryReport, recover
from runnel.journal.read.segment_reader import NO_HANDLES, OpenFiles, SegmentReader, index_part
from runnel.journal.storage import File, Storage
from runnel.journal.write import archive_holds, retention
from runnel.journal.write.archive_holds import ArchiveHolder

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class PublishedManifest(NamedTuple):
    """The manifest that counts: the bytes of the file, and its segments. From any thread."""

    data: bytes
    segments: tuple[SegmentInfo, ...]


class JournalSegments(ABC):
    """The files of a journal on disk, and those about to be removed."""

    def __init__(self, storage: Storage, options: JournalOptions, found: Manifest, ledger: Ledger) -> None:
        self.storage, self.options, self.manifest, self.ledger = storage, options, found, ledger
        self.handles = OpenFiles()
        self.history = JournalReader([self.source(info) for info in found.segments if info.sealed])
        self.failed: JournalFailed | None = None
        self.may_remove: Callable[[], bool] = lambda: True
        self.check_lock: Callable[[], None] = lambda: None  # raises FolderLost when another process may own the folder
        self.freed: Callable[[], None] = lambda: None  # called when something may be wanted no more
        self._job: CleaningJob | None = None  # the cleaning that is under way
        self._removable: list[str] = []
        self.published = PublishedManifest(b"", ())  # the last swapped version; replaced, never changed
        self._epoch: int | None = None  # the id of the open segment in the manifest that this journal wrote last

    def source(self, info: SegmentInfo, builder: IndexBuilder | None = None) -> SegmentReader:
        """A segment to be read, with the others."""
        return SegmentReader(self.storage, info, builder, self.handles)

    @abstractmethod
    def sync(self) -> None:
        """Sync the written entries."""

    # -- ownership ----------------------------------------------------------------------------------------------

    def check_owner(self) -> None:
        """Fail with FolderLost unless the lock, the manifest and the segments are still those of this journal.

        Every owner begins a segment with a random id when it opens the folder, and names it in the manifest as the one
        that is open: that id is the epoch of its ownership.
        """
        try:
            self.check_lock()
            if self._epoch is not None:
                self._check_files(self._epoch)
        except FolderLost as lost:
            self._fail(lost)
            raise

    def _check_files(self, epoch: int) -> None:
        try:
            found, there = manifest.load(self.storage), set(self.storage.names())
        except JournalDamaged:
            return  # no entry shows that another owner did that, and the next manifest replaces it
        except FormatUnknown as error:
            raise FolderLost(f"a later version of runnel has opened the folder: {error}") from None
        except OSError as error:
            if error.errno not in NO_HANDLES:
                raise
            return  # the lock was looked at without one
        segments = [info.name for info in self.manifest.segments]
        if missing := [name for name in (manifest.NAME, *segments) if name not in there]:
            raise FolderLost(f"{missing[0]} was removed from the folder while its owner was running")
        if found is None or found.clean or found.segments[-1].id != epoch:
            raise FolderLost("another process has opened the folder since, and its manifest counts")

    def _write_manifest(self, changed: Manifest) -> None:
        """Swap the manifest, if the folder is still this journal's."""
        self.check_owner()
        self.published = PublishedManifest(manifest.write(self.storage, changed), tuple(changed.segments))
        self._epoch = None if changed.clean else changed.segments[-1].id

    # -- archives that hold -------------------------------------------------------------------------------------

    def archives(self) -> list[ArchiveHolder]:
        """The archives that hold, as the file says now. Raises if it cannot be read. From any thread."""
        return archive_holds.load(self.storage)

    def may_go(self, sources: Iterable[SegmentReader]) -> list[SegmentReader]:
        """Those of the segments that no archive waits for. From any thread."""
        safe = self.safe_through()
        return [source for source in sources if source.info.number <= safe]

    def safe_through(self) -> int:
        """The number up to which segments are safe in every archive that holds; 0 when that is not known."""
        try:
            return archive_holds.safe(self.archives())
        except (RunnelError, OSError):
            return 0

    # -- giving back --------------------------------------------------------------------------------------------

    def retain(self, now: int) -> None:
        """Drop the segments in which nothing is wanted any more."""
        self.freed()
        ledger = self.ledger
        unwanted = retention.unwanted_segments(self.history.sources, ledger.topics, ledger.stages_in_use())
        if not unwanted or self.failed is not None or not (unwanted := self.may_go(unwanted)):
            return
        self.sync()  # the changes that made them obsolete must be durable before they are removed
        try:
            self._put_in_place_of(unwanted, [source for source in self.history.sources if source not in unwanted])
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._fail(error)
                raise

    # -- cleaning -----------------------------------------------------------------------------------------------

    def living(self) -> LiveSnapshot:
        """Snapshot of which records on disk retention and compaction still keep."""
        return LiveSnapshot.of(self.ledger, self.manifest.segments)

    def clean(
        self, sources: Sequence[SegmentReader], living: LiveSnapshot, placing: Collection[int] = ()
    ) -> CleaningJob:
        """A job that rewrites neighbouring sealed segments with their live records. `replace` ends it.

        The stages in `placing`, which were committed in these segments, are read from their place and written into
        them. LookupError: one of the segments was removed.
        """
        if not set(sources) <= set(self.history.sources):
            raise LookupError("a segment that was to be cleaned has gone")
        if any(source.info.id not in living.segments for source in sources):
            raise ValueError("it is not known what lives in a segment that was sealed later")
        there = JournalReader(list(self.history.sources))  # a snapshot: readers keep the ones they have
        size, now = self.options.segment_bytes, self.ledger.time
        self._job = CleaningJob(self.storage, sources, living, size, now, there, frozenset(placing))
        return self._job

    def replace(self, job: CleaningJob) -> bool:
        """Replace the input of a finished job by its output. False: the input was removed meanwhile, or is held.

        An error before the swap leaves everything unchanged; if it is not known which manifest counts, the journal has
        failed. Readers of the old segments continue: their files are open.
        """
        if self.failed is not None:
            raise self.failed
        assert job.done, "only a finished job can be put in place"
        sources = self.history.sources
        start = sources.index(job.sources[0]) if job.sources[0] in sources else len(sources)
        end = start + len(job.sources)
        names = {name for info in job.made for name in (info.name, info.index_name)}
        if sources[start:end] != list(job.sources) or not names <= set(self.storage.names()):
            return False
        if len(self.may_go(job.sources)) < len(job.sources):
            return False  # an archive began to hold meanwhile
        self.sync()  # the changes that made records obsolete must be durable before they are removed
        new = [self.source(info) for info in job.made]
        self.storage.sync_names()  # whatever the manifest names must be there before it is
        files, job.files = job.files, set()  # whatever becomes of the manifest's name: they are not the job's any more
        try:
            # Recovery that finds the new segments also finds that these stages are not needed any more.
            self._put_in_place_of(list(job.sources), [*sources[:start], *new, *sources[end:]], job.placed)
            self.ledger.forget_placed(job.placed)
        except ManifestNotDurable as error:
            self._fail(error)
            raise
        except OSError:
            job.files = files
            raise
        self._job = None
        return True

    def let_go(self, job: CleaningJob) -> None:
        """A job ended in some other way: its files are as good as any that a crash leaves behind."""
        if self._job is job:
            self._job = None

    def _put_in_place_of(self, old: list[SegmentReader], kept: list[SegmentReader], placed: Iterable[int] = ()) -> None:
        """Swap the manifest for one of the `kept` segments, and let the `old` ones go, out of their list too."""
        known = [*self.manifest.placed, *placed]  # until a checkpoint holds it
        smaller = msgspec.structs.replace(self.manifest, segments=[source.info for source in kept], placed=known)
        self._write_manifest(smaller)
        self.history.sources, self.manifest = kept, smaller
        self._removable += [name for source in old for name in (source.info.name, source.info.index_name)]
        while old:
            old.pop().hold_on()  # one without another reference is closed at once
        with suppress(OSError):  # they are tried again, and cleared up by the next opening at the latest
            self._remove_retired()

    # -- removing -----------------------------------------------------------------------------------------------

    def _clear_up(self) -> None:
        """Remove what a crash left behind: temporary files, and those that the manifest does not name."""
        if (unnamed := self.manifest.unnamed(self.storage.names())) and self.may_remove():
            # A killed process may have swapped the manifest and not synced its name. If that came undone, the
            # manifest before would count again, and all that it names had better be there.
            self.storage.sync_names()
            for name in unnamed:
                self._remove(name)

    def _remove_unfinished(self) -> None:
        """Remove what a roll that failed has left behind; a cleaning that is under way keeps its files."""
        busy = set(self._removable).union(self._job.files if self._job is not None else ())
        for name in self.manifest.unnamed(self.storage.names()):
            if name not in busy:
                self._remove(name)

    def _remove_retired(self) -> None:
        """Remove files that no manifest names any more, unless another process is looking."""
        if self._removable and self.may_remove():
            named = self.manifest.files()
            for name in self._removable:
                if name not in named:
                    self._remove(name)
            self._removable = []

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.storage.remove(name)

    def _fail(self, error: Exception) -> None:
        self.failed = JournalFailed(str(error))


# -- Opening, writing, rolling, closing ------------------------------------------------------------------


RESERVED_SEQUENCES = 1 << 32  # for records that are not stored; see `reserve_sequences`
SKIPPED_OFFSETS = 1 << 31  # offsets, after a cut-off journal that did not sync every commit: more than a segment holds
SKIPPED_EPOCHS = 1 << 20  # after every cut-off journal: more topics than are made without a trace
_RECORD_KINDS = HOLDS_RECORDS | HOLDS_STAGED  # what the last bytes of a segment are not for


class Journal(JournalSegments):
    """A journal that is open for writing. `Journal.open` finds its way back first."""

    def __init__(self, storage: Storage, options: JournalOptions, found: Manifest, ledger: Ledger) -> None:
        super().__init__(storage, options, found, ledger)
        self.report = RecoveryReport(clean=True)
        self.syncs = 0
        self.sync_durations = Histogram(SYNC_BOUNDS)  # of each of them
        self.sync_seconds = 0.0  # what the first one took
        self.appended = self.appended_batches = 0  # bytes written in this life, and those of batches among them
        self.batches = 0  # of records, written in this life
        self.rolled: Callable[[], None] = lambda: None  # called when a segment was sealed
        self._active: ActiveSegment | None = None
        self._builder = IndexBuilder()
        self._mark: File | None = None
        self._published_watermark = (0, 0)  # the segment and the position that was published last
        self._unsynced = 0  # records, and writes, since the last sync
        self._created = 0.0

    def __repr__(self) -> str:
        state_now = "failed" if self.failed else "open" if self._active else "closed"
        return f"<Journal {self.manifest.journal}, {state_now}, {len(self.manifest.segments)} segments>"

    @property
    def end(self) -> tuple[int, int]:
        """Where the next entry goes: the number of the segment, and the position in it. On the commit thread."""
        active = self._active
        return (0, 0) if active is None else (active.info.number, active.end)

    # -- opening and closing ------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        storage: Storage,
        options: JournalOptions | None = None,
        now: int | None = None,
        may_remove: Callable[[], bool] = lambda: True,
        check_lock: Callable[[], None] = lambda: None,
    ) -> Journal:
        """The journal in `storage`, recovered and ready to write; a new one where there is none.

        `may_remove` is called before files are removed that a manifest has named: whether no reader uses them.
        `check_lock` raises FolderLost when another process may own the folder; it is called before every write counts.
        """
        options = options or JournalOptions()
        try:
            found = recover(storage, lambda: secrets.token_hex(8))
            journal = cls(storage, options, found.manifest, found.ledger)
            journal.may_remove, journal.check_lock = may_remove, check_lock
            journal._clear_up()
            journal._go_on(found, time.time_ns() // 1000 if now is None else now)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(storage.free(), options.segment_bytes + options.min_free) from error
            raise JournalFailed(f"it could not be opened: {error}") from error
        return journal

    def _go_on(self, found: Recovered, now: int) -> None:
        """Begin a new segment behind the recovered ones."""
        known, tail, ledger = self.manifest, found.tail, self.ledger
        now = max(now, ledger.time)
        synced_always = known.fsync == "commit"
        if known.next_number == 1:  # a new journal: it has a manifest before it has anything else
            self._write_manifest(known)
        if tail is not None:
            known.segments.pop()
            if not len(tail.builder) and not self._is_held(tail.info):
                self._removable.append(tail.info.name)  # nothing but state, which the checkpoint will hold
            else:
                self._seal(tail.info, tail.builder, tail.end)
                self.history.sources.append(self.source(tail.info))
        carried = [Draft(one.parts, one.time) for one in tail.unproven] if tail is not None else []
        # Entries in the new segment are read on top of its checkpoint, so they are applied after it is taken.
        self._begin(sum(size_of(draft.parts) for draft in carried) + START, now, opening=True)
        ledger.checked()
        if carried:
            self._append(carried)
        after: list[Part] = []
        if tail is not None or found.notes:
            ledger.sequence = max(ledger.sequence, ledger.reserved)
        if tail is not None and not synced_always:
            # Entries after the last sync may be lost: skip ahead, so that no offset is ever given twice.
            ledger.sequence += SKIPPED_OFFSETS
            after += [trim_part(topic.id, topic.first, topic.end + SKIPPED_OFFSETS) for topic in ledger.topics.values()]
        if tail is not None:
            # Topics that are not stored leave no trace of their epochs, and those may have been ahead of the clock.
            ledger.epoch += SKIPPED_EPOCHS
        after.append(sequence_part(ledger.sequence + RESERVED_SEQUENCES, ledger.epoch))
        self._append([Draft(after, now)])
        began = time.perf_counter()
        self.sync()
        self.sync_seconds = time.perf_counter() - began
        self._swap()
        self._publish_watermark()
        self.report = found.report()
        for info in self.manifest.segments[-4:-1]:
            release_reserved(self.storage, info)
        self._remove_retired()

    def close(self) -> None:
        """Seal and close. A failed journal is closed without a seal. Closing twice is harmless."""
        active = self._active
        if active is None:
            return
        try:
            self.sync()
            if self.failed is None:
                self._close_segment(active)
        finally:
            self._active = None
            active.file.close()
            self.history.close()
            if self._mark is not None:
                self._mark.close()

    def _close_segment(self, active: ActiveSegment) -> None:
        known, info = self.manifest, active.info
        known.segments.pop()
        if keep := len(self._builder) > 0 or self._is_held(info):
            self._seal(info, self._builder, active.end)
        self._write_checkpoint(known.next_number)
        self._swap()
        if keep:
            active.file.truncate(info.end)
        else:
            self._remove(info.name)  # it held nothing but state, and that is in the checkpoint now
        self._remove_retired()

    def _is_held(self, info: SegmentInfo) -> bool:
        return info.number > self.safe_through()

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, drafts: Sequence[Draft]) -> None:
        """Write entries in order; durable when it returns (with `fsync="commit"`). WriteFailed has the progress."""
        if self.failed is not None:
            raise WriteFailed(0, 0, self.failed)
        done = begun = gathered = 0
        sizes = [size_of(draft.parts) for draft in drafts]
        try:
            for at, size in enumerate(sizes):
                if not self._fits(drafts[at], gathered + size):
                    if begun < at:
                        begun = at
                        self._append(drafts[done:at])
                        self._sync()
                        done = at
                    gathered = 0
                    self._make_room(drafts[at], size)
                gathered += size
            begun = len(drafts)
            self._append(drafts[done:])
            self._sync()
        except DiskFull as full:
            raise WriteFailed(done, begun, full) from None
        except OSError as error:
            self._fail(error)
            raise WriteFailed(done, begun, error) from None

    def _append(self, drafts: Sequence[Draft]) -> None:
        """Write entries at the end of the segment, and take them into the ledger and the index."""
        active, builder, ledger = self._active, self._builder, self.ledger
        assert active is not None, "a closed journal has no segment"
        pieces: list[bytes] = []
        start = position = active.end
        for parts, at in drafts:
            pieces += active.encode(parts, position, at)
            position += size_of(parts)
        active.write(pieces, position - start)
        self.appended += position - start
        for parts, at in drafts:
            ledger.apply(parts, at)
            for part in parts:
                if part.kind in _RECORD_KINDS:
                    self._unsynced += part.count
                    self.appended_batches += len(part.body)
                    self.batches += 1
                    index_part(builder, start, part)
            start += size_of(parts)
        self._unsynced += 1

    def _sync(self) -> None:
        if self.options.fsync == "commit" or self._unsynced > SKIPPED_OFFSETS // 2:
            self.sync()
        else:
            self._readable()
        self.check_lock()  # behind the write: what it lets pass, the next owner reads
        assert self._active is not None
        if not self.storage.exists(name := self._active.info.name):
            raise FolderLost(f"{name} was removed from the folder while it was being written")

    def sync(self) -> None:
        """Sync the written entries. For `fsync="interval"`, whose owner keeps the time."""
        active = self._active
        if active is None or not self._unsynced or self.failed is not None:
            return
        began = time.perf_counter()
        try:
            active.sync()
        except OSError as error:
            # Never retry: after a failed fsync the kernel may mark the dirty pages clean,
            # and a second one would then report success for bytes that are gone.
            self._fail(error)
            raise
        self.sync_durations.add(time.perf_counter() - began)
        self.syncs += 1
        self._unsynced = 0
        self._readable()
        if self._mark is not None:
            self._publish_watermark()

    def _readable(self) -> None:
        assert self._active is not None
        self.history.sources[-1].written = self._active.end

    def _publish_watermark(self) -> None:
        """Publish the synced position of the journal to other processes, if it moved."""
        active = self._active
        if active is None or self._published_watermark == (active.info.id, active.synced):
            return
        with suppress(OSError):  # others see a little less of the journal; nothing depends on it
            if self._mark is None:
                self._mark = self.storage.create(watermark.NAME)
            watermark.write(self._mark, active.info.number, active.info.id, active.synced)
            self._published_watermark = (active.info.id, active.synced)

    # -- rolling ------------------------------------------------------------------------------------------------

    def _fits(self, draft: Draft, size: int) -> bool:
        active = self._active
        assert active is not None, "a closed journal has no segment"
        if draft.time / 1e6 - self._created > self.options.segment_age and active.end > START:
            return False
        return active.end + size <= active.limit - self.options.reserve

    def _make_room(self, draft: Draft, size: int) -> None:
        """Roll; when the disk has no room, state may go into the space reserved for it, and then into `min_free`."""
        active = self._active
        assert active is not None
        try:
            self._roll(size, draft.time)
        except OSError as error:
            if error.errno not in NO_SPACE or self.failed is not None:
                raise
            self._remove_unfinished()
            holds_records = any(part.kind in _RECORD_KINDS for part in draft.parts)
            fits = active.end + size <= active.limit - (self.options.reserve if holds_records else 0)
            if not fits and (holds_records or not self._roll_small(size, draft.time)):
                raise DiskFull(self.storage.free(), self.needed(size)) from None

    def needed(self, size: int) -> int:
        """How much must be free for a new segment that takes `size` bytes."""
        return max(self.options.segment_bytes, size + START) + self.options.min_free

    def has_room(self, size: int) -> bool:
        """Whether a record batch of `size` bytes more can be written, by the last look at the disk. From any thread."""
        active = self._active
        if active is None or active.end + size <= active.limit - self.options.reserve:
            return True
        return self.storage.free() >= self.needed(size)

    def _roll_small(self, size: int, now: int) -> bool:
        """Begin a segment for state alone, while the disk has no room for records; whether there was room for it."""
        try:
            self._roll(size, now, small=True)
        except OSError as error:
            if error.errno not in NO_SPACE or self.failed is not None:
                raise
            self._remove_unfinished()
            return False
        return True

    def _roll(self, size: int, now: int, *, small: bool = False) -> None:
        """Seal the segment and begin another, that has room for `size` bytes; a `small` one has none for records."""
        if self.storage.free() < self.needed(size) and not small:
            raise OSError(errno.ENOSPC, "below min_free")
        old = self._active
        assert old is not None
        self.sync()
        before, builder, created = self.manifest, self._builder, self._created
        self.manifest = msgspec.structs.replace(before, segments=before.segments[:-1])
        sealed = msgspec.structs.replace(old.info)
        try:
            self._seal(sealed, builder, old.end)
            self._begin(size + START, now, small=small).sync()
            self._swap()
        except BaseException:
            # No durable state has changed: the old segment stays in use.
            if self._active is not old and self._active is not None:
                self._active.file.close()
                self.history.sources.pop()
            self._active, self._builder, self.manifest, self._created = old, builder, before, created
            raise
        self.ledger.checked()
        self.history.sources[-2].seal(sealed)
        with suppress(OSError):  # the next opening gives it back
            old.file.truncate(old.end)
        old.file.close()
        self.retain(now)
        self._remove_retired()
        self.rolled()

    def _seal(self, info: SegmentInfo, builder: IndexBuilder, end: int) -> None:
        """Write the index of a segment, and name it sealed."""
        info.end, info.end_sequence, info.last_time = end, self.ledger.sequence, self.ledger.time
        replace_file(self.storage, info.index_name, [builder.encode(info)])
        self.manifest.segments.append(info)

    def _begin(self, size: int, now: int, *, opening: bool = False, small: bool = False) -> ActiveSegment:
        """A checkpoint, and a new segment behind it, which is to be synced before the manifest names it."""
        number = self.manifest.next_number
        if self.manifest.checkpoints[-1:] != [number]:  # a clean close has written it already
            self._write_checkpoint(number)
        known = self.manifest
        info = SegmentInfo(number, secrets.randbits(63), 0, self.ledger.sequence, 0, max(now, self.ledger.time))
        small = small or (opening and self.storage.free() < self.needed(size))
        limit = size + self.options.reserve if small else max(self.options.segment_bytes, size + self.options.reserve)
        try:
            begun = ActiveSegment.create(self.storage, info, limit, now)
        except OSError as error:
            if not opening or error.errno not in NO_SPACE:
                raise
            # Publishing is refused, but existing records can be read, acked and deleted.
            begun = ActiveSegment.create(self.storage, info, size + self.options.reserve, now)
        self._active = begun
        self._created = now / 1e6
        self._builder = IndexBuilder()
        self.manifest = msgspec.structs.replace(
            known, segments=[*known.segments, info], next_number=number + 1, fsync=self.options.fsync
        )
        self.history.sources.append(self.source(info, self._builder))
        return begun

    def _write_checkpoint(self, number: int) -> None:
        known = self.manifest
        chain = known.checkpoints
        full = not chain or len(chain) >= checkpoint.MAX_CHAIN or known.chain_bytes > known.full_bytes
        size = checkpoint.write(self.storage, number, 0 if full else chain[-1], self.ledger)
        if full:
            self._removable += [checkpoint.name_of(one) for one in chain]
        self.manifest = msgspec.structs.replace(
            known,
            checkpoints=[number] if full else [*chain, number],
            full_bytes=size if full else known.full_bytes,
            chain_bytes=0 if full else known.chain_bytes + size,
            placed=[],  # it holds that
        )

    def _swap(self) -> None:
        self.storage.sync_names()  # whatever the manifest names must be there before it is
        self._write_manifest(self.manifest)
