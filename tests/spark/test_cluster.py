"""On a real cluster: the same program, exact though an executor is killed and attempts race."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE
from tests.spark import driver
from tests.spark.cluster import SMALL, Cluster, executors, stop
from tests.spark.driver import Driver
from tests.spark.rig import Served
from tests.spark.test_sink_exactness import copy_the_rest, mark, stages, until
from tests.spark.test_staging import everything
from tools.spark_archive import options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH, BATCHES = 300, 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, workers=2) as made:
        yield made


CONF = {
    "executor_memory": "512m",
    "driver_memory": "700m",
    "ui_enabled": "false",
    "driver_host": "127.0.0.1",
    "executor_extraJavaOptions": SMALL,
    "driver_extraJavaOptions": SMALL,
    "sql_shuffle_partitions": "1",
    "speculation": "true",  # attempts race, and only one of two may count
    "speculation_interval": "20ms",
    "speculation_multiplier": "1.01",
    "speculation_quantile": "0.1",
    "speculation_minTaskRuntime": "0ms",
}


def kill_an_executor(
    served: Served, alive: Callable[[], bool], found: Callable[[], list[int]], of: int, log: Path
) -> None:
    """kill -9 of one of so many, while a batch is staged."""
    late = monotonic() + PATIENCE
    while not (mark(served) >= 1 and stages(served) and len(found()) == of):
        assert alive(), log.read_text()[-3000:]
        assert monotonic() < late, log.read_text()[-3000:]
        sleep(0.002)
    os.kill(found()[0], signal.SIGKILL)


def check(served: Served, batches: int) -> None:
    """Each record is there once."""
    found = everything(served, "out")
    assert sorted(int(one.value) for one in found) == [*range(BATCH * batches)]
    assert mark(served) == batches - 1


def test_a_killed_executor_and_then_a_killed_driver_neither_lose_nor_repeat_a_record(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    """An executor with two cores in a process of its own, as on a cluster, but without a master and a worker."""
    served.publish_many("in", [b"x"] * (BATCH * BATCHES))
    log, arguments = tmp_path / "driver.log", (served.url, tmp_path / "check", f"maxRecordsPerTrigger={BATCH}")
    settings = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": options()}
    with Driver(
        "tests.spark.driver",
        *arguments,
        "minPartitions=4",
        log=log,
        DRIVER_MASTER="local-cluster[1,2,512]",
        DRIVER_CONF=json.dumps(settings),
    ) as job:
        kill_an_executor(served, lambda: job.is_alive, lambda: executors({job.process.pid}), 1, log)
        after = mark(served)
        assert until(job, lambda: mark(served) > after and bool(stages(served))), job.told()
        job.kill()
    assert mark(served) < BATCHES - 1, "there was nothing left to kill"
    copy_the_rest(spark, *arguments)
    check(served, BATCHES)


@pytest.mark.nightly
def test_a_submitted_query_is_exact_though_an_executor_is_killed(
    served: Served, cluster: Cluster, tmp_path: Path
) -> None:
    """By spark-submit, on a master with two workers."""
    served.publish_many("in", [b"x"] * (BATCH * BATCHES))
    log = tmp_path / "submit.log"
    submitted = cluster.submit(
        log,
        Path(driver.__file__),
        served.url,
        tmp_path / "check",
        f"maxRecordsPerTrigger={BATCH}",
        "minPartitions=4",
        **CONF,
    )
    try:
        kill_an_executor(served, lambda: submitted.poll() is None, cluster.executors, 2, log)
        assert submitted.wait(PATIENCE) == 0, log.read_text()[-3000:]
    finally:
        stop(submitted)
    check(served, BATCHES)
