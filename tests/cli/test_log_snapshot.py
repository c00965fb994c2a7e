"""`runnel log snapshot`: a folder that opens, made while a broker runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, other_owner, publish_numbered


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


def test_what_is_not_yet_synced_is_not_in_it_and_said(runnel: Command, tmp_path: Path) -> None:
    owner = Owner(tmp_path / "data", fsync="os")
    publish_numbered(owner, 0, 2)
    owner.journal.sync()
    publish_numbered(owner, 2, 4)
    assert "6 records (" in (done := runnel("log", "snapshot", "snap")).out
    assert done.out.endswith(") written and not yet synced are not in it\n")
    assert runnel("log", "snapshot", "again", "--json").json()["unsynced_records"] == 6
    assert len(runnel("log", "export", "snap").lines()) == 6
    owner.crash()


@pytest.mark.parametrize("target", ["data/inside", "data/a/b", "file/below", "file", "/proc/nowhere/snap"])
def test_a_target_that_cannot_be_is_named_and_the_folder_is_not_blamed(
    runnel: Command, tmp_path: Path, target: str
) -> None:
    fill(tmp_path / "data")
    (tmp_path / "file").write_text("x")
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    done = runnel("log", "snapshot", "data", target)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"runnel: '{target}' cannot hold a journal: ")
    assert done.err.endswith("(folder_unusable)\n")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before
