"""`runnel log export`: everything as JSON lines, and gone on with after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runnel.journal.format.entry import PartKind, state_part
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
        owner.write(state_part(PartKind.TOPIC_DELETED, topic=owner.topic("orders").id))
        publish_numbered(owner, 0, 4, ["orders"])
        done = runnel(*export)
    assert done.status == 2
    assert "in epoch 7, and in" in done.err
    assert "it has epoch 8" in done.err


@pytest.mark.parametrize("text", ["hello\n", "hello", '{"a": 1}\n', "[]\n", '{"topic": 1}\n'])
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


@pytest.mark.parametrize(
    "asked", [("--topic", "nobody"), ("--from", "5"), ("--topic", "orders", "--from", "1000"), ("--count", "-1")]
)
def test_what_cannot_be_exported_leaves_the_file_as_it_was(
    runnel: Command, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    fill(tmp_path / "data", batches=4)
    file = tmp_path / "out.jsonl"
    file.write_text("precious\n")
    done = runnel("log", "export", *asked, "--output", file)
    assert done.status in (1, 2)
    assert done.err.count("\n") == 1
    assert file.read_text() == "precious\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out.jsonl"]


def test_an_export_that_fails_halfway_leaves_the_file_as_it_was(
    runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "data", batches=4)
    file = tmp_path / "out.jsonl"
    file.write_text("precious\n")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runnel.cli.log_records.os.fsync", fail)
    assert runnel("log", "export", "--output", file).status == 1
    assert file.read_text() == "precious\n"
    assert not (tmp_path / "out.jsonl.tmp").exists()


def test_a_file_keeps_its_mode_and_a_link_stays_one(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=2)
    file, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    file.touch()
    file.chmod(0o600)
    link.symlink_to(file)
    assert runnel("log", "export", "--output", link).status == 0
    assert link.is_symlink()
    assert (len(file.read_text().splitlines()), file.stat().st_mode & 0o777) == (6, 0o600)


def test_a_device_is_written_in_place(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=2)
    assert runnel("log", "export", "--output", "/dev/null").err == "6 records written to /dev/null\n"


def test_an_export_of_another_topic_is_not_gone_on_with(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=10)
    fill(tmp_path / "other", batches=10, topics=("letters",))
    file = tmp_path / "out.jsonl"
    assert runnel("log", "export", "--topic", "orders", "--output", file).status == 0
    before = file.read_bytes()
    done = runnel("log", "export", "--topic", "jobs", "--output", file, "--resume")
    assert done.status == 2
    assert "'orders'" in done.err
    assert "'jobs'" in done.err
    done = runnel("log", "export", "other", "--output", file, "--resume")
    assert done.status == 2
    assert "'orders', which is not in 'other'" in done.err
    assert file.read_bytes() == before


@pytest.mark.parametrize("topic", [(), ("--topic", "orders")])
def test_an_export_of_another_journal_is_not_gone_on_with(
    runnel: Command, tmp_path: Path, topic: tuple[str, ...]
) -> None:
    fill(tmp_path / "data", batches=10)  # ends with other records, and with fewer
    fill(tmp_path / "older", batches=4)
    with Owner(tmp_path / "restored") as owner:
        publish_numbered(owner, 0, 6)
        owner.time += 1
        publish_numbered(owner, 6, 20)
    file = tmp_path / "out.jsonl"
    assert runnel("log", "export", *topic, "--output", file).status == 0
    before = file.read_bytes()
    for folder in ("older", "restored"):
        done = runnel("log", "export", folder, *topic, "--output", file, "--resume")
        assert (done.status, done.err.count("\n")) == (2, 1), folder
        assert file.read_bytes() == before


def test_gaps_at_the_end_of_a_file_are_reported_again(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    flip(segments_of(tmp_path / "data")[1], 300)
    file = tmp_path / "out.jsonl"
    assert runnel("log", "export", "--output", file).status == 1
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    (at,) = (number for number, line in enumerate(lines) if line.startswith(b'{"gap"'))
    file.write_bytes(b"".join(lines[: at + 1]))
    assert runnel("log", "export", "--output", file, "--resume").status == 1
    assert file.read_bytes() == whole


def test_the_bar_counts_the_records_of_the_chosen_topics(
    runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Owner(tmp_path / "data", segment_bytes=1 << 20) as owner:
        owner.publish("a", [b"x"] * 1500)
        owner.publish("b", [b"x"] * 500)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "runnel.cli.log_records.ProgressBar.__call__", lambda bar, done, total: told.append((done, total))
    )
    runnel("log", "export", "--topic", "a")
    runnel("log", "export", "--count", "1200")
    assert told == [(1000, 1500), (1000, 1200)]
