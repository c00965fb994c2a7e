"""`make test` finds a browser, installs one, or names the command; BROWSER=0 leaves its tests out, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import nightly_beyond
from tests.project.project import ROOT
from tools import chromium

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n'
UBUNTU = "ID=ubuntu\nID_LIKE=debian\n"


def executable(path: Path, script: str = "exit 0") -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on its PATH, of which everything is said by the test: Debian, and root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BROWSER", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(chromium, "SYSTEM", tmp_path / "os-release")
    (tmp_path / "os-release").write_text(DEBIAN)
    return tmp_path


def test_the_first_browser_on_the_path_is_taken(machine: Path) -> None:
    executable(machine / "google-chrome")
    assert chromium.find() == str(machine / "google-chrome")
    executable(machine / "chromium")
    assert chromium.find() == str(machine / "chromium")
    assert chromium.main() == 0


def test_as_root_on_debian_it_is_installed(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of apt-get: what it was asked for, and the browser that is there afterwards.
    shell = (
        'echo "$@" >> "{0}/asked"; case "$*" in *install*) echo > "{0}/chromium"; /bin/chmod +x "{0}/chromium";; esac'
    )
    executable(machine / "apt-get", shell.format(machine))
    assert chromium.main() == 0
    asked = (machine / "asked").read_text().splitlines()
    waiting = "-q -o DPkg::Lock::Timeout=300"
    assert asked == [f"{waiting} update", f"{waiting} install --yes --no-install-recommends chromium"]
    assert "Installing Chromium" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["not root", "not Debian", "no apt-get", "apt-get fails"])
def test_elsewhere_the_command_is_named_and_make_fails(
    machine: Path, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if where != "no apt-get":
        executable(machine / "apt-get", "echo no such package; exit 100" if where == "apt-get fails" else "exit 99")
    if where == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if where == "not Debian":
        (machine / "os-release").write_text(UBUNTU)
    assert chromium.main() == 1
    said = capsys.readouterr()
    assert "sudo apt-get install chromium" in said.err
    assert "BROWSER=0 make test" in said.err
    assert ("no such package" in said.err) == (where == "apt-get fails")


def test_who_wants_no_browser_needs_none(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", "0")
    assert chromium.main() == 0


@pytest.mark.parametrize("processes", nightly_beyond(1, ["1", "0"]))
def test_without_a_browser_its_tests_are_left_out_and_the_summary_says_so(processes: str, tmp_path: Path) -> None:
    done = run_browser_tests(tmp_path, processes, BROWSER="0")
    assert "BROWSER=0: the tests in tests/browser, that need Chromium, were not run" in done.stdout
    assert " passed" not in done.stdout
    assert "error" not in done.stdout.lower(), done.stdout


def test_without_a_browser_and_without_saying_so_they_fail_with_the_command(tmp_path: Path) -> None:
    done = run_browser_tests(tmp_path, "0", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "sudo apt-get install chromium" in done.stdout


def run_browser_tests(folder: Path, processes: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One file of the browser tests, in a pytest of its own."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV", "BROWSER"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", processes, f"--basetemp={folder}/base"]
    return subprocess.run(
        [*command, "tests/browser/test_complaints.py", "-k", "policy"],
        cwd=ROOT,
        env=known | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
