"""Through Spark Connect: the format is found and works as in a session of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.spark.driver import Driver
from tests.spark.rig import Served
from tests.spark.test_staging import everything


@pytest.mark.parametrize("then", [(), pytest.param(("stream",), id="streams", marks=pytest.mark.nightly)])
def test_a_connect_session_writes_and_reads(tmp_path: Path, then: tuple[str, ...]) -> None:
    with Served(tmp_path / "data") as served:
        with Driver("tests.spark.connect_job", served.url, *then, log=tmp_path / "log", SPARK_REMOTE="local[2]") as job:
            job.process.wait(PATIENCE)
            told = (tmp_path / "log").read_text()
            assert job.process.returncode == 0, told[-4000:]
        said = dict(line.split(" ", 1) for line in told.splitlines() if line.split(" ")[0].isupper() and " " in line)
        assert said["SESSION"].startswith("pyspark.sql.connect")
        assert (said["READ"], said["REFUSED"]) == ("1000 10", "True")
        assert sorted(int(one.value) for one in everything(served, "in")) == [*range(1000)]
        if then:
            assert sorted(int(one.value) for one in everything(served, "out")) == [*range(1000)]
