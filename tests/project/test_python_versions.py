"""`make python-versions` finds the Pythons that work, and fails if there is none or one of them fails."""

import os
from pathlib import Path

import pytest

from tools import python_versions


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on its PATH and nothing of pyenv's."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(python_versions, "VERSIONS", ("3.98", "3.99"))
    return tmp_path


def python(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_one_that_only_seems_to_be_there_is_passed_over(machine: Path) -> None:
    python(machine / "python3.99", "echo 'pyenv: python3.99: command not found' >&2; exit 127")
    python(machine / "python3.98", "echo 3.97")
    assert python_versions.find("3.99") is None
    kept = python(machine / "pyenv" / "versions" / "3.99.1" / "bin" / "python", "echo 3.99")
    assert python_versions.find("3.99") == kept
    assert python_versions.find("3.98") is None
    python(machine / "python3.98", "echo 3.98")
    assert python_versions.find("3.98") == "python3.98"


def test_the_command_is_run_by_each_and_one_that_fails_is_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def made(program: str, version: str) -> Path:
        return Path(python(machine / f"made-{version}", f'echo "{version} $*"; [ {version} != 3.99 ]'))

    monkeypatch.setattr(python_versions, "environment", made)
    assert python_versions.main(["-m", "pytest"]) == 1
    assert "none is installed" in capfd.readouterr().err
    python(machine / "python3.98", "echo 3.98")
    assert python_versions.main(["-m", "pytest"]) == 0
    assert {"Python 3.99 is not installed: left out", "3.98 -m pytest"} <= {*capfd.readouterr().out.splitlines()}
    python(machine / "python3.99", "echo 3.99")
    assert python_versions.main(["-m", "pytest"]) == 1
    said = capfd.readouterr()
    assert {"3.98 -m pytest", "3.99 -m pytest"} <= {*said.out.splitlines()}
    assert said.err == "failed on Python 3.99\n"
