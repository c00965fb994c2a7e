"""The pictures of the docs: made where there is a browser, left out where there is none, never in the repository."""

import re
from pathlib import Path

import pytest

from tests.project.project import ROOT, project_files
from tools import chromium
from tools.missing_pictures import PICTURE, on_page_markdown
from tools.pictures import CONSOLE, SCHEMES, main

PAGE = """\
# Title

![Topics](../pictures/there.png#only-light){ loading=lazy }
![Topics](../pictures/missing.png#only-dark)

Text with ![another](elsewhere/one.png).
"""


def test_a_picture_that_was_not_made_is_left_out_and_all_else_stays(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "there.png").touch()
    shown = on_page_markdown(PAGE, {"docs_dir": str(tmp_path)}, page=None, files=None)
    assert shown == PAGE.replace("![Topics](../pictures/missing.png#only-dark)\n", "")


def test_without_a_browser_it_is_said_and_the_docs_can_be_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chromium, "find", lambda: None)
    assert main() == 0
    assert "built without pictures" in capsys.readouterr().err


def test_pages_show_only_pictures_that_are_made_in_light_and_dark() -> None:
    made = {f"pictures/{name}-{scheme}.png" for name in (*CONSOLE, "joblogs-job", "joblogs-jobs") for scheme in SCHEMES}
    shown = {found[1] for page in (ROOT / "docs").rglob("*.md") for found in PICTURE.finditer(page.read_text())}
    assert shown
    assert shown <= made
    for name in shown:
        assert re.sub("-(light|dark)", lambda it: "-dark" if it[1] == "light" else "-light", name) in shown


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git says which files are the project's")
def test_they_are_not_part_of_the_repository() -> None:
    assert [path for path in project_files() if path.is_relative_to(ROOT / "docs" / "pictures")] == []
