"""A batch from afar on its way into a stage: in the bytes that it came in, or cut where that is too much at once.

Nothing is done for a single record: what is cut are columns.
Below: core.packing. Above: stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from runnel.broker.stage_cutting import PIECE
from runnel.core.packing import Unpacked, pack_columns


class Piece:
    """A packed batch, and how many records it has."""

    __slots__ = ("_body", "count")

    def __init__(self, body: bytes, count: int) -> None:
        self._body, self.count = body, count

    def pack(self) -> bytes:
        """It is packed."""
        return self._body


class Arrival:
    """The records of a batch from number `at` on, as batches of about `piece` bytes at most."""

    def __init__(self, data: bytes, batch: Unpacked) -> None:
        self.at = 0
        self.piece = PIECE  # may change on the way
        self._data, self._batch = data, batch

    def __iter__(self) -> Iterator[Piece]:
        count = len(self._batch)
        while self.at < count:
            if not self.at and len(self._data) <= self.piece:
                self.at = count
                yield Piece(self._data, count)
            else:
                some = max(1, self.piece * count // max(1, self._batch.header.raw_length))
                first, self.at = self.at, min(self.at + some, count)
                yield self._cut(first, self.at)

    def _cut(self, first: int, end: int) -> Piece:
        if first == 0 and end == len(self._batch):
            return Piece(self._data, end)
        batch, header = self._batch, self._batch.header
        columns = (batch.values, batch.keys, batch.headers, None, batch.due, batch.expires, batch.priorities)
        body = pack_columns(
            [None if column is None else column[first:end] for column in columns],
            compression=header.compression,
            content_type=header.content_type,
        )
        return Piece(body, end - first)
