"""The tests on the page about testing are run, by pytest, as a reader would have them in files."""

import re
import subprocess
import sys
from pathlib import Path

import runnel.testing
from tests.docs.blocks import extract
from tests.patience import PATIENCE
from tests.project.project import ROOT

PAGE = (ROOT / "docs" / "howto" / "test-code-that-uses-runnel.md").read_text()


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    blocks = [block.source for block in extract(PAGE) if "def test_" in block.source]
    for number, source in enumerate(blocks):
        (tmp_path / f"test_{number}.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    count = sum(len(re.findall(r"def test_", source)) for source in blocks)
    assert f"{count} passed" in done.stdout


def test_every_name_that_ships_is_on_the_page() -> None:
    assert [name for name in runnel.testing.__all__ if f"`{name}`" not in PAGE and name != "Violation"] == []
