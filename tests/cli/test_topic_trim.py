"""`runnel topic trim`: the beginning of a topic goes, unless somebody holds it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from runnel.journal.format.ledger import CursorState, cursor_part
from runnel.journal.read.inspection import Inspection
from tests.cli.conftest import Command
from tests.journal.folders import Owner, publish_numbered


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20, ["orders"])
    return tmp_path / "data"


def hold(folder: Path, place: int) -> None:
    with Owner(folder) as owner:
        epoch = owner.topic("orders").epoch
        owner.write(cursor_part(CursorState("archive", "orders", epoch, place, hold=True)))


def first(folder: Path) -> int:
    with Inspection(folder) as seen:
        topic = seen.topic("orders")
        assert topic is not None
        return topic.first


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("12", 12),
        ("0", 0),
        ("60", 60),
        ("latest", 60),
        ("earliest", 0),
        ("2023-11-14T22:13:26Z", 18),
        ("2030-01-01", 60),
    ],
)
def test_it_begins_where_asked(runnel: Command, folder: Path, before: str, found: int) -> None:
    done = runnel("topic", "trim", "orders", "--before", before, "--yes")
    assert (done.status, done.err) == (0, "")
    assert f"offset {found}" in done.out
    assert first(folder) == found
    again = runnel("topic", "trim", "orders", "--before", before, "--yes")
    assert "nothing was done" in again.out


def test_programs_are_notified_and_the_reason_is_kept(runnel: Command, folder: Path) -> None:
    done = runnel("topic", "trim", "orders", "--before", "7", "--yes", "--json").json()
    assert (done["topic"], done["before"], done["first"], done["end"]) == ("orders", 0, 7, 60)
    (gone,) = runnel("topic", "list", "--json").json()[0]["gone"]
    assert (gone["first"], gone["end"], gone["reason"]) == (0, 7, "asked")
    assert gone["time"] > 0
    heads, line = runnel("topic", "list", "--gone").out.splitlines()
    assert heads.split() == ["TOPIC", "OFFSETS", "WHY", "LAST"]
    assert line.split()[:4] == ["orders", "[0,", "7)", "trimmed"]
    (told,) = runnel("log", "info", "--json").json()["gone"]
    assert told == gone | {"topic": "orders"}


def test_what_is_held_stays_unless_by_force(runnel: Command, folder: Path) -> None:
    hold(folder, 10)
    refused = runnel("topic", "trim", "orders", "--before", "11", "--yes")
    assert refused.status != 0
    assert "topic_held" in refused.err
    assert "'archive' (from offset 10 on)" in refused.err
    assert first(folder) == 0
    assert runnel("topic", "trim", "orders", "--before", "10", "--yes").status == 0
    assert runnel("topic", "trim", "orders", "--before", "11", "--yes", "--force").status == 0
    assert first(folder) == 11


@pytest.mark.parametrize(("answer", "left"), [("y\n", 7), ("n\n", 0)])
def test_a_person_is_asked(
    runnel: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    asked = runnel("topic", "trim", "orders", "--before", "7")
    assert asked.out.startswith("Take offsets [0, 7) of 'orders' away? [y/N] ")
    assert first(folder) == left


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("orders", "--before", "61", "--yes"), "offset_out_of_range"),
        (("orders", "--before", "soon", "--yes"), "invalid_option"),
        (("other", "--before", "1", "--yes"), "unknown_topic"),
        (("orders", "--before", "1", "--json"), "usage_error"),
    ],
)
def test_what_makes_no_sense_is_refused(runnel: Command, folder: Path, arguments: tuple[str, ...], code: str) -> None:
    refused = runnel("topic", "trim", *arguments)
    assert refused.status != 0
    assert code in refused.err
    assert first(folder) == 0
