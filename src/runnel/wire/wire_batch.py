"""Records as batches that are sent: one `WireBatch` for each run of records of one time, or several for a large one.

A slice is packed once for all its readers: the packed bytes are stored in the slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runnel.core.batch import Slice, SliceRun
from runnel.core.batch_format import CONTENT_TYPES, pack
from runnel.core.clock import micros
from runnel.core.columns import HEADERS, KEYS, Columns
from runnel.core.record import Record


class WireBatch(NamedTuple):
    """Records of one topic side by side, of one time, as a batch: offsets and sequences rise by one."""

    topic: str
    epoch: int
    offset: int
    sequence: int
    time: int  # microseconds since 1970
    packed: bytes


MAX_PACKED = 256 << 10
"""Bytes of values that are packed together; a single value may have more."""


def wire_batches(part: Slice, encoding: str | None) -> Iterator[WireBatch]:
    """The batches of a slice. Packed bytes are stored in the slice for its other readers."""
    if part.packs is None or None in part.packs:
        _split(part)
    assert part.packs is not None
    runs, packs = part.stretches, part.packs
    last = len(runs) - 1
    for at, (offset, sequence, time) in enumerate(runs):
        first = max(offset, part.start)
        packed = packs[at]
        if packed is None:
            end = runs[at + 1].offset if at < last else part.end
            packed = packs[at] = _packed(part, first, end, CONTENT_TYPES[encoding])
        yield WireBatch(part.topic, part.epoch, first, sequence + first - offset, micros(time), packed)


def whole_batch(part: Slice) -> WireBatch | None:
    """All of a slice, if it is one batch that is packed already; None: see `wire_batches`."""
    packs = part.packs
    if packs is None or len(packs) != 1 or (packed := packs[0]) is None:
        return None
    offset, sequence, time = part.stretches[0]
    start = part.start
    if offset < start:
        offset, sequence = start, sequence + start - offset
    return WireBatch(part.topic, part.epoch, offset, sequence, micros(time), packed)


def _split(part: Slice) -> None:
    """Divide the runs of a slice that are to be packed, so that each has at most `MAX_PACKED` bytes."""
    runs, packs = part.stretches, part.packs or [None] * len(part.stretches)
    found: list[SliceRun] = []
    kept: list[bytes | None] = []
    for at, (run, packed) in enumerate(zip(runs, packs, strict=True)):
        found.append(run)
        kept.append(packed)
        if packed is not None:
            continue
        first, size = max(run.offset, part.start), 0
        end = runs[at + 1].offset if at + 1 < len(runs) else part.end
        values = part.values[first - part.start : end - part.start]
        if sum(map(len, values)) <= MAX_PACKED:
            continue
        for offset, one in enumerate(map(len, values), first):
            if size and size + one > MAX_PACKED:
                found.append(SliceRun(offset, run.sequence + offset - run.offset, run.time))
                kept.append(None)
                size = 0
            size += one
    if part.packs is None or len(found) > len(runs):  # else other callers keep filling the same list
        part.stretches, part.packs = found, kept


def wire_batch_of(record: Record[bytes], encoding: str | None) -> WireBatch:
    """One record as a batch, with its key and headers."""
    columns = Columns({KEYS: [record.key], HEADERS: [dict(record.headers) or None]})
    packed = pack([record.value], columns, content_type=CONTENT_TYPES[encoding])
    return WireBatch(record.topic, record.epoch, record.offset, record.sequence, micros(record.time), packed)


def _packed(part: Slice, first: int, end: int, content_type: int) -> bytes:
    values = part.values[first - part.start : end - part.start]
    columns = None if part.columns is None else part.columns.part(first - part.start, end - part.start)
    return pack(values, columns, content_type=content_type)
