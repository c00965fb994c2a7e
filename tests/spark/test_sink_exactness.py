"""From topic to topic, each record once, though driver or broker is killed again and again: judged by offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import runnel.blocking
from tests.patience import PATIENCE
from tests.spark.driver import Driver, copy
from tests.spark.rig import Served
from tests.spark.serving import Serving
from tests.spark.test_staging import everything
from tests.spark.test_stream_reader import TOO_SLOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 150
SEED = 7
NIGHTLY = pytest.mark.nightly


def mark(served: Served) -> int:
    return max(served.run(served.broker.marks("spark:")).values(), default=-1)  # type: ignore[return-value]


def stages(served: Served) -> list[Any]:
    return served.run(served.broker.stages())


def until(driver: Driver, happened: Callable[[], bool]) -> bool:
    """Wait until something has happened; False if the driver has come to its end before."""
    late = monotonic() + PATIENCE
    while not happened():
        assert monotonic() < late, driver.told()
        if not driver.is_alive:
            return False
        sleep(0.002)
    return True


def copy_the_rest(spark: SparkSession, url: str, checkpoint: Path, *options: str) -> None:
    """Go on in this session where drivers left it, to the end."""
    for _ in range(3):
        try:
            copy(spark, url, str(checkpoint), *options).awaitTermination()
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error):
                raise
        else:
            return


@NIGHTLY  # one kill is in test_cluster
def test_four_kills_of_the_driver_neither_lose_nor_repeat_a_record(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    random, batches = Random(SEED), 14
    served.publish_many("in", [b"x"] * (BATCH * batches))
    arguments = (served.url, tmp_path / "check", f"maxRecordsPerTrigger={BATCH}")
    for kill in range(4):
        begin = mark(served)
        with Driver("tests.spark.driver", *arguments, log=tmp_path / "driver.log") as driver:
            wanted = begin + random.randint(1, 2)
            if kill % 2:
                # Right behind the sink's commit, before Spark has noted its own: that batch comes again.
                assert until(driver, lambda at=wanted: mark(served) >= at), driver.told()  # type: ignore[misc]
            else:
                # While a batch is staged: what is staged is never seen, and swept by the next life.
                assert until(driver, lambda at=wanted: mark(served) >= at and bool(stages(served))), driver.told()  # type: ignore[misc]
                sleep(random.uniform(0, 0.02))
            driver.kill()
        assert mark(served) < batches - 1, "there was nothing left to kill"
    copy_the_rest(spark, *arguments)
    found = everything(served, "out")
    assert sorted(int(one.value) for one in found) == [*range(BATCH * batches)]
    assert [one.offset for one in found] == [*range(BATCH * batches)]
    assert mark(served) == batches - 1
    assert all(one.batch == batches - 1 for one in stages(served))  # of a life that was killed at the last one


@pytest.mark.parametrize(
    ("kills", "batches"), [pytest.param(1, 4, id="once"), pytest.param(3, 14, id="three times", marks=NIGHTLY)]
)
def test_a_broker_that_is_killed_under_a_query_neither_loses_nor_repeats_a_record(
    spark: SparkSession, tmp_path: Path, kills: int, batches: int
) -> None:
    serving = Serving(tmp_path / "journal", tmp_path / "server.log")
    serving.start()
    try:
        with runnel.blocking.open(serving.url, timeout=PATIENCE) as broker:
            broker.topic("in").publish_many([b"x"] * (BATCH * batches))

            def committed() -> int:
                return max(broker.marks("spark:").values(), default=-1)  # type: ignore[return-value]

            lives = killed = 0
            while committed() < batches - 1:
                lives += 1
                assert lives <= 5, "it does not come to an end"  # a query may give up; the next goes on
                query = copy(spark, serving.url, str(tmp_path / "check"), f"maxRecordsPerTrigger={BATCH}")
                late = monotonic() + PATIENCE
                before = committed()
                while query.isActive:
                    assert monotonic() < late, query.status
                    if killed < kills and committed() > before:
                        serving.kill()
                        serving.start()
                        killed += 1
                        before = committed()
                    sleep(0.002)
            assert killed == kills
            with broker.subscribe("out", start="earliest") as records:
                found = [records.receive(timeout=PATIENCE) for _ in range(BATCH * batches)]
            assert broker.statistics().topics["out"].end == BATCH * batches
    finally:
        serving.kill()
    assert sorted(int(one.value) for one in found) == [*range(BATCH * batches)]
