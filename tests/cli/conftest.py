"""The command, run in this process: what it printed, and how it ended."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runnel.cli.main import main
from tests.patience import PATIENCE


class Outcome(NamedTuple):
    """What a command printed, and how it ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document that it printed."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """The JSON lines that it printed."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Outcome]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Served:
    """`runnel serve` in a process of its own, on ports that were free."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [sys.executable, "-m", "runnel", "serve", "--port", "0", "--json-port", "0", "--json"]
        command += [] if "--http-port" in arguments else ["--http-port", "off"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNNEL_")}
        self.errors = folder / "serve.err"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *map(str, arguments)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        self.ready: dict[str, Any] = json.loads(line)
        self.listeners: dict[str, dict[str, Any]] = {door["name"]: door for door in self.ready["listeners"]}
        self.url: str = self.listeners["native"]["url"]

    def told(self) -> str:
        """What it wrote to the error stream."""
        return self.errors.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        """Have it stop; its exit code."""
        self.process.send_signal(number)
        return self.end(timeout)

    def end(self, timeout: float = PATIENCE) -> int:
        """Its exit code, once it is gone; whatever happens it is gone."""
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on a folder, for all tests that use topics of their own."""
    served = Served(tmp_path_factory.mktemp("served"), "--data", "data")
    try:
        yield served
    finally:
        assert served.stop() == 0
        assert "Traceback" not in served.told()


@pytest.fixture
def server(one_server: Served) -> str:
    """The address of a server."""
    return one_server.url


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    name: str = request.node.name
    return "t." + "".join(one if one.isalnum() else "_" for one in name)[:200]


@pytest.fixture
def runnel(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `runnel` with these arguments, in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RUNNEL_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as stopped:  # argparse
            status = int(stopped.code or 0)
        printed = capsys.readouterr()
        return Outcome(status, printed.out, printed.err)

    return run
