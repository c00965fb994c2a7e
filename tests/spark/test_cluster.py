"""On a real cluster: the same program, by spark-submit, exact though an executor is killed and attempts race."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.patience import PATIENCE
from tests.spark import driver
from tests.spark.cluster import SMALL, Cluster, stop
from tests.spark.rig import Served
from tests.spark.test_sink_exactness import mark, stages
from tests.spark.test_staging import everything

BATCH, BATCHES = 300, 6


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        yield made


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


def test_a_submitted_query_is_exact_though_an_executor_is_killed(
    served: Served, cluster: Cluster, tmp_path: Path
) -> None:
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
        late = monotonic() + PATIENCE
        while not (mark(served) >= 1 and stages(served) and cluster.executors()):
            assert submitted.poll() is None, log.read_text()[-3000:]
            assert monotonic() < late, log.read_text()[-3000:]
            sleep(0.002)
        before = cluster.executors()
        os.kill(before[0], signal.SIGKILL)
        assert submitted.wait(PATIENCE) == 0, log.read_text()[-3000:]
        assert len(before) == 2
    finally:
        stop(submitted)
    found = everything(served, "out")
    assert sorted(int(one.value) for one in found) == [*range(BATCH * BATCHES)]
    assert mark(served) == BATCHES - 1
