"""`runnel cursor`: named subscriptions, what they hold, and forgetting one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from runnel.journal.format.ledger import CursorState, cursor_part
from runnel.journal.read.inspection import Inspection
from tests.cli.conftest import Command
from tests.journal.folders import Owner, other_owner, publish_numbered


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 4, ["orders"])
        owner.cursor("ada", "orders", 5)
        owner.write(cursor_part(CursorState("archive", ">", 0, 3, hold=True)))
    return tmp_path / "data"


def names(folder: Path) -> list[str]:
    with Inspection(folder) as seen:
        return [cursor.name for cursor in seen.cursors]


def test_they_are_listed_with_their_place_lag_and_whether_they_hold(runnel: Command) -> None:
    heads, ada, archive = (line.split() for line in runnel("cursor", "list").out.splitlines())
    assert heads == ["SUBSCRIPTION", "READS", "PLACE", "LAG", "HOLDS"]
    assert ada == ["ada", "orders", "5", "7", "no"]
    assert archive == ["archive", ">", "3", "-", "yes"]
    one, two = runnel("cursor", "list", "data", "--json").json()
    assert (one["name"], one["place"], one["hold"], two["hold"], two["lag"]) == ("ada", 5, False, True, None)


def test_they_are_listed_while_another_process_owns_the_folder(runnel: Command, folder: Path) -> None:
    with other_owner(folder):
        assert len(runnel("cursor", "list", "--json").json()) == 2


def test_one_is_forgotten(runnel: Command, folder: Path) -> None:
    done = runnel("cursor", "forget", "archive", "--yes")
    assert (done.status, done.err) == (0, "")
    assert done.out == "forgot 'archive', at sequence 3 of '>'; what it held may go\n"
    assert names(folder) == ["ada"]
    assert runnel("cursor", "forget", "ada", "--yes", "--json").json() == {
        "name": "ada",
        "pattern": "orders",
        "place": 5,
        "hold": False,
    }
    assert names(folder) == []


@pytest.mark.parametrize(
    ("answer", "left"), [("y\n", ["archive"]), ("n\n", ["ada", "archive"]), ("", ["ada", "archive"])]
)
def test_a_person_is_asked(
    runnel: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, left: list[str]
) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    asked = runnel("cursor", "forget", "ada")
    assert asked.out.startswith("Forget 'ada', at offset 5 of 'orders'? [y/N] ")
    assert names(folder) == left
    assert asked.status == (0 if answer == "y\n" else 1)


def test_a_program_has_to_say_yes_and_an_unknown_name_is_named(runnel: Command, folder: Path) -> None:
    done = runnel("cursor", "forget", "ada", "--json")
    assert (done.status, "add --yes" in done.err) == (2, True)
    done = runnel("cursor", "forget", "nobody", "--yes")
    assert done.status != 0
    assert "unknown_name" in done.err
    assert names(folder) == ["ada", "archive"]


def test_nothing_is_forgotten_while_a_process_has_the_folder_open(runnel: Command, folder: Path) -> None:
    with other_owner(folder):
        assert "folder_in_use" in runnel("cursor", "forget", "ada", "--yes").err
    assert names(folder) == ["ada", "archive"]
