"""The `runnel` command, run as `python -m runnel` runs it, in this process: a process for each would cost 0.3 s.

`test_golden.py` compares one command with a real subprocess, so that the two ways cannot drift apart.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import runnel

COLUMNS = "100"


class Outcome(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """The environment of a command: a fixed width, no color, no settings of this machine, and this `runnel`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNNEL_", "PYTHONPATH"))}
    source = str(Path(str(runnel.__file__)).parents[1])
    return kept | {"COLUMNS": COLUMNS, "NO_COLOR": "1", "PYTHONPATH": source}


def run(*arguments: str, cwd: Path) -> Outcome:
    """Run `runnel` with these arguments, in the folder `cwd`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment(), clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["runnel", *arguments]))
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy warns where `runnel.__main__` was imported before
        try:
            runpy.run_module("runnel", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Outcome(code, out.getvalue(), err.getvalue())


def run_apart(*arguments: str, cwd: Path) -> Outcome:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "runnel", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
