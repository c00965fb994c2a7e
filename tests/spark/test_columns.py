"""Records as Arrow: every column says what the record says, with and without keys, headers, holes and expired ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from runnel.arrow import columns as module
from runnel.arrow.columns import RecordBatchBuilder, RowBuffer
from runnel.arrow.range_reader import DataLossPolicy, DecodedBatch, with_offsets
from runnel.arrow.ranges import OffsetRange
from runnel.arrow.record_batches import RangeBatches
from runnel.core.batch_format import pack, unpack
from runnel.core.record import Meta
from runnel.journal.format.merged_batch import RecordRun
from runnel.spark.schema import spark_schema
from tests.carried import columns_of

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)), nullable=False),
        pa.field("traceparent", pa.string()),
    ]
)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def table(portions: Sequence[DecodedBatch], schema: pa.Schema = SCHEMA, now: float = 0.0) -> list[dict[str, Any]]:
    rows = RowBuffer("orders", 7)
    for one in portions:
        rows.add(one, now)
    return RecordBatchBuilder(schema).batch(rows).to_pylist() if rows.count else []


METAS = st.one_of(
    st.none(),
    st.builds(
        Meta,
        key=st.one_of(st.none(), st.binary(max_size=4)),
        headers=st.dictionaries(st.sampled_from(["a", "b", "traceparent"]), st.text(max_size=3), max_size=3),
    ),
)
BATCH = st.lists(
    st.tuples(st.binary(max_size=6), METAS, st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=5
)


@given(st.lists(st.tuples(BATCH, st.integers(0, 9)), min_size=1, max_size=6))
def test_every_column_says_what_the_records_say(batches: list[tuple[list[Any], int]]) -> None:
    portions, wanted, offset = [], [], 5
    for records, hole in batches:
        offset += hole
        values, metas, times = zip(*records, strict=True)
        portions.append(
            with_offsets(
                unpack(pack(values, columns_of(list(metas)), times=list(times))), offset, offset * 10, 1000 + hole
            )
        )
        for number, (value, meta, time) in enumerate(records):
            headers = dict(meta.headers) if meta else {}
            wanted.append(
                {
                    "topic": "orders",
                    "epoch": 7,
                    "offset": offset + number,
                    "sequence": offset * 10 + number,
                    "time": 1000 + hole if time is None else time,
                    "key": meta.key if meta else None,
                    "value": value,
                    "headers": list(headers.items()),
                    "traceparent": headers.get("traceparent"),
                }
            )
        offset += len(records)
    found = table(portions)
    for one in found:
        one["time"] = one["time"].timestamp() * 1_000_000
    assert found == [{**one, "time": pytest.approx(one["time"])} for one in wanted]


def test_an_absent_column_is_made_without_looking_at_records() -> None:
    (found,) = table([with_offsets(unpack(pack([b"v"])), 0, 0, 0)])
    assert (found["key"], found["headers"], found["traceparent"]) == (None, [], None)


def test_a_trace_is_a_column_of_its_own() -> None:
    found = table(
        [with_offsets(unpack(pack([b"v", b"w"], columns_of([Meta(headers={"traceparent": TRACE}), None]))), 0, 0, 0)]
    )
    assert [one["traceparent"] for one in found] == [TRACE, None]


def test_what_has_expired_does_not_come() -> None:
    metas = [None, Meta(expires=50.0), Meta(expires=150.0), None]
    batch = unpack(pack([b"a", b"b", b"c", b"d"], columns_of(metas)))
    found = table([DecodedBatch(batch, [RecordRun(0, 0, 0, 2), RecordRun(10, 20, 0, 2)])], now=100.0)
    assert [(one["offset"], one["sequence"], one["value"]) for one in found] == [
        (0, 0, b"a"),
        (10, 20, b"c"),
        (11, 21, b"d"),
    ]
    assert table([with_offsets(unpack(pack([b"a"], columns_of([Meta(expires=1.0)]))), 0, 0, 0)], now=2.0) == []


def test_fewer_columns_in_another_order_can_be_had() -> None:
    schema = pa.schema([SCHEMA.field("value"), SCHEMA.field("offset")])
    assert table([with_offsets(unpack(pack([b"a", b"b"])), 3, 0, 0)], schema) == [
        {"value": b"a", "offset": 3},
        {"value": b"b", "offset": 4},
    ]
    assert table([with_offsets(unpack(pack([b"a"])), 3, 0, 0)], pa.schema([SCHEMA.field("topic")])) == [
        {"topic": "orders"}
    ]


def test_a_part_of_a_batch_is_a_part_of_every_column() -> None:
    batch = unpack(pack([b"a", b"b", b"c"], columns_of([Meta(key=b"%d" % at) for at in range(3)])))
    (found,) = table([DecodedBatch(batch, [RecordRun(1, 1, 1, 1)], at=1)])
    assert (found["value"], found["key"], found["offset"]) == (b"b", b"1", 1)


def test_record_batches_are_neither_tiny_nor_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 100)
    monkeypatch.setattr(module, "BYTES", 1000)
    small = [with_offsets(unpack(pack([b"x"] * 30)), at * 30, 0, 0) for at in range(10)]
    batches, whole = RangeBatches(SCHEMA, DataLossPolicy(fail=True)), OffsetRange("t", 1, 0, 1000)
    assert [batch.num_rows for batch in batches.of(small, whole)] == [120, 120, 60]
    large = [with_offsets(unpack(pack([bytes(600)] * 2)), at * 2, 0, 0) for at in range(3)]
    assert [batch.num_rows for batch in batches.of(large, whole)] == [2, 2, 2]
    assert list(batches.of((), whole)) == []


def test_a_constant_column_is_as_long_as_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 2)
    made = RecordBatchBuilder(SCHEMA)
    for count in (1, 5, 3):
        rows = RowBuffer("t", 1)
        rows.add(with_offsets(unpack(pack([b"x"] * count)), 0, 0, 0), 0.0)
        batch = made.batch(rows)
        assert batch.num_rows == count
        batch.validate(full=True)


def test_headers_may_be_a_list_of_names_and_bytes() -> None:
    schema = to_arrow_schema(spark_schema(header_list=True), timezone="UTC")
    metas = [Meta(headers={"a": "1", "b": "ä"}), None, Meta(headers={"c": ""})]
    batch = with_offsets(unpack(pack([b"x"] * 3, columns_of(metas))), 5, 9, 0)
    rows = table([batch], schema)
    assert [one["headers"] for one in rows] == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": "ä".encode()}],
        [],
        [{"key": "c", "value": b""}],
    ]
    plain = with_offsets(unpack(pack([b"x"])), 5, 9, 0)
    assert [one["headers"] for one in table([plain], schema)] == [[]]


def test_what_no_column_needs_is_not_kept() -> None:
    metas = [Meta(key=b"k", headers={"a": "1"}), None, None]
    batch = with_offsets(unpack(pack([b"x"] * 3, columns_of(metas))), 5, 9, 0)
    for names, kept in (
        (["offset"], (0, None, None)),
        (["key"], (0, 3, None)),
        (["value", "traceparent"], (3, None, 3)),
    ):
        builder = RecordBatchBuilder(pa.schema([SCHEMA.field(name) for name in names]))
        rows = builder.buffer("orders", 7)
        rows.add(batch, 0.0)
        held = (len(rows.values), rows.keys and len(rows.keys), rows.headers and len(rows.headers))
        assert held == kept
        assert builder.batch(rows).num_rows == 3
