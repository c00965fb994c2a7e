"""Reading damaged files: the whole entries around the damage, and a manifest rebuilt from the segments themselves.

Reads, and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from struct import error
from typing import NamedTuple

from runnel.core import batch_format
from runnel.core.checksum import crc_of
from runnel.core.errors import BadBatch, FormatUnknown, JournalDamaged
from runnel.journal.format import checkpoint, entry, index, merged_batch, segment, staged_block
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import HOLDS_RECORDS, Entry, Part, PartKind, body_crc
from runnel.journal.format.index import IndexFile, end_sequence
from runnel.journal.format.ledger import Ledger
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.read.cleaned_segment import decode_stage_commit
from runnel.journal.read.segment_reader import BlocksCommit, StageCommit, blocks_commit
from runnel.journal.storage import Storage

_FILE = re.compile(r"(\d+)(?:-(\d+))?\.(seg|idx|ckpt)")


class DamagedSpot(NamedTuple):
    """Bytes [position, end) of a segment that hold no whole entry.

    Where the entry's head is whole, `kept` are those of its parts that are too, and `lost` the others.
    """

    position: int
    end: int
    why: str
    kept: Sequence[Part] = ()
    lost: Sequence[Part] = ()
    time: int = 0

    @property
    def headless(self) -> bool:
        """Whether its contents are unknown."""
        return not self.kept and not self.lost


def walk_segment(data: bytes, info: SegmentInfo) -> Iterator[Entry | DamagedSpot]:
    """Everything in the bytes of a segment, from its first entry on. Zeros at the end are nothing."""
    position, end = START, len(data)
    while position < end:
        found = entry.read_entry(data, position, info.id, position)
        if found is not None:
            yield found
            position = found.end
            continue
        head = entry.read_head(data, position, info.id, position)
        if head is not None and head.end <= end:
            yield _with_whole_parts(data, head)
            position = head.end
            continue
        following = segment.next_whole_entry(data, position + 1, info)
        if following is None and data.count(0, position) == end - position:
            return
        until = end if following is None else following.position
        yield DamagedSpot(position, until, "no whole entry begins here")
        position = until


def _with_whole_parts(data: bytes, head: entry.EntryHead) -> DamagedSpot:
    kept: list[Part] = []
    lost: list[Part] = []
    at = head.position + head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = data[at : at + length]
        at += length
        whole = len(body) == length and body_crc(kind, body) == crc
        (kept if whole else lost).append(Part(kind, body, crc, topic, base, last, sequence, time))
    what = ", ".join(sorted({_kind(part.kind) for part in lost})) or "it"
    return DamagedSpot(head.position, head.end, f"the crc of {what} in this entry is wrong", kept, lost, head.time)


def _kind(kind: int) -> str:
    if kind in (PartKind.BATCH, PartKind.MERGED):
        return "a batch"
    return f"a {PartKind(kind).name.lower()} part" if kind in PartKind._value2member_map_ else f"a part of kind {kind}"


def check_part(part: Part) -> None:
    """Raise `BadBatch` unless readers can do something with a part whose crc is right: so is what it covers."""
    if part.kind == PartKind.BATCH:
        batch_format.check_batch(part.body)
        if batch_format.last_offset_delta(part.body) != part.last - part.base:
            raise BadBatch(f"it spans {batch_format.last_offset_delta(part.body) + 1} offsets, not {part.count}")
    elif part.kind == PartKind.STAGED:
        batch_format.check_batch(part.body)
    elif part.kind == PartKind.MERGED:
        runs = merged_batch.runs_of(part.body)
        batch_format.check_batch(merged_batch.batch_of(part.body))
        if (runs[0].offset, runs[0].sequence, runs[-1].offset + runs[-1].count) != (
            part.base,
            part.sequence,
            part.last + 1,
        ):
            raise BadBatch(f"its runs span {runs[0].offset} to {runs[-1].offset + runs[-1].count}")
    elif part.kind == PartKind.STAGED_BLOCK:
        for _, _, batch in staged_block.contents_of(part.body):
            batch_format.check_batch(bytes(batch))
        directory = staged_block.directory_of(part.body)
        if (directory.first, directory.end) != (part.base, part.last + 1):
            raise BadBatch(f"it holds the records {directory.first} to {directory.end} of its stage")
    elif part.kind == PartKind.STAGE_COMMIT:
        if stage_commit_of(part) is None:
            raise BadBatch("it does not say what was staged")
    elif part.kind == PartKind.BLOCKS_COMMIT and blocks_commit_of(part) is None:
        raise BadBatch("it does not say what was staged, or more records than there are")


def stage_commit_of(part: Part) -> StageCommit | None:
    """The records that a commit of a stage makes visible; None if the commit is invalid."""
    return decode_stage_commit(part.body, RecordRun(part.base, part.sequence, part.time, part.count), part.topic)


def blocks_commit_of(part: Part) -> BlocksCommit | None:
    """The records of one topic in a commit of blocks; None if the commit is invalid."""
    share = staged_block.share_of(part.body)
    if share is None or share.records < part.count:
        return None
    return blocks_commit(share.stage, part.sequence, share.records, part.time, {part.topic: (part.base, part.last)})


def load_index(storage: Storage, info: SegmentInfo) -> IndexFile:
    """The index of a sealed segment, or its error."""
    try:
        return IndexFile(memoryview(read_whole(storage, info.index_name)), info)
    except FileNotFoundError:
        raise JournalDamaged(info.index_name, 0, "it is missing") from None


def is_newer_format(found: FormatUnknown) -> bool:
    """Whether a version may have been written, and is not a flipped bit in the number."""
    return found.known < found.version < 64


# -- without a manifest -----------------------------------------------------------------------------------------


def manifest_from_files(storage: Storage, journal: str) -> tuple[Manifest, list[JournalDamaged]]:
    """The manifest that the files of a folder suggest, and the segments that could not be made sense of."""
    segments: list[SegmentInfo] = []
    hopeless: list[JournalDamaged] = []
    names = storage.names()
    for name in names:
        if name.endswith(".seg"):
            try:
                segments.append(_info_of(storage, name))
            except JournalDamaged as damage:
                hopeless.append(damage)
    segments = _without_doubles(segments)
    # By what they hold: a repaired segment has a younger number than its place.
    segments.sort(key=lambda info: (info.first_sequence, info.number))
    chain = _newest_chain(storage, names)
    numbers = [_named(name)[0] for name in names]
    return Manifest(journal, segments, chain, max(numbers, default=0) + 1), hopeless


def _without_doubles(segments: list[SegmentInfo]) -> list[SegmentInfo]:
    """Without those that hold what others hold: what the cleaner has replaced goes only when the manifest is swapped.

    Originals go oldest first, and only when all that replaces them is there. So where the originals of a cleaned
    segment are all there they count, and else it does.
    """
    kept = [info for info in segments if not info.generation]
    for cleaned in sorted(segments, key=lambda info: (info.generation, info.first_sequence)):
        if not cleaned.generation:
            continue
        others = [info for info in kept if _overlap(info, cleaned)]
        first = min((info.first_sequence for info in others), default=cleaned.end_sequence)
        end = max((info.end_sequence for info in others), default=0)
        # One with nothing but staged batches spans no sequence, and is kept: batches that come twice are read once.
        if not others or first > cleaned.first_sequence or end < cleaned.end_sequence:
            kept = [*(info for info in kept if info not in others), cleaned]
    return kept


def _overlap(one: SegmentInfo, other: SegmentInfo) -> bool:
    return one.first_sequence < other.end_sequence and other.first_sequence < one.end_sequence


def _info_of(storage: Storage, name: str) -> SegmentInfo:
    data = read_whole(storage, name)
    header = data[: segment.HEADER.size]
    crc = data[len(header) : len(header) + 4]
    number, generation = _named(name)
    known = True
    if len(data) >= START and data[:8] == segment.MAGIC and crc_of(header).to_bytes(4, "little") == crc:
        _, version, _, number, segment_id, first_sequence, created = segment.HEADER.unpack(header)
        if version != segment.VERSION:
            raise FormatUnknown(name, version, segment.VERSION)
    else:
        # Its index has the id too, and without a matching id nothing in it can be trusted.
        indexed = _read_index_header(storage, number, generation)
        if indexed is None:
            raise JournalDamaged(name, 0, "neither its header nor its index tells its id")
        segment_id, first_sequence, created, known = indexed, 0, 0, False
    info = SegmentInfo(number, segment_id, len(data), first_sequence, first_sequence, created, created, generation)
    end = START
    firsts: list[tuple[int, int]] = []  # sequences and times
    for found in walk_segment(data, info):
        end = found.end if isinstance(found, Entry) or not found.headless else end
        for part in found.parts if isinstance(found, Entry) else (*found.kept, *found.lost):
            if part.kind in HOLDS_RECORDS:
                firsts.append((part.sequence, part.time))
                info.end_sequence = max(info.end_sequence, end_sequence(part))
                info.last_time = max(info.last_time, part.time)
        info.last_time = max(info.last_time, 0 if generation else found.time)
    if firsts and not known:
        info.first_sequence = min(firsts)[0]
    if firsts and generation:  # it was made later than its contents
        info.first_time = min(firsts)[1]
    info.end = 0
    try:
        load_index(storage, claimed := _claimed(storage, info))
        info.end = claimed.end  # it was sealed, and this is where
    except (JournalDamaged, FormatUnknown):
        if generation:  # there is none that is being written
            info.end = max(len(data), START)
    return info


def _named(name: str) -> tuple[int, int]:
    """The number and the generation of a segment or checkpoint, by the name of its file; 0 for other files."""
    found = _FILE.fullmatch(name)
    return (0, 0) if found is None else (int(found[1]), int(found[2] or 0))


def _claimed(storage: Storage, info: SegmentInfo) -> SegmentInfo:
    """The segment, sealed where its index says."""
    try:
        data = read_whole(storage, info.index_name)
    except FileNotFoundError:
        raise JournalDamaged(info.index_name, 0, "it is missing") from None
    if len(data) < index.HEADER.size:
        raise JournalDamaged(info.index_name, 0, "it is cut short")
    end = index.HEADER.unpack_from(data)[5]
    return SegmentInfo(info.number, info.id, end, generation=info.generation)


def _read_index_header(storage: Storage, number: int, generation: int) -> int | None:
    name = SegmentInfo(number, 0, generation=generation).index_name
    try:
        data = read_whole(storage, name)
        _, _, _, found, segment_id, end, *_ = index.HEADER.unpack_from(data)
        IndexFile(memoryview(data), SegmentInfo(number, segment_id, end, generation=generation))
    except (FileNotFoundError, error, JournalDamaged, FormatUnknown):
        return None
    return int(segment_id) if found == number else None


def _newest_chain(storage: Storage, names: list[str]) -> list[int]:
    """The checkpoints that lead to the newest state, the full one first; none where no chain is whole."""
    before: dict[int, int] = {}
    for name in names:
        if name.endswith(".ckpt"):
            data = read_whole(storage, name)
            if len(data) >= checkpoint.HEADER.size and data[:8] == checkpoint.MAGIC:
                _, _, _, number, previous, _ = checkpoint.HEADER.unpack_from(data)
                before[number] = previous
    for newest in sorted(before, reverse=True):
        chain = [newest]
        while before.get(chain[0]) and before[chain[0]] < chain[0]:
            chain.insert(0, before[chain[0]])
        if _is_whole(storage, chain):
            return chain
    return []


def _is_whole(storage: Storage, chain: list[int]) -> bool:
    ledger, previous = Ledger(), 0
    for number in chain:
        try:
            checkpoint.load(storage, number, previous, ledger)
        except (JournalDamaged, FormatUnknown):
            return False
        previous = number
    return True
