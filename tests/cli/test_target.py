"""What a command works on: a folder or a server, and which of them counts."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from runnel.cli.errors import CommandError
from runnel.cli.server_address import server_of
from runnel.cli.target import add_target, find_group, open_to_change, open_to_inspect
from tests.cli.conftest import Command, Served
from tests.journal.folders import Owner, fill
from tests.patience import PATIENCE

URL = "runnel://host:1"


def chosen(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_target(parser)
    return parser.parse_args(arguments)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RUNNEL_SERVER", "RUNNEL_DATA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_what_is_said_on_the_command_line_counts_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNEL_SERVER", URL)
    assert server_of(chosen("--data", "x")) is None
    assert server_of(chosen("x")) is None
    assert server_of(chosen("--server", "runnel://other:2")) == "runnel://other:2"
    assert server_of(chosen()) == URL
    for arguments in (("--server", URL, "--data", "x"), ("--server", URL, "x")):
        with pytest.raises(CommandError, match="a server and a folder were named"):
            server_of(chosen(*arguments))


def test_the_environment_counts_more_than_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_of(chosen()) is None
    (here / "runnel.toml").write_text(f'server = "{URL}"')
    assert server_of(chosen()) == URL
    monkeypatch.setenv("RUNNEL_DATA", "x")
    assert server_of(chosen()) is None
    monkeypatch.setenv("RUNNEL_SERVER", "runnel://env:1")
    assert server_of(chosen()) == "runnel://env:1"


def test_a_group_is_found_by_its_name_alone_where_that_is_clear(here: Path) -> None:
    with Owner(here / "data") as owner:
        for name, pattern in (("a", "orders"), ("b", "orders"), ("b", "jobs")):
            owner.group(name, pattern)
    with open_to_change(chosen("data")) as target:
        assert find_group(target, "a", None) == "orders"
        assert find_group(target, "b", "jobs") == "jobs"
        with pytest.raises(CommandError, match="say which with --topic"):
            find_group(target, "b", None)
        with pytest.raises(CommandError, match="no group 'c' on 'jobs' in 'data'"):
            find_group(target, "c", "jobs")


def test_a_folder_and_a_server_tell_the_same_of_a_topic(here: Path, server: str, runnel: Command) -> None:
    fill(here / "data", batches=4)
    with open_to_inspect(chosen("data")) as folder:
        ours = folder.topic("orders")
    assert runnel("pub", "told.alike", "x", "--server", server).status == 0
    with open_to_inspect(chosen("--server", server)) as remote:
        theirs = remote.topic("told.alike")
        for target, name in ((folder.name, "'data'"), (remote.name, server)):
            assert target == name
        with pytest.raises(CommandError, match=f"no topic 'none' in {server}"):
            remote.topic("none")
    assert {"topic", "epoch", "first", "end", "bytes", "groups", "cursors"} <= ours.keys() & theirs.keys()


FOLDER_ONLY = [
    ("log", "info"),
    ("log", "verify"),
    ("log", "repair", "--yes"),
    ("log", "export"),
    ("log", "snapshot", "copy"),
    ("backup", "copy"),
    ("log", "staged"),
]


@pytest.mark.parametrize("command", FOLDER_ONLY)
def test_what_needs_the_folder_says_so_when_it_is_given_a_server(runnel: Command, command: tuple[str, ...]) -> None:
    done = runnel(*command, "--server", URL)
    assert (done.status, done.out) == (2, "")
    words = " ".join(command[: 2 if command[0] == "log" else 1])
    assert done.err.startswith(f"runnel: `runnel {words}` works on a folder, and '{URL}' is a server: say --data DIR")
    assert done.err.endswith("(needs_folder)\n")


def test_a_missing_server_is_reported_in_one_line(runnel: Command) -> None:
    for command in (("topic", "list"), ("pub", "t", "v"), ("sub", "t"), ("top", "--once"), ("bench",), ("info",)):
        done = runnel(*command, "--server", "runnel://127.0.0.1:1")
        assert done.status == 1, command
        (line,) = done.err.splitlines()
        assert line.startswith("runnel: cannot reach")
        assert line.endswith("(unreachable)")


@pytest.mark.parametrize("url", ["runnel://host:port", "data/", "host:7788"])
def test_an_invalid_address_gets_an_error(runnel: Command, url: str) -> None:
    for command in (("topic", "list"), ("pub", "t", "v")):
        done = runnel(*command, "--server", url)
        assert (done.status, done.out) == (2, "")
        assert done.err.endswith("(bad_address)\n")


def test_a_folder_that_is_served_is_changed_through_its_server(here: Path, runnel: Command) -> None:
    served = Served(here, "--data", "data")
    try:
        assert runnel("topic", "create", "orders", "--data", "data").status == 0
        assert runnel("pub", "orders", "paid", "--data", "data").out == "orders  0\n"
        assert runnel("topic", "show", "orders", "--server", served.url, "--json").json()["end"] == 1
        assert runnel("sub", "orders", "--group", "g", "--count", "1", "--server", served.url).status == 0
        assert runnel("group", "pause", "g", "--data", "data").out == "group 'g' on 'orders' is paused\n"
        assert runnel("topic", "set", "orders", "retention_age=5").out == "retention_age  5\n"
        assert runnel("topic", "delete", "orders", "--yes").out == "topic 'orders' deleted, and with it the groups g\n"
        command = [sys.executable, "-m", "runnel", "serve", "--data", "data", "--port", "0", "--json-port", "off"]
        command += ["--http-port", "off"]
        again = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE
        )  # it owns the folder, or nothing
        assert (again.returncode, f"in use by process {served.process.pid}" in again.stderr) == (1, True)
    finally:
        assert served.stop() == 0
    assert runnel("topic", "list", "--json").json() == []
