"""Recovery: the state of a journal when it is opened, from the checkpoints and the tail behind them.

Torn tail or damage (`_scan_torn_tail`): each entry stores the position up to which its segment was synced when it was
written, and so does the durable watermark. Bad bytes below the highest of these were durable once: damage, and the
journal does not open without a repair. Bad bytes above it are a torn tail, which is cut and reported. Nothing is
written here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

import msgspec

from runnel.core.errors import JournalDamaged
from runnel.journal.format import checkpoint, index, manifest, segment, watermark
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Entry
from runnel.journal.format.index import IndexBuilder
from runnel.journal.format.ledger import Ledger
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.read.segment_reader import index_entry
from runnel.journal.storage import Storage


class RecoveryReport(msgspec.Struct, frozen=True):
    """The findings and actions of opening."""

    clean: bool  # whether the journal had been closed
    entries: int = 0  # read behind the checkpoint
    copied: int = 0  # entries not proven durable, and so written again
    cut_bytes: int = 0  # of a torn tail
    notes: tuple[str, ...] = ()  # anything else that is worth a log line


class RecoveredTail(msgspec.Struct):
    """The contents of the last segment, which was never sealed."""

    info: SegmentInfo
    builder: IndexBuilder
    end: int = START  # of the entries that are proven durable
    unproven: list[Entry] = []  # whole entries behind them
    cut_bytes: int = 0
    entries: int = 0


class Recovered(msgspec.Struct):
    """The state of a journal up to its proven end, and the bytes behind it."""

    manifest: Manifest
    ledger: Ledger
    tail: RecoveredTail | None
    notes: list[str]

    def report(self) -> RecoveryReport:
        """The report of the recovery."""
        tail, notes = self.tail, tuple(self.notes)
        if tail is None:
            return RecoveryReport(clean=True, notes=notes)
        return RecoveryReport(False, tail.entries, len(tail.unproven), tail.cut_bytes, notes)


def recover(storage: Storage, new_journal: Callable[[], str], *, up_to_watermark: bool = False) -> Recovered:
    """Read the state of a journal; changes nothing.

    With `up_to_watermark` (for other processes) the tail ends at the durable watermark.
    """
    found = manifest.load(storage)
    if found is None:
        if any(name.endswith((".seg", ".ckpt")) for name in storage.names()):
            raise JournalDamaged(manifest.NAME, 0, "it is missing, though there are segments")
        return Recovered(Manifest(new_journal(), [], []), Ledger(), None, [])
    there = set(storage.names())
    for info in found.segments:
        if info.name not in there:
            raise JournalDamaged(info.name, 0, "it is missing")
    _check_versions(storage, found)
    notes: list[str] = []
    ledger, replay_from = _load_checkpoints(storage, found, notes)
    for info in found.segments:
        if info.sealed and info.number >= replay_from:
            _replay(storage, info, ledger)
    ledger_tail = None
    if not found.clean:
        ledger_tail = _scan_torn_tail(
            storage, found.segments[-1], ledger, watermark.read(storage), up_to_watermark=up_to_watermark
        )
    ledger.forget_placed(found.placed)
    return Recovered(found, ledger, ledger_tail, notes)


def _check_versions(storage: Storage, found: Manifest) -> None:
    """Raise FormatUnknown if a later version wrote a sealed segment or its index. Damage is reported to readers."""
    for info in found.segments:
        if info.sealed:
            with suppress(JournalDamaged, OSError), closing(storage.open(info.name)) as file:
                segment.check_header(file.read(0, START), info)
            with suppress(OSError), closing(storage.open(info.index_name)) as file:
                version = int.from_bytes(file.read(8, 4), "little")
                if version != index.VERSION:
                    index.check_version(file.read(0, file.size()), info)


def _load_checkpoints(storage: Storage, found: Manifest, notes: list[str]) -> tuple[Ledger, int]:
    """The newest state from a checkpoint, and the segment to continue from."""
    ledger, before = Ledger(), 0
    for number in found.checkpoints:
        try:
            checkpoint.load(storage, number, before, ledger)
        except JournalDamaged as error:
            # Entries say it all again, if all that were written since are still there, state and all.
            needed = range(before or 1, found.next_number)
            there = [info for info in found.segments if info.number >= (before or 1)]
            if [info.number for info in there] != list(needed) or any(info.generation for info in there):
                raise
            notes.append(f"{error.file} is damaged ({error.why}); its state was read from the segments instead")
            found.checkpoints = []  # the next one is complete in itself
            return ledger, before or 1
        before = number
    return ledger, before


def _replay(storage: Storage, info: SegmentInfo, ledger: Ledger) -> None:
    """Take a whole sealed segment into the ledger."""
    data = read_whole(storage, info.name)[: info.end]
    segment.check_header(data, info)
    end = START
    for found in segment.entries(data, START, info, START):
        ledger.apply(found.parts, found.time)
        end = found.end
    if end != info.end:
        raise JournalDamaged(info.name, end, f"the segment was sealed with {info.end} bytes")


def _scan_torn_tail(
    storage: Storage, info: SegmentInfo, ledger: Ledger, published: watermark.Watermark | None, *, up_to_watermark: bool
) -> RecoveredTail:
    data = read_whole(storage, info.name)
    segment.check_header(data, info)
    proven = published.position if published is not None and published.id == info.id else START
    if up_to_watermark:
        data = data[:proven]
    end = START
    for found in segment.entries(data, START, info, START):
        proven, end = max(proven, found.synced), found.end
    last = segment.written_end(data)
    later = segment.next_whole_entry(data, end, info) if last > end else None
    while later is not None:  # whole entries behind a bad one: what they say about syncs counts
        proven = max(proven, later.synced)
        later = segment.next_whole_entry(data, later.end, info)
    if end < proven:
        raise JournalDamaged(info.name, end, f"the journal was synced up to {proven}")
    tail = RecoveredTail(info, IndexBuilder(), unproven=[], cut_bytes=max(0, last - end))
    for found in segment.entries(data, START, info, START):
        tail.entries += 1
        if found.end <= proven:
            ledger.apply(found.parts, found.time)
            index_entry(tail.builder, found)
            tail.end = found.end
        else:
            tail.unproven.append(found)
    return tail
