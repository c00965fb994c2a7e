"""The columns of the table `records`, and how record batches take that shape.

Every row is one record, with everything that a reader of the journal sees of it: a read of the lake equals one of the
journal. `day` and `bucket` are the partitions: the day (UTC) of the record's time, and a hash of its topic, so that the
records of one topic and one day are in one folder.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cache
from typing import TYPE_CHECKING

from runnel.core.errors import InvalidOption
from runnel.lake.storage import need

if TYPE_CHECKING:
    import pyarrow as pa

BUCKETS = 8
"""Of a new table. A table keeps the number that it was created with."""

BUCKETS_KEY = "runnel.buckets"
"""The entry of the table's configuration that says it."""

JOURNAL_KEY = "runnel.journal"
"""The entry that says of which journal the records are."""

PARTITIONS = ["day", "bucket"]

_DAY = 86_400_000_000  # microseconds


def bucket_of(topic: str, buckets: int) -> int:
    """The bucket of a topic: crc32 of its name in UTF-8, modulo the number of buckets."""
    return zlib.crc32(topic.encode()) % buckets


@cache
def record_schema() -> pa.Schema:
    """The columns that a file holds: all but the partitions, which its folder says.

    `due` and `expires` are seconds since 1970, as a record has them. Headers are a list, not a map: it keeps repeated
    names and binary values.
    """
    pa = need("pyarrow")
    header = pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)])
    return pa.schema(
        [
            pa.field("topic", pa.string(), False),
            pa.field("epoch", pa.int64(), False),
            pa.field("offset", pa.int64(), False),
            pa.field("sequence", pa.int64(), False),
            pa.field("time", pa.timestamp("us", "UTC"), False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary(), False),
            pa.field("headers", pa.list_(pa.field("element", header, False))),
            pa.field("due", pa.float64()),
            pa.field("expires", pa.float64()),
            pa.field("priority", pa.int32()),
        ]
    )


@cache
def table_schema() -> pa.Schema:
    """The columns of the table."""
    pa = need("pyarrow")
    return pa.schema([*record_schema(), pa.field("day", pa.date32(), False), pa.field("bucket", pa.int32(), False)])


NEEDED = ("topic", "epoch", "offset", "sequence", "time", "value")


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with exactly the columns of a file: others are left out, and those that may be missing are null."""
    schema = record_schema()
    if batch.schema.equals(schema):
        return batch
    pa = need("pyarrow")
    if missing := [name for name in NEEDED if name not in batch.schema.names]:
        raise InvalidOption("columns", batch.schema.names, f"rows of a lake need {', '.join(missing)} too")
    arrays = []
    for field in schema:
        if field.name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        if field.name == "headers":
            column = _header_list(column, field.type)
        elif not column.type.equals(field.type):
            column = column.cast(field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _header_list(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Headers as a list of names and values; a record without headers has none."""
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    if pa.types.is_null(column.type):
        return column.cast(kind)
    if not isinstance(column, pa.ListArray | pa.MapArray):
        column = column.cast(pa.list_(column.type.value_type))
    pairs = column.values  # whole, as are the offsets: a sliced column shares both
    if isinstance(pairs.type, pa.MapType | pa.StructType) and pairs.type.num_fields == 2:
        names, values = (pairs.field(at) for at in range(2))
        made = pa.StructArray.from_arrays(
            [names.cast(pa.string()), values.cast(pa.binary())], fields=list(kind.value_type)
        )
        listed = pa.ListArray.from_arrays(column.offsets, made, type=kind)
        mask = pc.or_(pc.equal(pc.list_value_length(listed), 0), column.is_null())
        return pc.if_else(mask, pa.scalar(None, kind), listed) if pc.any(mask).as_py() else listed
    raise InvalidOption("columns", str(column.type), "headers are a map of text to text, or a list of key and value")


def parts(batch: pa.RecordBatch, buckets: int) -> Iterator[tuple[tuple[date, int], pa.RecordBatch]]:
    """A batch by the partitions that its rows belong to. Most batches are of one topic and of one day."""
    np, pa, pc = need("numpy"), need("pyarrow"), need("pyarrow.compute")
    encoded = pc.dictionary_encode(batch.column("topic"))
    of_topic = np.array([bucket_of(one, buckets) for one in encoded.dictionary.to_pylist()], dtype=np.int64)
    days = batch.column("time").cast(pa.int64()).to_numpy() // _DAY
    folder = days * buckets + of_topic[encoded.indices.to_numpy(zero_copy_only=False)]
    found = np.unique(folder)
    for one in found:
        key = _day(int(one) // buckets), int(one) % buckets
        yield key, batch if len(found) == 1 else batch.filter(pa.array(folder == one))


def _day(days: int) -> date:
    return datetime.fromtimestamp(days * 86_400, UTC).date()


def without_known(
    batch: pa.RecordBatch, next_offsets: Mapping[tuple[str, int], int], prefix: str = ""
) -> pa.RecordBatch:
    """A batch without the rows whose offsets lie below the next offsets of their topics.

    `prefix`: of the names of the columns topic, epoch and offset.
    """
    np, pa, pc = need("numpy"), need("pyarrow"), need("pyarrow.compute")
    topics = pc.dictionary_encode(batch.column(f"{prefix}topic"))
    epochs = batch.column(f"{prefix}epoch").to_numpy()
    offsets = batch.column(f"{prefix}offset").to_numpy()
    numbers = topics.indices.to_numpy(zero_copy_only=False)
    keep = np.ones(batch.num_rows, dtype=bool)
    for number, topic in enumerate(topics.dictionary.to_pylist()):
        mine = numbers == number
        for epoch in np.unique(epochs[mine]):
            floor = next_offsets.get((topic, int(epoch)))
            if floor is not None:
                keep &= ~(mine & (epochs == epoch) & (offsets < floor))
    return batch if keep.all() else batch.filter(pa.array(keep))


def partition_values(day: date, bucket: int) -> dict[str, str | None]:
    """The partition as the Delta log writes it."""
    return {"day": day.isoformat(), "bucket": str(bucket)}
