"""Records that came over the wire, from their frame to a slice.

A frame is kept as it came until its records are wanted; then it is unpacked, once.
Below: core.packing, wire.layouts. Above: inbox (records), lease (deliveries).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from runnel.core.batch import Slice, Stretch
from runnel.core.errors import BadBatch
from runnel.core.moment import from_micros
from runnel.core.packing import BYTES, HEADER_SIZE, JSON, MSGPACK, unpack
from runnel.core.record import Meta
from runnel.wire.layouts import Deliver, Grant

ENCODINGS = {BYTES: None, JSON: "json", MSGPACK: "msgpack"}

_COUNT = slice(8, 12)  # of the header of a batch
_NO_METAS: Mapping[int, Meta] = {}


class Arrival:
    """One frame's records. `count` is what its header says; what is in it is known when it was `opened`."""

    __slots__ = ("_skipped", "_slice", "_where", "cost", "count", "encoding", "size")

    def __init__(self, where: Deliver | Grant, cost: int, skipped: int = 0) -> None:
        self._where: Deliver | Grant | None = where
        self._slice: Slice | None = None
        self._skipped = skipped  # records at its beginning that are known already
        self.size = self.cost = cost  # bytes; and of the credit that it came on
        self.count = count_of(where.batch) - skipped
        self.encoding: str | None = None  # how its values are written, once it was opened

    def __repr__(self) -> str:
        return f"<Arrival of {self.count} records>"

    def place(self, *, is_pattern: bool) -> int:
        """The place of its first record, before it was opened."""
        assert self._where is not None
        return (self._where.sequence if is_pattern else self._where.offset) + self._skipped

    def opened(self, *, verify: bool) -> Slice:
        """Its records, or `BadBatch`."""
        if self._slice is None:
            assert self._where is not None, "it is opened once"
            found, self.encoding = unpacked(self._where, verify=verify)
            if self._skipped:
                found = found.cut(found.start + self._skipped, found.end)
            self._slice, self._where = found, None
        return self._slice

    def first(self, count: int) -> Slice:
        """The first `count` of its records, which it holds no longer. It was opened, and has more than that."""
        assert self._slice is not None
        whole = self._slice
        middle = whole.start + count
        self._slice = whole.cut(middle, whole.end)
        self.count -= count
        return whole.cut(whole.start, middle)


def count_of(batch: bytes) -> int:
    """How many records a batch has, as its header says. Whether that is so shows when it is unpacked."""
    return int.from_bytes(batch[_COUNT], "little") if len(batch) >= HEADER_SIZE else 0


def unpacked(where: Deliver | Grant, *, verify: bool) -> tuple[Slice, str | None]:
    """The records of a frame, and how their values are written; or `BadBatch`."""
    batch = unpack(where.batch, verify=verify)
    if batch.deltas is not None:
        raise BadBatch("its records do not lie side by side")
    start, time = where.offset, from_micros(where.time)
    stretches: Sequence[Stretch] = [Stretch(start, where.sequence, time)]
    if batch.times is not None:
        stretches = _by_time(start, where.sequence, time, batch.times)
    metas = _NO_METAS if not batch.metas else {start + at: meta for at, meta in batch.metas.items()}
    encoding = ENCODINGS[batch.header.content_type]
    return Slice(where.topic, where.epoch, start, batch.values, stretches, metas), encoding


def _by_time(start: int, sequence: int, time: datetime, times: Sequence[int | None]) -> list[Stretch]:
    """Records that have times of their own: a stretch for each run of the same."""
    found: list[Stretch] = []
    for at, own in enumerate(times):
        when = time if own is None else from_micros(own)
        if not found or found[-1].time != when:
            found.append(Stretch(start + at, sequence + at, when))
    return found
