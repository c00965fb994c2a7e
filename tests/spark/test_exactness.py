"""From a topic to Parquet, each record once: though the driver is killed, and the broker, and the cleaner is at work.

Judged by offsets: those in the table's files against those that the topic holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import runnel.blocking
from tests.patience import PATIENCE
from tests.spark.archiving import TRIGGER, archive, committed
from tests.spark.driver import Driver
from tests.spark.serving import Serving
from tests.spark.test_stream_reader import TOO_SLOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 11


def publish(url: str, records: int) -> None:
    """Records one by one and by many."""
    with runnel.blocking.open(url, timeout=PATIENCE) as broker:
        wanted = broker.topic("in")
        for first in range(0, records, 12):
            wanted.publish_many([b"%d" % at for at in range(first, first + 11)])
            wanted.publish(b"%d" % (first + 11))


def litter(url: str, stop: threading.Event) -> None:
    """What nobody wants, between the records and as long as the test lasts: the cleaner takes it away."""
    with runnel.blocking.open(url, timeout=PATIENCE) as broker:
        junk = broker.topic("junk", retention_count=10)
        while not stop.wait(0.02):
            junk.publish_many([bytes(500)] * 20)


def until(driver: Driver, happened: Callable[[], bool]) -> None:
    """Wait until something has happened, or the driver has come to its end."""
    late = monotonic() + 2 * PATIENCE
    while driver.is_alive and not happened():
        assert monotonic() < late, driver.told()
        sleep(0.005)


@pytest.mark.parametrize(
    ("kills", "of_broker", "batches"),
    [
        pytest.param(1, {0}, 5, id="one of each", marks=pytest.mark.nightly),  # test_pipeline_kills has one of each
        pytest.param(4, {1, 2}, 18, id="four of the driver and two of the broker", marks=pytest.mark.nightly),
    ],
)
def test_kills_of_driver_and_broker_neither_lose_nor_repeat_a_record(
    spark: SparkSession, serving: Serving, tmp_path: Path, kills: int, of_broker: Collection[int], batches: int
) -> None:
    """Some lives of a query end with a kill of its driver; the last goes on where they were, in the tests' session."""
    random, records = Random(SEED), batches * TRIGGER
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    places = [f"url={serving.url}", f"path={serving.folder}"]  # one query may go on from either

    def triggers() -> int:
        return len(list((checkpoint / "commits").glob("[0-9]*")))

    def begun() -> int:
        return len(list((checkpoint / "offsets").glob("[0-9]*")))

    killed = 0
    stop = threading.Event()
    littering = threading.Thread(target=litter, args=(serving.url, stop))
    publishing = threading.Thread(target=publish, args=(serving.url, records))
    littering.start()
    publishing.start()
    try:
        for kill in range(kills):
            done = triggers()
            arguments = (places[kill % 2], checkpoint, table)
            with Driver("tests.spark.archiving", *arguments, log=tmp_path / "driver.log") as driver:
                if kill in of_broker:  # the broker goes under a running query, and comes back
                    until(driver, lambda at=done: begun() > at)  # type: ignore[misc]
                    serving.kill()
                    serving.start()
                # Between the offsets of a trigger and its commit, or anywhere near.
                wanted = done + random.randint(1, 2)
                until(driver, lambda at=wanted: triggers() >= at or begun() > at)  # type: ignore[misc]
                sleep(random.uniform(0, 0.3))
                killed += driver.is_alive  # it may have come to its end before
                driver.kill()
        publishing.join(2 * PATIENCE)
        assert not publishing.is_alive()
        for _ in range(3):
            try:
                archive(spark, places[kills % 2], str(checkpoint), str(table))
            except StreamingQueryException as error:
                if TOO_SLOW not in str(error):
                    raise
            else:
                break
    finally:
        stop.set()
        publishing.join()
        littering.join()
    assert killed
    found = [row for file in committed(table) for row in pq.read_table(file).to_pylist()]
    assert sorted(row["offset"] for row in found) == list(range(records))
    assert {row["offset"]: row["value"] for row in found} == {at: str(at) for at in range(records)}
    assert len({row["epoch"] for row in found}) == 1
    assert triggers() >= batches
    assert any("-" in segment.stem for segment in serving.folder.glob("*.seg")), "the cleaner had nothing to do"
