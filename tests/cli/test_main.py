"""The command: help that teaches, a version, and exit codes that scripts can rely on."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import runnel
from runnel.cli import info
from runnel.cli.main import GROUPS, main, make_parser
from tests.journal.folders import Owner, fill
from tests.nightly import nightly_beyond


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_commands_with_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed
    assert "runnel pub greetings.world hello" in printed
    for command in (name for names in GROUPS.values() for name in names):
        assert f"\n  {command} " in printed


def test_without_a_command_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: runnel" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"runnel {runnel.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "named"), [(["dance"], "'dance'"), (["--loud"], "--loud"), (["top", "--fast"], "--fast")]
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topic", "lst"], "did you mean `runnel topic list`?"),
        (["topic", "rm", "a"], "did you mean `runnel topic delete`?"),
        (["sub", "--topc", "a"], "PATTERN is given without it: `runnel sub PATTERN`"),
        (["pub", "--topc=a", "b"], "TOPIC is given without it: `runnel pub TOPIC`"),
        (["pub", "a", "b", "--tok", "hidden"], "takes no '--tok'; did you mean --token-file?"),
        (["pub", "a", "b", "--token", "hidden"], "give --token-file FILE, or set RUNNEL_TOKEN"),
        (["topic", "show", "--token=hidden"], "give --token-file FILE, or set RUNNEL_TOKEN"),
        (["--vers"], "did you mean --version?"),
        (["top", "rnl_hidden"], "rnl_…"),
        (["pub", "a", "--count", "rnl_hidden"], "rnl_…"),
    ],
)
def test_a_mistyped_word_is_refused_with_the_one_that_was_meant_and_no_secret(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert "hidden" not in printed


def test_no_option_of_any_command_may_be_abbreviated() -> None:
    parsers: list[argparse.ArgumentParser] = [make_parser()]
    for parser in parsers:  # it grows
        assert not parser.allow_abbrev, parser.prog
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    assert len(parsers) > 40


def test_python_dash_m_runnel_is_the_command() -> None:
    command = [sys.executable, "-m", "runnel", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"runnel {runnel.__version__}\n"


def test_a_reader_who_has_gone_ends_the_command_quietly(tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=600)
    command = [sys.executable, "-m", "runnel", "log", "cat", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline().startswith("orders  0 ")
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == 1


def test_an_interrupted_command_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: argparse.Namespace) -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    monkeypatch.setattr(info, "run", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    try:
        assert main(["info", str(tmp_path)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "")


def test_the_whole_way_as_a_person_goes_it(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "runnel", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert run("topic", "create", "orders", "--option", "retention_age=86400").returncode == 0
    assert "1 topic, 0 groups" in run("info").stdout
    assert run("log", "snapshot", "data", "copy").returncode == 0
    assert run("log", "verify", "copy").returncode == 0
    assert run("topic", "delete", "orders", "--yes").returncode == 0
    assert run("topic", "config", "orders").stderr.startswith("runnel: there is no topic 'orders'")
    assert run("topic", "config", "orders", "--data", "copy").stdout == "retention_age  86400\n"


@pytest.mark.parametrize("command", ["info data", "log info data", "log cat data --json", "log export data", "--help"])
@pytest.mark.parametrize("closed", nightly_beyond(1, [">&- 2>&- <&-", ">&-", "2>&-"]))
def test_a_closed_stream_is_no_reason_for_a_traceback(tmp_path: Path, command: str, closed: str) -> None:
    fill(tmp_path / "data", batches=4)
    line = f"{sys.executable} -m runnel {command} {closed}"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stream_that_takes_ascii_only_gets_the_rest_escaped(tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        owner.publish("t", ["hällo 🎉".encode()])

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "runnel", "log", "cat", str(tmp_path / "data"), *arguments]
        environment = os.environ | {"PYTHONIOENCODING": "ascii"}
        return subprocess.run(command, capture_output=True, check=True, env=environment).stdout.decode("ascii")

    assert run().endswith("  h\\xe4llo \\U0001f389\n")
    assert json.loads(run("--json"))["value"] == "hällo 🎉"
