"""Every command teaches: a summary in the list, and examples of its own."""

from __future__ import annotations

import pytest

from runnel.cli.completion import levels_of
from runnel.cli.main import make_parser
from tests.cli.conftest import Command

COMMANDS = [" ".join(level.path) for level in levels_of(make_parser()) if level.path]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples(runnel: Command, command: str) -> None:
    done = runnel(*command.split(), "--help")
    assert done.status == 0
    assert f"usage: runnel {command}" in done.out
    examples = done.out.split("examples:\n")[1]
    assert f"runnel {command}" in examples
    assert [line for line in done.out.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("log snapshot", "usage: runnel log snapshot [-h] [--data DIR] [--json] [DIR] TARGET\n"),
        ("log cat", "[--json] [DIR] [TOPIC]\n"),
        ("info", "the folder of the journal, instead of --data"),
        ("topic", "go through the owner of an open folder"),
        ("topic delete", "the name of the topic"),
        ("group reset", "the name of the group"),
    ],
)
def test_help_explains_what_a_command_takes(runnel: Command, command: str, said: str) -> None:
    assert said in runnel(*command.split(), "--help").out


@pytest.mark.parametrize("family", ["log", "topic", "group", "cursor", "letters", "config"])
def test_a_family_without_a_command_helps(runnel: Command, family: str) -> None:
    done = runnel(family)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"usage: runnel {family}")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_it_does_not_know_is_named_and_exits_with_2(runnel: Command, command: str) -> None:
    done = runnel(*command.split(), "--loud")
    assert (done.status, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("runnel")
    assert line.endswith(f"see `runnel {command} --help` (usage_error)")


PRINT_NO_FACTS = {
    ("relay", "run"): "runs until it is stopped: relay status",
    ("archive", "run"): "runs until it is stopped: archive status",
}


def test_every_command_that_prints_facts_prints_them_as_json() -> None:
    leaves = {level.path: level.options for level in levels_of(make_parser()) if not level.commands}
    assert {path for path, options in leaves.items() if "--json" not in options} == {*PRINT_NO_FACTS}
