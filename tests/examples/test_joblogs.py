"""The job-log example: what polling costs is counted, and its pages show text, poll nothing and keep their policy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.project.project import ROOT

EXAMPLE = ROOT / "examples" / "joblogs"
PAGES, JOBS, RATE, SECONDS = 24, 6, 2, 2


def counted(told: str) -> dict[str, tuple[str, str]]:
    """The table by its first column."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in told.splitlines() if line.startswith("|")]
    return {name: (polled, streamed) for name, polled, streamed in rows}


def number(cell: str) -> int:
    return int(re.split(r"[ .]", cell.replace(",", ""))[0])


def test_polling_asks_for_nothing_again_and_again_and_a_stream_is_asked_for_once(tmp_path: Path) -> None:
    load = [f"--pages={PAGES}", f"--jobs={JOBS}", f"--rate={RATE}", f"--seconds={SECONDS}"]
    command = [sys.executable, "-W", "error", str(EXAMPLE / "polling.py"), *load]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    table = counted(done.stdout)
    polled, streamed = map(number, table["queries or requests"])
    assert streamed == PAGES
    assert polled > streamed  # four times as many, on a machine that keeps up
    assert tuple(map(number, table["lines read for pages"])) == (PAGES * RATE * SECONDS,) * 2
    assert number(table["that found nothing"][0]) <= polled
    assert table["that found nothing"][1] == "0 (0%)"


@pytest.mark.parametrize("page", sorted((EXAMPLE / "pages").glob("*.html")), ids=lambda path: path.name)
def test_a_page_has_no_script_and_no_style_of_its_own_and_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"<style|\son\w+=|\sstyle=|https?://", text) == []
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert scripts
    assert all("src=" in attributes and not body for attributes, body in scripts)


@pytest.mark.parametrize("script", sorted((EXAMPLE / "pages").glob("*.js")), ids=lambda path: path.name)
def test_what_is_shown_is_text_and_nothing_polls(script: Path) -> None:
    text = script.read_text()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|setInterval|XMLHttp", text) == []
    assert [found for found in re.findall(r"setTimeout\([^)]*\)", text) if "200" not in found] == []
    assert "fetch(" not in text
