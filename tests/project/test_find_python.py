"""`make` finds a Python that works, or says which command installs one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.project import ROOT

OLD = "case $2 in *version_info*) exit 1;; *) echo 3.9.2;; esac"
BARE = "case $2 in *ensurepip*) exit 1;; *) echo 3.12.0;; esac"
GOOD = "echo 3.12.0"
BROKEN_SHIM = "echo 'command not found' >&2; exit 127"


def find(folder: Path, interpreters: dict[str, str], python: str = "") -> subprocess.CompletedProcess[str]:
    """Run tools/find-python where only the given, scripted interpreters exist."""
    for name, script in interpreters.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    command = ["/bin/sh", str(ROOT / "tools" / "find-python")]
    environment = {"PATH": str(folder), "PYTHON": python}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("interpreters", "chosen"),
    [
        ({"python3": GOOD, "python3.13": GOOD}, "python3"),
        ({"python3": OLD, "python3.12": GOOD}, "python3.12"),
        ({"python3": BARE, "python3.11": GOOD}, "python3.11"),
        ({"python3": BROKEN_SHIM, "python3.13": GOOD}, "python3.13"),
    ],
)
def test_the_first_that_works_is_chosen(tmp_path: Path, interpreters: dict[str, str], chosen: str) -> None:
    assert find(tmp_path, interpreters).stdout == f"{chosen}\n"


@pytest.mark.parametrize(
    ("interpreters", "missing"),
    [
        ({}, "Python 3.11 or newer; found none"),
        ({"python3": OLD}, "Python 3.11 or newer; found only: python3 (3.9.2)"),
        ({"python3": BARE, "python3.11": OLD}, "the venv module, and this Python comes without it: python3 (3.12.0)"),
    ],
)
def test_what_is_missing_is_named_with_the_command(tmp_path: Path, interpreters: dict[str, str], missing: str) -> None:
    done = find(tmp_path, interpreters)
    assert (done.returncode, done.stdout) == (1, "")
    assert missing in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr
    assert "brew install python" in done.stderr


def test_a_named_python_is_the_only_one_tried(tmp_path: Path) -> None:
    done = find(tmp_path, {"python3": GOOD, "mine": OLD}, python=str(tmp_path / "mine"))
    assert done.returncode == 1
    assert "found only:" in done.stderr


def test_the_python_that_runs_this_would_do(tmp_path: Path) -> None:
    assert find(tmp_path, {}, python=sys.executable).returncode == 0
