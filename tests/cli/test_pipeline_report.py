"""`runnel pipeline report` writes a page of what a broker says about itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import runnel
from tests.cli.conftest import Command


async def work(folder: Path, telemetry: float | None) -> None:
    """Publish something, and wait for the telemetry of it."""
    async with runnel.open(folder, telemetry=telemetry) as broker:
        await broker.topic("orders").publish_many([b"x"] * 300)
        if telemetry is not None:
            async with broker.subscribe("$runnel.telemetry.topics", start="earliest") as rows:
                await anext(rows)


def test_a_page_is_written_of_a_folder(runnel: Command, tmp_path: Path) -> None:
    asyncio.run(work(tmp_path / "data", 0.1))
    done = runnel("pipeline", "report")
    assert done.status == 0, done.err
    assert "written to runnel-report.html" in done.out
    page = Path("runnel-report.html").read_text(encoding="utf-8")
    for word in ("orders", "The last 7 days", "<svg", time.strftime("%Y", time.gmtime())):
        assert word in page


def test_it_may_go_to_the_output_and_cover_one_span(runnel: Command, tmp_path: Path) -> None:
    asyncio.run(work(tmp_path / "data", 0.1))
    page = runnel("pipeline", "report", "--out", "-", "--span", "hours").out
    assert page.startswith("<!doctype html>")
    assert "The last 24 hours" in page
    assert "The last 7 days" not in page


def test_without_telemetry_it_says_so(runnel: Command, tmp_path: Path) -> None:
    asyncio.run(work(tmp_path / "data", None))
    done = runnel("pipeline", "report")
    assert done.status == 1
    assert "There is no telemetry in this time" in Path("runnel-report.html").read_text(encoding="utf-8")


def test_a_folder_that_is_none_is_not_made(runnel: Command, tmp_path: Path) -> None:
    assert runnel("pipeline", "report", "--data", "nowhere").status != 0
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("out", ["missing/report.html"])
def test_a_file_that_cannot_be_written_is_named(runnel: Command, tmp_path: Path, out: str) -> None:
    asyncio.run(work(tmp_path / "data", None))
    done = runnel("pipeline", "report", "--out", out)
    assert done.status == 1
    assert "missing/report.html" in done.err
