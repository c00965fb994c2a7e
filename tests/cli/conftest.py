"""The command, run in this process: what it printed, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runnel.cli.main import main


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


@pytest.fixture
def runnel(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `runnel` with these arguments, in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNNEL_DATA", raising=False)

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as stopped:  # argparse
            status = int(stopped.code or 0)
        printed = capsys.readouterr()
        return Outcome(status, printed.out, printed.err)

    return run
