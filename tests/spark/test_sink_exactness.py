"""From topic to topic, each record once, though driver or broker is killed again and again: judged by offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest

import runnel.blocking
from tests.patience import PATIENCE
from tests.spark.driver import Driver
from tests.spark.rig import Served
from tests.spark.serving import Serving
from tests.spark.test_staging import everything

BATCH = 150
BATCHES = 14
SEED = 7


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        yield made


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


def test_four_kills_of_the_driver_neither_lose_nor_repeat_a_record(served: Served, tmp_path: Path) -> None:
    random = Random(SEED)
    served.publish_many("in", [b"x"] * (BATCH * BATCHES))
    arguments = ("tests.spark.driver", served.url, tmp_path / "check", f"maxRecordsPerTrigger={BATCH}")
    for kill in range(4):
        begin = mark(served)
        with Driver(*arguments, log=tmp_path / "driver.log") as driver:
            wanted = begin + random.randint(1, 2)
            if kill % 2:
                # Right behind the sink's commit, before Spark has noted its own: that batch comes again.
                assert until(driver, lambda at=wanted: mark(served) >= at), driver.told()  # type: ignore[misc]
            else:
                # While a batch is staged: what is staged is never seen, and swept by the next life.
                assert until(driver, lambda at=wanted: mark(served) >= at and bool(stages(served))), driver.told()  # type: ignore[misc]
                sleep(random.uniform(0, 0.02))
            driver.kill()
        assert mark(served) < BATCHES - 1, "there was nothing left to kill"
    with Driver(*arguments, log=tmp_path / "driver.log") as driver:
        until(driver, lambda: False)
        assert driver.process.returncode == 0, driver.told()
    found = everything(served, "out")
    assert sorted(int(one.value) for one in found) == [*range(BATCH * BATCHES)]
    assert [one.offset for one in found] == [*range(BATCH * BATCHES)]
    assert mark(served) == BATCHES - 1
    assert all(one.batch == BATCHES - 1 for one in stages(served))  # of a life that was killed at the last one


def test_a_broker_that_is_killed_under_a_query_neither_loses_nor_repeats_a_record(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "journal", tmp_path / "server.log")
    serving.start()
    options = (tmp_path / "check", f"maxRecordsPerTrigger={BATCH}")
    try:
        with runnel.blocking.open(serving.url, timeout=PATIENCE) as broker:
            broker.topic("in").publish_many([b"x"] * (BATCH * BATCHES))

            def committed() -> int:
                return max(broker.marks("spark:").values(), default=-1)  # type: ignore[return-value]

            lives = kills = 0
            while committed() < BATCHES - 1:
                lives += 1
                assert lives <= 5, "it does not come to an end"  # a driver may give up; the next goes on
                with Driver("tests.spark.driver", serving.url, *options, log=tmp_path / "driver.log") as driver:
                    while kills < 3:
                        before = committed()
                        if not until(driver, lambda at=before: committed() > at):  # type: ignore[misc]
                            break
                        serving.kill()
                        serving.start()
                        kills += 1
                    until(driver, lambda: False)
            assert kills == 3
            with broker.subscribe("out", start="earliest") as records:
                found = [records.receive(timeout=PATIENCE) for _ in range(BATCH * BATCHES)]
            assert broker.statistics().topics["out"].end == BATCH * BATCHES
    finally:
        serving.kill()
    assert sorted(int(one.value) for one in found) == [*range(BATCH * BATCHES)]
