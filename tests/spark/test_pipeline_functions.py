"""What pipelines are made of, as functions from DataFrame to DataFrame: no broker, no lake, no runner."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from runnel.spark.pipelines.audit import BLOCK, block_digests, differences, with_hash
from runnel.spark.pipelines.current import changes_of, folded
from runnel.spark.pipelines.lake_rows import LAKE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME = datetime(2026, 11, 18, tzinfo=UTC)
RECORD = dict.fromkeys(LAKE_COLUMNS) | {"topic": "t", "epoch": 1, "sequence": 7, "time": TIME, "value": b"v"}


def records(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Records with all columns of a lake."""
    schema = ", ".join(f"{name} {kind}" for name, kind in LAKE_COLUMNS.items())
    return spark.createDataFrame([tuple((RECORD | row).values()) for row in rows], schema)


def test_digests_of_a_block_do_not_depend_on_the_order_of_its_records(spark: SparkSession) -> None:
    rows = [{"offset": offset} for offset in (0, 5, BLOCK - 1, BLOCK)]
    found = [block_digests(with_hash(records(spark, *some))).orderBy("block").collect() for some in (rows, rows[::-1])]
    assert found[0] == found[1]
    assert [(row["block"], row["rows"], row["offsets"]) for row in found[0]] == [(0, 3, 5 + BLOCK - 1), (1, 1, 0)]


def test_every_column_of_a_record_is_in_its_hash(spark: SparkSession) -> None:
    other: dict[str, Any] = {
        "topic": "u",
        "epoch": 2,
        "sequence": 8,
        "time": TIME.replace(hour=1),
        "key": b"",
        "value": b"w",
        "headers": [("name", b"")],
        "due": 1.0,
        "expires": 1.0,
        "priority": 1,
    }
    assert other.keys() == LAKE_COLUMNS.keys() - {"offset"}
    rows = [{}, *({name: value} for name, value in other.items()), {"priority": 0}, {"headers": []}]
    hashes = [row["hash"] for row in with_hash(records(spark, *({"offset": 0} | row for row in rows))).collect()]
    assert len(set(hashes)) == 1 + len(other)
    assert hashes[0] == hashes[-2] == hashes[-1], "no priority is 0, and no headers are an empty list"


def test_records_that_only_one_side_has_or_that_differ_or_repeat_are_named(spark: SparkSession) -> None:
    journal = [{"offset": 0}, {"offset": 1}, {"offset": 2}, {"offset": 3}]
    lake = [{"offset": 0}, {"offset": 1, "value": b"changed"}, {"offset": 3}, {"offset": 3}, {"offset": 4}]
    left, right = (with_hash(records(spark, *rows)) for rows in (journal, lake))
    found = sorted((row["offset"], row["in_journal"], row["in_lake"]) for row in differences(left, right).collect())
    assert found == [(1, 1, 1), (2, 1, 0), (3, 1, 2), (4, 0, 1)]


@pytest.fixture(scope="module")
def relayed(spark: SparkSession) -> DataFrame:
    """Records of a relay: two rows of `public.orders` that change, one of another table, a TRUNCATE, a message."""

    def change(sequence: int, key: bytes, op: str, row: str, table: str = "public.orders", **more: str) -> Any:
        headers = {"pg-op": op, "pg-table": table, **{f"pg-{name}": text for name, text in more.items()}}
        return sequence, key, row.encode(), headers

    rows = [
        change(1, b"1", "insert", '{"id": 1, "n": 12345678901234567890, "note": "long"}'),
        change(4, b"1", "update", '{"id": 1, "n": 2}', unchanged="note"),
        change(2, b"2", "insert", '{"id": 2, "n": 1, "note": "x"}'),
        change(3, b"2", "delete", '{"id": 2}'),
        change(5, b"1", "insert", "{}", "public.others"),
        change(6, b"", "event", '{"event": "truncate", "table": "public.orders"}'),
        change(7, b"", "event", '{"event": "snapshot", "table": "public.orders"}'),
    ]
    return spark.createDataFrame(rows, "sequence bigint, key binary, value binary, headers map<string,string>")


def test_changes_are_those_of_one_table_and_its_truncates(relayed: DataFrame) -> None:
    found = changes_of(relayed, "public.orders").orderBy("sequence").collect()
    ops = ["insert", "insert", "delete", "update", "truncate"]
    assert [(row["sequence"], row["op"]) for row in found] == [*zip((1, 2, 3, 4, 6), ops, strict=True)]
    assert found[-1]["key"] == b""


def test_of_each_key_the_last_change_is_left_with_what_earlier_ones_say(relayed: DataFrame) -> None:
    rows = {bytes(row["key"]): row for row in folded(changes_of(relayed, "public.orders")).collect()}
    assert {key: (row["sequence"], row["op"]) for key, row in rows.items()} == {
        b"1": (4, "update"),
        b"2": (3, "delete"),
        b"": (6, "truncate"),
    }
    assert (rows[b"1"]["row"], rows[b"1"]["unchanged"]) == ('{"id":1,"n":2,"note":"long"}', None)
