"""A NATS cluster as a table: ranges of it are read whole, each record once, and batches are written whole, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import runnel
import runnel.arrow
from runnel.arrow.cluster_reader import ClusterReader
from runnel.arrow.location import open_range_reader
from runnel.arrow.ranges import OffsetRange
from runnel.core.errors import DataLost, Fenced, NotSupported, TooLarge
from runnel.journal.read.segment_reader import LostRange
from runnel.spark.connection import open_connection
from runnel.spark.options import BrokerLocation
from runnel.spark.sink import StagedMessage, keys_of, take_over
from runnel.spark.staging import TaskStaging, WriterId, commit_batch
from tests.cluster.single import new_stream, open_cluster, single
from tests.spark.rig import Row, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def stream() -> str:
    return new_stream()


@pytest.fixture
def url(stream: str) -> str:
    return f"{single().url}?stream={stream}"


@pytest.fixture
def reading(url: str) -> Iterator[Any]:
    reader = open_range_reader(BrokerLocation(url=url))
    yield reader
    reader.close()


def rows(reading: ClusterReader, wanted: OffsetRange) -> list[Row]:
    """The records of a range of which nothing is lost."""
    found = rows_of(reading.read(wanted), wanted)
    assert not [one for one in found if isinstance(one, LostRange)]
    return found  # type: ignore[return-value]  # it was just looked at


async def fill(stream: str) -> list[bytes]:
    """A topic of which units are one message or many, small and large, beside another one."""
    async with open_cluster(stream) as broker:
        topic, sent = broker.topic("t"), [b"%d" % number for number in range(6000)]
        for number in range(20):
            await topic.publish(sent[number], key=b"k", headers={"n": str(number)})
            await broker.publish("other", b"x")
        await topic.publish_many(sent[20:900], keys=[b"k%d" % (number % 17) for number in range(20, 900)])
        await asyncio.gather(*(topic.publish(one) for one in sent[900:1000]))
        await topic.publish_many(sent[1000:], keys=[b"k%d" % (number % 5) for number in range(1000, 6000)])
    return sent


def test_a_range_has_every_record_once_and_in_order_wherever_it_is_cut(stream: str, reading: ClusterReader) -> None:
    sent = asyncio.run(fill(stream))
    (bounds,) = reading.bounds(["t"])
    whole = rows(reading, OffsetRange("t", bounds.epoch, bounds.first, bounds.end))
    assert [row.value for row in whole] == sent
    assert [row.offset for row in whole] == sorted({row.offset for row in whole})
    assert (whole[7].key, whole[7].headers, whole[7].sequence) == (b"k", {"n": "7"}, whole[7].offset)
    assert bounds.end == whole[-1].offset + 1
    assert bounds.records is not None
    inside = [whole[number].offset for number in (3, 19, 20, 500, 950, 1001, 4000, 5999)]
    cuts = [bounds.first, *(at + 1 for at in inside), whole[500].offset + 30_000_000, bounds.end]
    pieces = [OffsetRange("t", bounds.epoch, first, end) for first, end in pairwise(cuts)]
    found = [row for piece in sorted(pieces) for row in rows(reading, piece)]
    assert [row.value for row in found if row.offset < bounds.end][: len(sent)] == sent


def test_what_was_trimmed_since_it_was_planned_is_lost_and_holes_are_not(stream: str, reading: ClusterReader) -> None:
    async def publish() -> list[runnel.Position]:
        async with open_cluster(stream) as broker:
            at = []
            for number in range(10):
                at.append(await broker.publish("t", b"%d" % number))
                await broker.publish("other", b"x")
            return at

    async def trim(offset: int) -> None:
        async with open_cluster(stream) as broker:
            await broker.topic("t").trim(offset)

    at = asyncio.run(publish())
    (planned,) = reading.bounds(["t"])
    asyncio.run(trim(at[4].offset))
    (bounds,) = reading.bounds(["t"])
    assert at[3].offset < bounds.first <= at[4].offset  # nothing that was there is left out, and no hole counts
    wanted = OffsetRange("t", planned.epoch, planned.first, planned.end)
    first, *rest = rows_of(reading.read(wanted), wanted)
    assert isinstance(first, LostRange)
    assert (first.first, first.end) == (planned.first, at[4].offset)
    assert [row.value for row in rest if isinstance(row, Row)] == [b"%d" % number for number in range(4, 10)]
    kept = OffsetRange("t", planned.epoch, at[3].offset + 1, planned.end)
    assert rows_of(reading.read(kept), kept) == rest
    asyncio.run(trim(at[9].offset + 1))
    (bounds,) = reading.bounds(["t"])
    assert bounds.first == at[9].offset + 1
    assert [type(one) for one in rows_of(reading.read(wanted), wanted)] == [LostRange]


def test_a_topic_that_was_made_again_is_lost(stream: str, reading: ClusterReader) -> None:
    async def again() -> None:
        async with open_cluster(stream) as broker:
            await broker.publish("t", b"a")
            (bounds,) = reading.bounds(["t"])
            await broker.delete("t")
            await broker.publish("t", b"b")
            await asyncio.to_thread(check, bounds)

    def check(bounds: Any) -> None:
        while reading.bounds(["t"])[0].epoch == bounds.epoch:
            pass
        wanted = OffsetRange("t", bounds.epoch, bounds.first, bounds.end)
        (lost,) = rows_of(reading.read(wanted), wanted)
        assert isinstance(lost, LostRange)
        assert "deleted" in lost.reason

    asyncio.run(again())


def test_arrow_reads_a_cluster(stream: str, url: str) -> None:
    sent = asyncio.run(fill(stream))
    table = runnel.arrow.read(url, "t", columns=["value", "offset"])
    assert table.column("value").to_pylist() == sent
    half = table.column("offset")[3000].as_py()
    assert runnel.arrow.read(url, "t", start=half).num_rows == 3000


# -- Writing ---------------------------------------------------------------------------------------------------------


def staged(url: str, batch: int, task: int, values: list[bytes]) -> StagedMessage:
    """What one task of a batch hands to the driver."""
    writer = WriterId("q", "life")
    with open_connection(BrokerLocation(url=url)) as connection:
        staging = TaskStaging(connection, writer, batch, task, "t")
        staging.write([pa.record_batch({"value": values, "key": [b"k%d" % (at % 9) for at in range(len(values))]})])
        return StagedMessage(writer, tuple(staging.keys), staging.records, connection.carried)


def committed(url: str, batch: int, *messages: StagedMessage) -> bool:
    with open_connection(BrokerLocation(url=url)) as connection:
        take_over(connection, messages)
        return commit_batch(connection, WriterId("q", "life"), batch, keys_of(messages))


def test_a_batch_is_there_once_however_often_it_is_committed(url: str) -> None:
    one, two = staged(url, 0, 1, [b"a%d" % at for at in range(3000)]), staged(url, 0, 2, [b"b"] * 3000)
    with pytest.raises(runnel.UnknownTopic):
        runnel.arrow.read(url, "t")
    assert committed(url, 0, one, two)
    assert not committed(url, 0, one, two)
    assert committed(url, 1, staged(url, 1, 1, [b"c"]))
    with pytest.raises(Fenced):
        committed(url, 0, one)
    values = runnel.arrow.read(url, "t").column("value").to_pylist()
    assert values == [*(b"a%d" % at for at in range(3000)), *[b"b"] * 3000, b"c"]


def test_a_batch_that_is_too_large_for_one_transaction_says_what_to_do(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.cluster.transactions.MAX_BATCH", 3)
    with pytest.raises(TooLarge, match="maxBytesPerTrigger"):
        committed(url, 0, staged(url, 0, 1, [b"a"] * 100))
    with (
        open_connection(BrokerLocation(url=url)) as connection,
        pytest.raises(NotSupported, match="servers and folders"),
    ):
        connection.ask("trim", topic="t", before=1)


# -- Spark -----------------------------------------------------------------------------------------------------------


def test_spark_copies_a_topic_of_a_cluster_in_many_triggers_each_record_once(
    spark: SparkSession, stream: str, url: str, tmp_path: Path
) -> None:
    sent = asyncio.run(fill(stream))
    source = spark.readStream.format("runnel").option("url", url).option("topic", "t")
    for _ in range(2):  # the second time there is nothing new
        query = (
            source.option("startingOffsets", "earliest")
            .option("maxRecordsPerTrigger", "1500")
            .load()
            .select("key", "value")
            .writeStream.format("runnel")
            .option("url", url)
            .option("topic", "copy")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert runnel.arrow.read(url, "copy").column("value").to_pylist() == sent
    rows = spark.read.format("runnel").option("url", url).option("topic", "copy").option("minPartitions", "4").load()
    assert rows.count() == len(sent)
    rows.limit(5).select("value").write.format("runnel").option("url", url).option("topic", "few").mode("append").save()
    assert runnel.arrow.read(url, "few").num_rows == 5


def test_a_query_whose_records_went_before_it_read_them_fails(spark: SparkSession, stream: str, url: str) -> None:
    asyncio.run(fill(stream))

    async def trim() -> None:
        async with open_cluster(stream) as broker:
            await broker.topic("t").trim((await broker.bounds("t"))[0].end)

    asyncio.run(trim())
    rows = spark.read.format("runnel").option("url", url).option("topic", "t").option("startingOffsets", '{"t": 0}')
    with pytest.raises(Exception, match=DataLost.__name__):
        rows.load().count()
