"""`runnel doctor`: what is there is said, and what is not there is said with the way out."""

from __future__ import annotations

import resource
import sys
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from runnel.cli import doctor
from runnel.cli.doctor import cluster_findings, extras, findings, java, python, spark, tasks
from runnel.core.errors import NotSupported
from runnel.observe import checkup
from runnel.observe.checkup import MISSING, OK, WRONG, Finding, disk, open_files
from runnel.spark import java as javas
from tests.cli.conftest import Command
from tests.cluster.nodes import own_port
from tests.cluster.single import new_stream, single

PACKAGES = cache(metadata.packages_distributions)  # it reads the files of every package, and is asked for each extra


@pytest.fixture(autouse=True)
def _packages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "packages_distributions", PACKAGES)


def test_a_machine_that_has_everything_is_well(
    runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "median_sync", lambda folder: 0.001)  # whatever disk these tests have
    done = runnel("doctor", "--data", tmp_path / "data")
    lines = done.out.splitlines()
    assert lines[0].split() == ["WHAT", "STATE", "SEEN", "WHAT", "TO", "DO"]
    said = {line.split("  ")[0].strip(): line for line in lines[1:]}
    assert sys.executable in said["Python"]
    assert "pyspark" in said["runnel-mq[spark]"]
    assert "supported" in said["pyspark"]
    assert f"disk of {tmp_path}" in done.out
    assert not (tmp_path / "data").exists()  # it was only looked at
    found = runnel("doctor", "--json").json()
    assert {one["what"] for one in found} >= {"Python", "platform", "runnel", "Java", "open files"}
    assert done.status == (1 if any(one["state"] == WRONG for one in found) else 0)


def test_what_is_wrong_is_the_exit_code(runnel: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "FILES", 1 << 40)
    done = runnel("doctor")
    assert done.status == 1
    assert "ulimit -n" in done.out


def test_an_old_python_is_wrong() -> None:
    assert python((3, 10, 4)).state == WRONG
    assert python((3, 11, 0)).state == python((4, 0, 0)).state == OK


def test_an_extra_that_is_not_there_is_no_fault_and_its_command_is_named() -> None:
    found = {one.what: one for one in extras(lambda name: name != "lz4")}
    assert found["runnel-mq[server]"].state == OK
    lacking = found["runnel-mq[compression]"]
    assert (lacking.state, lacking.advice) == (MISSING, "pip install 'runnel-mq[compression]', if you want that")
    assert "lz4" in lacking.seen
    assert "zstandard" not in lacking.seen


@pytest.mark.parametrize(
    ("version", "state"), [("4.2.1", OK), ("4.3.0", OK), ("4.1.1", WRONG), ("5.0.0", WRONG), ("4.30.0", WRONG)]
)
def test_only_versions_of_spark_that_were_tested_are_well(version: str, state: str) -> None:
    assert spark(version).state == state


def test_the_versions_are_those_that_the_format_takes() -> None:
    from runnel.spark.format import SUPPORTED

    assert doctor.SPARK == SUPPORTED


def test_java_gets_the_archive_with_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = javas.Java(tmp_path, 21, "PATH")
    monkeypatch.setattr(javas, "find_java", lambda: found)
    assert java() == Finding("Java", OK, f"21 at {tmp_path} (from PATH)")

    def none() -> javas.Java:
        raise NotSupported("Spark", "install one")

    monkeypatch.setattr(javas, "find_java", none)
    assert java() == Finding("Java", WRONG, "none that Spark can use", "install one")


def test_the_python_of_sparks_tasks_is_asked_for_runnel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert tasks().state == OK
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH= exec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    found = tasks()
    assert (found.state, found.advice) == (MISSING, f"set PYSPARK_PYTHON={sys.executable}")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", str(tmp_path))  # where Spark finds python3 otherwise
    assert tasks().seen.startswith("python3 has no runnel")


def test_without_spark_java_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "pyspark" else real(name))
    found = {one.what: one.state for one in findings()}
    assert found["runnel-mq[spark]"] == MISSING
    assert not {"Java", "pyspark"} & found.keys()


@pytest.mark.parametrize(
    ("limits", "state"), [((256, 4096), WRONG), ((1024, 4096), OK), ((resource.RLIM_INFINITY,) * 2, OK)]
)
def test_few_open_files_are_wrong(monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], state: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    assert open_files().state == state


def test_a_disk_is_tried_where_the_folder_is_or_will_be(tmp_path: Path) -> None:
    tried: list[Path] = []

    def sync(folder: Path) -> float:
        tried.append(folder)
        return 0.001

    assert disk(tmp_path / "a" / "b", sync).state == OK
    assert tried == [tmp_path]
    assert disk(tmp_path, lambda folder: 0.5).state == WRONG
    real = disk(tmp_path)
    assert "a sync takes" in real.seen
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    def refused(folder: Path) -> float:
        raise PermissionError(13, "Permission denied")

    found = disk(tmp_path, refused)
    assert (found.state, found.advice) == (WRONG, "choose another folder")


async def test_a_cluster_is_examined() -> None:
    node = single().nodes[0]
    found = await cluster_findings(f"{node.url}?stream={new_stream()}&monitor={node.monitor}")
    assert [(one.what, one.state) for one in found] == [("answers", OK), ("every write synced", OK), ("replicas", OK)]
    port = own_port()
    found = await cluster_findings(f"{node.url}?stream={new_stream()}&monitor=http://127.0.0.1:{port}")
    assert [one.state for one in found] == [OK, MISSING, OK]
