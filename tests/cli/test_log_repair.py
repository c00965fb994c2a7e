"""`runnel log repair`: says what, asks, does it, and the folder opens."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Terminal
from tests.journal.folders import fill, flip, segments_of, snapshot_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "data", batches=60)
    flip(segments_of(tmp_path / "data")[1], 300)
    return tmp_path / "data"


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(text))


def test_a_dry_run_says_what_would_be_done(runnel: Command, folder: Path) -> None:
    before = segments_of(folder)[1].read_bytes()
    done = runnel("log", "repair", "--dry-run")
    assert done.status == 1
    assert "to do:" in done.out
    assert "000000000002.seg: copy what is whole into a new segment" in done.out
    assert segments_of(folder)[1].read_bytes() == before
    found = runnel("log", "repair", "--dry-run", "--json").json()
    assert (found["needed"], found["done"]) == (True, False)


@pytest.mark.parametrize("said", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_done(
    runnel: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    answer(monkeypatch, said)
    runnel("log", "repair", "--dry-run")
    before = snapshot_of(folder)
    done = runnel("log", "repair")
    assert done.status == 1
    assert "Do this? [y/N]" in done.out
    assert done.out.endswith("nothing was done\n")
    assert {**snapshot_of(folder), "LOCK": b""} == {**before, "LOCK": b""}


@pytest.mark.usefixtures("folder")
def test_with_a_yes_the_folder_is_whole_again(runnel: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "y\n")
    done = runnel("log", "repair")
    assert done.status == 0
    assert "done: the folder opens again" in done.out
    assert "the damaged files are in data/damaged/" in done.out
    assert runnel("log", "verify").status == 0
    assert len(runnel("log", "cat", "orders").out.splitlines()) == 87


def test_yes_can_be_said_in_advance(runnel: Command, folder: Path) -> None:
    done = runnel("log", "repair", "--yes", "--json")
    assert done.status == 0
    found = done.json()
    assert found["done"] is True
    assert [(one["topic"], one["first"], one["end"]) for one in found["lost"]] == [("orders", 21, 24)]
    assert (Path(found["originals"]) / "000000000002.seg").exists()
    again = runnel("log", "repair", "--yes")
    assert (again.status, again.out) == (0, "nothing is damaged: there is nothing to do\n")
    assert folder.exists()


def test_originals_can_be_discarded(runnel: Command, folder: Path) -> None:
    done = runnel("log", "repair", "--yes", "--discard")
    assert "no copy was kept" in done.out
    assert not (folder / "damaged").exists()


@pytest.mark.usefixtures("folder")
def test_with_json_there_is_no_prompt(runnel: Command) -> None:
    done = runnel("log", "repair", "--json")
    assert (done.status, done.out) == (2, "")


@pytest.mark.usefixtures("folder")
def test_without_a_terminal_there_is_no_prompt(runnel: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    done = runnel("log", "repair")
    assert (done.status, done.out) == (2, "")
    assert "--yes" in done.err
