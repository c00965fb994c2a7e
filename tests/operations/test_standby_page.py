"""The commands of docs/howto/warm-standby.md, in its order, with servers in processes of their own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runnel.cli.main import main
from tests.docs.pages import marked_for
from tests.docs.shell import Block
from tests.patience import PATIENCE
from tests.ports import free_port

BLOCKS = [block for block in marked_for(__file__)["warm-standby"] if isinstance(block, Block)]
(SERVE, FOLLOW), LOOK, PROMOTE, (REJOIN,), (SERVE_SYNC,), (RELEASE,), PROMOTIONS = (one.commands for one in BLOCKS)
ADDRESSES = {f"runnel://10.0.0.{host}": f"runnel://127.0.0.1:{port}" for host, port in ((7, 7788), (8, 7798))}


class Pair:
    """What runs in the two terminals of the page, at ports that are free."""

    def __init__(self, printed: pytest.CaptureFixture[str]) -> None:
        self._printed, self.running = printed, dict[str, subprocess.Popen[str]]()
        self._ports = {port: str(free_port()) for port in ("7788", "7798")}

    def here(self, command: str) -> list[str]:
        """The words of a command of the page behind `runnel`, with the addresses of this test."""
        for name, address in ADDRESSES.items():
            command = command.replace(name, address)
        for port, free in self._ports.items():
            command = command.replace(port, free)
        return shlex.split(re.sub(r"--http-port \d+", "--http-port off", command))[1:]

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a server; it listens when this returns."""
        words = self.here(command)
        if words[0] == "serve":
            words += ["--port", self._ports["7788"], "--json-port", "off", "--http-port", "off"]
        process = subprocess.Popen(
            [sys.executable, "-m", "runnel", *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running[words[words.index("--data") + 1]] = process
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        assert json.loads(line)["listeners"]
        return process

    def run(self, command: str) -> str:
        """What a command prints."""
        status, said = self._try(command)
        assert status == 0, f"{command}: {said}"
        return said

    def _try(self, command: str) -> tuple[int, str]:
        self._printed.readouterr()
        status = main(self.here(command))
        printed = self._printed.readouterr()
        return status, printed.err if status else printed.out

    def until(self, command: str, is_said: Callable[[str], object]) -> None:
        """Run a command until it prints this."""
        end = time.monotonic() + PATIENCE
        while not is_said(said := self._try(command)[1]):
            assert time.monotonic() < end, said

    def kill(self, folder: str) -> None:
        """kill -9."""
        process = self.running.pop(folder)
        process.kill()
        process.communicate()


@pytest.fixture
def pair(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.chdir(tmp_path)
    made = Pair(capsys)
    yield made
    for folder in [*made.running]:
        made.kill(folder)


def follows(said: str) -> bool:
    return re.search(r"^standby +\S+: following, a?sync, 0 B behind", said, re.MULTILINE) is not None


def test_a_failover_as_the_page_tries_it(pair: Pair) -> None:
    pair.start(SERVE)
    pair.start(FOLLOW)
    publish, ask_primary, ask_standby = LOOK
    pair.run(publish)
    pair.until(ask_primary, follows)
    assert re.search(r"^role +standby, async, generation 0$", pair.run(ask_standby), re.MULTILINE)
    pair.kill("a")
    promote, read = PROMOTE
    pair.run(promote)
    assert "hello" in pair.run(read)
    pair.start(REJOIN)
    pair.until(ask_standby, follows)


def is_sync(said: str) -> bool:
    return follows(said) and "role" in said and "primary, sync" in said


@pytest.fixture
def synchronous(pair: Pair) -> Pair:
    pair.start(SERVE_SYNC)
    pair.start(FOLLOW)
    pair.until(LOOK[1], is_sync)
    return pair


@pytest.mark.nightly
def test_a_primary_goes_on_without_its_standby(synchronous: Pair) -> None:
    synchronous.kill("b")
    synchronous.run(RELEASE)
    synchronous.run(LOOK[0])


@pytest.mark.nightly
@pytest.mark.parametrize("command", PROMOTIONS)
def test_each_way_to_promote(pair: Pair, command: str) -> None:
    is_asynchronous = "--primary-is-down" in command or "--fence" in command
    primary = pair.start(SERVE if is_asynchronous else SERVE_SYNC)
    pair.start(FOLLOW)
    pair.run(LOOK[0])
    pair.until(LOOK[1], follows if is_asynchronous else is_sync)
    if "--fence" not in command:
        pair.kill("a")
    if "--data" in command:
        pair.kill("b")
        pair.run(command.replace("/var/lib/runnel", "b"))
        pair.start(FOLLOW)
    else:
        pair.run(re.sub("'ssh .*'", f"'kill -9 {primary.pid}'", command))
    assert "hello" in pair.run(PROMOTE[1])
