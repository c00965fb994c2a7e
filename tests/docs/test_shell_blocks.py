"""Every shell block of the documentation runs, against a real server and folder; JSON and TOML blocks are checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import runnel
from runnel.cli.main import main, make_parser
from runnel.server.access.files import AuthFiles
from tests.docs.blocks import Block as PythonBlock
from tests.docs.blocks import extract
from tests.docs.shell import Block, Shell, blocks_of, parsed_json, words_of_runnel
from tests.project.project import ROOT

PAGES = {
    page: blocks_of(page.read_text())
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "decisions" not in page.parts
}
PYTHON = {page: extract(page.read_text()) for page in PAGES}
SERVED = {page: [one for one in blocks if one.server] for page, blocks in PYTHON.items()}
SHELL = {page: found for page, blocks in PAGES.items() if (found := [one for one in blocks if one.language == "sh"])}
FOLLOWED = [page for page in PAGES if SERVED[page] or any(not one.no_run for one in SHELL.get(page, ()))]


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


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A folder with what the pages assume: `data/` with a topic, a group on it, and a backup."""
    monkeypatch.chdir(tmp_path)
    with runnel.blocking.open("data/") as broker:
        broker.topic("orders").publish_many(["tea", "coffee", "cocoa"])
        with broker.subscribe("orders", group="billing") as deliveries:
            next(iter(deliveries)).ack()
    (tmp_path / "backups").mkdir()
    found = Shell(tmp_path)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("page", FOLLOWED, ids=[str(page.relative_to(ROOT)) for page in FOLLOWED])
def test_a_page_can_be_followed(page: Path, shell: Shell) -> None:
    blocks: list[Block | PythonBlock] = [*PAGES[page], *PYTHON[page]]
    for block in sorted(blocks, key=lambda one: one.line):
        if isinstance(block, PythonBlock):
            if block.server:
                shell.run_python(block)
            shell.write_application(block)
        elif block.language == "toml":
            Path("auth.toml" if is_auth(block) else "runnel.toml").write_text(block.text)
        elif block.language == "sh" and not block.no_run:
            for command in block.commands:
                shell.run(command)


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
