"""Typed tables: a column for each field, fields that come later, and a quarantine for what does not fit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import runnel
import runnel.arrow
from runnel.core.errors import InvalidOption, UnknownTopic
from runnel.lake import Lake, TypedFiles, TypedRows, TypedTable
from tests.lake.rows import batch


class Order(msgspec.Struct):
    id: int
    price: float = 0.0


class LaterOrder(msgspec.Struct):
    id: int
    price: float = 0.0
    note: str = "none"


def rows(offsets: range, *, topic: str = "orders", bad: list[int] | None = None, **columns: list[Any]) -> TypedRows:
    records = batch(topic, offsets)
    made = pa.RecordBatch.from_pydict(columns)
    return TypedRows(records, made, None if bad is None else pa.array([offset in bad for offset in offsets]))


def table_of(lake: Lake, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(lake.storage.below(name).uri).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row.get("_offset", row.get("offset", 0)))


def commit(table: TypedTable, files: TypedFiles, version: int = 0) -> int:
    return table.commit_files(files, application="typed", version=version).rows


def test_fields_are_columns_and_rows_are_added_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = lake.typed("orders")
    assert table.merge([pa.field("id", pa.int64())]) == []
    written = pickle.loads(pickle.dumps(table)).write([rows(range(5), id=[10, 11, 12, 13, 14])])
    assert commit(table, pickle.loads(pickle.dumps(written))) == 5
    assert commit(table, written) == 0
    again = table.write([rows(range(3, 8), id=[13, 14, 15, 16, 17])])
    assert commit(table, again) == 3, "rows that it has are left out"
    assert table.next_offsets() == {("orders", 1): 8}
    found = table_of(lake, "tables/orders")
    assert [(row["_offset"], row["id"]) for row in found] == [(at, 10 + at) for at in range(8)]
    assert set(found[0]) == {"_topic", "_epoch", "_offset", "_sequence", "_time", "_key", "_day", "id"}


def test_a_field_that_comes_later_is_null_before(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = lake.typed("orders")
    table.merge([pa.field("id", pa.int64())])
    commit(table, table.write([rows(range(2), id=[1, 2])]))
    other = lake.typed("orders")
    assert other.merge([pa.field("id", pa.int64()), pa.field("note", pa.string())]) == []
    commit(other, other.write([rows(range(2, 4), id=[3, 4], note=["a", "b"])]))
    late = other.write([rows(range(4, 5), id=[5])])  # of a task that knew the old type
    commit(other, late)
    assert [row["note"] for row in table_of(lake, "tables/orders")] == [None, None, "a", "b", None]
    with pytest.raises(InvalidOption, match=r"merge\(\) it first"):
        other.write([rows(range(5, 6), id=[5], price=[1.0])])


def test_what_does_not_fit_is_quarantined_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = lake.typed("orders")
    table.merge([pa.field("id", pa.int64())])
    written = table.write([rows(range(4), bad=[1, 3], id=[1, None, 3, None])])
    assert commit(table, written) == 2
    assert commit(table, written) == 0
    assert [row["id"] for row in table_of(lake, "tables/orders")] == [1, 3]
    found = table_of(lake, "quarantine")
    assert [(row["offset"], row["value"], row["table"]) for row in found] == [
        (1, b"orders 1", "orders"),
        (3, b"orders 3", "orders"),
    ]
    assert "does not fit" in found[0]["reason"]
    assert table.next_offsets() == {("orders", 1): 4}, "the last row is in the quarantine"


def test_a_kill_between_quarantine_and_table_repeats_and_loses_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = lake.typed("orders")
    table.merge([pa.field("id", pa.int64())])
    written = table.write([rows(range(4), bad=[3], id=[1, 2, 3, None])])
    table.quarantine.commit(written.quarantined, application="typed/orders", version=0)
    assert table_of(lake, "tables/orders") == []  # here it was killed, and the batch comes again
    assert commit(table, table.write([rows(range(4), bad=[3], id=[1, 2, 3, None])])) == 3
    assert [row["_offset"] for row in table_of(lake, "tables/orders")] == [0, 1, 2]
    assert [row["offset"] for row in table_of(lake, "quarantine")] == [3]


def test_a_field_of_another_type_is_quarantined_and_tables_do_not_hide_each_others_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table, second = lake.typed("orders"), lake.typed("second")
    table.merge([pa.field("id", pa.int64())])
    assert table.merge([pa.field("id", pa.string())]) == ["id"]
    commit(table, table.write([rows(range(3), id=["a", "b", "c"])]))
    second.merge([pa.field("id", pa.int64())])
    commit(second, second.write([rows(range(2), bad=[0, 1], id=[None, None])]))
    found = sorted((row["table"], row["offset"]) for row in table_of(lake, "quarantine"))
    assert found == [("orders", 0), ("orders", 1), ("orders", 2), ("second", 0), ("second", 1)]
    assert "is string, and the table has int64" in table_of(lake, "quarantine")[-1]["reason"]


def test_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="in its name"):
        Lake(tmp_path).typed("../records")
    with pytest.raises(InvalidOption, match="rename the field"):
        Lake(tmp_path).typed("orders").merge([pa.field("_offset", pa.int64())])


async def test_a_typed_topic_is_copied_with_one_call(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    async with runnel.open(tmp_path / "data", share=False) as broker:
        for number in range(10):
            await broker.topic("orders", Order).publish(Order(number, number / 2))
        assert runnel.arrow.archive_typed(tmp_path / "data", "orders", lake).rows == 10
        assert runnel.arrow.archive_typed(tmp_path / "data", "orders", lake).rows == 0
        await broker.publish("plain", b"no type")
    async with runnel.open(tmp_path / "data", share=False) as broker:
        await broker.topic("orders", LaterOrder).publish(LaterOrder(10, 5.0, "new"))
    assert runnel.arrow.archive_typed(tmp_path / "data", "orders", lake).rows == 1
    found = table_of(lake, "tables/orders")
    assert [(row["id"], row["price"]) for row in found] == [(number, number / 2) for number in range(11)]
    assert [row["note"] for row in found] == [None] * 10 + ["new"]
    with pytest.raises(InvalidOption, match="has no type"):
        runnel.arrow.archive_typed(tmp_path / "data", "plain", lake)
    with pytest.raises(UnknownTopic):
        runnel.arrow.archive_typed(tmp_path / "data", "nothing", lake)


def test_maintenance_compacts_and_erases_typed_tables_and_the_quarantine(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.create()
    table = lake.typed("orders")
    table.merge([pa.field("id", pa.int64())])
    for number in range(9):
        offsets = range(10 * number, 10 * number + 10)
        bad = [offsets[0]] if number < 8 else None
        if number == 5:
            table.merge([pa.field("id", pa.int64()), pa.field("note", pa.string())])
        made = rows(offsets, bad=bad, id=list(offsets))
        if number >= 5:
            made = rows(offsets, bad=bad, id=list(offsets), note=["n"] * 10)
        commit(table, table.write([made]), version=number)
    before, quarantined = table_of(lake, "tables/orders"), table_of(lake, "quarantine")
    assert (len(before), len(quarantined)) == (82, 8)
    report = Lake(tmp_path).maintain()  # as another process does it
    assert (report.compacted, report.into) == (17, 2)
    assert [table.name for table in lake.tables()] == ["orders"]
    assert len(lake.typed("orders").snapshot().files) == 1
    assert table_of(lake, "tables/orders") == before
    assert table_of(lake, "quarantine") == quarantined
    assert [row["note"] for row in before if row["_offset"] in (49, 51)] == [None, "n"]
    again = table.write([rows(range(90), id=list(range(90)))])
    assert commit(table, again, version=99) == 0, "next offsets stay"
    report = lake.maintain({("orders", 1): 15})
    assert report.erased_rows == 13 + 2
    assert table_of(lake, "tables/orders") == before[13:]
    assert [row["offset"] for row in table_of(lake, "quarantine")] == list(range(20, 80, 10))
