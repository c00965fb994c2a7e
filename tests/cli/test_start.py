"""Where to begin, said in words, offsets and times."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.cli.start import Start, parse_start, resolve_start
from runnel.core.errors import InvalidOption
from runnel.journal.read.inspection import Inspection
from tests.journal.folders import BEGAN, fill


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("earliest", Start(word="earliest")),
        ("latest", Start(word="latest")),
        ("0", Start(offset=0)),
        ("1200", Start(offset=1200)),
        ("2023-11-14T22:13:20", Start(time=BEGAN)),
        ("2023-11-14T22:13:20Z", Start(time=BEGAN)),
        ("2023-11-14T23:13:20+01:00", Start(time=BEGAN)),
        ("2023-11-14", Start(time=1_699_920_000_000_000)),
    ],
)
def test_what_can_be_said(said: str, meant: Start) -> None:
    assert parse_start("from", said) == meant


@pytest.mark.parametrize("said", ["", "first", "-1", "1.5", "12:00", "٣"])
def test_what_cannot_be_said_is_named_with_what_can(said: str) -> None:
    with pytest.raises(InvalidOption, match="expected 'earliest'"):
        parse_start("from", said)


@pytest.mark.parametrize(
    ("said", "pattern", "place"),
    [
        ("earliest", "orders", 0),
        ("latest", "orders", 90),
        ("7", "orders", 7),
        ("2023-11-14T22:13:22", "orders", 3),
        ("2030-01-01", "orders", 90),
        ("earliest", ">", 0),
        ("latest", ">", 180),
        ("2023-11-14T22:13:22", ">", 6),
        ("latest", "nobody", 0),
    ],
)
def test_a_start_is_an_offset_of_a_topic_or_a_sequence_of_a_pattern(
    tmp_path: Path, said: str, pattern: str, place: int
) -> None:
    fill(tmp_path, batches=60)
    with Inspection(tmp_path) as seen:
        assert resolve_start(parse_start("to", said), pattern, seen, "to") == place


def test_a_pattern_has_no_offsets(tmp_path: Path) -> None:
    fill(tmp_path)
    with Inspection(tmp_path) as seen, pytest.raises(InvalidOption, match="give a time"):
        resolve_start(Start(offset=1), ">", seen, "to")
