"""`runnel log snapshot`: a folder that opens, made while a broker runs."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.journal.folders import fill, other_owner


def test_a_snapshot_beside_an_owner_opens(runnel: Command, tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 70)
        done = runnel("log", "snapshot", "data", "backups/monday")
        assert (done.status, done.err) == (0, "")
        assert "1 copied" in done.out
        owner.tell("publish", 1)
    assert runnel("log", "verify", "backups/monday").status == 0
    assert len(runnel("log", "export", "backups/monday").lines()) == 210
    assert runnel("topic", "create", "new", "--data", "backups/monday").status == 0


def test_for_programs(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    made = runnel("log", "snapshot", "snap", "--json").json()
    assert (made["target"], made["segments"], made["copied"]) == ("snap", 5, 0)
    assert made["journal"] == runnel("info", "snap", "--json").json()["journal"]


def test_what_makes_no_sense_is_one_line(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    assert runnel("log", "snapshot", "a", "b", "c").status == 2
    assert runnel("log", "snapshot", "a", "b", "--data", "data").status == 2
    done = runnel("log", "snapshot", "data", "data")
    assert done.status == 1
    assert done.err.endswith("(folder_unusable)\n")
