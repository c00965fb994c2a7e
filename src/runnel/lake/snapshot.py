"""One snapshot of the table: its files, the ranges of their columns, and the next offsets of topics.

A snapshot does not change. The statistics in the log show which files may hold the requested records, without opening
one; the exact contents of a file are in its footer, which is read once and kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.lake.files import LakeRange, read_groups, read_index
from runnel.lake.layout import bucket_of
from runnel.lake.storage import LakeStorage, need

if TYPE_CHECKING:
    import pyarrow as pa

FOOTERS = 4096
"""That a reader keeps, at most: the newest used."""

_LEAST, _MOST = -(2**63), 2**63 - 1


class TableFile(NamedTuple):
    """A file that a snapshot names. Sequences, offsets and times (microseconds) are what its statistics say."""

    path: str
    size: int
    rows: int
    day: date
    bucket: int
    first: int
    last: int
    first_sequence: int
    last_sequence: int


class RowGroup(NamedTuple):
    """A row group of a file, and the requested records in it."""

    path: str
    number: int
    ranges: tuple[LakeRange, ...]


class LakeSnapshot:
    """The files of one version of a table, and the next offsets that it stores.

    `prefix`: of the names of the columns topic, epoch, offset, sequence, time and day. A table without buckets has one.
    """

    def __init__(
        self, version: int, actions: pa.Table, next_offsets: Mapping[tuple[str, int], int], prefix: str = ""
    ) -> None:
        self.version, self.next_offsets = version, next_offsets
        self._adds, self._prefix = actions, prefix

    def __repr__(self) -> str:
        return f"<LakeSnapshot {self.version}, {len(self._adds)} files>"

    @cached_property
    def _columns(self) -> dict[str, Any]:
        np, pa = need("numpy"), need("pyarrow")
        found: dict[str, Any] = {}
        for name in ("epoch", "offset", "sequence", "time"):
            for side, missing in (("min", _LEAST), ("max", _MOST)):
                key, stored = f"{side}.{name}", f"{side}.{self._prefix}{name}"
                if stored in self._adds.column_names:
                    column = self._adds[stored].cast(pa.int64()).fill_null(missing)
                    found[key] = column.to_numpy()
                else:  # a table without files has no statistics
                    found[key] = np.full(len(self._adds), missing, dtype=np.int64)
        for side in ("min", "max"):
            stored = f"{side}.{self._prefix}topic"
            there = stored in self._adds.column_names
            found[f"{side}.topic"] = self._adds[stored].to_pylist() if there else [None] * len(self._adds)
        buckets = self._adds["partition.bucket"] if "partition.bucket" in self._adds.column_names else None
        none = np.zeros(len(self._adds), dtype=np.int64)
        found["bucket"] = none if buckets is None else buckets.cast(pa.int64()).to_numpy()
        return found

    @cached_property
    def files(self) -> list[TableFile]:
        """All of them, in no order."""
        if not len(self._adds):
            return []
        columns = self._columns
        days = self._adds[f"partition.{self._prefix}day"].to_pylist()
        rows = self._adds["num_records"].to_pylist()
        return [
            TableFile(
                path,
                size,
                rows[at] or 0,
                days[at],
                int(columns["bucket"][at]),
                int(columns["min.offset"][at]),
                int(columns["max.offset"][at]),
                int(columns["min.sequence"][at]),
                int(columns["max.sequence"][at]),
            )
            for at, (path, size) in enumerate(
                zip(self._adds["path"].to_pylist(), self._adds["size_bytes"].to_pylist(), strict=True)
            )
        ]

    def of_topic(
        self, topic: str, buckets: int, start: int = 0, end: int = _MOST, since: int = _LEAST
    ) -> list[TableFile]:
        """Files that may hold records of a topic with offsets in [start, end) and times (microseconds) from `since`.

        Those with the lower offsets first.
        """
        columns = self._columns
        mask = (columns["bucket"] == bucket_of(topic, buckets)) & (columns["max.offset"] >= start)
        mask &= (columns["min.offset"] < end) & (columns["max.time"] >= since)
        least, most = columns["min.topic"], columns["max.topic"]
        chosen = (at for at in mask.nonzero()[0].tolist() if _spans(least[at], most[at], topic))
        return sorted((self.files[at] for at in chosen), key=lambda one: one.first)

    def of_sequences(self, start: int, end: int, since: int = _LEAST) -> list[TableFile]:
        """Files that may hold records with sequences in [start, end). Those with the lower sequences first."""
        columns = self._columns
        mask = (columns["max.sequence"] >= start) & (columns["min.sequence"] < end) & (columns["max.time"] >= since)
        return sorted((self.files[at] for at in mask.nonzero()[0].tolist()), key=lambda one: one.first_sequence)


def _spans(least: str | None, most: str | None, topic: str) -> bool:
    return (least is None or least <= topic) and (most is None or topic <= most)


class FileCache:
    """Footers and row groups that were read, as long as there is room for them. Threads may share it."""

    def __init__(self, storage: LakeStorage, max_bytes: int) -> None:
        self._storage, self._max_bytes = storage, max_bytes
        self._lock = threading.Lock()
        self._footers: OrderedDict[str, list[list[LakeRange]]] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<FileCache, {len(self._footers)} footers, {self._bytes:,} bytes of rows>"

    def index(self, path: str) -> list[list[LakeRange]]:
        """The records of each row group of a file."""
        with self._lock:
            if path in self._footers:
                self._footers.move_to_end(path)
                return self._footers[path]
        found = read_index(self._storage, path)
        with self._lock:
            self._footers[path] = found
            while len(self._footers) > FOOTERS:
                self._footers.popitem(last=False)
        return found

    def groups(self, file: TableFile, topic: str, epoch: int) -> Iterator[RowGroup]:
        """The row groups of a file with records of a topic, those with the lower offsets first."""
        found = []
        for number, ranges in enumerate(self.index(file.path)):
            mine = tuple(one for one in ranges if one.topic == topic and one.epoch == epoch)
            if mine:
                found.append(RowGroup(file.path, number, mine))
        yield from sorted(found, key=lambda group: group.ranges[0].first)

    def rows(self, group: RowGroup) -> pa.Table:
        """All rows of a row group."""
        key = group.path, group.number
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
                return self._groups[key]
        (found,) = read_groups(self._storage, group.path, [group.number])
        with self._lock:
            if key not in self._groups:
                self._groups[key] = found
                self._bytes += found.nbytes
                while self._bytes > self._max_bytes and len(self._groups) > 1:
                    _, gone = self._groups.popitem(last=False)
                    self._bytes -= gone.nbytes
        return found
