"""Through Spark Connect: the format is found and works as in a session of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import PATIENCE
from tests.spark.driver import Driver
from tests.spark.rig import Served
from tests.spark.test_staging import everything

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server(spark: SparkSession) -> Iterator[str]:
    """A Connect server in the Java of the tests; its address."""
    jvm: Any = spark._jvm
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    jsc: Any = spark._jsc
    service.start(jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(*(getattr(service, f"stop$default${number}")() for number in (1, 2)))


def run(served: Served, log: Path, *arguments: str, **environ: str) -> None:
    """Have a client write and read; all of it has to be there."""
    with Driver("tests.spark.connect_job", served.url, *arguments, log=log, **environ) as job:
        job.process.wait(PATIENCE)
        told = log.read_text()
        assert job.process.returncode == 0, told[-4000:]
    said = dict(line.split(" ", 1) for line in told.splitlines() if line.split(" ")[0].isupper() and " " in line)
    assert said["SESSION"].startswith("pyspark.sql.connect")
    assert (said["READ"], said["REFUSED"]) == ("1000 10", "True")
    assert sorted(int(one.value) for one in everything(served, "in")) == [*range(1000)]


def test_a_client_of_a_connect_server_writes_and_reads(server: str, served: Served, tmp_path: Path) -> None:
    run(served, tmp_path / "log", server)


@pytest.mark.nightly
def test_a_connect_session_with_a_server_of_its_own_writes_reads_and_streams(served: Served, tmp_path: Path) -> None:
    run(served, tmp_path / "log", "", "stream", SPARK_REMOTE="local[2]")
    assert sorted(int(one.value) for one in everything(served, "out")) == [*range(1000)]
