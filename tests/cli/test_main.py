"""The command: help that teaches, a version, and exit codes that scripts can rely on."""

import subprocess
import sys

import pytest

import runnel
from runnel.cli import tour as tour_module
from runnel.cli.main import main


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_commands_with_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "a short tour of the event bus" in printed
    assert "examples:" in printed
    assert "runnel tour --quick" in printed


def test_without_a_command_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: runnel" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"runnel {runnel.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "named"), [(["dance"], "'dance'"), (["--loud"], "--loud"), (["tour", "--fast"], "--fast")]
)
def test_what_it_does_not_know_is_named_and_exits_with_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert named in printed.err


@pytest.mark.parametrize(("arguments", "pauses"), [(["tour"], True), (["tour", "--quick"], False)])
def test_the_tour_pauses_unless_it_shall_be_quick(
    arguments: list[str], pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, float | bool] = {}

    def fake(pause: float, colour: bool) -> int:
        asked.update(pause=pause, colour=colour)
        return 7

    monkeypatch.setattr(tour_module, "tour", fake)
    assert main(arguments) == 7
    assert (asked["pause"] > 0) is pauses
    assert asked["colour"] is False  # the output of a test is no terminal


def test_python_dash_m_runnel_is_the_command() -> None:
    command = [sys.executable, "-m", "runnel", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"runnel {runnel.__version__}\n"
