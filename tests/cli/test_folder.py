"""Which folder is meant, and who may change it."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from runnel.cli.errors import CommandError
from runnel.cli.folder import add_data, folder_of, open_journal, write_parts
from runnel.core.errors import JournalFailed
from runnel.journal.format.entry import Draft, WriteFailed
from runnel.journal.format.ledger import TopicState, topic_part
from runnel.journal.read.inspection import Inspection, NoJournal
from runnel.journal.write.journal import Journal
from runnel.opening import open as open_broker
from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, other_owner


def chosen(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_data(parser)
    return parser.parse_args(arguments)


def test_the_folder_is_named_bare_or_by_option_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNEL_DATA", raising=False)
    assert folder_of(chosen()) == Path("data")
    monkeypatch.setenv("RUNNEL_DATA", "elsewhere")
    assert folder_of(chosen()) == Path("elsewhere")
    assert folder_of(chosen("--data", "here")) == Path("here")
    assert folder_of(chosen("there/")) == Path("there")
    assert folder_of(chosen("there/", "--data", "there")) == Path("there")
    with pytest.raises(CommandError, match="two folders"):
        folder_of(chosen("there", "--data", "here"))


def test_a_change_is_durable_and_the_fsync_mode_stays(tmp_path: Path) -> None:
    fill(tmp_path, fsync="os")
    with open_journal(tmp_path) as journal:
        write_parts(journal, topic_part(TopicState(journal.ledger.next_topic, "new", 99, {})))
    with Inspection(tmp_path) as seen:
        assert seen.topic("new") is not None
        assert seen.manifest.fsync == "os"
        assert seen.clean
        assert seen.owner is None


def test_only_a_folder_with_a_journal_is_changed_unless_one_shall_be_made(tmp_path: Path) -> None:
    with pytest.raises(NoJournal), open_journal(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    with open_journal(tmp_path / "new", create=True):
        pass
    with Inspection(tmp_path / "new") as seen:
        assert seen.topics == []


def test_a_folder_in_use_is_refused_with_the_pid(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        with pytest.raises(CommandError, match=f"in use by process {owner.pid}") as refused, open_journal(tmp_path):
            pass
    assert refused.value.code == "folder_in_use"


def test_a_failed_write_is_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(journal: Journal, drafts: list[Draft]) -> None:
        raise WriteFailed(0, 0, JournalFailed("the disk is gone"))

    with Owner(tmp_path) as owner:
        monkeypatch.setattr(Journal, "write", fail)
        with pytest.raises(JournalFailed, match="the disk is gone"):
            write_parts(owner.journal)


@pytest.mark.parametrize(
    "command",
    [
        ("info",),
        ("log", "info"),
        ("log", "cat"),
        ("log", "verify"),
        ("log", "export"),
        ("topic", "list"),
        ("group", "list"),
    ],
)
def test_every_command_that_looks_works_while_the_folder_is_owned(
    runnel: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 4)
        for arguments in (("--data", tmp_path / "data"), (tmp_path / "data",)):
            done = runnel(*command, *arguments)
            assert (done.status, done.err) == (0, "")
            assert done.out
            assert runnel(*command, *arguments, "--json").status == 0


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "create", "new"),
        ("topic", "set", "orders", "retention_age=5"),
        ("topic", "delete", "orders", "--yes"),
        ("group", "reset", "g", "--to", "earliest"),
        ("log", "repair"),
    ],
)
def test_every_command_that_changes_says_who_has_the_folder(
    runnel: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 1)
        done = runnel(*command, "--data", tmp_path / "data")
    assert done.status == 1
    assert done.out == ""
    assert f"'{tmp_path / 'data'}' is in use by process {owner.pid}" in done.err
    assert ", and only its owner may change it" in done.err
    assert done.err.endswith("(folder_in_use)\n")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["info", "log info", "log cat", "log verify", "log repair", "topic list", "group list"]
)
def test_a_folder_without_a_journal_is_one_line(runnel: Command, command: str) -> None:
    done = runnel(*command.split(), "--data", "nowhere")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "runnel: there is no journal in 'nowhere'; name the folder that a broker was opened with (no_journal)\n"
    )


async def test_a_broker_and_the_commands_see_the_same(runnel: Command, tmp_path: Path) -> None:
    assert runnel("topic", "create", "orders", "--option", "compression=zstd").status == 0
    async with open_broker(tmp_path / "data") as broker:
        positions = [await broker.publish("orders", f"order {number}", key="k") for number in range(5)]
        lines = runnel("log", "cat", "orders", "--json").lines()
        assert [(line["epoch"], line["offset"]) for line in lines] == [(one.epoch, one.offset) for one in positions]
        assert [(line["key"], line["value"]) for line in lines] == [("k", f"order {number}") for number in range(5)]
        assert runnel("log", "verify").status == 0
        assert runnel("log", "snapshot", "snap").status == 0
        async with broker.subscribe("orders", group="billing") as deliveries:
            for _ in range(3):
                await (await anext(deliveries)).ack(durable=True)
        listed = await asyncio.to_thread(runnel, "group", "list", "--json")  # through the broker, on this loop
        assert listed.json()[0]["lag"] == 2
    assert runnel("group", "reset", "billing", "--to", "1").status == 0
    async with open_broker(tmp_path / "data") as broker, broker.subscribe("orders", group="billing") as deliveries:
        assert (await anext(deliveries)).offset == 1
    async with open_broker(tmp_path / "snap") as broker, broker.subscribe("orders", start="earliest") as records:
        assert [(await anext(records)).offset for _ in range(5)] == list(range(5))
