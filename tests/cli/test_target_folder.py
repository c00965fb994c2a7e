"""A folder as commands see it. What each command does with it is tested with the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.cli.errors import CommandError
from runnel.cli.folder import open_journal
from runnel.cli.target import FolderTarget, OwnedFolder, durable
from runnel.core.errors import InvalidOption
from runnel.journal.read.inspection import Inspection
from tests.journal.folders import Owner, publish_numbered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 4, ["orders"])
        owner.group("billing", "orders")
        owner.group("audit", ">")
        owner.cursor("ada", "orders", 5)
    return tmp_path / "data"


def test_a_topic_is_reported_with_its_readers(folder: Path) -> None:
    with Inspection(folder) as seen:
        target = FolderTarget(seen)
        found = target.topic("orders")
        assert (found["end"], found["groups"], found["cursors"]) == (12, ["billing"], ["ada"])
        with pytest.raises(CommandError, match="no topic 'none'"):
            target.topic("none")


def test_what_is_not_there_is_refused_and_nothing_is_written(folder: Path) -> None:
    with open_journal(folder) as journal:
        target, sequence = OwnedFolder(folder, journal), journal.ledger.sequence
        with pytest.raises(CommandError, match="there is no topic"):
            target.delete("none")
        with pytest.raises(CommandError, match="there is no topic"):
            target.configure("none", {})
        with pytest.raises(CommandError, match="there is no group"):
            target.forget_group("billing", "jobs")
        assert journal.ledger.sequence == sequence


def test_a_topic_in_a_folder_is_durable() -> None:
    assert durable({"durable": True}) == {"durable": True}
    with pytest.raises(InvalidOption, match="lives in a running broker"):
        durable({"durable": False})
