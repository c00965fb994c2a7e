"""Merged batches: many batches of one topic as one, written by the cleaner.

A *run* is records whose offsets and sequences both rise by one, all with one append time; between two runs there may
be records of other topics, and records that were removed.

    0   u32  crc          crc32c of everything behind this field
    4   u32  runs         how many, at least 1
    8   28 bytes a run    first offset (u64), first sequence (u64), append time (u64, microseconds), records (u32)
    ..  a packed batch    the records of all runs, in order; without offset deltas

Nothing that is read is trusted: bytes that break any of this raise `BadBatch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from runnel.core.batch_format import DELTAS, HEADER_SIZE, read_batch_header
from runnel.core.checksum import crc_extended, crc_of
from runnel.core.errors import BadBatch

_START = Struct("<II")
_RUN = Struct("<QQQI")
_END = 1 << 64
_LAST_TIME = 253_402_300_799_999_999  # of the year 9999, the last that a datetime can show


class RecordRun(NamedTuple):
    """Records [offset, offset + count), with sequences from `sequence` on, appended at `time` (microseconds)."""

    offset: int
    sequence: int
    time: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name, which is not needed here


def encode(runs: Sequence[RecordRun], batch: bytes) -> bytes:
    """The body of a merged part: the packed `batch`, and where its records belong.

    Raises `ValueError` for runs that fall or overlap, or do not count up to the batch.
    """
    if (wrong := _wrong(runs, batch)) is not None:
        raise ValueError(f"no merged batch: {wrong}")
    after = b"".join((len(runs).to_bytes(4, "little"), *[_RUN.pack(*run) for run in runs], batch))
    return crc_of(after).to_bytes(4, "little") + after


def runs_of(body: bytes | memoryview) -> list[RecordRun]:
    """Where the records of a merged part belong. Its crc is not checked: the reader of the part did that."""
    start = _batch_at(body)
    runs = list(map(RecordRun._make, _RUN.iter_unpack(body[_START.size : start])))
    if (wrong := _wrong(runs, body[start:])) is not None:
        raise BadBatch(wrong)
    return runs


def batch_of(body: bytes | memoryview) -> memoryview:
    """The packed batch of a merged part, as it lies in it. Neither is checked: see `runs_of` and `packing.unpack`."""
    return memoryview(body)[_batch_at(body) :]


def provable_runs(body: bytes, crc: int) -> list[RecordRun] | None:
    """The runs of a part that should have `crc` and has not; None when it cannot be proven that they are right.

    The records are most of the bytes, so damage most often hits them alone. The runs can then be proven
    without them: the batch begins with its own crc, and the crc of two pieces follows from those of each.
    """
    try:
        start = _batch_at(body)
    except BadBatch:
        return None
    front, rest = body[4 : start + 4], len(body) - start - 4
    if rest <= 0 or _joined(crc_of(front), int.from_bytes(front[-4:], "little"), rest) != crc:
        return None
    runs = list(map(RecordRun._make, _RUN.iter_unpack(body[_START.size : start])))
    return runs if _falling(runs) is None else None


def _batch_at(body: bytes | memoryview) -> int:
    if len(body) < _START.size:
        raise BadBatch(f"it ends after {len(body)} bytes, before its runs")
    count = _START.unpack_from(body)[1]
    start: int = _START.size + count * _RUN.size
    if not count or start + HEADER_SIZE > len(body):
        raise BadBatch(f"it has {count:,} runs in {len(body):,} bytes")
    return start


def _wrong(runs: Sequence[RecordRun], batch: bytes | memoryview) -> str | None:
    """The error of these runs for this batch."""
    header = read_batch_header(batch)
    if header.columns & DELTAS:
        return "it has offset deltas beside its runs"
    if (total := sum(run.count for run in runs)) != header.count:
        return f"its runs count up to {total:,} records, and it has {header.count:,}"
    return _falling(runs)


def _falling(runs: Iterable[RecordRun]) -> str | None:
    offset = sequence = 0
    for run in runs:
        if not run.count:
            return "it has an empty run"
        if run.offset < offset or run.sequence < sequence:
            return f"its runs do not rise at offset {run.offset}"
        if run.time > _LAST_TIME:
            return f"its run at offset {run.offset} is of no time that there will be"
        offset, sequence = run.offset + run.count, run.sequence + run.count
    return "its runs end behind all numbers" if max(offset, sequence) > _END else None


def _joined(front: int, back: int, size: int) -> int:
    """The crc of two pieces, from theirs and the size of the second."""
    zeros = bytes(size)
    return crc_extended(front, zeros) ^ crc_of(zeros) ^ back
