"""`runnel log info`: the segments and the named subscriptions of a journal."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, flip, other_owner, publish_numbered


def test_segments_are_listed_with_what_they_span(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    lines = [line for line in runnel("log", "info").out.splitlines() if line.startswith("0000")]
    assert len(lines) == 5
    assert lines[0].split()[0] == "000000000001.seg"
    assert all(" sealed " in line for line in lines)
    found = runnel("log", "info", "--json").json()["segments"]
    assert [one["file"] for one in found] == [line.split()[0] for line in lines]
    ends = [one["end_sequence"] for one in found]
    assert [one["first_sequence"] for one in found] == [0, *ends[:-1]]
    assert ends[-1] == 180


def test_the_segment_that_is_written_is_active(runnel: Command, tmp_path: Path) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 3)
        (one,) = runnel("log", "info", "--json").json()["segments"]
    assert (one["state"], one["end_sequence"]) == ("active", 9)


def test_named_subscriptions_are_listed_with_their_lag(runnel: Command, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 4, ["orders"])
        owner.cursor("ada", "orders", 5)
    assert runnel("log", "info").out.splitlines()[-1].split() == ["ada", "orders", "5", "7"]
    (ada,) = runnel("log", "info", "--json").json()["cursors"]
    assert (ada["name"], ada["place"], ada["lag"]) == ("ada", 5, 7)


def test_a_folder_that_is_damaged_is_one_line(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    flip(tmp_path / "data" / "MANIFEST", 40)
    done = runnel("log", "info")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("runnel: MANIFEST is damaged")
    assert done.err.endswith("(journal_damaged)\n")
