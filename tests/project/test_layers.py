"""Layers import only downwards, and every room of the house has declared its place."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.project.project import PACKAGE, ROOT, pyproject

# The rooms that own no socket, no clock and no event loop.
SANS_IO = {"core", "wire"}


def contract(kind: str) -> dict[str, Any]:
    (found,) = (c for c in pyproject()["tool"]["importlinter"]["contracts"] if c["type"] == kind)
    return dict(found)


def declared(layers: Iterable[str]) -> set[str]:
    return {name for layer in layers for name in re.findall(r"\w+", layer)}


def rooms(package: Path) -> set[str]:
    """The modules and folders directly in the package, the package's own `__init__` aside."""
    folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    return folders | {path.stem for path in package.glob("*.py")} - {"__init__"}


def test_every_room_has_its_place_in_the_layers() -> None:
    homeless = rooms(PACKAGE) - declared(contract("layers")["layers"])
    assert not homeless, f"add {sorted(homeless)} to the layers in pyproject.toml, [tool.importlinter]"


def test_a_folder_without_a_place_is_found(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    (tmp_path / "newcomer.py").touch()
    (tmp_path / "__init__.py").touch()
    assert rooms(tmp_path) - declared(["__main__", "(wire) | core"]) == {"newcomer"}


def test_the_rooms_that_do_no_io_are_under_its_contract() -> None:
    sources = {name.removeprefix("runnel.") for name in contract("forbidden")["source_modules"]}
    assert sources == (SANS_IO & rooms(PACKAGE)) | {"broker.group.logic"}


def test_imports_keep_the_contracts() -> None:
    # In a process of its own: it sets up logging for itself, and silences every logger that is there already.
    lint = [sys.executable, "-c", "import importlinter.cli; importlinter.cli.lint_imports_command()"]
    ended = subprocess.run([*lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
