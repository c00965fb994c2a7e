"""Completion knows every command and option, in three shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runnel.cli.completion import SHELLS, fish, levels_of
from runnel.cli.main import make_parser
from tests.cli.conftest import Command
from tests.docs.pages import marked_for
from tests.docs.shell import Block


def test_every_command_has_its_words() -> None:
    levels = {level.path: level for level in levels_of(make_parser())}
    assert "topic" in levels[()].commands
    assert set(levels[("topic",)].commands) == {"list", "show", "create", "config", "set", "delete", "trim"}
    assert {"--json", "--server", "--match"} <= set(levels[("topic", "list")].options)
    assert "--server" not in levels[("log", "verify")].options  # what it refuses is not offered
    assert "--port" in levels[("serve",)].options


def complete(script: Path, *words: str) -> list[str]:
    """What bash would offer for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    typed = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}"
    code = f"source {script}; {typed}; _runnel; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.fixture
def script(runnel: Command, tmp_path: Path) -> Path:
    done = runnel("completion", "bash")
    assert done.status == 0
    path = tmp_path / "runnel.bash"
    path.write_text(done.out)
    return path


def test_bash_completes_commands_and_options(script: Path) -> None:
    assert complete(script, "runnel", "to") == ["top", "topic", "token"]
    assert complete(script, "runnel", "topic", "li") == ["list"]
    assert complete(script, "runnel", "topic", "list", "--ma") == ["--match"]
    assert complete(script, "runnel", "serve", "--data", "x", "--json-") == ["--json-port"]
    assert complete(script, "runnel", "pub", "topic", "list", "--ra") == ["--rate"]  # `topic` is a value here


def test_bash_completes_the_values_of_options(script: Path) -> None:
    assert complete(script, "runnel", "serve", "--fsync", "") == ["commit", "interval", "os"]
    assert complete(script, "runnel", "serve", "--fsync", "=", "c") == ["commit"]  # as bash cuts --fsync=c
    assert complete(script, "runnel", "sub", "t", "--policy", "drop_o") == ["drop_oldest"]
    assert complete(script, "runnel", "completion", "z") == ["zsh"]
    assert complete(script, "runnel", "serve", "--data", "") == []  # a folder, which bash finds
    assert complete(script, "runnel", "bench", "--durable", "") == ["yes", "no"]


def test_fish_completes_behind_options(runnel: Command, tmp_path: Path) -> None:
    path = tmp_path / "runnel.fish"
    path.write_text(runnel("completion", "fish").out)
    for line, word in (
        ("runnel topic list --server x --ma", "--match"),
        ("runnel serve --data x --fsync c", "commit"),
        ("runnel topic li", "list"),
        ("runnel completion z", "zsh"),
    ):
        assert "string join -- _" in path.read_text()  # or an option before the word would be one of `string`
        if shutil.which("fish"):
            code = f"source {path}; complete -C '{line}'"
            done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True)
            assert (done.stdout.split()[0], done.stderr) == (word, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_one_that_its_shell_can_read(runnel: Command, tmp_path: Path, shell: str) -> None:
    done = runnel("completion", shell)
    assert (done.status, done.err) == (0, "")
    for word in ("serve", "snapshot", "json-port", "rates, lag and drops"):
        assert word in done.out or (shell == "bash" and " " in word)
    if shutil.which(shell):
        path = tmp_path / f"runnel.{shell}"
        path.write_text(done.out)
        subprocess.run([shell, "-n", str(path)], check=True)


def test_fish_asks_for_the_command_that_was_typed() -> None:
    lines = fish(list(levels_of(make_parser()))).splitlines()
    assert any(line.startswith("complete -c runnel -n '__runnel_at' -f -a serve -d 'serve topics") for line in lines)
    assert any(line.startswith("complete -c runnel -n '__runnel_at topic list' -l match -x -d ") for line in lines)


def test_a_shell_that_it_does_not_know_is_refused(runnel: Command) -> None:
    assert runnel("completion", "tcsh").status == 2


def test_each_line_of_the_page_works_in_its_shell(tmp_path: Path) -> None:
    (block,) = marked_for(__file__)["command-line"]
    assert isinstance(block, Block)
    program = tmp_path / "runnel"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m runnel "$@"\n')
    program.chmod(0o755)
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    before = {"zsh": "autoload -U compinit; compinit -u; "}
    assert len(block.commands) == len(SHELLS)
    for shell, line in zip(SHELLS, block.commands, strict=True):
        assert shell in line
        if shutil.which(shell):
            command = [shell, "-c", f"{before.get(shell, '')}{line}"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), shell
