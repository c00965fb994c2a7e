"""`runnel group`: how far groups have come, and setting one back or forth."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.journal.format.ledger import progress_part
from runnel.journal.read.inspection import Inspection
from tests.cli.conftest import Command
from tests.journal.folders import Owner, publish_numbered


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 20)
        billing = owner.group("billing", "orders")
        owner.settle(billing, 0, 5, 8, 10)
        owner.write(progress_part(billing.id, [], [(6, 2, 1_700_000_000.0, "it burned")]))
        owner.group("audit", ">", 3)
        owner.group("billing", "jobs")
    return tmp_path / "data"


def floors(folder: Path) -> dict[tuple[str, str], int]:
    with Inspection(folder) as seen:
        return {(group.name, group.pattern): group.floor for group in seen.groups}


def test_groups_are_listed_with_their_lag(runnel: Command) -> None:
    heads, audit, jobs, orders = (line.split() for line in runnel("group", "list").out.splitlines())
    assert heads[:4] == ["GROUP", "READS", "LAG", "IN"]
    assert audit[:4] == ["audit", ">", "-", "-"]
    assert jobs[:4] == ["billing", "jobs", "30", "-"]
    assert orders[:4] == ["billing", "orders", "23", "-"]
    found = runnel("group", "list", "data", "--json").json()
    assert found[2]["lag"] == 23
    assert found[2]["failed"] == [{"place": 6, "attempts": 2, "due": 1_700_000_000.0, "reason": "it burned"}]
    assert found[0]["lag"] is None


@pytest.mark.parametrize(
    ("to", "floor"),
    [("earliest", 0), ("latest", 30), ("12", 12), ("30", 30), ("2023-11-14T22:13:26Z", 9), ("2030-01-01", 30)],
)
def test_a_group_is_set_to_a_place(runnel: Command, folder: Path, to: str, floor: int) -> None:
    done = runnel("group", "reset", "billing", "--topic", "orders", "--to", to)
    assert (done.status, done.err) == (0, "")
    assert f"continues at offset {floor}; it was at 5" in done.out
    assert floors(folder) == {("billing", "orders"): floor, ("billing", "jobs"): 0, ("audit", ">"): 3}
    found = runnel("group", "list", "--json").json()[2]
    assert (found["settled_ahead"], found["failed"]) == (0, [])  # a new beginning


def test_a_group_on_a_pattern_is_set_to_a_sequence(runnel: Command, folder: Path) -> None:
    done = runnel("group", "reset", "audit", "--to", "2023-11-14T22:13:22", "--json")
    assert done.json() == {"group": "audit", "pattern": ">", "before": 3, "floor": 6}
    assert floors(folder)[("audit", ">")] == 6


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("absent", "--to", "earliest"), 1, "unknown_group"),
        (("billing", "--topic", "none", "--to", "earliest"), 1, "unknown_group"),
        (("billing", "--to", "earliest"), 2, "usage_error"),
        (("billing", "--topic", "orders", "--to", "31"), 1, "offset_out_of_range"),
        (("billing", "--topic", "orders", "--to", "noon"), 2, "invalid_option"),
        (("audit", "--to", "5"), 2, "invalid_option"),
        (("billing", "--topic", "a..b", "--to", "earliest"), 2, "invalid_pattern"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_changes_nothing(
    runnel: Command, folder: Path, arguments: tuple[str, ...], status: int, code: str
) -> None:
    before = floors(folder)
    done = runnel("group", "reset", *arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.endswith(f"({code})\n")
    assert floors(folder) == before


def test_a_place_must_be_named(runnel: Command) -> None:
    assert runnel("group", "reset", "billing").status == 2


def test_a_group_is_deleted(runnel: Command, folder: Path) -> None:
    done = runnel("group", "delete", "billing", "--topic", "orders", "--yes")
    assert (done.status, done.err) == (0, "")
    assert done.out == "group 'billing' on 'orders' deleted; it was at 5\n"
    assert floors(folder) == {("billing", "jobs"): 0, ("audit", ">"): 3}
    done = runnel("group", "delete", "audit", "--yes", "--json")
    assert done.json() == {"group": "audit", "pattern": ">", "floor": 3}


def test_which_group_is_deleted_must_be_clear_and_agreed_to(runnel: Command, folder: Path) -> None:
    assert "say which with --topic" in runnel("group", "delete", "billing", "--yes").err
    assert "unknown_group" in runnel("group", "delete", "absent", "--yes").err
    assert "add --yes" in runnel("group", "delete", "audit").err
    assert len(floors(folder)) == 3
