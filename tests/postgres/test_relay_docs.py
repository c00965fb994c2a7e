"""The tables in the references of relay and archive are those of the structs, and name every key, metric and event."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from runnel.observe.prometheus import RELAY_FAMILIES
from runnel.postgres import ArchiveStatistics, archive
from tools.relay_tables import ARCHIVE_PAGE, ARCHIVE_STRUCTS, PAGE, STRUCTS, written

ROOT = Path(__file__).parents[2]


def test_the_pages_are_up_to_date() -> None:
    for file in (PAGE, ARCHIVE_PAGE):
        page = file.read_text(encoding="utf-8")
        assert page == written(page), "run `python -m tools.relay_tables`"


def test_every_key_has_a_row_with_a_meaning() -> None:
    for file, structs in ((PAGE, STRUCTS), (ARCHIVE_PAGE, ARCHIVE_STRUCTS)):
        page = written(file.read_text(encoding="utf-8"))
        rows = dict(re.findall(r"^\| `(\w+)` \|.*?\|.*?\| ?(.*) \|$", page, re.MULTILINE))
        for struct in structs.values():
            for field in msgspec.structs.fields(struct):
                assert len(rows[field.name]) > 5, field.name


def test_every_metric_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, *_ in RELAY_FAMILIES:
        assert f"`{name.removeprefix('relay')}`" in page or f"`runnel_{name}`" in page, name
    page = ARCHIVE_PAGE.read_text(encoding="utf-8")
    for name in re.findall(
        r"# TYPE runnel_archive(\w+)", archive.render(ArchiveStatistics(table="t", state="copying"))
    ):
        assert name in page


def test_every_event_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = "".join(path.read_text() for path in (ROOT / "src" / "runnel" / "postgres").glob("*.py"))
    found = {*re.findall(r'"event": "(\w+)"', code), "unpublished", "published"}
    assert len(found) > 4
    assert [event for event in found if f"`{event}`" not in page] == []
