"""No file names a path or a package index of one machine; every decision record is listed."""

import re
from pathlib import Path

import pytest

from tests.project.project import ROOT, project_files

DECISIONS = ROOT / "docs" / "decisions"

MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:home|root|Users)/\w")
INDEX_URL = re.compile(r"(?:index-url|find-links)[ =]+[\"']?\w+:/|://\S+[/]simple\b")


def foreign(text: str) -> list[str]:
    """The lines, numbered, that name a path or a package index of one machine."""
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line) or INDEX_URL.search(line)
    ]


def unlisted(decisions: Path) -> list[str]:
    """The decision records that the index does not link to; the template is not one."""
    index = (decisions / "index.md").read_text()
    records = sorted(path.name for path in decisions.glob("[0-9]*.md"))
    return [name for name in records if not name.startswith("0000-") and f"({name})" not in index]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git says which files are the project's")
def test_no_file_names_a_path_or_a_package_index_of_one_machine() -> None:
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # an image
            continue
        found += [f"{path.relative_to(ROOT)}:{line}" for line in foreign(text)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "see /{}/ada/notes".format("home"),
        "DATA=/{}/data".format("root"),
        '"/{}/ada"'.format("Users"),
        "--extra-index-{} https://packages.example/pypi".format("url"),
        "url = https://packages.example/{}/".format("simple"),
    ],
)
def test_a_foreign_path_or_index_is_found(line: str) -> None:
    assert foreign(f"fine\n{line}\n") == [f"2: {line}"]


@pytest.mark.parametrize("line", ["https://example.org/home/page", "src/root/x", "a simple https://example.org/page"])
def test_harmless_lines_pass(line: str) -> None:
    assert foreign(line) == []


def test_every_decision_record_is_in_the_index() -> None:
    assert unlisted(DECISIONS) == []


def test_a_record_missing_from_the_index_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("[one](0001-one.md)")
    for name in ("0000-template.md", "0001-one.md", "0002-two.md"):
        (tmp_path / name).touch()
    assert unlisted(tmp_path) == ["0002-two.md"]
