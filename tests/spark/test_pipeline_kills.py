"""kill -9 of driver, executor and broker, with the cleaner at work: every offset once in the lake and in a topic.

An aggregation is killed too, and judged by what the lake says should have come of it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from pyspark.errors import StreamingQueryException

import runnel.blocking
from runnel.core.errors import PipelineFailed
from tests.patience import PATIENCE
from tests.spark import pipeline_driver
from tests.spark.cluster import SMALL, Cluster, executors, stop
from tests.spark.driver import Driver
from tests.spark.pipeline_driver import COPY, TABLE, TOPIC
from tests.spark.pipeline_rig import in_lake
from tests.spark.serving import Serving
from tests.spark.test_exactness import litter
from tools.spark_archive import options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED, KILLS = (int(os.environ.get(name, usual)) for name, usual in (("SEED", 23), ("KILLS", 105)))
CONF = {
    "executor_memory": "512m",
    "driver_memory": "700m",
    "ui_enabled": "false",
    "driver_host": "127.0.0.1",
    "executor_extraJavaOptions": SMALL,
    "driver_extraJavaOptions": SMALL,
    "sql_shuffle_partitions": "1",
}


class Publisher:
    """Publishes and litters in threads of its own, until it is stopped; says how many records there are."""

    def __init__(self, url: str, batch: int, pause: float) -> None:
        self._url, self._batch, self._pause = url, batch, pause
        self._stop = threading.Event()
        self.records = 0
        self._threads = [
            threading.Thread(target=self._publish),
            threading.Thread(target=litter, args=(url, self._stop)),
        ]

    def __enter__(self) -> Publisher:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *how: object) -> None:
        self._stop.set()
        for one in self._threads:
            one.join()

    def _publish(self) -> None:
        with runnel.blocking.open(self._url, timeout=PATIENCE) as broker:
            topic = broker.topic(TOPIC)
            while not self._stop.wait(self._pause):
                topic.publish_many([b"%d" % at for at in range(self.records, self.records + self._batch)])
                self.records += self._batch


def batches(folder: Path, query: str = "archive") -> int:
    """How many batches a query has committed."""
    return len(list((folder / "state" / "checkpoints" / query / "commits").glob("[0-9]*")))


def until(happened: Callable[[], bool], is_alive: Callable[[], bool], told: Callable[[], str]) -> None:
    late = monotonic() + 2 * PATIENCE
    while not happened():
        assert is_alive(), told()
        assert monotonic() < late, told()
        sleep(0.005)


def finish(spark: SparkSession, place: str, folder: Path, names: str) -> None:
    """Go on in the session of the tests where drivers left it, to the end, in batches that are not small any more."""
    for attempt in range(3):
        try:
            pipeline_driver.run(spark, place, folder, names, 1_000_000, once=True)
        except (PipelineFailed, StreamingQueryException):  # a worker of Python that took too long to start
            assert attempt < 2
        else:
            return


def judge(folder: Path, serving: Serving, records: int, names: str) -> None:
    """Every offset once, in each place."""
    rows = in_lake(folder, TOPIC)
    assert [row["offset"] for row in rows] == list(range(records))
    assert [int(row["value"]) for row in rows] == list(range(records))
    assert len({row["epoch"] for row in rows}) == 1
    if TABLE in names:
        expected: dict[int, list[int]] = {}
        for row in rows:
            expected.setdefault(int(row["time"].timestamp()), []).append(row["offset"])
        found = deltalake.DeltaTable(str(folder / "lake" / TABLE)).to_pyarrow_table().to_pylist()
        assert max(Counter(row["second"] for row in found).values()) == 1, "a window was written twice"
        for row in found:
            assert (row["records"], row["offsets"]) == (len(expected[row["second"]]), sum(expected[row["second"]]))
        done = {row["second"] for row in found}
        assert {second for second in expected if second < max(done)} <= done, "a window is missing"
    if COPY in names:
        with runnel.blocking.open(serving.url, timeout=PATIENCE) as broker:
            assert broker.statistics().topics[COPY].end == records
            with broker.subscribe(COPY, start="earliest") as copied:
                values = sorted(int(copied.receive(timeout=PATIENCE).value) for _ in range(records))
            assert values == list(range(records))
    assert any("-" in segment.stem for segment in serving.folder.glob("*.seg")), "the cleaner had nothing to do"


def test_a_kill_of_each_leaves_every_offset_in_the_lake_once(
    spark: SparkSession, serving: Serving, tmp_path: Path
) -> None:
    """An executor in a process of its own, as on a cluster, but without a master and a worker."""
    names, limit = f"archive,{TABLE}", 150
    place = f"url={serving.url}"
    settings = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": options()}
    environ = {"DRIVER_MASTER": "local-cluster[1,2,512]", "DRIVER_CONF": json.dumps(settings)}
    with Publisher(serving.url, batch=50, pause=0.1) as published:
        arguments = (place, tmp_path, names, limit)
        with Driver("tests.spark.pipeline_driver", *arguments, log=tmp_path / "driver.log", **environ) as driver:

            def goes_on(more: int = 1) -> None:
                done = batches(tmp_path)
                until(lambda: batches(tmp_path) >= done + more, lambda: driver.is_alive, driver.told)

            def executor() -> list[int]:
                return executors({driver.process.pid})

            goes_on()
            os.kill(executor()[0], signal.SIGKILL)
            goes_on()
            serving.kill()
            serving.start()
            goes_on()
            driver.kill()
    finish(spark, place, tmp_path, names)
    judge(tmp_path, serving, published.records, names)


@pytest.mark.nightly
def test_a_hundred_kills_leave_every_offset_in_lake_and_topic_once(
    spark: SparkSession, serving: Serving, tmp_path: Path
) -> None:
    """On a master with two workers, by spark-submit; the victim and the moment are random (SEED=, KILLS=)."""
    names, limit, random = f"archive,{TABLE},{COPY}", 2000, Random(SEED)
    place, log = f"url={serving.url}", tmp_path / "submit.log"
    killed: Counter[str] = Counter()

    def told() -> str:
        return log.read_text(errors="replace")[-4000:]

    with Cluster(tmp_path, workers=2) as cluster, Publisher(serving.url, batch=100, pause=0.2) as published:

        def submit() -> Any:
            script = Path(pipeline_driver.__file__)
            return cluster.submit(log, script, place, tmp_path, names, limit, **CONF)

        running = submit()
        try:
            while killed.total() < KILLS:
                done = batches(tmp_path)
                until(
                    lambda at=done: batches(tmp_path) > at and bool(cluster.executors()),  # type: ignore[misc]
                    lambda one=running: one.poll() is None,  # type: ignore[misc]
                    told,
                )
                sleep(random.uniform(0, 1.5))
                victim = random.choices(["driver", "executor", "broker"], [2, 4, 4])[0]
                if victim == "driver":
                    stop(running)
                    running = submit()
                elif victim == "broker":
                    serving.kill()
                    serving.start()
                else:
                    os.kill(random.choice(cluster.executors()), signal.SIGKILL)
                killed[victim] += 1
        finally:
            stop(running)
    assert min(killed[one] for one in ("driver", "executor", "broker")) >= KILLS // 12, killed
    finish(spark, place, tmp_path, names)
    judge(tmp_path, serving, published.records, names)
