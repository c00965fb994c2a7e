"""Pieces: slices as they are sent, one packed batch for each stretch, packed once for all who read it.

Below: core.batch, core.packing. Above: feed, group_feed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from runnel.core.batch import Slice
from runnel.core.moment import micros
from runnel.core.packing import pack
from runnel.core.position import Position
from runnel.core.record import Meta, Record


class Piece(NamedTuple):
    """Records of one topic side by side, of one time, as a batch: offsets and sequences rise by one."""

    topic: str
    epoch: int
    offset: int
    sequence: int
    time: int  # microseconds since 1970
    packed: bytes


def pieces(part: Slice, content_type: int) -> Iterator[Piece]:
    """The stretches of a slice. What had to be packed is remembered in it: others read the same one."""
    stretches = part.stretches
    if part.packs is None:
        part.packs = [None] * len(stretches)
    packs, last = part.packs, len(stretches) - 1
    for at, (offset, sequence, time) in enumerate(stretches):
        first = max(offset, part.start)
        packed = packs[at]
        if packed is None:
            end = stretches[at + 1].offset if at < last else part.end
            packed = packs[at] = _packed(part, first, end, content_type)
        yield Piece(part.topic, part.epoch, first, sequence + first - offset, micros(time), packed)


def range_pieces(part: Slice, first: int, end: int, content_type: int) -> Iterator[Piece]:
    """The records [first, end) of a slice."""
    return pieces(part if (first, end) == (part.start, part.end) else part.cut(first, end), content_type)


def without(part: Slice, gone: Collection[Position]) -> Iterator[Slice]:
    """What is left of a slice without some records, in order."""
    start = part.start
    for offset in [*sorted(one.offset for one in gone if one.epoch == part.epoch), part.end]:
        if not part.start <= offset <= part.end:
            continue
        if start < offset:
            yield part.cut(start, offset)
        start = offset + 1


def one_piece(record: Record[bytes], content_type: int) -> Piece:
    """A record by itself, with its key and headers."""
    meta = Meta(record.key, record.headers)
    packed = pack([record.value], [meta], content_type=content_type)
    return Piece(record.topic, record.epoch, record.offset, record.sequence, micros(record.time), packed)


def _packed(part: Slice, first: int, end: int, content_type: int) -> bytes:
    values = part.values[first - part.start : end - part.start]
    metas = None
    if part.metas:
        metas = [part.metas.get(offset) for offset in range(first, end)]
        if not any(metas):
            metas = None
    return pack(values, metas, content_type=content_type)
