"""The menu of the documentation has every page once; decisions are in their own index."""

from __future__ import annotations

import re

from tests.project.project import ROOT

DOCS = ROOT / "docs"


def test_every_page_is_in_the_menu_once() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", menu, re.MULTILINE)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(page for page in pages if not re.match(r"decisions/\d", page))


def test_every_decision_is_in_the_index_once() -> None:
    listed = re.findall(r"^\| \[\d{4}\]\((\S+)\)", (DOCS / "decisions" / "index.md").read_text(), re.MULTILINE)
    assert listed == sorted(page.name for page in (DOCS / "decisions").glob("0*.md") if page.name[:4] != "0000")
