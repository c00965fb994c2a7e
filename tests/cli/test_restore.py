"""`runnel restore`: a folder as it was, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.journal.backup.archive import archive
from tests.cli.conftest import Command
from tests.journal.folder_contents import time_of
from tests.journal.folders import BEGAN, Owner, fill, flip, publish_numbered


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """The archive of sixty batches, a second apart."""
    with Owner(tmp_path / "data") as owner:
        archive(tmp_path / "data", tmp_path / "archive", now=BEGAN)
        publish_numbered(owner, 0, 60)
    archive(tmp_path / "data", tmp_path / "archive", now=time_of(60))
    return tmp_path / "archive"


@pytest.mark.parametrize(
    ("until", "records"),
    [
        ((), 180),
        (("--until", "2023-11-14T22:13:29"), 30),
        (("--until", "2023-11-14T23:13:29+01:00"), 30),
        (("--until", "2023-11-14T22:13:28.999999Z"), 27),
        (("--until-sequence", "8"), 9),
    ],
)
def test_a_folder_as_it_was(runnel: Command, archived: Path, until: tuple[str, ...], records: int) -> None:
    done = runnel("restore", "archive", "restored", *until)
    assert (done.status, done.err) == (0, "")
    assert "all are intact" in done.out
    assert len(runnel("log", "export", "restored").lines()) == records
    assert runnel("log", "verify", "restored").status == 0
    assert runnel("topic", "create", "new", "--data", "restored").status == 0


def test_for_programs(runnel: Command, archived: Path) -> None:
    done = runnel("restore", "archive", "restored", "--copy", "--json").json()
    assert (done["target"], done["sequence"], done["linked"], done["notes"]) == ("restored", 180, 0, [])
    assert done["journal"] == runnel("info", "restored", "--json").json()["journal"] != done["source"]


def test_a_dry_run_makes_nothing(runnel: Command, archived: Path, tmp_path: Path) -> None:
    done = runnel("restore", "archive", "--dry-run", "--until", "2023-11-14T22:13:29")
    assert done.out.splitlines()[-1] == "state of 2023-11-14T22:13:29.000000Z, before sequence 30"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "data"]


def test_which_points_there_are(runnel: Command, archived: Path, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        owner.cursor("reader", "orders", 1)  # a segment of state, that closing drops
    runnel("backup", "data", "archive")
    done = runnel("restore", "archive", "--list")
    assert done.status == 0
    heads, first, second, _, missed = done.out.splitlines()[2:]
    assert heads.split() == ["FROM", "TO", "BASES", "SEGMENTS", "SINCE", "SIZE"]
    assert first.startswith("2023-11-14T22:13:20.000000Z  2023-11-14T22:14:20.000000Z  2")
    assert first.split()[3] == "5"
    assert second.startswith("2023-11-14T22:14:19.000000Z  ")
    assert missed.startswith("not between 2023-11-14T22:14:20.000000Z and ")
    assert "segment 6 was gone" in missed
    spans = runnel("restore", "archive", "--list", "--json").json()["spans"]
    assert [base["why"] for base in spans[0]["bases"]] == ["the first"]


def test_damage_is_named_with_what_to_do(runnel: Command, archived: Path, tmp_path: Path) -> None:
    file = sorted((archived / "segments").glob("*.seg"))[1]
    flip(file, 500)
    done = runnel("restore", "archive", "restored")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"runnel: archive/segments/{file.name} is damaged at ")
    assert "--until" in done.err
    assert done.err.endswith("(archive_damaged)\n")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("archive",), 2, "usage_error"),
        (("archive", "restored", "--dry-run"), 2, "usage_error"),
        (("archive", "restored", "--until", "yesterday"), 2, "invalid_option"),
        (("archive", "restored", "--until-sequence", "-1"), 2, "invalid_option"),
        (("archive", "restored", "--until", "2020-01-01"), 1, "point_not_archived"),
        (("archive", "restored", "--until", "2026-01-01"), 1, "point_not_archived"),
        (("archive", "restored", "--base", "nosuch"), 1, "point_not_archived"),
        (("archive", "data"), 1, "folder_unusable"),
        (("data", "restored"), 1, "no_archive"),
        (("data", "--list"), 1, "no_archive"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    runnel: Command, archived: Path, arguments: tuple[str, ...], status: int, code: str
) -> None:
    done = runnel("restore", *arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.endswith(f"({code})\n")
    assert done.err.count("\n") == 1


def test_one_point_not_two(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    done = runnel("restore", "archive", "restored", "--until", "2023-11-14", "--until-sequence", "5")
    assert done.status == 2
    assert "not allowed with" in done.err
