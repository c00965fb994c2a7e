"""`runnel backup`: run again and again beside a broker, or left to go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, other_owner, publish_numbered

ROOT = Path(__file__).resolve().parents[2]


def test_runs_beside_an_owner_add_what_is_new(runnel: Command, tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 20)
        first = runnel("backup", "data", "archive")
        assert (first.status, first.err) == (0, "")
        assert "new base " in first.out
        assert "(the first)" in first.out
        owner.tell("publish", 40)
        second = runnel("backup", "data", "archive")
        assert "new base" not in second.out
        heads, row, *_ = second.out.splitlines()
        assert heads == "SEGMENT              SIZE  FIRST CHANGE         LAST CHANGE"
        assert row.startswith("000000000002.seg  ")
        assert "of the segment that still grows" in second.out
        assert "2023-11-14 22:13:39 to " in second.out
    assert runnel("restore", "archive", "restored").status == 0
    assert len(runnel("log", "export", "restored").lines()) == 180


def test_for_programs(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    done = runnel("backup", "archive", "--json").json()
    assert (done["archive"], done["why"], done["missed"], done["segments"]) == ("archive", "the first", None, [])
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 60, 70)
    done = runnel("backup", "archive", "--json", "--copy").json()
    assert ([one["number"] for one in done["segments"]], done["linked"]) == ([6], 0)
    assert runnel("backup", "archive", "--json", "--new-base").json()["why"] == "asked for"


def test_what_was_missed_is_said(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    runnel("backup", "data", "archive")
    runnel("topic", "create", "new", "--data", "data")
    done = runnel("backup", "data", "archive")
    assert (done.status, done.err) == (3, ""), "so that a crontab tells somebody"
    assert done.out.startswith("missed: segment 2 was gone before the archive had all of it: ")
    assert "(something was missed)" in done.out


def test_following_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "data")
    publish_numbered(owner, 0, 5)
    command = [sys.executable, "-m", "runnel", "backup", "data", "archive", "--follow", "0.05", "--json"]
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ | path, restore_signals=True
    ) as child:
        try:
            assert child.stdout is not None
            assert json.loads(child.stdout.readline())["why"] == "the first"
            publish_numbered(owner, 5, 40)
            while not (told := json.loads(child.stdout.readline()))["segments"]:
                pass
            assert told["missed"] is None
            child.send_signal(signal.SIGTERM)
            child.stdout.read()
            assert child.wait() == -signal.SIGTERM
        finally:
            child.kill()
    owner.crash()


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("a", "b", "c"), 2, "usage_error"),
        (("data",), 2, "usage_error"),
        (("data", "archive", "--release", "--hold"), 2, "usage_error"),
        (("a", "b", "--data", "data"), 2, "usage_error"),
        (("data", "archive", "--follow", "0"), 2, "invalid_option"),
        (("data", "data/inside"), 1, "folder_unusable"),
        (("nosuch", "archive"), 1, "no_journal"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    runnel: Command, tmp_path: Path, arguments: tuple[str, ...], status: int, code: str
) -> None:
    fill(tmp_path / "data", batches=5)
    done = runnel("backup", *arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.endswith(f"({code})\n")
    assert done.err.count("\n") == 1


def test_the_help_teaches(runnel: Command) -> None:
    done = runnel("backup", "--help")
    assert "--follow" in done.out
    assert "*/5 * * * *" in done.out


def test_the_argument_that_is_missing_is_named(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    assert "ARCHIVE is missing: 'data' is the folder of a journal" in runnel("backup", "data").err
    assert "TARGET is missing: 'data' is the folder of a journal" in runnel("log", "snapshot", "data").err


def test_an_archive_that_holds_misses_nothing_until_it_lets_go(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    assert "(--hold)" in runnel("backup", "data", "archive", "--hold").out
    runnel("topic", "create", "new", "--data", "data")
    done = runnel("backup", "data", "archive")
    assert (done.status, "missed" in done.out, "(--hold)" in done.out) == (0, False, True)
    (found,) = runnel("log", "info", "--json").json()["archives"]
    assert (found["place"], found["through"]) == (str(tmp_path / "archive"), 2)
    assert f"archive {tmp_path / 'archive'} since " in (told := runnel("log", "info").out)
    assert "it has segments up to 2, and came by" in told
    released = runnel("backup", "data", "archive", "--release")
    assert (released.status, "holds data no more" in released.out) == (0, True)
    assert runnel("log", "info", "--json").json()["archives"] == []
    again = runnel("backup", "data", "archive", "--release")
    assert (again.status, "did not hold" in again.out) == (1, True)
    runnel("topic", "create", "newer", "--data", "data")
    assert runnel("backup", "data", "archive").status == 3


def test_an_archive_that_is_not_there_any_more_can_be_released(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    runnel("backup", "data", "archive", "--hold")
    shutil.rmtree(tmp_path / "archive")
    (released,) = runnel("backup", "data", "archive", "--release", "--json").json()["released"]
    assert released["place"] == str(tmp_path / "archive")
    assert not (tmp_path / "archive").exists()
