"""`runnel log cat`: what was published can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.core.record import Meta
from tests.cli.conftest import Command
from tests.journal.cleaned_segments import folder_with_stages
from tests.journal.folders import Owner, fill, flip, segments_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Owner(tmp_path / "data") as owner:
        owner.publish("orders", [b"one", b"two"], [Meta(key=b"k"), None])
        owner.publish("blobs", [b"\x89PNG\xff", "hällo\nyou".encode()])
        owner.publish("orders", [b"three"])
    return tmp_path / "data"


@pytest.mark.usefixtures("folder")
def test_a_topic_a_line_for_each_record(runnel: Command) -> None:
    done = runnel("log", "cat", "orders")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "orders  0  2023-11-14T22:13:20.000000Z  k  one",
        "orders  1  2023-11-14T22:13:20.000000Z  -  two",
        "orders  2  2023-11-14T22:13:22.000000Z  -  three",
    ]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("orders", "--from", "earliest"), ["one", "two", "three"]),
        (("orders", "--from", "1"), ["two", "three"]),
        (("orders", "--from", "1", "--count", "1"), ["two"]),
        (("orders", "--count", "0"), []),
        (("orders", "--from", "2023-11-14T22:13:21"), ["three"]),
        (("*", "--from", "2023-11-14T22:13:22Z"), ["three"]),
        (("data", "orders"), ["one", "two", "three"]),
        (("orders", "--data", "data"), ["one", "two", "three"]),
        (("data",), ["one", "two", "hex:89504e47ff", "hällo\\nyou", "three"]),
        ((), ["one", "two", "hex:89504e47ff", "hällo\\nyou", "three"]),
        (("none.>",), []),
    ],
)
def test_what_is_asked_for_is_printed(runnel: Command, arguments: tuple[str, ...], values: list[str]) -> None:
    done = runnel("log", "cat", *arguments)
    assert (done.status, done.err) == (0, "")
    assert [line.split("  ")[4] for line in done.out.splitlines()] == values


@pytest.mark.usefixtures("folder")
def test_json_lines_hold_everything(runnel: Command) -> None:
    first, second = runnel("log", "cat", "blobs", "--json").lines()
    assert first["value_base64"] == "iVBOR/8="
    assert second["value"] == "hällo\nyou"
    assert (second["topic"], second["offset"], second["sequence"]) == ("blobs", 1, 3)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("nobody",), 1, "unknown_topic"),
        (("a..b",), 2, "invalid_pattern"),
        ((">", "--from", "3"), 2, "invalid_option"),
        (("orders", "--from", "latest"), 2, "invalid_option"),
        (("orders", "--from", "noon"), 2, "invalid_option"),
        (("orders", "--count", "-1"), 2, "invalid_option"),
        (("data", "orders", "jobs"), 2, "usage_error"),
        (("data", "orders", "--data", "data"), 2, "usage_error"),
    ],
)
def test_what_makes_no_sense_is_one_line(runnel: Command, arguments: tuple[str, ...], status: int, code: str) -> None:
    done = runnel("log", "cat", *arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.endswith(f"({code})\n")
    assert done.err.count("\n") == 1


def test_an_unreadable_record_is_reported_in_its_place_and_makes_the_exit_code_1(
    runnel: Command, tmp_path: Path
) -> None:
    fill(tmp_path / "data", batches=60)
    flip(segments_of(tmp_path / "data")[1], 300)
    done = runnel("log", "cat", "orders")
    assert done.status == 1
    assert len(done.out.splitlines()) == 87
    assert done.err.startswith("runnel: missed 3 records of 'orders' in [21, 24)")
    done = runnel("log", "cat", "orders", "--json")
    assert done.lines()[21]["gap"]["first"] == 21


def test_an_offset_beyond_the_end_is_reported(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=4)
    assert runnel("log", "cat", "orders", "--from", "6").status == 0  # the next that will be
    done = runnel("log", "cat", "orders", "--from", "7")
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith("(offset_out_of_range)\n")


@pytest.mark.parametrize("cleaned", [False, True])
def test_every_command_works_on_cleaned_segments_and_staged_batches(
    tmp_path: Path, runnel: Command, cleaned: bool
) -> None:
    folder_with_stages(tmp_path / "data", cleaned=cleaned)
    done = runnel("log", "cat", "data", "c")
    assert [line.split("  ")[-1] for line in done.out.splitlines()] == ["s0", "s0", "s1", "s1", "s2", "s2"]
    every = [(one["topic"], one["offset"], one["value"]) for one in runnel("log", "export", "data").lines()]
    assert len(every) == 41
    assert "never" not in {value for _, _, value in every}
    report = runnel("log", "verify", "data", "--json")
    assert report.status == 0
    assert report.json()["records"] == 41
    assert runnel("info", "data", "--json").json()["segments"] == (2 if cleaned else 4)
    assert runnel("log", "snapshot", "data", "copy").status == 0
    assert [one["value"] for one in runnel("log", "export", "copy").lines()] == [value for _, _, value in every]
    segment = next(path for path in sorted((tmp_path / "data").glob("*.seg")) if b"s1" in path.read_bytes())
    flip(segment, segment.read_bytes().index(b"s1"))
    assert runnel("log", "verify", "data").status == 1
    assert runnel("log", "repair", "data", "--yes").status == 0
    assert runnel("log", "verify", "data").status == 0
    left = [(one["topic"], one["offset"], one["value"]) for one in runnel("log", "export", "data").lines()]
    assert left == [one for one in every if one[2] != "s1"]
