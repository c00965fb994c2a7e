"""`runnel sub`: what is published is printed, from where it shall begin, safely, and settled once it is printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

import runnel as package
from runnel.journal.read.inspection import owner_of
from tests.cli.conftest import Command, Served
from tests.patience import PATIENCE


@contextmanager
def following(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    command = [sys.executable, "-m", "runnel", "sub", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a run in the background ignores it, and so would it
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as child:
        signal.signal(signal.SIGINT, before)
        assert child.stdout is not None
        try:
            yield child, child.stdout
        finally:
            child.kill()


def values(lines: list[dict[str, str]]) -> list[str]:
    return [line["value"] for line in lines]


def test_records_are_lines_from_wherever_it_shall_begin(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server)
    for number in range(5):
        runnel("pub", topic, f"v{number}", "--key", "k", *at)
    first, *_ = runnel("sub", topic, "--from", "earliest", "--count", "2", *at).out.splitlines()
    found = first.split("  ")
    assert (found[0], found[1], found[3:]) == (topic, "0", ["k", "v0"])
    assert values(runnel("sub", topic, "--from", "3", "--count", "2", "--json", *at).lines()) == ["v3", "v4"]
    assert runnel("sub", topic, "--from", "2000-01-01", "--count", "1", "--raw", *at).out == "v0\n"
    assert runnel("sub", topic, "--from", "latest", "--idle", "100ms", *at).out == ""
    assert runnel("sub", topic, "--count", "0", *at).out == ""


def test_it_follows_what_comes_and_ctrl_c_ends_it_quietly(runnel: Command, server: str, topic: str) -> None:
    with following(topic, "--from", "earliest", "--server", server) as (child, out):
        for number in range(3):
            runnel("pub", topic, f"v{number}", "--server", server)
            assert out.readline().endswith(f"  v{number}\n")
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130
        assert child.stderr is not None
        assert child.stderr.read() == ""


def test_a_reader_who_has_gone_ends_it_quietly(runnel: Command, server: str, topic: str) -> None:
    with following(topic, "--from", "earliest", "--raw", "--server", server) as (child, out):
        runnel("pub", topic, "one", "--server", server)
        assert out.readline() == "one\n"
        out.close()
        runnel("pub", topic, "two", "--server", server)
        assert child.wait(PATIENCE) == 1
        assert child.stderr is not None
        assert child.stderr.read() == ""


def test_bytes_that_are_no_text_are_shown_safely(runnel: Command, server: str, topic: str) -> None:
    with package.blocking.open(server) as broker:
        broker.publish(topic, b"\xff\x1b[2J")
        broker.publish(topic, b"\x1b[2Jclear")
    at = ("--server", server, "--from", "0", "--count", "2")
    assert [line.split("  ")[-1] for line in runnel("sub", topic, *at).out.splitlines()] == [
        "hex:ff1b5b324a",
        "\\x1b[2Jclear",
    ]
    first, second = runnel("sub", topic, *at, "--json").lines()
    assert (first["value_base64"], second["value"]) == ("/xtbMko=", "\x1b[2Jclear")


def test_a_pattern_covers_many_topics(runnel: Command, server: str, topic: str) -> None:
    for name in ("a", "b"):
        runnel("pub", f"{topic}.{name}", name, "--server", server)
    lines = runnel("sub", f"{topic}.*", "--from", "earliest", "--count", "2", "--json", "--server", server).lines()
    assert [line["topic"] for line in lines] == [f"{topic}.a", f"{topic}.b"]


def test_members_of_a_group_share_and_settle_what_was_printed(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server, "--group", "g", "--json")
    runnel("pub", topic, "x", "--count", "10", "--server", server)
    first = runnel("sub", topic, "--count", "4", *at).lines()
    second = runnel("sub", topic, "--idle", "300ms", *at).lines()
    assert [line["offset"] for line in first + second] == list(range(10))
    assert {line["attempt"] for line in first + second} == {1}


def test_a_name_goes_on_behind_what_was_printed(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server, "--name", f"laptop {topic}", "--json")
    runnel("pub", topic, "x", "--count", "10", "--server", server)
    offsets = [line["offset"] for line in runnel("sub", topic, "--count", "3", *at).lines()]
    offsets += [line["offset"] for line in runnel("sub", topic, "--count", "2", *at).lines()]
    offsets += [line["offset"] for line in runnel("sub", topic, "--idle", "300ms", *at).lines()]
    assert offsets == list(range(10))


def test_missed_records_are_reported(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server)
    runnel("pub", topic, "x", "--count", "10", *at)
    name = ("--name", f"late {topic}")
    assert runnel("sub", topic, "--count", "1", *name, *at).status == 0
    runnel("topic", "trim", topic, "--before", "5", "--yes", *at)
    done = runnel("sub", topic, "--count", "1", "--json", *name, *at)
    gap, record = done.lines()
    assert (gap["gap"]["first"], gap["gap"]["end"], record["offset"]) == (1, 5, 5)
    assert done.err.startswith("runnel: missed 4 records")


def test_it_outlives_its_server(tmp_path: Path, runnel: Command) -> None:
    served = Served(tmp_path, "--data", "data", "--unix", "door.sock")
    unix = served.listeners["unix"]["url"]
    with following("t", "--from", "earliest", "--json", "--server", unix) as (child, out):
        runnel("pub", "t", "one", "--server", unix)
        assert json.loads(out.readline())["value"] == "one"
        assert served.stop() == 0
        again = Served(tmp_path, "--data", "data", "--unix", "door.sock")
        try:
            runnel("pub", "t", "two", "--server", unix)
            assert json.loads(out.readline())["offset"] == 1
        finally:
            again.stop()
        assert child.poll() is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("a..b",), "invalid_pattern"),
        (("t", "--from", "noon"), "invalid_option"),
        (("t", "--idle", "soon"), "invalid_option"),
        (("t", "--count", "-1"), "invalid_option"),
    ],
)
def test_invalid_arguments_are_refused_before_any_request(
    runnel: Command, arguments: tuple[str, ...], code: str
) -> None:
    done = runnel("sub", *arguments, "--server", "runnel://127.0.0.1:1")
    assert (done.status, done.out) == (2, "")
    assert done.err.endswith(f"({code})\n")


def test_an_offset_of_a_pattern_makes_no_sense(runnel: Command, server: str) -> None:
    done = runnel("sub", "a.>", "--from", "5", "--server", server)
    assert (done.status, done.err.endswith("(invalid_option)\n")) == (2, True)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_in_the_folder_of_a_server_it_waits_for_the_next_one_and_does_not_take_over(
    tmp_path: Path, runnel: Command, ending: signal.Signals
) -> None:
    folder = str(tmp_path / "data")
    first = Served(tmp_path)
    runnel("pub", "orders", "one", "--data", folder)
    with following("orders", "--start", "earliest", "--raw", "--data", folder) as (child, out):
        assert out.readline() == "one\n"
        first.stop(ending)
        assert child.stderr is not None
        assert child.stderr.readline() == "runnel: connection lost; waiting for the server\n"
        second = Served(tmp_path)
        assert child.stderr.readline() == "runnel: connected again\n"
        runnel("pub", "orders", "two", "--data", folder)
        assert out.readline() == "two\n"
        assert second.stop() == 0


def test_a_folder_that_it_opened_itself_goes_to_a_server_that_starts(tmp_path: Path, runnel: Command) -> None:
    folder = str(tmp_path / "data")
    runnel("pub", "orders", "one", "--data", folder)
    with following("orders", "--start", "earliest", "--raw", "--data", folder) as (_, out):
        assert out.readline() == "one\n"
        server = Served(tmp_path)
        assert owner_of(tmp_path / "data") == (server.process.pid, True, False)
        runnel("pub", "orders", "two", "--data", folder)
        assert out.readline() == "two\n"
        assert server.stop() == 0
