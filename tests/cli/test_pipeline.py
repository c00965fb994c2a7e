"""`runnel pipeline list`, `status`, `stop` and `new`: they need neither Spark nor Java."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from runnel.core.statistics import PipelineStatistics
from runnel.spark.pipelines.state import PipelineStatus, StateFolder
from tests.cli.conftest import Command
from tests.patience import PATIENCE

RUNNING = """
import signal, sys
from runnel.spark.pipelines.state import StateFolder

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with StateFolder(sys.argv[1]).held():
    print("held", flush=True)
    signal.pause()
"""


def put(folder: Path, name: str, state: str, pid: int = 0, **more: object) -> StateFolder:
    """The status file of a pipeline that was run on a lake."""
    found = StateFolder(folder / "lake" / "pipelines" / name)
    found.folder.mkdir(parents=True, exist_ok=True)
    figures = msgspec.convert({"name": name, "state": state, "records": 12, "behind": 3, **more}, PipelineStatistics)
    now = time.time()
    found.write(
        PipelineStatus(statistics=figures, pid=pid, broker="data", lake="lake", started=now, updated=now, checks={})
    )
    return found


def test_the_pipelines_that_there_are_and_their_options(runnel: Command) -> None:
    found = {one["pipeline"]: one for one in runnel("pipeline", "list", "--json").json()}
    assert sorted(found) == ["analytics", "archive", "audit", "current"]
    assert "batch_records" in found["archive"]["options"]
    runnel("pipeline", "new", "words")
    assert "words" in runnel("pipeline", "list").out


def test_the_status_of_a_lake_is_that_of_all_its_pipelines(runnel: Command, tmp_path: Path) -> None:
    put(tmp_path, "archive", "stopped")
    done = runnel("pipeline", "status", "--json")
    assert done.status == 0, done.err
    (one,) = done.json()
    assert (one["statistics"]["state"], one["statistics"]["records"], one["statistics"]["behind"]) == ("stopped", 12, 3)
    put(tmp_path, "audit", "running", pid=os.getpid())
    done = runnel("pipeline", "status")
    assert done.status == 1
    assert "died" in done.out  # no process holds its lock
    assert runnel("pipeline", "status", "archive").status == 0
    put(tmp_path, "archive", "stopped", alerts=1)
    assert runnel("pipeline", "status", "archive").status == 1


def test_what_was_never_run_has_no_status(runnel: Command) -> None:
    done = runnel("pipeline", "status")
    assert done.status == 0
    assert "no pipeline was run" in done.out
    done = runnel("pipeline", "status", "archive")
    assert done.status != 0
    assert "archive" in done.err


def test_a_pipeline_that_runs_is_stopped_and_one_that_does_not_is_an_error(runnel: Command, tmp_path: Path) -> None:
    state = put(tmp_path, "archive", "running")
    done = runnel("pipeline", "stop", "archive")
    assert done.status != 0
    assert "archive" in done.err
    with subprocess.Popen([sys.executable, "-c", RUNNING, state.folder], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            put(tmp_path, "archive", "running", pid=process.pid)
            (one,) = runnel("pipeline", "status", "--json").json()
            assert one["statistics"]["state"] == "running"
            done = runnel("pipeline", "stop", "archive", "--wait", f"{PATIENCE:g}s")
            assert done.status == 0, done.err
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["archive", "two words", "test_words", "class"])
def test_a_name_that_no_pipeline_can_have_is_refused(runnel: Command, tmp_path: Path, name: str) -> None:
    assert runnel("pipeline", "new", name).status != 0
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_that_is_there_is_not_overwritten(runnel: Command, tmp_path: Path) -> None:
    assert runnel("pipeline", "new", "words").status == 0
    before = {file: file.read_text() for file in tmp_path.glob("pipelines/*.py")}
    assert len(before) == 2
    done = runnel("pipeline", "new", "words")
    assert done.status != 0
    assert "words.py" in done.err
    assert {file: file.read_text() for file in tmp_path.glob("pipelines/*.py")} == before


def test_bad_values_are_refused_before_spark_is_started(runnel: Command) -> None:
    for given in (["--batch-records", "many"], ["--interval", "soon"], ["--storage", "name"]):
        done = runnel("pipeline", "run", "archive", *given)
        assert done.status != 0
        assert given[1] in done.err
