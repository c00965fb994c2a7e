"""One Spark session for all tests that need one, small and quick: it takes seconds to start and a gigabyte to live."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runnel.spark
from runnel.spark.connection import BrokerConnection, open_connection
from runnel.spark.options import BrokerLocation
from tests.spark.driver import without_coverage
from tests.spark.rig import Served
from tests.spark.serving import Serving
from tools.spark_archive import options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]  # the summary says so: tests/conftest.py

QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": options(),
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.pollingDelay": "5ms",
}
"""Settings for tests, in this process or another: `runnel.spark.session(master="local[2]", **QUICK)`."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session that tests share. Who needs another way of running Spark starts another process."""
    folder = tmp_path_factory.mktemp("spark")
    # Tasks run in other processes, which see no pythonpath of pytest's.
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    measured = {name: os.environ.pop(name) for name in [*os.environ] if name not in without_coverage(os.environ)}
    session = runnel.spark.session(
        "tests",
        "local[2,2]",  # a task that fails is tried once more
        **QUICK,
        **{"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"},  # test_connect
        **{"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")},
    )
    os.environ.update(measured)  # what Java has started from, it hands on
    yield session
    session.stop()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker of a folder, and a server of it, in a thread."""
    with Served(tmp_path / "data") as made:
        yield made


@pytest.fixture(params=["path", "url"])
def place(request: pytest.FixtureRequest, served: Served) -> dict[str, str]:
    """The option that names the broker: by its folder, and by its server."""
    return {"path": str(served._folder)} if request.param == "path" else {"url": served.url}


@pytest.fixture
def line(served: Served) -> Iterator[BrokerConnection]:
    with open_connection(BrokerLocation(url=served.url)) as made:
        yield made


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """A server in a process of its own, which the test may kill."""
    made = Serving(tmp_path / "journal", tmp_path / "server.log")
    made.start()
    yield made
    made.kill()
