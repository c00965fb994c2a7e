"""The journal: everything durable, one entry after another.

`write` returns when its entries are durable (as far as `fsync` says). After a failed write or sync
the journal takes nothing more until it is opened again; reading goes on.
Synchronous and for one thread at a time. Below: recovery, segments, segment. Above: broker.committer.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from runnel.core.histogram import SYNC_BOUNDS, Histogram
from runnel.core.journal_errors import DiskFull, JournalFailed
from runnel.journal import checkpoint, manifest, mark
from runnel.journal.draft import Draft, WriteFailed
from runnel.journal.entry import HOLDS_RECORDS, Kind, Part, size_of
from runnel.journal.index import IndexBuilder
from runnel.journal.ledger import Ledger
from runnel.journal.manifest import Manifest
from runnel.journal.options import JournalOptions
from runnel.journal.parts import sequence_part, trim_part
from runnel.journal.recovery import Recovered, RecoveryReport, recover
from runnel.journal.segment import START, Segment, SegmentInfo, give_back
from runnel.journal.segments import NO_SPACE, Segments
from runnel.journal.source import add_part
from runnel.journal.storage import File, Storage
from runnel.journal.swap import write_new

RESERVED_SEQUENCES = 1 << 32  # for records that are not stored; see `reserve_sequences`
SKIPPED = 1 << 31  # offsets, after a cut-off journal that did not sync every commit: more than a segment holds
SKIPPED_EPOCHS = 1 << 20  # after every cut-off journal: more topics than are made without a trace
_RECORDS = HOLDS_RECORDS | {Kind.STAGED}  # what the last bytes of a segment are not for


class Journal(Segments):
    """A journal that is open for writing. `Journal.open` finds its way back first."""

    def __init__(self, storage: Storage, options: JournalOptions, found: Manifest, ledger: Ledger) -> None:
        super().__init__(storage, options, found, ledger)
        self.report = RecoveryReport(clean=True)
        self.syncs = 0
        self.sync_durations = Histogram(SYNC_BOUNDS)  # of each of them
        self.sync_seconds = 0.0  # what the first one took
        self.appended = self.appended_batches = 0  # bytes written in this life, and those of batches among them
        self.rolled: Callable[[], None] = lambda: None  # called when a segment was sealed
        self._active: Segment | None = None
        self._builder = IndexBuilder()
        self._mark: File | None = None
        self._marked = (0, 0)  # the segment and the position that others were told last
        self._unsynced = 0  # records, and writes, since the last sync
        self._created = 0.0

    def __repr__(self) -> str:
        state_now = "failed" if self.failed else "open" if self._active else "closed"
        return f"<Journal {self.manifest.journal}, {state_now}, {len(self.manifest.segments)} segments>"

    # -- opening and closing ------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        storage: Storage,
        options: JournalOptions | None = None,
        now: int | None = None,
        may_remove: Callable[[], bool] = lambda: True,
    ) -> Journal:
        """The journal in `storage`, recovered and ready to write; a new one where there is none.

        `may_remove` is asked before files go that a manifest has named: whether nobody is looking at them.
        """
        options = options or JournalOptions()
        try:
            found = recover(storage, lambda: secrets.token_hex(8))
            journal = cls(storage, options, found.manifest, found.ledger)
            journal.may_remove = may_remove
            journal._clear_up()
            journal._go_on(found, time.time_ns() // 1000 if now is None else now)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(storage.free(), options.segment_bytes + options.min_free) from error
            raise JournalFailed(f"it could not be opened: {error}") from error
        return journal

    def _go_on(self, found: Recovered, now: int) -> None:
        """Begin a new segment behind what was recovered."""
        known, tail, ledger = self.manifest, found.tail, self.ledger
        now = max(now, ledger.time)
        synced_always = known.fsync == "commit"
        if known.next_number == 1:  # a new journal: it has a manifest before it has anything else
            manifest.write(self.storage, known)
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
            # What was handed out after the last sync may be gone: no offset is ever given twice.
            ledger.sequence += SKIPPED
            after += [trim_part(topic.id, topic.first, topic.end + SKIPPED) for topic in ledger.topics.values()]
        if tail is not None:
            # Topics that are not stored leave no trace of their epochs, and those may have been ahead of the clock.
            ledger.epoch += SKIPPED_EPOCHS
        after.append(sequence_part(ledger.sequence + RESERVED_SEQUENCES, ledger.epoch))
        self._append([Draft(after, now)])
        began = time.perf_counter()
        self.sync()
        self.sync_seconds = time.perf_counter() - began
        self._swap()
        self._publish_mark()
        self.report = found.report()
        for info in self.manifest.segments[-4:-1]:
            give_back(self.storage, info)
        self._remove_retired()

    def close(self) -> None:
        """Seal and leave. A failed journal is only let go of. Closing twice is harmless."""
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

    def _close_segment(self, active: Segment) -> None:
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
        """Write entries in order; durable when it returns (with `fsync="commit"`). WriteFailed says how far it came."""
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
                if part.kind in _RECORDS:
                    self._unsynced += part.count
                    self.appended_batches += len(part.body)
                    add_part(builder, start, part)
            start += size_of(parts)
        self._unsynced += 1

    def _sync(self) -> None:
        if self.options.fsync == "commit" or self._unsynced > SKIPPED // 2:
            self.sync()
        else:
            self._readable()

    def sync(self) -> None:
        """Make durable what is written. For `fsync="interval"`, whose owner keeps the time."""
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
            self._publish_mark()

    def _readable(self) -> None:
        assert self._active is not None
        self.history.sources[-1].written = self._active.end

    def _publish_mark(self) -> None:
        """Tell other processes how far the journal is synced, if they were not told yet."""
        active = self._active
        if active is None or self._marked == (active.info.id, active.synced):
            return
        with suppress(OSError):  # others see a little less of the journal; nothing depends on it
            if self._mark is None:
                self._mark = self.storage.create(mark.NAME)
            mark.write(self._mark, active.info.number, active.info.id, active.synced)
            self._marked = (active.info.id, active.synced)

    # -- rolling ------------------------------------------------------------------------------------------------

    def _fits(self, draft: Draft, size: int) -> bool:
        active = self._active
        assert active is not None, "a closed journal has no segment"
        if draft.time / 1e6 - self._created > self.options.segment_age and active.end > START:
            return False
        return active.end + size <= active.limit - self.options.reserve

    def _make_room(self, draft: Draft, size: int) -> None:
        """Roll; when the disk has no room, state may go into what was reserved for it, and then into `min_free`."""
        active = self._active
        assert active is not None
        try:
            self._roll(size, draft.time)
        except OSError as error:
            if error.errno not in NO_SPACE or self.failed is not None:
                raise
            self._remove_unfinished()
            holds_records = any(part.kind in _RECORDS for part in draft.parts)
            fits = active.end + size <= active.limit - (self.options.reserve if holds_records else 0)
            if not fits and (holds_records or not self._roll_small(size, draft.time)):
                raise DiskFull(self.storage.free(), self.needed(size)) from None

    def needed(self, size: int) -> int:
        """How much must be free for a new segment that takes `size` bytes."""
        return max(self.options.segment_bytes, size + START) + self.options.min_free

    def has_room(self, size: int) -> bool:
        """Whether a record batch of `size` bytes more can be written, as far as can be told. From any thread."""
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
            # Nothing that counts has changed: the old segment goes on.
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
        write_new(self.storage, info.index_name, [builder.encode(info)])
        self.manifest.segments.append(info)

    def _begin(self, size: int, now: int, *, opening: bool = False, small: bool = False) -> Segment:
        """A checkpoint, and a new segment behind it, which is to be synced before the manifest names it."""
        number = self.manifest.next_number
        if self.manifest.checkpoints[-1:] != [number]:  # a clean close has written it already
            self._write_checkpoint(number)
        known = self.manifest
        info = SegmentInfo(number, secrets.randbits(63), 0, self.ledger.sequence, 0, max(now, self.ledger.time))
        small = small or (opening and self.storage.free() < self.needed(size))
        limit = size + self.options.reserve if small else max(self.options.segment_bytes, size + self.options.reserve)
        try:
            begun = Segment.create(self.storage, info, limit, now)
        except OSError as error:
            if not opening or error.errno not in NO_SPACE:
                raise
            # Nothing can be published, but what is there can be read, acked and deleted.
            begun = Segment.create(self.storage, info, size + self.options.reserve, now)
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
        manifest.write(self.storage, self.manifest)
