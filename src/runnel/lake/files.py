"""The Parquet files of a lake: how rows become files, and the index in the footer of each.

Row groups follow each other by sequence, and inside a row group rows are sorted by topic, epoch and offset: a reader of
a pattern reads each row group once, and the records of one topic lie side by side. The footer says which offsets,
sequences and times of which topics are in which row group, so that a reader fetches only those that it needs.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.core.clock import from_micros
from runnel.core.errors import LakeDamaged
from runnel.lake.layout import as_records, parts, record_schema, without_known
from runnel.lake.storage import LakeStorage, need

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 15, 8 << 20
FILE_BYTES = 128 << 20
"""Of the rows of one file in memory, about; the file itself is smaller."""

HELD_BYTES = 256 << 20
"""Of the rows that one writer holds, in all the files that it is about to write."""

INDEX_KEY = b"runnel.index"
_COMPRESSION = "zstd"


class LakeRange(msgspec.Struct, frozen=True, array_like=True):
    """Records of one topic in one epoch: how many, and the first and last offset, sequence and time (microseconds)."""

    topic: str
    epoch: int
    first: int
    last: int
    count: int
    first_sequence: int
    last_sequence: int
    first_time: int
    last_time: int

    @property
    def key(self) -> tuple[str, int]:
        """The topic and the epoch: what next offsets are kept by."""
        return self.topic, self.epoch

    def joined(self, other: LakeRange) -> LakeRange:
        """The range that holds both."""
        return LakeRange(
            self.topic,
            self.epoch,
            min(self.first, other.first),
            max(self.last, other.last),
            self.count + other.count,
            min(self.first_sequence, other.first_sequence),
            max(self.last_sequence, other.last_sequence),
            min(self.first_time, other.first_time),
            max(self.last_time, other.last_time),
        )


class LakeFile(msgspec.Struct, frozen=True):
    """A Parquet file that was written, and that no commit names yet. It travels from an executor to the driver."""

    path: str
    size: int
    day: date
    bucket: int
    rows: int
    ranges: tuple[LakeRange, ...]
    written: float
    """When it was, in seconds since 1970. A commit refuses a file that is so old that maintenance may remove it."""

    def stats(self, prefix: str = "") -> str:
        """Its column statistics for the Delta log: readers skip the file by them. `prefix`: of the columns' names."""
        topics = [one.topic for one in self.ranges]
        least = {
            "topic": min(topics),
            "epoch": min(one.epoch for one in self.ranges),
            "offset": min(one.first for one in self.ranges),
            "sequence": min(one.first_sequence for one in self.ranges),
            "time": _stamp(min(one.first_time for one in self.ranges)),
        }
        most = {
            "topic": max(topics),
            "epoch": max(one.epoch for one in self.ranges),
            "offset": max(one.last for one in self.ranges),
            "sequence": max(one.last_sequence for one in self.ranges),
            "time": _stamp(max(one.last_time for one in self.ranges)),
        }
        least, most = ({f"{prefix}{name}": value for name, value in one.items()} for one in (least, most))
        nulls = dict.fromkeys(least, 0)
        return json.dumps({"numRecords": self.rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _stamp(micros: int) -> str:
    return from_micros(micros).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# -- Writing ---------------------------------------------------------------------------------------------


class FileWriter:
    """Collects rows by partition, and writes a file when there is enough for one."""

    def __init__(self, storage: LakeStorage, buckets: int, known: Mapping[tuple[str, int], int] | None = None) -> None:
        self._storage, self._buckets, self._known = storage, buckets, known
        self._open: dict[tuple[date, int], list[pa.RecordBatch]] = {}
        self._bytes: dict[tuple[date, int], int] = {}

    def __repr__(self) -> str:
        return f"<FileWriter, {len(self._open)} partitions, {sum(self._bytes.values()):,} bytes>"

    def add(self, batch: pa.RecordBatch) -> Iterator[LakeFile]:
        """Take rows in. Files that are full come out."""
        rows = as_records(batch)
        if self._known:
            rows = without_known(rows, self._known)
        if not rows.num_rows:
            return
        for key, part in parts(rows, self._buckets):
            self._open.setdefault(key, []).append(part)
            self._bytes[key] = self._bytes.get(key, 0) + part.nbytes
            if self._bytes[key] >= FILE_BYTES:
                yield self._write(key)
        while sum(self._bytes.values()) > HELD_BYTES:
            yield self._write(max(self._bytes, key=self._bytes.__getitem__))

    def finish(self) -> Iterator[LakeFile]:
        """Write the rest."""
        for key in sorted(self._open):
            yield self._write(key)

    def _write(self, key: tuple[date, int]) -> LakeFile:
        del self._bytes[key]
        return write_file(self._storage, *key, self._open.pop(key))


def write_file(storage: LakeStorage, day: date, bucket: int, batches: Sequence[pa.RecordBatch]) -> LakeFile:
    """Write rows of one partition as one file, and have it on disk."""
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    groups, index = [], []
    for group in _row_groups(pa.Table.from_batches(batches, record_schema())):
        ordered, ranges = by_topic(group)
        groups.append(ordered)
        index.append(ranges)
    path = f"day={day.isoformat()}/bucket={bucket}/part-{uuid.uuid4().hex}.parquet"
    with storage.write(path) as stream:
        with pq.ParquetWriter(
            stream,
            record_schema(),
            compression=_COMPRESSION,
            compression_level=1,
            use_dictionary=["topic"],
            column_encoding=dict.fromkeys(("epoch", "offset", "sequence", "time"), "DELTA_BINARY_PACKED"),
            write_statistics=["topic", "epoch", "offset", "sequence", "time"],
            store_schema=False,
        ) as writer:
            writer.add_key_value_metadata({INDEX_KEY: msgspec.json.encode(index)})  # text: other readers insist on it
            for group in groups:
                writer.write_table(group, row_group_size=len(group))
    size = storage.size(path)
    assert size is not None, "it was just written"
    joined = join_ranges(one for ranges in index for one in ranges)
    rows = sum(one.count for one in joined)
    return LakeFile(path, size, day, bucket, rows, tuple(joined), time.time())


def join_ranges(ranges: Iterable[LakeRange]) -> list[LakeRange]:
    """One range for each topic and epoch, in their order."""
    found: dict[tuple[str, int], LakeRange] = {}
    for one in ranges:
        known = found.get(one.key)
        found[one.key] = one if known is None else known.joined(one)
    return [found[key] for key in sorted(found)]


def _row_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Rows in the order of their sequences, so many at a time as are good to read at once."""
    np, pa = need("numpy"), need("pyarrow")
    sequences = table.column("sequence").to_numpy()
    if len(sequences) > 1 and not bool((sequences[1:] > sequences[:-1]).all()):
        table = table.take(pa.array(np.argsort(sequences, kind="stable")))
    each = max(1, table.nbytes // max(1, len(table)))
    rows = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // each))
    for at in range(0, len(table), rows):
        yield table.slice(at, rows)


def by_topic(group: pa.Table) -> tuple[pa.Table, list[LakeRange]]:
    """The rows of a row group by topic, epoch and offset, and where each topic lies."""
    np, pa = need("numpy"), need("pyarrow")
    topics = group.column("topic").combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    names: list[str] = topics.dictionary.to_pylist()
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
    ranks = rank[topics.indices.to_numpy(zero_copy_only=False)]
    epochs, offsets = group.column("epoch").to_numpy(), group.column("offset").to_numpy()
    order = np.lexsort((offsets, epochs, ranks))
    if not bool((order[1:] > order[:-1]).all()):
        group = group.take(pa.array(order))
        ranks, epochs, offsets = ranks[order], epochs[order], offsets[order]
    sequences = group.column("sequence").to_numpy()
    times = group.column("time").cast(pa.int64()).to_numpy()
    changes = np.flatnonzero((ranks[1:] != ranks[:-1]) | (epochs[1:] != epochs[:-1])) + 1
    by_rank = sorted(names)
    ranges = []
    for start, end in zip([0, *changes.tolist()], [*changes.tolist(), len(ranks)], strict=True):
        ranges.append(
            LakeRange(
                by_rank[int(ranks[start])],
                int(epochs[start]),
                int(offsets[start]),
                int(offsets[end - 1]),
                end - start,
                int(sequences[start:end].min()),
                int(sequences[start:end].max()),
                int(times[start:end].min()),
                int(times[start:end].max()),
            )
        )
    return group, ranges


# -- Reading ---------------------------------------------------------------------------------------------


def read_index(storage: LakeStorage, path: str) -> list[list[LakeRange]]:
    """The records of each row group of a file, from its footer. A file of another writer is read for it."""
    pq = need("pyarrow.parquet")
    with storage.open(path) as stream:
        found = pq.ParquetFile(stream)
        said: bytes | None = (found.metadata.metadata or {}).get(INDEX_KEY)
        if said is not None:
            return decode_index(said, path)
        return [by_topic(_group(found, at, PLACES))[1] for at in range(found.num_row_groups)]


def decode_index(said: bytes, path: str) -> list[list[LakeRange]]:
    """The index of a footer."""
    try:
        return msgspec.json.decode(said, type=list[list[LakeRange]])
    except msgspec.DecodeError as error:
        raise LakeDamaged(path, f"its index cannot be decoded ({error})") from None


PLACES = ["topic", "epoch", "offset", "sequence", "time"]


def _group(found: Any, at: int, columns: list[str] | None = None) -> pa.Table:
    return found.read_row_group(at, columns=columns, use_threads=False)


def read_groups(storage: LakeStorage, path: str, groups: Iterable[int] | None = None) -> Iterator[pa.Table]:
    """Row groups of a file, one at a time, in the order that its index says; None: all of them."""
    pq = need("pyarrow.parquet")
    with storage.open(path) as stream:
        found = pq.ParquetFile(stream)
        is_ordered = INDEX_KEY in (found.metadata.metadata or {})
        for at in range(found.num_row_groups) if groups is None else groups:
            rows = _group(found, at).select(record_schema().names).cast(record_schema())
            yield rows if is_ordered else by_topic(rows)[0]
