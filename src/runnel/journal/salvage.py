"""What can still be read of damaged files: entries around the damage, a manifest out of the segments themselves.

Reads, and decides nothing. Below: entry, segment, index, checkpoint. Above: survey, repair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error
from typing import NamedTuple

from runnel.core.checksum import crc_of
from runnel.core.journal_errors import FormatUnknown, JournalDamaged
from runnel.journal import checkpoint, entry, index, segment
from runnel.journal.entry import Entry, Kind, Part, body_crc
from runnel.journal.index import IndexFile
from runnel.journal.ledger import Ledger
from runnel.journal.manifest import Manifest
from runnel.journal.segment import START, SegmentInfo
from runnel.journal.storage import Storage
from runnel.journal.swap import read_whole


class Spot(NamedTuple):
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
        """Whether nobody can say what was there."""
        return not self.kept and not self.lost


def walk(data: bytes, info: SegmentInfo) -> Iterator[Entry | Spot]:
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
        following = segment.next_whole(data, position + 1, info)
        if following is None and data.count(0, position) == end - position:
            return
        until = end if following is None else following.position
        yield Spot(position, until, "no whole entry begins here")
        position = until


def _with_whole_parts(data: bytes, head: entry.Head) -> Spot:
    kept: list[Part] = []
    lost: list[Part] = []
    at = head.position + head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = data[at : at + length]
        at += length
        whole = len(body) == length and body_crc(kind, body) == crc
        (kept if whole else lost).append(Part(kind, body, crc, topic, base, last, sequence, time))
    what = ", ".join(sorted({_kind(part.kind) for part in lost})) or "it"
    return Spot(head.position, head.end, f"the crc of {what} in this entry is wrong", kept, lost, head.time)


def _kind(kind: int) -> str:
    if kind == Kind.BATCH:
        return "a batch"
    return f"a {Kind(kind).name.lower()} part" if kind in Kind._value2member_map_ else f"a part of kind {kind}"


def load_index(storage: Storage, info: SegmentInfo) -> IndexFile:
    """The index of a sealed segment, or what is wrong with it."""
    try:
        return IndexFile(memoryview(read_whole(storage, info.index_name)), info)
    except FileNotFoundError:
        raise JournalDamaged(info.index_name, 0, "it is missing") from None


def is_newer_format(found: FormatUnknown) -> bool:
    """Whether a version is one that somebody may have written, and not a flipped bit in the number of it."""
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
    # By what they hold: a repaired segment has a younger number than its place.
    segments.sort(key=lambda info: (info.first_sequence, info.number))
    chain = _newest_chain(storage, names)
    numbers = [_number(name) for name in names]
    return Manifest(journal, segments, chain, max(numbers, default=0) + 1), hopeless


def _info_of(storage: Storage, name: str) -> SegmentInfo:
    data = read_whole(storage, name)
    header = data[: segment._HEADER.size]
    crc = data[len(header) : len(header) + 4]
    number = _number(name)
    known = True
    if len(data) >= START and data[:8] == segment.MAGIC and crc_of(header).to_bytes(4, "little") == crc:
        _, version, _, number, segment_id, first_sequence, created = segment._HEADER.unpack(header)
        if version != segment.VERSION:
            raise FormatUnknown(name, version, segment.VERSION)
    else:
        # Its index tells the id too, and without the id nothing in it can be believed.
        indexed = _read_index_header(storage, number)
        if indexed is None:
            raise JournalDamaged(name, 0, "neither its header nor its index tells its id")
        segment_id, first_sequence, created, known = indexed, 0, 0, False
    info = SegmentInfo(number, segment_id, len(data), first_sequence, first_sequence, created, created)
    end = START
    for found in walk(data, info):
        end = found.end if isinstance(found, Entry) or not found.headless else end
        for part in found.parts if isinstance(found, Entry) else (*found.kept, *found.lost):
            if part.kind == Kind.BATCH:
                if not known:
                    info.first_sequence, known = part.sequence, True
                info.end_sequence = max(info.end_sequence, part.sequence + part.count)
        info.last_time = max(info.last_time, found.time)
    info.end = 0
    try:
        load_index(storage, claimed := _claimed(storage, info))
        info.end = claimed.end  # it was sealed, and this is where
    except (JournalDamaged, FormatUnknown):
        pass
    return info


def _number(name: str) -> int:
    """The number of a segment or checkpoint, by the name of its file; 0 for other files."""
    number, _, kind = name.partition(".")
    return int(number) if number.isdigit() and kind in ("seg", "idx", "ckpt") else 0


def _claimed(storage: Storage, info: SegmentInfo) -> SegmentInfo:
    """The segment, sealed where its index says."""
    try:
        data = read_whole(storage, info.index_name)
    except FileNotFoundError:
        raise JournalDamaged(info.index_name, 0, "it is missing") from None
    if len(data) < index._HEADER.size:
        raise JournalDamaged(info.index_name, 0, "it is cut short")
    end = index._HEADER.unpack_from(data)[5]
    return SegmentInfo(info.number, info.id, end)


def _read_index_header(storage: Storage, number: int) -> int | None:
    name = SegmentInfo(number, 0).index_name
    try:
        data = read_whole(storage, name)
        _, _, _, found, segment_id, end, *_ = index._HEADER.unpack_from(data)
        IndexFile(memoryview(data), SegmentInfo(number, segment_id, end))
    except (FileNotFoundError, error, JournalDamaged, FormatUnknown):
        return None
    return int(segment_id) if found == number else None


def _newest_chain(storage: Storage, names: list[str]) -> list[int]:
    """The checkpoints that lead to the newest state, the full one first; none where no chain is whole."""
    before: dict[int, int] = {}
    for name in names:
        if name.endswith(".ckpt"):
            data = read_whole(storage, name)
            if len(data) >= checkpoint._HEADER.size and data[:8] == checkpoint.MAGIC:
                _, _, _, number, previous, _ = checkpoint._HEADER.unpack_from(data)
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
