"""`runnel info` names what matters, for people and for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, other_owner, publish_numbered, segments_of


def test_a_closed_folder(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    done = runnel("info", "data")
    assert done.status == 0
    for line in ("state        closed", "fsync        commit (what was ack", "in 5 segments", "2 topics, 0 groups"):
        assert line in done.out, line
    found = runnel("info", "--json").json()
    assert found["fsync"] == "commit"
    assert found["format"] == 1
    assert found["owner"] is None
    assert found["clean"] is True
    assert (found["topics"], found["groups"], found["segments"]) == (2, 0, 5)
    assert len(found["journal"]) == 16
    assert 25_000 < found["bytes"] < 40_000


def test_the_owner_is_named(runnel: Command, tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        assert f"open in process {owner.pid}" in runnel("info").out
        assert runnel("info", "--json").json()["owner"] == {"pid": owner.pid}


@pytest.mark.parametrize("mode", ["interval", "os"])
def test_the_fsync_mode_is_named_with_what_it_risks(runnel: Command, tmp_path: Path, mode: str) -> None:
    fill(tmp_path / "data", fsync=mode)
    assert f"fsync        {mode} (a power loss may take" in runnel("info").out


def test_a_folder_that_was_not_closed_says_so(runnel: Command, tmp_path: Path) -> None:
    owner = Owner(tmp_path / "data")
    publish_numbered(owner, 0, 1)
    end = owner.journal.history.sources[-1].written
    owner.crash()
    with segments_of(tmp_path / "data")[-1].open("r+b") as file:
        file.seek(end)
        file.write(b"half an entry")
    printed = runnel("info").out
    assert "not closed properly; the next opening recovers it" in printed
    assert "torn tail    13 B" in printed


@pytest.mark.parametrize("mode", ["interval", "os"])
def test_written_and_unsynced_records_are_reported_while_an_owner_runs(
    runnel: Command, tmp_path: Path, mode: str
) -> None:
    owner = Owner(tmp_path / "data", fsync=mode)
    publish_numbered(owner, 0, 2)
    owner.journal.sync()
    assert "not yet synced" not in runnel("info").out
    publish_numbered(owner, 2, 4)
    for command in (("info",), ("log", "info")):
        assert "6 records (" in (done := runnel(*command)).out
        assert ") written and not yet synced are not shown" in done.out
        found = runnel(*command, "--json").json()
        assert found["unsynced_records"] == 6
        assert found["unsynced_bytes"] > 600
    owner.crash()
    assert "not yet synced" not in runnel("info").out
    assert runnel("info", "--json").json()["unsynced_records"] == 0


def test_when_the_archives_that_hold_records_are_unknown_that_is_a_note(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    (tmp_path / "data" / "ARCHIVED").write_bytes(b"no such thing")
    done = runnel("info")
    assert done.status == 0
    assert "nothing is cleaned or dropped, an archive may be waiting: ARCHIVED is damaged" in done.out
