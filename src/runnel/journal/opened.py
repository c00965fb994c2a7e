"""Reading a cleaned segment: one entry for a reader of one topic, a whole block for readers by sequence.

`opened` checks what was read, in the thread that read it. `of_topic` tells what it holds of a topic, and
`in_order` puts a block into the order of sequences, piece by piece, as it is asked for more.

What is damaged is told as lost, never more than that: of a batch whose head or runs are whole, its
records. Where nobody can say which sequences were in some bytes, those that are lost are the sequences of the
block that no other entry of it accounts for: blocks share no sequences, so they are nowhere else.
Below: block_index, entry, found, merged. Above: history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from runnel.core.errors import BadBatch
from runnel.journal import entry, merged
from runnel.journal.block_index import next_head
from runnel.journal.entry import HEADER, STAGE_TOPIC, Head, Kind, body_crc
from runnel.journal.found import Found, Lost, Staged, offset_at, runs_of
from runnel.journal.index import Block
from runnel.journal.merged import Run
from runnel.journal.ranges import Ranges
from runnel.journal.source import Source

FIRST_READ = 8 * 1024  # of one entry: most are smaller, and a larger one says how long it is

_decode_commit = msgspec.msgpack.Decoder(tuple[int, list[int], int]).decode


class Hurt(NamedTuple):
    """A part whose body is not what was written. `runs` are known where they can be proven."""

    topic: int
    base: int
    last: int
    sequence: int
    runs: Sequence[Run] | None
    position: int


class Opened(NamedTuple):
    """What some bytes of a cleaned segment hold, and where there is no telling what they held."""

    parts: list[Found | Staged | Hurt]
    unknown: list[int]  # positions
    end: int  # the position behind it


def opened(source: Source, position: int, size: int, *, alone: bool) -> Opened:
    """Read and check the entry at `position` (`alone`), or all that lie in `size` bytes from there on."""
    info = source.info
    data = source.file.read(position, min(size, FIRST_READ) if alone else size)
    if alone and len(data) >= HEADER.size:
        magic, _, length, *_ = HEADER.unpack_from(data)
        if magic == entry.MAGIC and len(data) < length <= source.written - position:
            data += source.file.read(position + len(data), length - len(data))
    parts: list[Found | Staged | Hurt] = []
    unknown: list[int] = []
    at, end = 0, size
    while at < end:
        head = entry.read_head(data, at, info.id, position + at)
        if head is None or head.end > source.written:
            unknown.append(position + at)
            if alone:
                return Opened(parts, unknown, position + 1)
            head = next_head(data, at + 1, info, position + at + 1)
            if head is None:
                break
            at = head.position - position
        parts += _parts_of(data, at, head)
        at = head.end - position
        if alone:
            return Opened(parts, unknown, head.end)
    return Opened(parts, unknown, position + size)


def _parts_of(data: bytes, at: int, head: Head) -> Iterator[Found | Staged | Hurt]:
    at += head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = data[at : at + length]
        at += length
        if kind == Kind.STAGED:
            topic |= STAGE_TOPIC
        elif kind not in entry.HOLDS_RECORDS:
            continue
        one = Run(base, sequence, time, last - base + 1)
        whole = body_crc(kind, body) == crc
        runs: Sequence[Run] | None
        if kind == Kind.MERGED:
            try:
                runs = merged.runs_of(body) if whole else merged.runs_in_spite(body, crc)
            except BadBatch:
                whole, runs = False, None
            if whole and runs is not None:
                yield Found(topic, base, last, sequence, time, bytes(merged.batch_of(body)), runs)
                continue
        elif whole and kind == Kind.STAGE_COMMIT:
            if (staged := staged_in(body, one, topic)) is not None:
                yield staged
                continue
            runs = (one,)
        elif whole:
            yield Found(topic, base, last, sequence, time, body)
            continue
        else:
            runs = (one,)
        yield Hurt(topic, base, last, sequence, runs, head.position)


def staged_in(body: bytes, place: Run, topic: int) -> Staged | None:
    """What a commit of a stage makes visible; None where it does not say what it should."""
    try:
        stage, counts, _ = _decode_commit(body)
    except msgspec.MsgspecError:
        return None
    if sum(counts) != place.count or min(counts) < 1:
        return None
    last = place.offset + place.count - 1
    return Staged(topic, place.offset, last, place.sequence, place.time, stage, counts)


# -- by topic ---------------------------------------------------------------------------------------------------


def of_topic(
    found: Opened, source: Source, position: int, place: int, topics: Collection[int], *, suspect: bool
) -> tuple[list[Found | Staged | Lost], int]:
    """What the entry at `position` holds of a topic from offset `place` on, and the first offset behind it.

    `suspect` says that what is missing before it was lost, and is no hole.
    """
    items: list[Found | Staged | Lost] = []
    for part in found.parts:
        if part.topic in topics and part.last >= place:
            if suspect and part.base > place:
                items.append(Lost(place, part.base, f"damaged on disk, and so is the index ({source.info.name})"))
            if isinstance(part, Hurt):
                for first, end in _offsets_of(part):
                    if end > place:
                        items.append(Lost(max(first, place), end, damaged(source, part.position)))
            else:
                items.append(_from_offset(part, place))
            place = part.last + 1
    if found.unknown:
        (topic,) = topics
        index = source.index
        here, held = index.base_behind(topic, position), index.range_of(topic)
        if here is not None and held is not None:
            following = index.base_behind(topic, position + 1)
            end = held.end if following is None else following
            first = place if suspect else max(place, here)
            if end > first:
                items.append(Lost(first, end, damaged(source, position)))
            place = max(place, end)
    return items, place


def first_in(source: Source, block: Block, topic: int, sequence: int) -> int | None:
    """The offset of the first record of a topic at `sequence`, which lies in `block`, or behind it; None: not here.

    Reads its entries alone.
    """
    index, position = source.index, block.position
    if index.range_of(topic) is None:
        return None
    while (base := index.base_behind(topic, position)) is not None:
        at, _ = index.window(topic, base)
        if block.end is not None and at >= block.end:
            return base
        for part in opened(source, at, source.written - at, alone=True).parts:
            if part.topic == topic and not isinstance(part, Hurt):
                offset = offset_at(part, sequence)
                if offset is not None:
                    return offset
        position = at + 1
    return None


def _offsets_of(part: Hurt) -> list[tuple[int, int]]:
    if part.runs is None:
        return [(part.base, part.last + 1)]
    found: list[tuple[int, int]] = []
    for run in part.runs:
        if found and found[-1][1] == run.offset:
            found[-1] = (found[-1][0], run.offset + run.count)
        else:
            found.append((run.offset, run.offset + run.count))
    return found


def _from_offset(part: Found | Staged, place: int) -> Found | Staged:
    """Without the runs that end before an offset."""
    if not isinstance(part, Found) or part.runs is None:
        return part
    at = skipped = 0
    for run in part.runs:
        if run.offset + run.count > place:
            break
        at, skipped = at + 1, skipped + run.count
    return part if not at else _piece(part, at, len(part.runs), skipped)


def _piece(part: Found, first: int, end: int, at: int) -> Found:
    """Some runs of a merged batch, of which the first begins with its record number `at`."""
    assert part.runs is not None, "only a merged batch has pieces"
    runs = part.runs[first:end]
    last = runs[-1].offset + runs[-1].count - 1
    return Found(part.topic, runs[0].offset, last, runs[0].sequence, runs[0].time, part.body, runs, part.at + at)


# -- by sequence ------------------------------------------------------------------------------------------------


def in_order(
    found: Opened, source: Source, block: Block, place: int, topics: Collection[int]
) -> Iterator[Found | Staged | Lost]:
    """What a block holds of some topics from sequence `place` on. No piece lies across another."""
    waiting: list[tuple[int, int, Found | Staged | Lost, int, int]] = []  # first sequence, unique, part, run, record
    for lost in _lost(found, source, block, place, topics):
        waiting.append((lost.first, len(waiting), lost, 0, 0))
    for part in found.parts:
        if part.topic in topics and not isinstance(part, Hurt):
            at = skipped = 0
            runs = runs_of(part)
            while at < len(runs) and runs[at].sequence + runs[at].count <= place:
                skipped += runs[at].count
                at += 1
            if at < len(runs):
                waiting.append((runs[at].sequence, len(waiting), part, at, skipped))
    heapify(waiting)
    while waiting:
        _, number, item, first, skipped = heappop(waiting)
        if not isinstance(item, Found) or item.runs is None:
            yield item
            continue
        runs = item.runs
        end, following = first + 1, skipped + runs[first].count
        while end < len(runs) and (not waiting or runs[end].sequence < waiting[0][0]):
            following += runs[end].count
            end += 1
        if end < len(runs):
            heappush(waiting, (runs[end].sequence, number, item, end, following))
        yield item if end - first == len(runs) else _piece(item, first, end, skipped)


def _lost(found: Opened, source: Source, block: Block, place: int, topics: Collection[int]) -> list[Lost]:
    """The sequences from `place` on that cannot be read."""
    place = max(place, block.first)
    hurt = [part for part in found.parts if isinstance(part, Hurt) and part.topic in topics]
    if not hurt and not found.unknown:
        return []
    lost: list[Lost] = []
    for part in hurt:
        why = damaged(source, part.position)
        ends = ((run.sequence, run.sequence + run.count) for run in part.runs or ())
        lost += [Lost(max(first, place), end, why) for first, end in ends if end > place]
    vague = [part for part in hurt if part.runs is None]
    if found.unknown or vague:
        known = Ranges()
        for one in found.parts:
            if one.topic < STAGE_TOPIC:
                for run in (one.runs or ()) if isinstance(one, Hurt) else runs_of(one):
                    known.add(run.sequence, run.sequence + run.count)
        first = place if found.unknown else max(place, min(part.sequence for part in vague))
        where = found.unknown[0] if found.unknown else vague[0].position
        behind = source.info.end_sequence if block.behind is None else block.behind
        for start, end in known:
            if end > first and start < behind:
                if start > first:
                    lost.append(Lost(first, start, damaged(source, where)))
                first = end
        if behind > first:
            lost.append(Lost(first, behind, damaged(source, where)))
    return lost


def damaged(source: Source, position: int) -> str:
    """Why something is lost."""
    return f"damaged on disk ({source.info.name} at {position})"
