"""Every shell block of the documentation runs, against a real server and folder; JSON and TOML blocks are checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.docs.given
from runnel.cli.main import main, make_parser
from runnel.server.access.files import AuthFiles
from tests.docs.blocks import Block as PythonBlock
from tests.docs.blocks import extract
from tests.docs.shell import Block, Shell, blocks_of, parsed_json, reader, words_of_runnel
from tests.project.project import ROOT

PAGES = {
    page: blocks_of(page.read_text())
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "decisions" not in page.parts
}
PYTHON = {page: extract(page.read_text()) for page in PAGES}
SERVED = {page: [one for one in blocks if one.server] for page, blocks in PYTHON.items()}
SHELL = {page: found for page, blocks in PAGES.items() if (found := [one for one in blocks if one.language == "sh"])}
NIGHTLY = {"from-celery", "handlers", "lake", "run-a-gateway", "upgrade"}  # many processes, or large libraries
FOLLOWED = [page for page in PAGES if SERVED[page] or any(one.is_run_here for one in SHELL.get(page, ()))]


def of(language: str) -> list[object]:
    return [
        pytest.param(block, id=f"{page.relative_to(ROOT)}:{block.line}")
        for page, blocks in PAGES.items()
        for block in blocks
        if block.language == language
    ]


def test_every_command_of_a_page_is_one_with_options_that_it_has() -> None:
    parser, wrong = make_parser(), []
    for page, blocks in SHELL.items():
        for block in blocks:
            for command in block.commands:
                for words in words_of_runnel(command.removeprefix("$ ")):
                    try:
                        parser.parse_args(words)
                    except SystemExit:
                        if words[:3] == ["pipeline", "run", "words"]:
                            continue  # the pipeline that the line before it makes
                        wrong.append(f"{page.relative_to(ROOT)}:{block.line}: {command}")
    assert wrong == []


def test_a_block_that_another_test_runs_is_read_by_that_test() -> None:
    for page, blocks in PAGES.items():
        for run_by in filter(None, {*(one.run_by for one in blocks), *(one.run_by for one in PYTHON[page])}):
            test = (ROOT / run_by).read_text()
            assert page.name in test or "marked_for(" in test, f"{page.name}: {run_by}"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with reader(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.nightly] if page.stem in NIGHTLY else [])
        for page in FOLLOWED
    ],
)
def test_a_page_can_be_followed(page: Path, shell: Shell) -> None:
    given = vars(tests.docs.given).get(page.stem.replace("-", "_"))
    if given is not None:
        given(shell)
    blocks: list[Block | PythonBlock] = [*PAGES[page], *PYTHON[page]]
    for block in sorted(blocks, key=lambda one: one.line):
        if isinstance(block, PythonBlock):
            if block.server:
                shell.run_python(block)
            shell.write_application(block)
        elif block.language == "toml":
            shell.write("auth.toml" if is_auth(block) else "runnel.toml", block.text)
        elif block.language == "sh" and block.is_run_here:
            shell.run_block(block)


@pytest.mark.parametrize("block", of("json"))
def test_a_json_block_is_json(block: Block) -> None:
    assert parsed_json(block.text)


def is_auth(block: Block) -> bool:
    return not {"role", "roles", "rules", "rule", "jwt", "mtls", "unix", "principal"}.isdisjoint(
        tomllib.loads(block.text)
    )


@pytest.mark.parametrize("block", of("toml"))
def test_a_toml_block_is_a_configuration(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(block.text)
    if is_auth(block):
        if "roles" not in tomllib.loads(block.text):
            file.write_text(f"{block.text}\n[roles.shop]\nallow = []\n")
        AuthFiles(file).read_policy()
    else:
        assert main(["config", "check", str(file)]) == 0
