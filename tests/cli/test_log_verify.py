"""`runnel log verify`: exit code 0 means whole, 1 means a table of what is not."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, flip, other_owner, publish_numbered, segments_of


def test_whole(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    done = runnel("log", "verify")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "everything is whole"
    found = runnel("log", "verify", "data", "--json").json()
    assert found["whole"] is True
    assert (found["records"], found["damages"], found["lost"]) == (180, [], [])


def test_damaged(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    flip(segments_of(tmp_path / "data")[1], 300)
    done = runnel("log", "verify")
    assert done.status == 1
    lines = [line.split() for line in done.out.splitlines()]
    assert ["000000000002.seg", "64"] in [line[:2] for line in lines]
    assert ["orders", "21", "23", "3"] in lines
    found = runnel("log", "verify", "--json")
    assert found.status == 1
    assert found.json()["whole"] is False
    assert found.json()["damages"][0]["file"] == "000000000002.seg"
    (lost,) = found.json()["lost"]
    assert (lost["topic"], lost["first"], lost["end"]) == ("orders", 21, 24)


def test_a_damaged_index_loses_no_records(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    flip(tmp_path / "data" / "000000000001.idx", 60)
    done = runnel("log", "verify")
    assert done.status == 1
    assert "no records are lost" in done.out


def test_a_torn_tail_is_reported_and_fine(runnel: Command, tmp_path: Path) -> None:
    owner = Owner(tmp_path / "data")
    publish_numbered(owner, 0, 1)
    end = owner.journal.history.sources[-1].written
    owner.crash()
    with segments_of(tmp_path / "data")[-1].open("r+b") as file:
        file.seek(end)
        file.write(b"half an entry")
    done = runnel("log", "verify")
    assert done.status == 0
    assert f"torn tail: 13 bytes of 000000000001.seg at {end}" in done.out


def test_beside_an_owner(runnel: Command, tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 30)
        assert runnel("log", "verify").status == 0
