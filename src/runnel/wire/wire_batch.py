"""Records as batches that are sent: one `WireBatch` for each run of records of one time.

A slice is packed once for all its readers: the packed bytes are stored in the slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runnel.core.batch import Slice
from runnel.core.batch_format import CONTENT_TYPES, pack
from runnel.core.clock import micros
from runnel.core.record import Meta, Record


class WireBatch(NamedTuple):
    """Records of one topic side by side, of one time, as a batch: offsets and sequences rise by one."""

    topic: str
    epoch: int
    offset: int
    sequence: int
    time: int  # microseconds since 1970
    packed: bytes


def wire_batches(part: Slice, encoding: str | None) -> Iterator[WireBatch]:
    """The batches of a slice. Packed bytes are stored in the slice for its other readers."""
    runs = part.stretches
    if part.packs is None:
        part.packs = [None] * len(runs)
    packs, last = part.packs, len(runs) - 1
    for at, (offset, sequence, time) in enumerate(runs):
        first = max(offset, part.start)
        packed = packs[at]
        if packed is None:
            end = runs[at + 1].offset if at < last else part.end
            packed = packs[at] = _packed(part, first, end, CONTENT_TYPES[encoding])
        yield WireBatch(part.topic, part.epoch, first, sequence + first - offset, micros(time), packed)


def wire_batch_of(record: Record[bytes], encoding: str | None) -> WireBatch:
    """One record as a batch, with its key and headers."""
    meta = Meta(record.key, record.headers)
    packed = pack([record.value], [meta], content_type=CONTENT_TYPES[encoding])
    return WireBatch(record.topic, record.epoch, record.offset, record.sequence, micros(record.time), packed)


def _packed(part: Slice, first: int, end: int, content_type: int) -> bytes:
    values = part.values[first - part.start : end - part.start]
    metas = None
    if part.metas:
        metas = [part.metas.get(offset) for offset in range(first, end)]
        if not any(metas):
            metas = None
    return pack(values, metas, content_type=content_type)
