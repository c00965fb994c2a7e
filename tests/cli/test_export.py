"""`runnel log export`: everything as JSON lines, and gone on with after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runnel.journal.entry import Kind, state
from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, flip, other_owner, publish_numbered, segments_of


def test_everything_goes_to_the_standard_output_by_sequence(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    done = runnel("log", "export", "data")
    assert (done.status, done.err) == (0, "")
    lines = done.lines()
    assert [line["sequence"] for line in lines] == list(range(180))
    assert set(lines[0]) == {"topic", "offset", "sequence", "epoch", "time", "key", "headers", "value"}


def test_topics_and_patterns_can_be_chosen(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=9, topics=("a.x", "a.y", "b"))
    assert {line["topic"] for line in runnel("log", "export", "--topic", "a.*").lines()} == {"a.x", "a.y"}
    assert {line["topic"] for line in runnel("log", "export", "--topic", "a.x", "--topic", "b").lines()} == {"a.x", "b"}
    assert [line["offset"] for line in runnel("log", "export", "--topic", "b", "--from", "7").lines()] == [7, 8]
    assert len(runnel("log", "export", "--count", "5").lines()) == 5


@pytest.mark.parametrize("topic", [(), ("--topic", "orders")])
@pytest.mark.parametrize("cut", [0, 1, 40])
def test_an_export_goes_on_where_its_file_ends(
    runnel: Command, tmp_path: Path, topic: tuple[str, ...], cut: int
) -> None:
    file = tmp_path / "out.jsonl"
    with other_owner(tmp_path / "data") as owner:
        owner.tell("publish", 20)
        export = ("log", "export", *topic, "--output", file, "--resume")
        assert runnel(*export).status == 0
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) - cut])  # interrupted in the middle of a line
        owner.tell("publish", 20)
        done = runnel(*export, "--json")
        assert done.status == 0
        places = [json.loads(line)["offset" if topic else "sequence"] for line in file.read_text().splitlines()]
        assert places == list(range(60 if topic else 120))
        assert done.json()["records"] == (30 if topic else 60) + (cut > 0)
        assert runnel(*export).err == f"0 records written to {file}\n"


def test_without_resume_the_file_is_written_anew(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=2)
    file = tmp_path / "out.jsonl"
    for _ in range(2):
        assert runnel("log", "export", "--output", file).status == 0
    assert len(file.read_text().splitlines()) == 6


def test_a_topic_that_was_made_again_is_not_gone_on_with(runnel: Command, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    export = ("log", "export", "--topic", "orders", "--output", file, "--resume")
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 2, ["orders"])
        assert runnel(*export).status == 0
        owner.write(state(Kind.TOPIC_DELETED, topic=owner.topic("orders").id))
        publish_numbered(owner, 0, 4, ["orders"])
        done = runnel(*export)
    assert done.status == 1
    assert done.err.endswith("(topic_deleted)\n")


@pytest.mark.parametrize("text", ["hello\n", '{"a": 1}\n', "[]\n"])
def test_a_file_of_something_else_is_refused(runnel: Command, tmp_path: Path, text: str) -> None:
    fill(tmp_path / "data", batches=2)
    file = tmp_path / "letter.txt"
    file.write_text(text)
    done = runnel("log", "export", "--output", file, "--resume")
    assert done.status == 2
    assert file.read_text() == text


def test_resuming_needs_a_file(runnel: Command) -> None:
    done = runnel("log", "export", "--resume")
    assert (done.status, done.err.count("\n")) == (2, 1)


def test_what_cannot_be_read_is_in_the_file_and_makes_the_exit_code_1(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    flip(segments_of(tmp_path / "data")[1], 300)
    done = runnel("log", "export")
    assert done.status == 1
    assert "missed" in done.err
    (gap,) = (line["gap"] for line in done.lines() if "gap" in line)
    assert gap["reason"].startswith("damaged on disk")
