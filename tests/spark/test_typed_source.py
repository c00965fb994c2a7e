"""Typed topics through Spark: fields are columns, what does not fit is told or raised, and a query keeps its schema."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import pytest
from pyspark.errors import AnalysisException

from tests.spark.rig import Served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


class State(Enum):
    NEW = "new"
    PAID = "paid"


class Part(msgspec.Struct):
    name: str
    grams: float | None = None


class Order(msgspec.Struct):
    id: int
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    price: Decimal
    by: UUID
    parts: list[Part] = []
    notes: dict[str, int] = {}
    state: State = State.NEW


class Created(msgspec.Struct, tag="created"):
    id: int


class Paid(msgspec.Struct, tag="paid"):
    amount: float


class Small(msgspec.Struct):
    id: int


class Grown(msgspec.Struct):
    id: int
    colour: str = "red"


ORDER = Order(7, NOON, Decimal("12.50"), UUID(int=5), [Part("nut", 1.5), Part("bolt")], {"a": 1}, State.PAID)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("journal")) as made:
        made.run(publish(made.broker))
        yield made


async def publish(broker: Any) -> None:
    await broker.topic("orders", Order).publish_many([ORDER, msgspec.structs.replace(ORDER, id=8, parts=[])])
    await broker.topic("packed", Order, encoding="msgpack").publish(ORDER)
    await broker.topic("bills", Created | Paid).publish_many([Created(1), Paid(2.5)])
    await broker.topic("mixed").publish(b'{"id": 1}')
    await broker.topic("mixed").publish(b'{"id": "two"}')  # before anybody said what it has to be
    await broker.topic("mixed").publish(b"", key="gone")
    await broker.topic("mixed", Small).publish(Small(4))


@pytest.fixture(params=["path", "url"])
def place(request: pytest.FixtureRequest, served: Served) -> dict[str, str]:
    return place_of(request.param, served)


def place_of(how: str, served: Served) -> dict[str, str]:
    return {"path": str(served._folder)} if how == "path" else {"url": served.url}


def frame(spark: SparkSession, place: dict[str, str], topic: str, **options: str) -> DataFrame:
    return spark.read.format("runnel").options(topic=topic, valueFormat="typed", **place, **options).load()


def test_the_fields_of_a_type_are_columns(spark: SparkSession, place: dict[str, str]) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for topic in ("orders", "packed"):
        found = frame(spark, place, topic, decimalType="10,2", minPartitions="2")
        assert dict(found.dtypes) == {
            "topic": "string",
            "epoch": "bigint",
            "offset": "bigint",
            "sequence": "bigint",
            "_time": "timestamp",
            "key": "binary",
            "headers": "map<string,string>",
            "traceparent": "string",
            "id": "bigint",
            "time": "timestamp",
            "price": "decimal(10,2)",
            "by": "string",
            "parts": "array<struct<name:string,grams:double>>",
            "notes": "map<string,bigint>",
            "state": "string",
            "_corrupt_record": "binary",
        }
        row, *_ = found.orderBy("offset").collect()
        assert (row.topic, row.offset, row.id, row.price) == (topic, 0, 7, Decimal("12.50"))
        assert (row.by, row.notes, row.state, row._corrupt_record) == (str(UUID(int=5)), {"a": 1}, "paid", None)
        assert [part.asDict() for part in row.parts] == [{"name": "nut", "grams": 1.5}, {"name": "bolt", "grams": None}]
    # Filters: one on the type's `time` is Spark's to look at, one on the record's own makes the read smaller.
    orders = frame(spark, place, "orders", decimalType="10,2")
    assert orders.where("time = timestamp'2026-11-15 12:00:00'").count() == 2
    assert orders.where("_time < timestamp'2020-01-01 00:00:00'").count() == 0
    assert [row.id for row in orders.where("offset = 1 and id = 8").select("id").collect()] == [8]


def test_a_union_is_its_kind_and_its_arms_and_fewer_columns_can_be_had(
    spark: SparkSession, place: dict[str, str]
) -> None:
    reader = spark.read.format("runnel").schema("paid struct<amount:double>, kind string")
    rows = reader.options(topic="bills", valueFormat="typed", **place).load().orderBy("kind").collect()
    assert [(row.kind, row.paid and row.paid.amount) for row in rows] == [("created", None), ("paid", 2.5)]


def test_what_does_not_fit_stands_in_its_column_or_is_an_error(spark: SparkSession, place: dict[str, str]) -> None:
    rows = frame(spark, place, "mixed").orderBy("offset").collect()
    assert [(row.id, row._corrupt_record) for row in rows] == [
        (1, None),
        (None, b'{"id": "two"}'),
        (None, None),  # a tombstone
        (4, None),
    ]
    named = frame(spark, place, "mixed", columnNameOfCorruptRecord="bad").where("bad is not null").collect()
    assert [row.offset for row in named] == [1]
    with pytest.raises(Exception, match=r"(?s)'mixed'.*\bid\b.*\(offset 1\); mode='PERMISSIVE'"):
        frame(spark, place, "mixed", mode="FAILFAST").collect()


def test_topics_of_no_one_type_are_refused_when_the_query_is_made(spark: SparkSession, served: Served) -> None:
    served.publish_many("raw", [b"x"])
    place = place_of("url", served)
    for topics, why in (("raw", "topic 'raw' has no type"), ("orders,mixed", "'mixed' and 'orders' have different")):
        with pytest.raises(AnalysisException, match=why):
            frame(spark, place, topics, decimalType="10,2")
    with pytest.raises(AnalysisException, match=r"there is no topic 'nobody' yet.*declare"):
        frame(spark, place, "nobody")


@pytest.mark.parametrize("how", ["path", pytest.param("url", marks=pytest.mark.nightly)])
def test_a_query_keeps_the_schema_that_it_started_with(spark: SparkSession, tmp_path: Path, how: str) -> None:
    with Served(tmp_path / "journal") as served:
        served.run(served.broker.topic("t.a", Small).publish(Small(1)))
        reader = spark.readStream.format("runnel").options(topic="t.*", valueFormat="typed", startingOffsets="earliest")
        frame = reader.options(**place_of(how, served)).load()
        served.run(served.broker.topic("t.a", Grown).publish(Grown(2, "blue")))
        served.run(served.broker.topic("t.b", list[str]).publish(["another", "type"]))
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "kept")).trigger(availableNow=True).start()
        query.awaitTermination()
        rows = spark.read.parquet(str(tmp_path / "out")).orderBy("topic", "offset").collect()
        assert "colour" not in frame.columns
        assert [(row.topic, row.id, row._corrupt_record) for row in rows] == [
            ("t.a", 1, None),
            ("t.a", 2, None),
            ("t.b", None, b'["another","type"]'),
        ]
        with pytest.raises(AnalysisException, match="different types"):  # a new one sees both
            reader.load()
